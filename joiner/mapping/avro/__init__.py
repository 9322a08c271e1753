"""Reads Avro data by the schema of its writer (Apache Avro 1.12, binary encoding).

`schema` parses schemas. `reading` decodes one datum into a document, and is the reference. `program` compiles a schema
for a loop that finds the scalars of many data at once. From the package above, this one imports only `documents` and
`layouts`.
"""
