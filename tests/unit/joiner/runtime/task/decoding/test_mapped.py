"""Are messages of other programs decoded like the pipeline's own records?"""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto

from broker.wire.start_records import encode_start
from joiner.mapping.framing import RegisteredSchema, SchemaTable, add_header
from joiner.mapping.reading import MappedRecord, MappedTopic
from joiner.runtime.model import UnitStopped
from joiner.runtime.settings import JoinerSettings
from joiner.runtime.task.decoding.factory import make_decoder
from joiner.runtime.task.decoding.intake import LEFT, RIGHT, Intake
from joiner.runtime.task.decoding.keys import Keys
from joiner.runtime.task.emit import sides_of
from joiner.runtime.task.unit import Unit
from tests.property.protobuf_data import Field, class_of, descriptors_of, file_of, kind_of
from tests.property.varints import zigzag
from tests.unit.joiner.runtime.joiner_inputs import BASE_MS, Message, batch, lines, make_settings, message, thing_of

DAY_MS = 86_400_000
SPEED: dict[str, Any] = {"name": "speed", "topic": "plant", "key": "$.id", "time": "$.ts", "value": "$.rpm"}
TORQUE: dict[str, Any] = {**SPEED, "name": "torque", "value": "$.nm", "where": "$.nm"}


def settings_of(*streams: dict[str, Any], **more: Any) -> JoinerSettings:
    return make_settings(stream=list(streams or (SPEED, TORQUE)), **more)


def plant(offset: int, time_ms: Any, **more: Any) -> Any:
    return message(offset, {"id": "a", "ts": time_ms, "rpm": 100 + offset} | more)


def read(settings: JoinerSettings, *messages: Any, unit: int = 0) -> Intake:
    keys = Keys(unit, settings.topics.partitions)
    return make_decoder(settings, "plant", unit, keys).decode(batch(messages))


def test_each_stream_gets_its_records() -> None:
    intake = read(settings_of(), plant(3, BASE_MS), plant(4, BASE_MS + 1, nm=2.5))
    assert sorted(intake.sides) == [(0, LEFT), (0, RIGHT)]
    speeds, torques = (intake.sides[0, side].rows() for side in (LEFT, RIGHT))
    assert (speeds.seq.tolist(), speeds.result.tolist()) == ([3, 4], [103.0, 104.0])
    assert (torques.seq.tolist(), torques.ts_ns.tolist()) == ([4], [(BASE_MS + 1) * 10**6])
    assert (intake.records, intake.not_selected, intake.rejected) == (2, 0, [])
    (side,) = sides_of(torques)
    assert (side.quantity, side.result, side.id) == ("torque", 2.5, "4")


def test_a_message_that_no_stream_selects_is_only_counted() -> None:
    intake = read(settings_of(SPEED | {"where": "$.rpm > 1000"}, TORQUE), plant(0, BASE_MS))
    assert (intake.records, intake.not_selected, intake.sides, intake.rejected) == (1, 1, {}, [])


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"ts": BASE_MS + 2 * DAY_MS}, "ahead of its arrival"),
        ({"ts": "never"}, "stream 'speed': time at $.ts"),
        ({"nm": "x"}, "stream 'torque': value at $.nm: 'x' is not a number"),
    ],
)
def test_a_message_counts_as_a_whole_or_not_at_all(more: dict[str, Any], reason: str) -> None:
    intake = read(settings_of(), plant(0, BASE_MS), plant(1, BASE_MS, **({"nm": 1} | more)))
    (letter,) = intake.rejected
    assert reason in letter.reason
    assert (letter.topic, letter.partition, letter.offset, letter.id) == ("plant", 0, 1, "plant:0:1")
    assert [side.rows().seq.tolist() for side in intake.sides.values()] == [[0]]


def test_a_key_in_the_wrong_partition_is_rejected() -> None:
    settings = settings_of(partitions=5)
    intake = read(settings, plant(0, BASE_MS, id=thing_of(2, 5)), plant(1, BASE_MS, id=thing_of(3, 5)), unit=2)
    (letter,) = intake.rejected
    assert "belongs to partition 3" in letter.reason


def test_a_tombstone_is_only_counted() -> None:
    intake = read(settings_of(), plant(0, BASE_MS), message(1, None))
    assert (intake.records, intake.not_selected, intake.rejected) == (2, 1, [])


def test_a_start_record_of_another_application_is_only_counted_unless_a_stream_can_read_it() -> None:
    start = Message(1, BASE_MS, encode_start({"machine.data": 7}))
    intake = read(settings_of(), plant(0, BASE_MS), start, plant(2, BASE_MS))
    assert (intake.records, intake.not_selected, intake.rejected) == (3, 1, [])
    assert intake.sides[0, LEFT].rows().seq.tolist() == [0, 2]
    (letter,) = read(settings_of(), start._replace(value=b'{"start":5}')).rejected
    assert "stream 'speed'" in letter.reason
    odd = SPEED | {"key": "'a'", "time": "kafka.timestamp", "value": "$.start['machine.data']"}
    intake = read(settings_of(odd, TORQUE), start)
    assert intake.sides[0, LEFT].rows().result.tolist() == [7.0]


def read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which the offsets of messages are added that are read one by one."""
    seen: list[int] = []
    original = MappedTopic.read

    def counted(self: MappedTopic, value: bytes | None, offset: int, *more: Any) -> list[MappedRecord]:
        seen.append(offset)
        return original(self, value, offset, *more)

    monkeypatch.setattr(MappedTopic, "read", counted)
    return seen


def test_messages_without_a_layout_leave_the_others_in_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = read_one_by_one(monkeypatch)
    messages = [plant(n, BASE_MS + n, **({"unit": "°C"} if n in {0, 7} else {})) for n in range(100)]
    intake = read(settings_of(SPEED), *messages)
    assert seen == [0, 7]
    assert intake.sides[0, LEFT].rows().seq.tolist() == [*range(100)]


@pytest.mark.parametrize("odd", [{"rpm": "100"}, {"ts": "1"}, {"id": ""}, {"rpm": -0.0}])
def test_an_unusual_message_leaves_those_of_its_layout_in_columns(
    odd: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = read_one_by_one(monkeypatch)
    messages = [plant(n, BASE_MS + n, **(odd if n == 700 else {})) for n in range(1000)]
    intake = read(settings_of(SPEED), *messages)
    assert 700 in seen
    assert len(seen) <= 64
    records = intake.sides[0, LEFT].rows().seq.tolist()
    assert sorted([*records, *(letter.offset for letter in intake.rejected)]) == [*range(1000)]
    assert records == sorted(records)


def test_a_watermark_in_such_a_topic_is_a_message_like_any_other() -> None:
    intake = read(settings_of(), message(0, {"mark": BASE_MS, "thing": "a"}))
    assert "there is no key at $.id" in intake.rejected[0].reason


@pytest.mark.parametrize("sizes", [[6], [1] * 6, [2, 4], [5, 1]])
def test_records_of_two_layouts_are_joined_whatever_the_batches(sizes: list[int]) -> None:
    torque = TORQUE | {
        "topic": "lab",
        "key": "$[0]",
        "time": "$[1]",
        "value": "$[2]",
        "time_unit": "s",
        "where": "$[2]",
    }
    settings = settings_of(SPEED, torque)
    speeds = [plant(n, BASE_MS + 1000 * n) for n in range(6)]
    torques = [message(n, json.dumps(["a", BASE_MS // 1000 + n, 2]).encode()) for n in range(6)]
    unit, whole = Unit(settings, 0, {"plant": 0, "lab": 0}), Unit(settings, 0, {"plant": 0, "lab": 0})
    effects, at = [], 0
    for size in sizes:
        parts = {"plant": batch(speeds[at : at + size]), "lab": batch(torques[at : at + size])}
        at += size
        effects.append(unit.apply(parts, {"plant": at, "lab": at}))
    wanted = lines(settings, whole.apply({"plant": batch(speeds), "lab": batch(torques)}, {"plant": 6, "lab": 6}))
    assert lines(settings, *effects) == wanted
    results = [json.loads(value) for _, _, value in wanted]
    assert [
        (one["phenomenonTime"], one["result"], one["left"]["id"]) for one in results if one["id"].endswith(":3:3")
    ] == [(BASE_MS + 3000, 206.0, "3")]


AVRO_SCHEMA = {
    "type": "record",
    "name": "Plant",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "rpm", "type": "int"},
        {"name": "nm", "type": ["null", "double"]},
    ],
}
AVRO: dict[str, Any] = {"format": "avro"}
SCHEMAS = SchemaTable({1: RegisteredSchema("AVRO", json.dumps(AVRO_SCHEMA))})


def avro_plant(offset: int, time_ms: int, torque: float | None = None, thing: str = "a", schema_id: int = 1) -> Any:
    text = thing.encode()
    data = zigzag(len(text)) + text + zigzag(time_ms) + zigzag(100 + offset)
    data += zigzag(0) if torque is None else zigzag(1) + struct.pack("<d", torque)
    return message(offset, add_header(schema_id, data))


def avro_settings(**more: Any) -> JoinerSettings:
    return settings_of(SPEED | AVRO, TORQUE | AVRO | {"where": "$.nm != null"}, registry={"url": "http://r"}, **more)


def test_avro_messages_are_read_as_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = read_one_by_one(monkeypatch)
    messages = [avro_plant(n, BASE_MS + n, [None, 2.5, 3.5][n % 3], "é" if n == 7 else "a") for n in range(100)]
    decoder = make_decoder(avro_settings(), "plant", 0, Keys(0, 1), SCHEMAS)
    intake = decoder.decode(batch(messages))
    assert seen == [7]
    speeds, torques = (intake.sides[0, side].rows() for side in (LEFT, RIGHT))
    assert speeds.seq.tolist() == [*range(100)]
    assert torques.seq.tolist() == [n for n in range(100) if n % 3]
    assert torques.ts_ns.tolist() == [(BASE_MS + n) * 10**6 for n in range(100) if n % 3]


def test_avro_messages_whose_schema_is_unknown_are_dead_letters() -> None:
    decoder = make_decoder(avro_settings(), "plant", 0, Keys(0, 1), SCHEMAS)
    intake = decoder.decode(
        batch([avro_plant(0, BASE_MS), avro_plant(1, BASE_MS, schema_id=9), avro_plant(2, BASE_MS)])
    )
    assert [letter.reason for letter in intake.rejected] == ["the schema registry has no schema with the id 9"]
    assert intake.sides[0, LEFT].rows().seq.tolist() == [0, 2]


def protobuf_plant() -> tuple[Any, SchemaTable]:
    """Return the class of a message, and a table in which its schema has the id 1."""
    plant_type = DescriptorProto(name="Plant")
    kinds = {"id": "string", "ts": "int64", "rpm": "int32", "nm": "double", "note": "string"}
    for number, (name, kind) in enumerate(kinds.items(), 1):
        plant_type.field.add(name=name, number=number, label=Field.LABEL_OPTIONAL, type=kind_of(kind))
    file = file_of(plant_type, syntax="proto2")
    table = SchemaTable({1: RegisteredSchema("PROTOBUF", "", descriptors=descriptors_of(file))})
    return class_of(file, name="t.Plant"), table


def protobuf_settings() -> JoinerSettings:
    protobuf = {"format": "protobuf"}
    return settings_of(SPEED | protobuf, TORQUE | protobuf, registry={"url": "http://r"})


def test_protobuf_messages_are_read_as_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = read_one_by_one(monkeypatch)
    plant_class, table = protobuf_plant()
    messages = []
    for n in range(100):
        one = plant_class(id="é" if n == 7 else "a", ts=BASE_MS + n, rpm=-n, nm=[None, 2.5, 0.0][n % 3], note="é")
        messages.append(message(n, add_header(1, b"\0" + one.SerializeToString())))
    intake = make_decoder(protobuf_settings(), "plant", 0, Keys(0, 1), table).decode(batch(messages))
    assert seen == [7]
    assert intake.rejected == []
    speeds, torques = (intake.sides[0, side].rows() for side in (LEFT, RIGHT))
    assert (speeds.seq.tolist(), speeds.result.tolist()) == ([*range(100)], [float(-n) for n in range(100)])
    assert torques.result.tolist() == [[2.5, 0.0][n % 3 - 1] for n in range(100) if n % 3]


def test_protobuf_messages_are_read_and_refused_as_a_whole() -> None:
    plant_class, table = protobuf_plant()
    values = []
    for n in range(10):
        one = plant_class(id="a", ts=BASE_MS + n, rpm=n, nm=2.5 if n % 3 else None)
        values.append(add_header(1, b"\0" + one.SerializeToString()))
    values[4] = values[4][:-1]
    values[5] = add_header(9, values[5][5:])
    messages = [message(n, value) for n, value in enumerate([*values, None])]
    intake = make_decoder(protobuf_settings(), "plant", 0, Keys(0, 1), table).decode(batch(messages))
    assert [(letter.offset, letter.reason) for letter in intake.rejected] == [
        (4, "not Protobuf of the schema 1: the data end too early"),
        (5, "the schema registry has no schema with the id 9"),
    ]
    speeds, torques = (intake.sides[0, side].rows() for side in (LEFT, RIGHT))
    assert speeds.seq.tolist() == [n for n in range(10) if n not in {4, 5}]
    assert torques.seq.tolist() == [1, 2, 7, 8]
    assert torques.ts_ns.tolist() == [(BASE_MS + n) * 10**6 for n in (1, 2, 7, 8)]
    assert intake.not_selected == 1


def test_json_after_the_id_of_a_schema_is_read_as_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = read_one_by_one(monkeypatch)
    settings = settings_of(SPEED | {"format": "json_schema"})
    values = [add_header(n, json.dumps({"id": "a", "ts": BASE_MS + n, "rpm": n}).encode()) for n in range(50)]
    values[20] = values[20][5:]
    intake = read(settings, *(message(n, value) for n, value in enumerate(values)))
    assert seen == [20]
    assert [(letter.offset, "byte 0" in letter.reason) for letter in intake.rejected] == [(20, True)]
    assert intake.sides[0, LEFT].rows().seq.tolist() == [n for n in range(50) if n != 20]


class _Away:
    """A registry that answers only while it is up."""

    def __init__(self) -> None:
        self.is_up = False

    def get(self, schema_id: int) -> RegisteredSchema | None:
        if not self.is_up:
            raise UnitStopped("the registry is away")
        return SCHEMAS.get(schema_id)


def test_a_unit_that_waited_for_a_schema_writes_what_one_that_did_not_wait_writes() -> None:
    settings = avro_settings()
    messages = [avro_plant(n, BASE_MS + 10 * n, 2.5 if n % 2 else None) for n in range(20)]
    whole = Unit(settings, 0, {"plant": 0}, schemas=SCHEMAS)
    wanted = lines(settings, whole.apply({"plant": batch(messages)}, {"plant": 20}))
    assert wanted
    away = _Away()
    unit = Unit(settings, 0, {"plant": 0}, schemas=away)
    with pytest.raises(UnitStopped, match="the registry is away"):
        unit.apply({"plant": batch(messages)}, {"plant": 20})
    assert unit.offsets == {"plant": 0}
    away.is_up = True
    # The unit is claimed again: its state is that of its last commit.
    again = Unit(settings, 0, {"plant": 0}, schemas=away)
    first = lines(settings, again.apply({"plant": batch(messages[:12])}, {"plant": 12}))
    restored = Unit.restore(settings, 0, again.snapshot(), away)
    assert sorted([*first, *lines(settings, restored.apply({"plant": batch(messages[12:])}, {"plant": 20}))]) == sorted(
        wanted
    )
