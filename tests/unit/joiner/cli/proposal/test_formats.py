"""Are messages of a schema registry decoded, and are the questions about other formats clear?"""

from __future__ import annotations

import json
import math
import struct
import tomllib
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joiner.cli.proposal.formats import FORMAT_OF, is_senml
from joiner.cli.proposal.samples import Question, Registry, Sample, Source, Table, UnusableSource
from joiner.cli.proposal.settings import compose, try_out
from joiner.mapping.framing import RegisteredSchema, SchemaTable, add_header
from joiner.mapping.protobuf.compiling import compile_schema
from joiner.mapping.settings import StreamSettings
from tests.property.avro_data import Draw, datum, schemas
from tests.property.varints import varint, zigzag
from tests.unit.joiner.cli.proposal.sampled import (
    AT_MS,
    avro_topic,
    file_of,
    guessed,
    record_of,
    registry_of,
    topic_of,
    values_of,
)

TIMESTAMPS: Final = {
    f"timestamp-{name}": (unit, factor)
    for name, unit, factor in (("millis", "ms", 1), ("micros", "us", 1000), ("nanos", "ns", 1_000_000))
}
REGISTRY: Final = Table("[registry]", {"url": "http://registry:8081"})


def spindle(count: int = 30, **more: Any) -> list[tuple[str | None, dict[str, Any]]]:
    """Return contents of messages of three machines."""
    return [
        (f"m{number % 3}", {"machine": f"m{number % 3}", "at": AT_MS + number, "rpm": float(number)} | more)
        for number in range(count)
    ]


def optional(kind: Any) -> list[Any]:
    return ["null", kind]


def json_schema_topic(name: str = "plant") -> Source:
    return values_of(((key, add_header(1, json.dumps(one).encode())) for key, one in spindle()), name)


def test_avro_messages_are_understood_like_json() -> None:
    schema = record_of(machine=optional("string"), at=optional("long"), rpm=optional("double"))
    in_avro, in_json = guessed(avro_topic(schema, spindle())), guessed(topic_of(spindle()))
    assert in_avro.format == "avro"
    assert in_avro._replace(source=in_json.source, format="json") == in_json
    assert (in_avro.key, in_avro.time, in_avro.time_unit) == ("$.machine", "$.at", "ms")


@pytest.mark.parametrize("logical", TIMESTAMPS)
def test_the_unit_of_a_timestamp_is_that_of_its_schema_and_shown_with_a_date(logical: str) -> None:
    unit, factor = TIMESTAMPS[logical]
    schema = record_of(machine="string", at={"type": "long", "logicalType": logical}, rpm="double")
    documents = [(key, one | {"at": one["at"] * factor}) for key, one in spindle()]
    topic = guessed(avro_topic(schema, documents))
    assert (topic.time, topic.time_unit) == ("$.at", None)
    assert topic.example == (
        f"{AT_MS * factor}, which is 2023-11-14T22:13:20Z, because the schema says that it is in {unit}"
    )
    (one,) = [tried for tried in try_out_with(topic, "other") if tried.name == "plant.rpm"]
    assert (sum(one.things.values()), one.rejected) == (30, 0)
    assert one.first_ns == AT_MS * 1_000_000


def try_out_with(topic: Any, name: str) -> Any:
    """Return what a topic and another one have with proposed settings."""
    topics = [topic, guessed(topic_of(spindle(torque=1.5), name))]
    return try_out(compose(topics, [REGISTRY]), topics)


def test_a_timestamp_is_the_time_whatever_its_name_and_needs_no_question() -> None:
    """A number whose unit is unknown would be a question."""
    schema = record_of(
        machine="string", ts="long", measured={"type": "long", "logicalType": "timestamp-millis"}, v="int"
    )
    documents = [
        (key, {"machine": key, "ts": 86_400 + number, "measured": AT_MS + number, "v": number})
        for number, (key, _) in enumerate(spindle())
    ]
    assert (topic := guessed(avro_topic(schema, documents))).time == "$.measured"
    assert topic.time_unit is None


def test_a_number_of_unknown_unit_in_avro_is_a_question_with_dates() -> None:
    schema = record_of(machine="string", ts="long", rpm="double")
    documents = [(key, {"machine": key, "ts": 86_400, "rpm": one["rpm"]}) for key, one in spindle()]
    with pytest.raises(Question, match=r"unit is the time \$\.ts\? 86400 is 1970-01-02T00:00:00Z if in s"):
        guessed(avro_topic(schema, documents))
    assert guessed(avro_topic(schema, documents), time="$.ts", time_unit="s").time_unit == "s"


def test_a_given_unit_does_not_change_that_of_a_timestamp() -> None:
    schema = record_of(machine="string", at={"type": "long", "logicalType": "timestamp-millis"}, rpm="double")
    assert guessed(avro_topic(schema, spindle()), time="$.at", time_unit="s").time_unit is None


def test_optional_values_select_the_messages_that_have_them() -> None:
    schema = record_of(machine="string", at="long", rpm="double", torque=optional("double"))
    documents = [(key, one | {"torque": 1.5 + at if at % 2 else None}) for at, (key, one) in enumerate(spindle())]
    found = {one.name: one.where for one in guessed(avro_topic(schema, documents)).streams}
    assert found == {"rpm": None, "torque": "$.torque != null"}


def test_enums_tell_quantities_apart() -> None:
    metric = {"type": "enum", "name": "Metric", "symbols": ["speed", "torque"]}
    schema = record_of(machine="string", at="long", metric=metric, rpm="double")
    documents = [(key, one | {"metric": ("speed", "torque")[at % 2]}) for at, (key, one) in enumerate(spindle())]
    topic = guessed(avro_topic(schema, documents))
    assert {(one.name, one.where) for one in topic.streams} == {
        ("speed", "$.metric == 'speed'"),
        ("torque", "$.metric == 'torque'"),
    }


def test_bytes_and_numbers_that_are_not_finite_are_no_values() -> None:
    schema = record_of(machine="string", at="long", rpm="double", raw="bytes", nan="double")
    documents = [(key, one | {"raw": b"12", "nan": math.nan}) for key, one in spindle()]
    assert [one.name for one in guessed(avro_topic(schema, documents)).streams] == ["rpm"]


def test_bytes_are_no_time() -> None:
    schema = record_of(machine="string", ts="bytes", rpm="double")
    documents = [(key, {"machine": key, "ts": b"1700000000000", "rpm": one["rpm"]}) for key, one in spindle()]
    assert guessed(avro_topic(schema, documents)).time == "kafka.timestamp"
    with pytest.raises(UnusableSource, match=r"\$\.ts cannot be the time"):
        guessed(avro_topic(schema, documents), time="$.ts")


def test_json_with_a_schema_needs_no_registry() -> None:
    topic = guessed(json_schema_topic())
    assert (topic.format, topic.key, topic.time) == ("json_schema", "$.machine", "$.at")
    assert guessed(json_schema_topic()._replace(registry=registry_of(JSON="{}"))).format == "json_schema"


def test_the_proposal_says_the_format_and_where_the_registry_is() -> None:
    schema = record_of(machine="string", at="long", rpm="double")
    topics = [guessed(avro_topic(schema, spindle())), guessed(json_schema_topic("other"))]
    proposal = compose(topics, [REGISTRY])
    found = tomllib.loads(proposal.text)
    assert found["registry"] == {"url": "http://registry:8081"}
    assert [(one["topic"], one["format"]) for one in found["stream"]] == [("plant", "avro"), ("other", "json_schema")]
    assert [one.rejected for one in try_out(proposal, topics)] == [0, 0]


def test_protobuf_messages_are_understood_like_json() -> None:
    text = """
        syntax = "proto3";
        import "google/protobuf/timestamp.proto";
        message Measured { string machine = 1; google.protobuf.Timestamp at = 2; double rpm = 3; }
    """

    def encoded(document: dict[str, Any]) -> bytes:
        at = document["at"]
        stamp = b"\x08" + varint(at // 1000) + b"\x10" + varint(at % 1000 * 1_000_000)
        machine = document["machine"].encode()
        parts = (bytes([0x0A, len(machine)]), machine, bytes([0x12, len(stamp)]), stamp)
        return add_header(1, b"\0" + b"".join(parts) + b"\x19" + struct.pack("<d", document["rpm"]))

    schema = compile_schema(RegisteredSchema("PROTOBUF", text))
    source = values_of((key, encoded(document)) for key, document in spindle())
    topic = guessed(source._replace(registry=Registry("http://registry:8081", SchemaTable({1: schema}))))
    assert (topic.format, topic.key, topic.time, topic.time_unit) == ("protobuf", "$.machine", "$.at", None)
    (one,) = [tried for tried in try_out_with(topic, "other") if tried.name == "plant.rpm"]
    assert (sum(one.things.values()), one.rejected, one.first_ns) == (30, 0, AT_MS * 1_000_000)


def test_without_a_registry_one_question_names_the_missing_option() -> None:
    source = avro_topic(record_of(machine="string", at="long", rpm="double"), spindle())._replace(registry=None)
    with pytest.raises(Question, match=r"plant: in which schema registry is the schema 1.*Answer with --registry URL"):
        guessed(source)


def test_a_schema_that_the_registry_does_not_know_is_told_with_both() -> None:
    source = avro_topic(record_of(machine="string", at="long", rpm="double"), spindle())
    empty = Registry("http://other", SchemaTable())
    with pytest.raises(UnusableSource, match=r"plant: the schema registry http://other has no schema with the id 1"):
        guessed(source._replace(registry=empty))


def test_messages_whose_schema_is_not_known_are_noted() -> None:
    source = avro_topic(record_of(machine="string", at="long", rpm="double"), spindle())
    source = source._replace(samples=[Sample(0, 99, 0, b"m0", add_header(7, b"abc")), *source.samples])
    topic = guessed(source)
    assert topic.format == "avro"
    assert topic.notes[0] == "1 of 31 messages are not Avro (the schema registry has no schema with the id 7)"


def test_a_type_of_schema_that_nothing_reads_is_told() -> None:
    source = avro_topic(record_of(rpm="double"), [("m1", {"rpm": 1.5})])._replace(registry=registry_of(WHATEVER="x"))
    with pytest.raises(UnusableSource, match=r"a schema of the type WHATEVER, .*only for AVRO, JSON, PROTOBUF"):
        guessed(source)


def test_damaged_avro_is_told_with_the_reason() -> None:
    source = values_of([("m1", add_header(1, b"\xff" * 20))])._replace(registry=registry_of(AVRO='"string"'))
    with pytest.raises(UnusableSource, match="none of its messages is Avro: not Avro of the schema 1"):
        guessed(source)
    source = values_of([("m1", add_header(1, b"\x02a"))])._replace(registry=registry_of(AVRO='"string"'))
    with pytest.raises(UnusableSource, match="not a record with fields"):
        guessed(source)


def test_lines_of_a_file_cannot_have_the_id_of_a_schema() -> None:
    source = Source("plant", 0, [Sample(0, 0, 0, None, add_header(1, b"\x02a"))])
    with pytest.raises(UnusableSource, match=r"id 1.*do not fit into lines: name the topic"):
        guessed(source)


def test_each_format_that_is_proposed_is_one_of_a_stream() -> None:
    choices = StreamSettings.model_json_schema()["properties"]["format"]["enum"]
    assert set(FORMAT_OF.values()) <= set(choices)


def test_a_registry_that_does_not_answer_ends_the_attempt() -> None:
    class Down:
        def get(self, _schema_id: int) -> RegisteredSchema | None:
            message = "it is down"
            raise UnusableSource(message)

    source = avro_topic(record_of(rpm="double"), [("m1", {"rpm": 1.5})])
    with pytest.raises(UnusableSource, match="it is down"):
        guessed(source._replace(registry=Registry("http://registry", Down())))


def test_the_key_of_a_kafka_message_with_a_schema_is_not_a_name() -> None:
    keyed = [("\0\0\0\0\x05\x04m1", {"at": AT_MS + number, "rpm": number}) for number in range(30)]
    with pytest.raises(Question, match="which field is the key"):
        guessed(topic_of(keyed))


PACK: Final = [
    {"bn": "urn:dev:ow:1:", "bt": 1.7e9, "n": "temperature", "u": "Cel", "v": 21.5},
    {"n": "humidity", "v": 40},
]


@pytest.mark.parametrize("is_file", [False, True])
def test_senml_is_one_question_about_its_mqtt_topics(*, is_file: bool) -> None:
    source = file_of([PACK] * 3) if is_file else topic_of([("m1", PACK)] * 3)
    with pytest.raises(Question) as question:
        guessed(source)
    first, *lines = str(question.value).splitlines()
    assert first.startswith("plant: on which MQTT topics are its messages? They are SenML")
    assert "--mqtt 'senml/#'" in first
    assert tomllib.loads("\n".join(lines)) == {"connector": {"topic": [{"format": "senml", "topic": "senml/#"}]}}


def test_payloads_of_sparkplug_in_a_file_are_one_question_about_their_mqtt_topics() -> None:
    payload = b"\x08\x80\xd0\x95\xff\xbc1\x12\x1b\x0a\x0dSpindle/Speed"
    with pytest.raises(Question) as question:
        guessed(Source("plant", 0, [Sample(0, 0, 0, None, line) for line in payload.split(b"\n")]))
    first, *lines = str(question.value).splitlines()
    assert "They are Sparkplug B" in first
    assert tomllib.loads("\n".join(lines)) == {
        "connector": {"topic": [{"format": "sparkplug", "topic": "spBv1.0/#"}]},
    }


@pytest.mark.parametrize(
    "document",
    [
        {"n": "a", "v": 1},
        [],
        [1],
        [{"n": "a", "v": 1}, 2],
        [{"n": "a", "value": 1}],
        [{"v": 1}],
        [{"n": "a"}],
        "n",
    ],
)
def test_what_is_not_senml_is_not_taken_for_it(document: Any) -> None:
    assert not is_senml(document)
    assert is_senml(PACK)


@st.composite
def avro_messages(draw: Draw) -> tuple[dict[str, Any], list[bytes]]:
    """Draw a schema of a record with some usual fields and any other one, and messages of it."""
    time = draw(st.sampled_from(["long", {"type": "long", "logicalType": "timestamp-millis"}]))
    other = draw(schemas())
    messages = []
    for number in range(draw(st.integers(1, 5))):
        usual = zigzag(2) + b"m1" + zigzag(AT_MS + number) + struct.pack("<d", number)
        messages.append(add_header(1, usual + datum(draw, other)[0]))
    return record_of(host="string", ts=time, a="double", other=other), messages


@given(avro_messages())
def test_whatever_avro_contains_the_proposal_can_be_loaded_and_reads_it(
    drawn: tuple[dict[str, Any], list[bytes]],
) -> None:
    """Or the reason why there is none can be told to a user."""
    schema, messages = drawn
    source = values_of([("m1", one) for one in messages])._replace(registry=registry_of(AVRO=json.dumps(schema)))
    try:
        topics = [guessed(source), guessed(topic_of(spindle(), "other"))]
        proposal = compose(topics, [REGISTRY])
    except (UnusableSource, Question):
        return
    tried = {one.name: one for one in try_out(proposal, topics)}
    assert tried["rpm"].things
    if "a" in tried and topics[0].key == "$.host":
        assert tried["a"].things == {"m1": len(messages)}


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=6), st.integers(0, 2))
def test_whatever_follows_an_id_there_is_a_proposal_or_a_reason(contents: list[bytes], known: int) -> None:
    registry = [None, registry_of(AVRO='{"type": "map", "values": "bytes"}'), registry_of(JSON="{}")][known]
    source = values_of([("m1", add_header(1, one)) for one in contents])._replace(registry=registry)
    try:
        topics = [guessed(source), guessed(topic_of(spindle(), "other"))]
        assert try_out(compose(topics, [REGISTRY]), topics)
    except (UnusableSource, Question):
        return
