"""Reads records from messages in any JSON layout, as the ``[[stream]]`` sections of the settings describe.

`settings` defines the sections, `paths` and `conditions` the expressions in them, and `reading` applies them to
messages. This package may import `broker`. Start reading at `reading`.
"""
