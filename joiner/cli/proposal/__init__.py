"""The ``lsb-init`` command: looks at messages, and proposes settings that join them.

`samples` defines what is looked at, which `sources` reads from topics or files. `fields` lists the fields of JSON
messages, and `guess` finds out which of them are keys, times, values and ids. `settings` writes the proposal as TOML.
"""
