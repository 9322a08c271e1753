"""The ``lsb-init`` command: looks at messages, and proposes settings that join them.

`samples` defines what is looked at, which `sources` reads from topics or files and `mqtt` from MQTT topics. `formats`
finds out their format and decodes them, `fields` lists the fields of decoded messages, and `guess` finds out which of
them are keys, times, values and ids. `settings` writes the proposal as TOML. `mqtt` reads messages as the connector
does, with the parsers of `connector.formats`.
"""
