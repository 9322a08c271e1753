"""Reads Avro data by the schema of its writer (Apache Avro 1.12, binary encoding).

`schema` parses schemas. `reading` decodes one datum into a document, and is the reference; `messages` decodes a message
that names its schema. `program` compiles a schema for a loop that finds the scalars of many data at once. This package
imports only `documents`, `framing` and `layouts` from the package above.
"""
