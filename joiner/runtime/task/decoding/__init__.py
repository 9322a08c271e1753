"""Decodes the messages of one unit and topic into columns for each stream of each operator, and into dead letters.

Start with `decoder`, which reads the pipeline's own records, and `intake`, which it returns. `mapped` reads messages of
other programs, and `arrow` (needs the ``arrow`` extra) messages with many records; `factory` chooses between them.
From the package above, this one imports only `payloads`.
"""
