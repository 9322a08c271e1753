"""Messages that hold many records or results each, as Arrow IPC streams. docs/formats.md defines them.

They need the extra ``arrow``; nothing is imported from here unless a setting asks for Arrow.
"""
