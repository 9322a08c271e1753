"""Decodes messages of each format (`StreamSettings.format`) into documents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from broker.wire.records import Unreadable
from joiner.mapping.avro.reading import decode_datum
from joiner.mapping.avro.schema import AvroType, parse_schema
from joiner.mapping.documents import decode_document
from joiner.mapping.framing import AVRO_KIND, Schemas, known_schema, split_header

JSON: Final = "json"
JSON_SCHEMA: Final = "json_schema"
AVRO: Final = "avro"
PROTOBUF: Final = "protobuf"

Decode = Callable[[bytes], Any]


def document_decoder(message_format: str, schemas: Schemas) -> Decode:
    """Return a function that decodes a message of a format into a document.

    The function raises `Unreadable`, with the reason, if the message is invalid, and the errors of `Schemas.get`.
    """
    if message_format == JSON_SCHEMA:
        return lambda value: decode_document(split_header(value)[1])
    if message_format == AVRO:
        return lambda value: _decode_avro(value, schemas)
    if message_format == PROTOBUF:
        from joiner.mapping.protobuf.messages import decode_framed  # noqa: PLC0415 - protobuf is an extra

        return lambda value: decode_framed(value, schemas)
    return decode_document


def _decode_avro(value: bytes, schemas: Schemas) -> Any:
    schema_id, data = split_header(value)
    schema = avro_schema(schemas, schema_id)
    try:
        return decode_datum(schema, data)
    except Unreadable as error:
        message = f"not Avro of the schema {schema_id}: {error}"
        raise Unreadable(message) from error


def avro_schema(schemas: Schemas, schema_id: int) -> AvroType:
    """Return the Avro schema with an id. Raises `Unreadable` if it is none, and the errors of `Schemas.get`."""
    found = known_schema(schemas, schema_id, AVRO_KIND)
    try:
        return parse_schema(found.text, found.references)
    except ValueError as error:
        message = f"the schema {schema_id} cannot be used: {error}"
        raise Unreadable(message) from error
