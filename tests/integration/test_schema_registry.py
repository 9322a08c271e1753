"""Messages whose schemas are in a real schema registry are joined once, whatever dies: the joiner or the registry.

The messages are Avro, written by the serializer of Confluent's client, or Protobuf.
"""

from __future__ import annotations

import json
import random
import struct
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka.schema_registry import (
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    topic_subject_name_strategy,
)
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from broker.stack import LocalStack
from joiner.mapping.framing import add_header
from tests.integration.joiner_application import (
    BASE_MS,
    Application,
    Entry,
    application,
    found_of,
    things_over_all_units,
)
from tests.integration.proposing import init
from tests.integration.services import logged, wait_until
from tests.integration.your_data import Stream, ksqldb_schema
from tests.property.varints import varint, zigzag

STREAMS: Final = """
[registry]
url = "{url}"
timeout = "2s"

[[stream]]
name = "speed"
topic = "{name}.SPEED"
format = "avro"
key = "$.MACHINE"
time = "$.MEASURED_AT"
value = "$.SPEED"

[[stream]]
name = "torque"
topic = "{name}.TORQUE"
format = "avro"
key = "$.MACHINE"
time = "$.MEASURED_AT"
value = "$.TORQUE"

[[stream]]
name = "command"
topic = "{name}.TORQUE"
format = "avro"
key = "$.MACHINE"
time = "$.MEASURED_AT"
value = "$.COMMAND"
where = "$.COMMAND != null"
"""


def schema_of(*more: tuple[str, str]) -> str:
    """Return a schema as ksqlDB writes it, with these columns after the usual ones."""
    whole = ksqldb_schema(Stream("", "", 0))
    fields = [{"name": name, "type": ["null", kind], "default": None} for name, kind in more]
    return json.dumps(whole | {"fields": [*whole["fields"][:2], *fields]})


SCHEMAS: Final = {
    "SPEED": schema_of(("SPEED", "double")),
    "TORQUE": schema_of(("TORQUE", "double"), ("COMMAND", "int")),
}
LATER: Final = {
    # What ksqlDB registers after columns have been added: in front of those that are read, too.
    "SPEED": schema_of(("NOTE", "string"), ("SPEED", "double"), ("LINE", "int")),
    "TORQUE": schema_of(("TORQUE", "double"), ("COMMAND", "int"), ("NOTE", "string")),
}


class Writers:
    """Serializes the messages of two topics, at first with one schema each and later with another."""

    def __init__(self, client: SchemaRegistryClient, name: str) -> None:
        self._client, self._name = client, name
        self._serializers: dict[tuple[str, bool], AvroSerializer] = {}

    def message(self, topic: str, content: dict[str, Any], *, is_later: bool) -> bytes:
        """Return a message with the header of the registry."""
        key = topic, is_later
        if key not in self._serializers:
            schema = (LATER if is_later else SCHEMAS)[topic]
            # The default strategy asks the registry before each message.
            by_topic = {"subject.name.strategy": topic_subject_name_strategy}
            self._serializers[key] = AvroSerializer(self._client, schema, conf=by_topic)
        context = SerializationContext(f"{self._name}.{topic}", MessageField.VALUE)
        return bytes(self._serializers[key](content, context) or b"")


def entries(writers: Writers, seed: int, count: int) -> Iterator[tuple[str, Entry]]:
    """Yield topics and messages: with later schemas from the middle on, and some of them damaged, late or null."""
    draw, clock, things = random.Random(seed), BASE_MS, things_over_all_units(6)
    for number in range(count):
        clock += draw.choice([0, 1, 40, 700])
        thing, topic = draw.choice(things), draw.choice(["SPEED", "TORQUE"])
        content: dict[str, Any] = {"MACHINE": thing, "MEASURED_AT": clock - draw.choice([0] * 20 + [900, 60_000])}
        content[topic] = draw.choice([round(draw.uniform(0, 3000), 2), 17.0])
        content |= {"COMMAND": draw.choice([None, draw.randrange(3000)])} if topic == "TORQUE" else {}
        is_later = number >= count // 2
        content |= {"NOTE": draw.choice([None, "é", "ok"])} if is_later else {}
        value = writers.message(topic, content, is_later=is_later)
        if draw.random() < 0.06:
            cut = draw.randrange(6, len(value))
            damaged = [value[:cut], value + b"\0", value[:3], b"{}", b"", None, b"\0" + value[1:6] + b"\xff" * 12]
            yield topic, Entry(thing, draw.choice(damaged))
        else:
            yield topic, Entry(thing, value)


@pytest.fixture
def registry(stack: LocalStack) -> Iterator[str]:
    """The URL of a running schema registry, which tests may stop if they start it again."""
    stack.up([stack.registry])
    yield stack.registry.url
    stack.down([stack.registry])


@pytest.fixture
def app(kafka: str, tmp_path: Path) -> Iterator[Application]:
    yield from application(kafka, tmp_path)


def propose(app: Application, *arguments: str) -> tuple[int, str, str]:
    """Run `lsb-init` for the topics. Return its exit status, the proposed settings, and what else it prints."""
    topics = [f"{app.name}.{topic}" for topic in SCHEMAS]
    # Not in the folder of the application, whose settings would tell the registry.
    folder = app.folder / "proposal"
    folder.mkdir(exist_ok=True)
    made = init(app.bootstrap, *topics, *arguments, folder=folder)
    return made.returncode, made.stdout, made.stderr


def check_proposal(app: Application, registry: str) -> None:
    """Check that `lsb-init` proposes the streams above, and asks one question without the registry."""
    status, text, notes = propose(app, "--registry", registry)
    assert status == 0, notes
    found = tomllib.loads(text)
    wanted = tomllib.loads(STREAMS.format(url=registry, name=app.name))
    assert found["registry"] == {"url": registry}
    paths = ("topic", "format", "key", "time", "value")
    assert {tuple(one[name] for name in paths) for one in found["stream"]} == {
        tuple(one[name] for name in paths) for one in wanted["stream"]
    }
    status, text, notes = propose(app)
    assert (status, text) == (3, "")
    assert "Answer with --registry URL" in notes


@pytest.mark.slow
def test_avro_messages_are_joined_once_whatever_dies(app: Application, stack: LocalStack, registry: str) -> None:
    app.aligns = STREAMS.format(url=registry, name=app.name)
    first = app.start()
    first.wait_for_units()
    with SchemaRegistryClient({"url": registry}) as client:
        sent = [*entries(Writers(client, app.name), 1, 2_400)]

    def produce(begin: int, end: int) -> None:
        for topic in SCHEMAS:
            app.produce([entry for to, entry in sent[begin:end] if to == topic], topic)

    produce(0, 400)
    app.wait_until_through()
    check_proposal(app, registry)
    first.kill()
    second = app.start(instance="two")
    produce(400, 1_200)
    app.wait_until_through()
    # Later messages have other schemas, which nobody has fetched yet.
    stack.down([stack.registry])
    produce(1_200, 2_400)
    logged(second.process, second.log, "cannot be fetched from the schema registry")
    status, _, notes = propose(app, "--registry", registry)
    assert status == 1
    assert f"cannot be fetched from the schema registry {registry}: " in notes
    stack.up([stack.registry])
    wait_until(stack.registry.is_ready, "the registry is back")
    app.wait_until_through()
    findings = app.verify()
    assert found_of(findings, "results", "power") > 100
    assert found_of(findings, "results", "gap") > 100
    assert found_of(findings, "late records", "gap") > 10
    reasons = {letter.reason for letter in app.rejected().values()}
    wanted = (
        "not Avro of the schema",
        "too few for the byte 0",
        "does not begin with the byte 0",
        "the value is empty",
    )
    assert [one for one in wanted if not any(one in reason for reason in reasons)] == []
    assert second.stop() == 0


STAMP: Final = """
syntax = "proto3";
package shared;
import "google/protobuf/timestamp.proto";
message Stamp {
  google.protobuf.Timestamp at = 1;
}
"""
MEASURED: Final = """
syntax = "proto3";
package plant;
import "shared/stamp.proto";
message Ignored {
  string note = 1;
}
message Measured {
  string MACHINE = 1;
  shared.Stamp STAMP = 2;
  double SPEED = 3;
  double TORQUE = 4;
  optional sint32 COMMAND = 5;
}
"""


def measured(draw: random.Random, thing: str, time_ms: int, topic: str) -> bytes:
    """Return a message `Measured`, with the index of its type before it."""
    at = b"".join(varint(n << 3) + varint(value) for n, value in ((1, time_ms // 1000), (2, time_ms % 1000 * 10**6)))
    stamp = b"\x0a" + varint(len(at)) + at
    data = b"\x0a" + varint(len(thing)) + thing.encode() + b"\x12" + varint(len(stamp)) + stamp
    data += (b"\x19" if topic == "SPEED" else b"\x21") + struct.pack("<d", draw.uniform(1, 3000))
    if topic == "TORQUE" and draw.random() < 0.5:
        data += b"\x28" + zigzag(draw.randrange(3000))
    return zigzag(1) + zigzag(1) + data


LATER_MEASURED: Final = MEASURED.replace("double TORQUE = 4;", "double TORQUE = 4;\n  string NOTE = 9;")


@pytest.mark.slow
def test_protobuf_messages_are_joined_once(app: Application, registry: str) -> None:
    streams = STREAMS.replace('"avro"', '"protobuf"').replace("$.MEASURED_AT", "$.STAMP.at")
    streams = streams.replace('timeout = "2s"', 'unknown_schema = "reject"')
    app.aligns = streams.replace("$.COMMAND != null", "$.COMMAND").format(url=registry, name=app.name)
    with SchemaRegistryClient({"url": registry}) as client:
        shared = f"{app.name}.shared"
        client.register_schema(shared, Schema(STAMP, "PROTOBUF"))
        references = [SchemaReference("shared/stamp.proto", shared, 1)]
        ids = [
            client.register_schema(f"{app.name}.SPEED-value", Schema(text, "PROTOBUF", references))
            for text in (MEASURED, LATER_MEASURED)
        ]
    runner = app.start()
    runner.wait_for_units()
    draw, clock, things = random.Random(1), BASE_MS, things_over_all_units(6)
    sent: dict[str, list[Entry]] = {"SPEED": [], "TORQUE": []}
    for count in range(600):
        clock += draw.choice([0, 1, 40, 700])
        thing, topic = draw.choice(things), draw.choice([*sent])
        # Gradually, the producers change to the later schema.
        data = measured(draw, thing, clock, topic)
        value = add_header(ids[draw.randrange(600) < count], data)
        # Ids that the registry does not know: one that it could have, and one that it could not.
        unknown = [add_header(schema_id, data) for schema_id in (2**31 - 1, 2**32 - 1)]
        damaged = [value[:-1], value[:5] + zigzag(1) + zigzag(7), value[:3], None, *unknown]
        sent[topic].append(Entry(thing, draw.choice(damaged) if draw.random() < 0.06 else value))
    for topic, some in sent.items():
        app.produce(some, topic)
    app.wait_until_through()
    findings = app.verify()
    assert found_of(findings, "results", "power") > 50
    assert found_of(findings, "results", "gap") > 20
    reasons = {letter.reason for letter in app.rejected().values()}
    wanted = (
        *("not Protobuf of the schema", "has no message with the index [7]", "too few for the byte 0"),
        *(f"no schema with the id {schema_id}" for schema_id in (2**31 - 1, 2**32 - 1)),
    )
    assert [one for one in wanted if not any(one in reason for reason in reasons)] == []
    assert runner.stop() == 0
