"""Reads the records of mapped streams from many messages at once, with the same result as `joiner.mapping.reading`.

`readers` reads JSON, and messages of any format by programs of their schemas; `avro` and `protobuf` make these programs
and decode what they find. `protobuf` needs the extra ``protobuf``.
"""
