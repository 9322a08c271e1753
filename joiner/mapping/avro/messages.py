"""Decodes messages in Avro whose schemas are in a registry (see `joiner.mapping.framing`)."""

from __future__ import annotations

from typing import Any

from broker.wire.records import Unreadable
from joiner.mapping.avro.reading import decode_datum
from joiner.mapping.avro.schema import AvroType, parse_schema
from joiner.mapping.framing import AVRO_KIND, Schemas, known_schema, split_header


def decode_framed(value: bytes, schemas: Schemas) -> Any:
    """Decode a message. Raises `Unreadable`, with the reason, if it is invalid, and the errors of `Schemas.get`."""
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
