"""Messages in layouts that other organisations designed, as docs/your_data.md shows them.

Each layout has two streams. A message contains a value of one of them, so the two are never measured at the same
moment. Optional members that say nothing about the measurement are left out.
"""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import fastavro

from joiner.mapping.framing import RegisteredSchema, SchemaTable, add_header

BASE_MS: Final = 1_700_000_000_000
"""When the measurements begin, in ms since the epoch."""

BEHIND_MS: Final = (*[0] * 20, 900, 5_000, 60_000)
"""How far measurements may be behind the newest one."""


class Message(NamedTuple):
    """A Kafka message. ``topic``: as in the settings on the page."""

    topic: str
    key: str
    value: bytes


class Stream(NamedTuple):
    """A stream of a layout, with a usual value."""

    name: str
    topic: str
    usual: float


class Measurement(NamedTuple):
    """What a message says. ``time_ms``: in ms since the epoch. ``number``: distinguishes the messages of a layout."""

    stream: Stream
    thing: str
    time_ms: int
    value: float
    number: int


@dataclass(frozen=True)
class Layout:
    """A layout with its two streams. ``build`` returns the content of a message.

    ``avro_schema`` returns the schema of a stream's messages, if they are Avro. Its id is the stream's place, from 1.
    """

    streams: tuple[Stream, Stream]
    build: Callable[[Measurement], dict[str, Any]]
    resolution_ms: int = 1
    """All times are multiples of this."""
    avro_schema: Callable[[Stream], dict[str, Any]] | None = None

    def message(self, measured: Measurement) -> Message:
        """Return the message about a measurement."""
        if self.avro_schema is None:
            value = json.dumps(self.build(measured), separators=(",", ":")).encode()
        else:
            written = io.BytesIO()
            fastavro.schemaless_writer(written, self.avro_schema(measured.stream), self.build(measured))
            value = add_header(self.streams.index(measured.stream) + 1, written.getvalue())
        return Message(measured.stream.topic, measured.thing, value)

    def schemas(self) -> SchemaTable:
        """Return the schemas of the messages."""
        by_id = enumerate(self.streams, 1) if self.avro_schema is not None else ()
        return SchemaTable(
            {
                schema_id: RegisteredSchema("AVRO", json.dumps(self.avro_schema(stream)))
                for schema_id, stream in by_id
                if self.avro_schema is not None
            }
        )

    def measurements(self, draw: random.Random, things: Sequence[str], count: int) -> Iterator[Measurement]:
        """Yield ``count`` measurements of both streams, some of them out of order."""
        clock = BASE_MS
        for number in range(count):
            clock += draw.choice([0, 1, 40, 700])
            time_ms = clock - draw.choice(BEHIND_MS)
            stream = draw.choice(self.streams)
            value = round(stream.usual * draw.uniform(0.9, 1.1), 2)
            yield Measurement(stream, draw.choice(things), time_ms - time_ms % self.resolution_ms, value, number)

    def messages(self, draw: random.Random, things: Sequence[str], count: int) -> Iterator[Message]:
        """Yield ``count`` messages of both streams, some of them out of order."""
        return map(self.message, self.measurements(draw, things, count))


def _iso(time_ms: int, digits: int = 3) -> str:
    """Return a time as ISO-8601 text in UTC, with this number of decimal places (at least 3)."""
    text = datetime.fromtimestamp(time_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{f'{time_ms % 1000:03}'.ljust(digits, '0')}Z"


def _aws_iot(measured: Measurement) -> dict[str, Any]:
    name, time_s = measured.stream.name, measured.time_ms // 1000
    return {
        "state": {"reported": {name: measured.value}},
        "metadata": {"reported": {name: {"timestamp": time_s}}},
        "version": measured.number,
        "timestamp": time_s,
        "clientToken": f"token-{measured.number}",
        "thing": measured.thing,
    }


def _azure_iot_hub(measured: Measurement) -> dict[str, Any]:
    enqueued = _iso(measured.time_ms, 7)
    return {
        "EnqueuedTimeUtc": enqueued,
        "Properties": {},
        "SystemProperties": {
            "connectionDeviceId": measured.thing,
            "connectionAuthMethod": '{"scope":"device","type":"sas","issuer":"iothub","acceptingIpFilterRule":null}',
            "connectionDeviceGenerationId": "637051167384630591",
            "contentType": "application/json",
            "contentEncoding": "utf-8",
            "enqueuedTime": enqueued,
        },
        "Body": {measured.stream.name: measured.value},
    }


def _opc_ua(measured: Measurement) -> dict[str, Any]:
    time = _iso(measured.time_ms, 7)
    data_set = {
        "DataSetWriterId": 1,
        "DataSetWriterName": "spindle",
        "SequenceNumber": measured.number,
        "MessageType": "ua-deltaframe",
        "Timestamp": time,
        "Payload": {f"Spindle{measured.stream.name.title()}": {"Value": measured.value, "SourceTimestamp": time}},
    }
    return {
        "MessageId": str(measured.number),
        "MessageType": "ua-data",
        "PublisherId": measured.thing,
        "Messages": [data_set],
    }


def _debezium(measured: Measurement) -> dict[str, Any]:
    name = measured.stream.name
    row = {"id": measured.number, "machine": measured.thing, "measured_at": measured.time_ms * 1000}
    source = {
        "version": "2.7.4.Final",
        "connector": "postgresql",
        "name": "plant",
        "ts_ms": measured.time_ms + 5,
        "snapshot": "false",
        "db": "plant",
        "sequence": '["24023119","24023128"]',
        "schema": "public",
        "table": name,
        "txId": 555,
        "lsn": 24023128,
        "xmin": None,
    }
    payload = {
        "before": None,
        "after": row | {name: measured.value},
        "source": source,
        "op": "c",
        "ts_ms": measured.time_ms + 20,
        "transaction": None,
    }
    return {"payload": payload}


def _cloudevents(measured: Measurement) -> dict[str, Any]:
    return {
        "specversion": "1.0",
        "type": f"com.example.{measured.stream.name}.measured",
        "source": "/plant/hall-2",
        "id": f"event-{measured.number}",
        "time": _iso(measured.time_ms),
        "partitionkey": measured.thing,
        "datacontenttype": "application/json",
        "data": {measured.stream.name: measured.value},
    }


def _telegraf(measured: Measurement) -> dict[str, Any]:
    return {
        "fields": {"value": measured.value},
        "name": measured.stream.name,
        "tags": {"host": measured.thing},
        "timestamp": measured.time_ms,
    }


def _the_things_network(measured: Measurement) -> dict[str, Any]:
    uplink = {
        "f_port": 1,
        "f_cnt": measured.number,
        "decoded_payload": {measured.stream.name: measured.value},
        "rx_metadata": [{"gateway_ids": {"gateway_id": "gtw1"}, "rssi": -35, "snr": 5}],
        "received_at": _iso(measured.time_ms - 200),
    }
    return {
        "end_device_ids": {"device_id": measured.thing, "application_ids": {"application_id": "climate"}},
        "received_at": _iso(measured.time_ms),
        "uplink_message": uplink,
    }


def _ksqldb(measured: Measurement) -> dict[str, Any]:
    return {
        "MACHINE": measured.thing,
        "MEASURED_AT": measured.time_ms,
        measured.stream.name.upper(): measured.value,
    }


def ksqldb_schema(stream: Stream) -> dict[str, Any]:
    """Return the schema that ksqlDB registers for a stream: a record whose fields are optional."""
    columns = (("MACHINE", "string"), ("MEASURED_AT", "long"), (stream.name.upper(), "double"))
    fields = [{"name": name, "type": ["null", kind], "default": None} for name, kind in columns]
    names = {"name": "KsqlDataSourceSchema", "namespace": "io.confluent.ksql.avro_schemas"}
    return {"type": "record", **names, "fields": fields}


def _climate(topic: str, other_topic: str) -> tuple[Stream, Stream]:
    return Stream("temperature", topic, 21.5), Stream("humidity", other_topic, 48.2)


def _spindle(topic: str, other_topic: str) -> tuple[Stream, Stream]:
    return Stream("speed", topic, 1482.5), Stream("torque", other_topic, 12.75)


LAYOUTS: Final[dict[str, Layout]] = {
    "aws_iot": Layout(_climate("shadow.temperature", "shadow.humidity"), _aws_iot, resolution_ms=1000),
    "azure_iot_hub": Layout(_climate("iothub.telemetry", "iothub.telemetry"), _azure_iot_hub),
    "opc_ua": Layout(_spindle("opcua.data", "opcua.data"), _opc_ua),
    "debezium": Layout(_spindle("plant.public.speed", "plant.public.torque"), _debezium),
    "cloudevents": Layout(_climate("events.temperature", "events.humidity"), _cloudevents),
    "telegraf": Layout(_spindle("telegraf", "telegraf"), _telegraf),
    "the_things_network": Layout(_climate("lorawan.uplinks", "lorawan.uplinks"), _the_things_network),
    "ksqldb": Layout(_spindle("SPINDLE_SPEED", "SPINDLE_TORQUE"), _ksqldb),
}
"""By the name that the info strings of the page's code blocks contain."""

AVRO_LAYOUTS: Final[dict[str, Layout]] = {
    "ksqldb_avro": Layout(_spindle("SPINDLE_SPEED", "SPINDLE_TORQUE"), _ksqldb, avro_schema=ksqldb_schema),
}
"""The same for layouts whose messages are Avro. The page shows their content as JSON."""
