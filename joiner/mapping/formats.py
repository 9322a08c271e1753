"""Decodes messages of each format (`StreamSettings.format`) into documents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from joiner.mapping.avro import messages as avro
from joiner.mapping.documents import decode_document
from joiner.mapping.framing import Schemas, split_header

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
        return lambda value: avro.decode_framed(value, schemas)
    if message_format == PROTOBUF:
        from joiner.mapping.protobuf.messages import decode_framed  # noqa: PLC0415 - protobuf is an extra

        return lambda value: decode_framed(value, schemas)
    return decode_document
