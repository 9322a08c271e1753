"""The messages of another program, in JSON or in Avro, and the settings with which the joiner reads them.

The thing is in a nested record, and both sides of the join are in one topic. The messages contain the same values as
those in the project's own form and, as JSON, have the same size. In Avro, they begin with the id of their schema.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any, Final

import fastavro
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from joiner.mapping.framing import add_header

QUANTITIES: Final = ("speed", "torque")

_STREAM: Final = """
[[stream]]
name = "{quantity}"
topic = "{topic}"
format = "{format}"
key = "$.device.name"
time = "$.unixtime"
value = "$.value"
id = "$.no"
where = "$.type == '{quantity}'"
"""
_DEVICE: Final = {"type": "record", "name": "Device", "fields": [{"name": "name", "type": "string"}]}
_TYPES: Final = {"device": _DEVICE, "type": "string", "unixtime": "long", "value": "double", "no": "string"}
_SCHEMA: Final = {
    "type": "record",
    "name": "Reading",
    "fields": [{"name": name, "type": of_name} for name, of_name in _TYPES.items()],
}
SCHEMA: Final = json.dumps(_SCHEMA, separators=(",", ":"))
"""The schema of the messages in Avro."""
_PARSED: Final = fastavro.parse_schema(_SCHEMA)


def document(thing: str, quantity: str, time_ms: int, value: float, identity: str) -> dict[str, Any]:
    """Return the content of a message."""
    return {"device": {"name": thing}, "type": quantity, "unixtime": time_ms, "value": value, "no": identity}


def register(registry: str) -> int:
    """Register the schema, if that has not been done yet, and return its id. ``registry``: the URL of the registry."""
    with SchemaRegistryClient({"url": registry}) as client:
        return int(client.register_schema("reading", Schema(SCHEMA, "AVRO")))


def avro_encoder(schema_id: int) -> Callable[[dict[str, Any]], bytes]:
    """Return a function that encodes the content of a message in Avro, with the id of the schema."""

    def encode(content: dict[str, Any]) -> bytes:
        written = io.BytesIO()
        fastavro.schemaless_writer(written, _PARSED, content)
        return add_header(schema_id, written.getvalue())

    return encode


def stream_settings(topic: str, message_format: str, registry: str) -> str:
    """Return the settings of the streams of a topic, which select the two sides of the join, and of the registry."""
    streams = (_STREAM.format(topic=topic, format=message_format, quantity=quantity) for quantity in QUANTITIES)
    return "\n".join([f'[registry]\nurl = "{registry}"', *streams])
