"""Which fields does a proposal take for the key, the time, the id and the values?"""

from __future__ import annotations

import json
from typing import Any

import pytest

from joiner.cli.proposal.guess import Question
from joiner.cli.proposal.samples import Sample, Source, UnusableSource
from tests.unit.joiner.cli.proposal.sampled import AT_MS, file_of, guessed, topic_of

MACHINES = [f"m{number}" for number in range(6)]


def spindle(number: int, **more: Any) -> dict[str, Any]:
    """Return a message in no particular layout."""
    return {
        "seq": number,
        "machine": {"id": MACHINES[number % 6], "line": "north"},
        "msgId": f"a-{number}",
        "ts": AT_MS + 7 * number,
        "stored_at": AT_MS + 7 * number + 40,
        "rpm": 1000 + number % 50,
        **more,
    }


def messages(count: int = 60, **more: Any) -> list[tuple[str, dict[str, Any]]]:
    return [(MACHINES[number % 6], spindle(number, **more)) for number in range(count)]


def test_the_fields_of_a_topic_are_found_by_their_names_and_by_the_key_of_the_messages() -> None:
    topic = guessed(topic_of(messages()))
    assert (topic.key, topic.time, topic.time_unit, topic.id) == ("$.machine.id", "$.ts", "ms", "$.msgId")
    assert [(one.name, one.value, one.where) for one in topic.streams] == [("rpm", "$.rpm", None)]


def test_the_key_is_what_the_producer_used_whatever_its_name() -> None:
    documents = [(document["machine"]["id"], document | {"machine": "x", "zzz": key}) for key, document in messages()]
    assert guessed(topic_of(documents)).key == "$.zzz"


def test_without_message_keys_the_partition_tells_which_field_is_the_key() -> None:
    source = topic_of(messages())
    source = source._replace(samples=[sample._replace(key=None) for sample in source.samples])
    assert guessed(source).key == "$.machine.id"


def test_a_topic_that_no_field_partitions_is_refused_with_a_remedy() -> None:
    shifted = [(MACHINES[(number + 1) % 6], spindle(number)) for number in range(60)]
    with pytest.raises(UnusableSource, match=r"not partitioned by any of their fields.*murmur2"):
        guessed(topic_of(shifted))


def test_messages_of_one_partition_without_a_key_are_all_of_one_thing() -> None:
    documents = [(None, {"ts": AT_MS + number, "rpm": number}) for number in range(9)]
    topic = guessed(topic_of(documents, name="press", partitions=1))
    assert topic.key == "'press'"
    assert any("all messages have the same" in note for note in topic.notes)


@pytest.mark.parametrize(("unit", "factor"), [("s", 0.001), ("ms", 1), ("us", 1000), ("ns", 1_000_000)])
def test_the_unit_of_a_time_is_proposed_with_a_date(unit: str, factor: float) -> None:
    documents = [(key, document | {"ts": int(document["ts"] * factor)}) for key, document in messages(12)]
    for _, document in documents:
        del document["stored_at"]
    topic = guessed(topic_of(documents))
    assert (topic.time, topic.time_unit) == ("$.ts", unit)
    assert topic.example.endswith(f"which is 2023-11-14T22:13:20Z if in {unit}")


def test_a_time_whose_unit_is_unclear_is_a_question_with_dates_in_each_unit() -> None:
    documents = [{"machine": "m1", "ts": 86_400 + number, "rpm": number} for number in range(9)]
    with pytest.raises(Question, match=r"unit is the time \$\.ts\? 86400 is 1970-01-02T00:00:00Z if in s, 1970-01-01"):
        guessed(file_of(documents))
    answered = guessed(file_of(documents), time="$.ts", time_unit="s")
    assert (answered.time, answered.time_unit) == ("$.ts", "s")


def test_a_time_without_an_offset_is_not_used_and_the_reason_is_told() -> None:
    documents = [("m1", {"machine": "m1", "ts": "2024-05-01 12:00:00", "rpm": number}) for number in range(9)]
    topic = guessed(topic_of(documents))
    assert topic.time == "kafka.timestamp"
    assert any("has no offset from UTC" in note for note in topic.notes)
    assert topic.id is None


def test_the_time_of_the_measurement_is_preferred_to_times_of_handling() -> None:
    after = [
        {"before": None, "after": {"machine": "m1", "measured_at": (AT_MS + number) * 1000, "rpm": number}}
        | {"source": {"ts_ms": AT_MS + number + 2, "lsn": 5 + number}, "op": "c", "ts_ms": AT_MS + number + 9}
        for number in range(9)
    ]
    topic = guessed(file_of({"payload": one} for one in after))
    assert (topic.time, topic.time_unit) == ("$.payload.after.measured_at", "us")
    assert [one.value for one in topic.streams] == ["$.payload.after.rpm"]


def test_a_value_with_a_time_of_its_own_has_that_time() -> None:
    documents = [
        {
            "device": "m1",
            "timestamp": AT_MS + number,
            "speed": {"Value": number, "SourceTimestamp": f"2024-05-01T12:00:{number:02}Z"},
            "torque": {"Value": number % 3, "SourceTimestamp": f"2024-05-01T11:00:{number:02}Z"},
        }
        for number in range(9)
    ]
    topic = guessed(file_of(documents))
    assert {(one.name, one.time) for one in topic.streams} == {
        ("speed", "$.speed.SourceTimestamp"),
        ("torque", "$.torque.SourceTimestamp"),
    }


def test_messages_of_different_kinds_are_different_streams() -> None:
    documents = [
        {"host": "m1", "ts": AT_MS + number, "name": ("speed", "it's")[number % 2], "value": number}
        for number in range(9)
    ]
    found = [(one.name, one.value, one.where) for one in guessed(file_of(documents)).streams]
    assert found == [
        ("speed", "$.value", "$.name == 'speed'"),
        ("it's", "$.value", '$.name == "it\'s"'),
    ]


def test_values_that_some_messages_lack_select_the_messages_that_have_them() -> None:
    documents: list[Any] = [{"host": "m1", "ts": AT_MS + number, "speed": number} for number in range(9)]
    documents += [{"host": "m1", "ts": AT_MS + number, "torque": number or None} for number in range(9)]
    found = {one.name: one.where for one in guessed(file_of(documents)).streams}
    assert found == {"speed": "$.speed", "torque": "$.torque && $.torque != null"}


def test_numbers_that_are_not_measured_are_not_streams() -> None:
    topic = guessed(topic_of([(key, document | {"version": 3, "const": 1}) for key, document in messages()]))
    assert [one.value for one in topic.streams] == ["$.rpm"]


def test_ids_must_be_complete_and_nearly_distinct() -> None:
    assert guessed(topic_of([(key, document | {"msgId": "same"}) for key, document in messages()])).id is None
    assert guessed(topic_of([*messages(), ("m1", {**spindle(1), "msgId": None})])).id is None
    assert guessed(topic_of([*messages(), messages()[7]])).id == "$.msgId"


def test_records_of_the_pipelines_own_form_need_no_stream() -> None:
    documents = [
        {
            "thing": "m1",
            "quantity": "ab"[number % 2],
            "phenomenonTime": AT_MS + number,
            "result": number,
            "id": str(number),
        }
        for number in range(8)
    ]
    topic = guessed(file_of(documents))
    assert topic.is_own
    assert topic.time_unit == "ms"
    assert [one.name for one in topic.streams] == ["a", "b"]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"\x00\x00\x00\x00\x07abcdef", "id 7.*schema registry"),
        (b"\xff\xff\xff\xff\x10\x00", "Arrow"),
        (b"12,5,7", "none of its messages is JSON"),
        (b"42", "not a JSON object"),
        (None, "no messages"),
    ],
)
def test_what_is_not_json_is_refused_with_what_it_may_be(value: bytes | None, reason: str) -> None:
    with pytest.raises(UnusableSource, match=reason):
        guessed(Source("plant", 1, [Sample(0, 0, 0, None, value)]))


def test_messages_without_numbers_are_refused_with_their_fields() -> None:
    with pytest.raises(UnusableSource, match=r"no field .* is a measured number \(fields: \$\.host, \$\.ts"):
        guessed(file_of([{"host": "m1", "ts": AT_MS, "state": "on"}] * 3))


def test_some_damaged_messages_are_only_noted() -> None:
    source = topic_of(messages())
    source = source._replace(samples=[*source.samples, Sample(0, 99, 0, None, b"{"), Sample(0, 100, 0, None, None)])
    assert any("1 of 62 messages are not JSON" in note for note in guessed(source).notes)


def test_a_path_that_no_message_has_is_a_question_with_the_fields() -> None:
    with pytest.raises(Question, match=r"no message has a field \$\.when.*\$\.ts"):
        guessed(topic_of(messages()), time="$.when")


def test_deep_and_wide_messages_take_linear_space() -> None:
    wide = {f"f{number}": number for number in range(5_000)} | {"host": "m1", "ts": AT_MS}
    deep: Any = 1.5
    for _ in range(60):
        deep = {"a": deep}
    assert len(json.dumps(wide)) > 50_000
    topic = guessed(file_of([{"host": "m1", "ts": AT_MS + number, "deep": deep, **wide} for number in range(3)]))
    assert len(topic.streams) <= 20
