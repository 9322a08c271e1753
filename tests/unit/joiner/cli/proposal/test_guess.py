"""Which fields does a proposal take for the key, the time, the id and the values?"""

from __future__ import annotations

import json
from typing import Any

import pytest

from joiner.cli.proposal.samples import Question, Sample, Source, UnusableSource
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


def test_messages_of_one_partition_without_a_key_are_all_of_one_thing() -> None:
    documents = [(None, {"ts": AT_MS + number, "rpm": number}) for number in range(9)]
    topic = guessed(topic_of(documents, name="press", partitions=1))
    assert topic.key == "'machine'"
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
    assert any("with an offset from UTC" in note for note in topic.notes)
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
        (b"\xff\xff\xff\xff\x10\x00", "Arrow"),
        (b"12,5,7", "none of its messages is JSON"),
        (b"42", "not a JSON object"),
        (None, "no messages to look at: the last 1 have no value"),
    ],
)
def test_what_is_not_json_is_refused_with_what_it_may_be(value: bytes | None, reason: str) -> None:
    with pytest.raises(UnusableSource, match=reason):
        guessed(Source("plant", 1, [Sample(0, 0, 0, None, value)]))


def test_messages_without_numbers_are_refused_with_their_fields() -> None:
    with pytest.raises(UnusableSource, match=r"no field .* is a measured number. Fields: \$\.host .'m1'., \$\.ts"):
        guessed(file_of([{"host": "m1", "ts": AT_MS, "state": "on"}] * 3))


def test_some_damaged_messages_are_only_noted() -> None:
    source = topic_of(messages())
    source = source._replace(samples=[*source.samples, Sample(0, 99, 0, None, b"{"), Sample(0, 100, 0, None, None)])
    assert any("1 of 62 messages are not JSON" in note for note in guessed(source).notes)


def test_an_answer_applies_to_the_topics_that_have_such_a_field() -> None:
    assert guessed(topic_of(messages()), key="$.dev", time="$.when", id="$.no").key == "$.machine.id"
    given = guessed(topic_of(messages()), key="$['machine']['id']", time="$['stored_at']", id="$.seq")
    assert (given.key, given.time, given.id) == ("$.machine.id", "$.stored_at", "$.seq")


def test_a_field_that_different_messages_share_is_not_an_id() -> None:
    """A record with the same key, time and id as an earlier one would not be joined."""
    for name in ("bid", "valid", "gatewayId", "txId", "paid"):
        assert guessed(topic_of([(key, one | {"msgId": 0, name: one["seq"]}) for key, one in messages()])).id is None
    shared = [*messages(200), ("m1", {**spindle(1), "rpm": 7})]
    assert guessed(topic_of(messages(200))).id == "$.msgId"
    assert guessed(topic_of(shared)).id is None
    change = [
        {"after": {"machine": "m1", "ts": AT_MS + number}, "rpm": number, "source": {"id": number}}
        for number in range(30)
    ]
    assert guessed(file_of(change)).id is None


@pytest.mark.parametrize("kind", ["metric_name", "sensorType", "name"])
def test_quantities_are_told_apart_by_a_field_whose_name_ends_like_a_kind(kind: str) -> None:
    documents: list[Any] = [
        {"device": "m1", "ts": AT_MS + number, kind: ("temp", "hum")[number % 2], "value": number}
        for number in range(99)
    ]
    del documents[7][kind]
    assert {one.name for one in guessed(file_of(documents)).streams} == {"temp", "hum"}


def test_a_field_that_may_divide_the_messages_is_told() -> None:
    documents = [
        {"device": "m1", "ts": AT_MS + number, "what": ("temp", "hum")[number % 2], "value": number}
        for number in range(9)
    ]
    assert any("if $.what (hum, temp) says what is measured" in note for note in guessed(file_of(documents)).notes)


def test_the_name_of_a_person_does_not_divide_the_messages() -> None:
    documents = [
        {"device": "m1", "ts": AT_MS + number, "operator": {"name": ("Ann", "Bob")[number % 2]}, "rpm": number}
        for number in range(9)
    ]
    assert [one.name for one in guessed(file_of(documents)).streams] == ["rpm"]


@pytest.mark.parametrize("odd", [None, 0, "later"])
def test_single_messages_without_a_time_do_not_change_which_field_is_the_time(odd: Any) -> None:
    documents: list[Any] = [
        {"host": "m1", "measured_at": AT_MS + number, "received_at": AT_MS + number + 5, "rpm": number}
        for number in range(100)
    ]
    documents[40]["measured_at"] = odd
    topic = guessed(file_of(documents))
    assert (topic.time, topic.time_unit) == ("$.measured_at", "ms")
    assert any("1 of 100 messages have no likely time" in note for note in topic.notes)
    assert [one.name for one in topic.streams] == ["rpm"]


def test_a_time_that_never_changes_is_not_that_of_a_measurement() -> None:
    documents = [
        {"host": "m1", "t": AT_MS + number, "installed_at": "2020-01-01T00:00:00Z", "data": {"rpm": number}}
        | {"header": {"calibrated_at": "2021-01-01T00:00:00Z"}}
        for number in range(20)
    ]
    topic = guessed(file_of(documents))
    assert topic.time == "$.t"
    assert {one.time for one in topic.streams} == {None}


def test_a_large_counter_is_a_value_and_not_a_time() -> None:
    documents = [{"host": "m1", "ts": AT_MS + number, "rx_bytes": 1_300_000_000_000 + number} for number in range(9)]
    assert [one.name for one in guessed(file_of(documents)).streams] == ["rx_bytes"]
    del documents[0]["ts"]
    topic = guessed(topic_of([("m1", {"host": "m1", "rx_bytes": one["rx_bytes"]}) for one in documents]))
    assert topic.time == "kafka.timestamp"


@pytest.mark.parametrize("name", ["heat", "volts", "lat", "cycle_time"])
def test_a_number_is_not_taken_for_a_time_of_unknown_unit_by_its_letters(name: str) -> None:
    topic = guessed(topic_of([("m1", {"host": "m1", name: number + 0.5}) for number in range(9)]))
    assert (topic.time, topic.streams[0].name) == ("kafka.timestamp", name)


def test_a_given_time_that_cannot_be_used_is_refused_with_the_reason() -> None:
    documents = [{"host": "m1", "ts": "2024-05-01 12:00:00", "v": number} for number in range(9)]
    with pytest.raises(UnusableSource, match=r"\$\.ts cannot be the time, because '2024-05-01 12:00:00' is not an ISO"):
        guessed(file_of(documents), time="$.ts")


def test_an_answered_unit_is_shown_with_a_date() -> None:
    topic = guessed(topic_of(messages()), time="$.ts", time_unit="ns")
    assert topic.example == f"{AT_MS}, which is 1970-01-01T00:28:20Z if in ns"


def test_single_messages_in_another_partition_do_not_make_a_topic_unusable() -> None:
    documents = [*messages(90), (MACHINES[1], spindle(2))]
    assert guessed(topic_of(documents)).key == "$.machine.id"


def test_other_possible_keys_are_told() -> None:
    documents = [
        {"tenantId": "acme", "unit": f"press-{number % 3}", "machine": "m", "ts": AT_MS + number, "v": number}
        for number in range(9)
    ]
    topic = guessed(file_of(documents))
    assert topic.key == "$.machine"
    documents = [one | {"machine": f"m{number % 2}", "device": one["unit"]} for number, one in enumerate(documents)]
    assert any("other possible keys: $.device" in note for note in guessed(file_of(documents)).notes)


@pytest.mark.parametrize("time", ["2024-05-01 12:00:00", None, {"a": 1}])
def test_own_records_without_a_time_are_refused(time: Any) -> None:
    document = {"thing": "m1", "quantity": "a", "phenomenonTime": time, "result": 1, "id": "i"}
    with pytest.raises(UnusableSource, match="phenomenonTime"):
        guessed(file_of([document] * 3))


def test_the_unit_of_own_records_can_be_answered() -> None:
    document = {"thing": "m1", "quantity": "a", "phenomenonTime": 86_400, "result": 1, "id": "i"}
    with pytest.raises(Question, match="in which unit"):
        guessed(file_of([document] * 3))
    assert guessed(file_of([document] * 3), time_unit="s").time_unit == "s"


def test_an_array_of_messages_is_refused() -> None:
    with pytest.raises(UnusableSource, match="a line is an array of messages, but each message needs a line"):
        guessed(file_of([[{"v": 1}, {"v": 2}]]))


def test_a_unit_of_measure_and_a_constant_are_not_the_key() -> None:
    documents = [
        {"ts": AT_MS + number, "value": number, "unit": "mm/s", "source": "/plant/hall-2", "machine": f"m{number % 3}"}
        for number in range(60)
    ]
    topic = guessed(file_of(documents))
    assert topic.key == "$.machine"
    assert not any("$.machine ==" in note for note in topic.notes)


def test_a_name_that_follows_from_the_key_is_not_a_kind() -> None:
    documents = [
        {"machine_id": number % 3, "machine_name": f"press{number % 3}", "ts": AT_MS + number, "rpm": number}
        for number in range(60)
    ]
    assert [one.name for one in guessed(file_of(documents)).streams] == ["rpm"]


@pytest.mark.parametrize("name", ["operator_name", "product_type", "shift_event"])
def test_what_may_have_new_values_tomorrow_does_not_divide_the_messages(name: str) -> None:
    documents = [
        {"machine": f"m{number % 3}", name: ("Ann", "Bob")[number % 2], "ts": AT_MS + number, "rpm": number}
        for number in range(60)
    ]
    topic = guessed(file_of(documents))
    assert [one.name for one in topic.streams] == ["rpm"]
    assert any(f"if $.{name} (Ann, Bob) says" in note for note in topic.notes)


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ({"channel": 0}, {"channel.0", "channel.1"}),
        ({"tags": {"metric": 0}}, {"temp", "hum"}),
    ],
)
def test_kinds_may_be_numbers_or_beside_the_object_of_the_value(kind: dict[str, Any], names: set[str]) -> None:
    documents = []
    for number in range(60):
        which = number % 2
        named = {"channel": which} if "channel" in kind else {"tags": {"metric": ("temp", "hum")[which]}}
        documents.append({"device": f"d{number // 2 % 3}", "ts": AT_MS + number, "fields": {"value": number}, **named})
    topic = guessed(file_of(documents))
    assert {one.name for one in topic.streams} == names


def test_a_second_field_that_divides_the_messages_is_told() -> None:
    documents = [
        {"device": "d", "metric": "ab"[number % 2], "place": ("front", "back")[number // 2 % 2], "ts": AT_MS + number}
        | {"value": number}
        for number in range(60)
    ]
    topic = guessed(file_of(documents))
    assert {one.name for one in topic.streams} == {"a", "b"}
    assert any("if $.place (back, front) says" in note for note in topic.notes)


def test_a_time_of_arrival_does_not_replace_an_unusable_time_of_measurement_without_a_question() -> None:
    documents = [
        {"host": "m1", "ts": "2024-05-01 12:00:00", "received_at": f"2024-05-01T12:01:{number:02}Z", "rpm": number}
        for number in range(60)
    ]
    with pytest.raises(Question, match=r"\$\.ts cannot be the time.*answer with --time '\$\.received_at'"):
        guessed(file_of(documents))
    assert guessed(file_of(documents), time="$.received_at").time == "$.received_at"


def test_own_records_are_known_among_watermarks_and_a_damaged_one() -> None:
    own: list[Any] = [
        {"thing": "m1", "quantity": "ab"[number % 2], "phenomenonTime": AT_MS + number, "result": number, "id": "i"}
        for number in range(60)
    ]
    assert guessed(file_of([*own, {"thing": "m1"}, {"mark": AT_MS, "quantity": "a"}])).is_own


@pytest.mark.parametrize("time", [638_700_000_000_000_000, 754_000_000])
def test_other_epochs_are_a_question(time: int) -> None:
    with pytest.raises(Question, match="in which unit"):
        guessed(file_of([{"host": "m1", "ts": time + number, "v": number} for number in range(9)]))


def test_a_unit_answers_for_times_that_do_not_tell_it() -> None:
    doubtful = [{"host": "m1", "ts": 86_400 + number, "v": number} for number in range(9)]
    assert guessed(file_of(doubtful), time_unit="s").time_unit == "s"
    assert guessed(topic_of(messages()), time_unit="s").time_unit == "ms"
    odd = guessed(topic_of(messages()), time="$.ts", time_unit="s")
    assert any("check the unit" in note for note in odd.notes)


def test_the_id_of_a_changed_row_is_no_id() -> None:
    change = [{"after": {"id": number, "machine": "m1", "ts": AT_MS + number, "rpm": number}} for number in range(30)]
    assert guessed(file_of(change)).id is None


def test_a_time_beside_a_value_must_be_named_like_that_of_a_measurement() -> None:
    documents = [
        {"host": "m1", "ts": AT_MS + number, "job": {"temp": number, "delivery_time": f"2026-12-01T00:00:{number:02}Z"}}
        for number in range(30)
    ]
    assert [one.time for one in guessed(file_of(documents)).streams] == [None]


@pytest.mark.parametrize(
    ("measured", "handled"),
    [("sample_time", "inserted_at"), ("process_time", "archived_time"), ("observed_at", "published_at")],
)
def test_names_tell_the_time_of_the_measurement(measured: str, handled: str) -> None:
    documents = [
        {"host": "m1", handled: AT_MS + number + 5, measured: AT_MS + number, "v": number} for number in range(30)
    ]
    assert guessed(file_of(documents)).time == f"$.{measured}"


def test_deep_and_wide_messages_take_linear_space() -> None:
    wide = {f"f{number}": number for number in range(5_000)} | {"host": "m1", "ts": AT_MS}
    deep: Any = 1.5
    for _ in range(60):
        deep = {"a": deep}
    assert len(json.dumps(wide)) > 50_000
    topic = guessed(file_of([{"host": "m1", "ts": AT_MS + number, "deep": deep, **wide} for number in range(3)]))
    assert len(topic.streams) <= 20
