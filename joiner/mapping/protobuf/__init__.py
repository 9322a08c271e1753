"""Reads messages of Protocol Buffers by the schema of their writer.

`compiling` compiles schemas to descriptors. `reading` decodes a message into a document, by the descriptor of its type,
and is the reference; `wellknown` defines the types that have a form of their own there, and `wire` reads the encoding.
`messages` applies them to messages that name their schema. `program` compiles a type for a loop in `scanning`, which
finds the scalars of many messages at once.

This package imports only `documents`, `framing` and `layouts` from the package above. It needs the
extra `protobuf`, but `compiling` can be imported without it.
"""
