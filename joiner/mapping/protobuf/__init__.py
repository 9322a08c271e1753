"""Reads messages of Protocol Buffers by the schema of their writer.

`compiling` compiles schemas to descriptors. `reading` decodes a message into a document, by the descriptor of its type;
`wellknown` defines the types that have a form of their own there, and `wire` reads the encoding. `messages` applies
them to messages that name their schema. From the package above, this one imports only `documents` and `framing`.

All but `compiling` need the extra `protobuf`.
"""
