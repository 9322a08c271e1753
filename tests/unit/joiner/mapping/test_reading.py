"""Which records are in a message of another program?"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from broker.wire.records import Record, Unreadable
from joiner.mapping.documents import DEPTH_MAX, MESSAGE_BYTES_MAX, NUMBER_LENGTH_MAX
from joiner.mapping.reading import MappedTopic
from joiner.mapping.settings import StreamSettings

SPEED: dict[str, Any] = {
    "name": "speed",
    "topic": "plant",
    "key": "$.machine.id",
    "time": "$.ts",
    "value": "$.rpm",
    "id": "$.msg",
}
MESSAGE: dict[str, Any] = {"machine": {"id": "m1"}, "ts": 1_700_000_000_123, "rpm": 1500, "msg": "a"}


def topic(*streams: dict[str, Any], time_unit: str = "ms") -> MappedTopic:
    return MappedTopic([StreamSettings(**{**SPEED, **more}) for more in streams or ({},)], time_unit)


def read(mapping: MappedTopic, *, offset: int = 7, append_ms: int = 5, **more: Any) -> list[tuple[Record, int]]:
    return [(one.record, one.ts_ns) for one in mapping.read(json.dumps(MESSAGE | more).encode(), offset, append_ms)]


def test_the_fields_are_where_the_paths_say() -> None:
    ((record, ts_ns),) = read(topic())
    assert record == Record("m1", "speed", 1_700_000_000_123, 1500.0, "a")
    assert ts_ns == 1_700_000_000_123_000_000


def test_a_message_has_a_record_for_each_stream_whose_condition_holds() -> None:
    mapping = topic(
        {}, {"name": "load", "value": "$.load", "where": "$.load"}, {"name": "not", "where": "$.rpm > 2000"}
    )
    assert [record.quantity for record, _ in read(mapping)] == ["speed"]
    assert [(record.quantity, record.result) for record, _ in read(mapping, load=0.5)] == [
        ("speed", 1500),
        ("load", 0.5),
    ]
    assert read(topic({"where": "$.rpm > 2000"})) == []


def test_a_key_can_be_the_same_for_all_messages() -> None:
    ((record, _),) = read(topic({"key": "'press 4'"}))
    assert record.thing == "press 4"


def test_a_key_can_be_that_of_the_kafka_message() -> None:
    value = json.dumps(MESSAGE).encode()
    for key, thing in ((b"m1", "m1"), ("größe".encode(), "größe"), ("é".encode() * 256, "é" * 256)):
        ((record, _),) = topic({"key": "kafka.key"}).read(value, 7, 5, key)
        assert record.thing == thing


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        (None, "the message has no key"),
        (b"", "the message has no key"),
        (b"\xff", "the message's key is not UTF-8"),
        (b"x" * 257, "the message's key: expected 1 to 256 characters, got 257"),
    ],
)
def test_a_message_whose_key_is_not_a_name_is_rejected(key: bytes | None, reason: str) -> None:
    with pytest.raises(Unreadable) as refused:
        topic({"key": "kafka.key"}).read(json.dumps(MESSAGE).encode(), 7, 5, key)
    assert str(refused.value) == f"stream 'speed': {reason}"


def test_a_record_without_an_id_is_identified_by_its_offset() -> None:
    ((record, _),) = read(topic({"id": None}), offset=12)
    assert record.id == "12"


def test_the_time_can_be_that_of_kafka() -> None:
    ((record, ts_ns),) = read(topic({"time": "kafka.timestamp", "id": None}), append_ms=1_700_000_000_000)
    assert (record.phenomenonTime, ts_ns) == (1_700_000_000_000, 1_700_000_000_000_000_000)


@pytest.mark.parametrize(
    ("given", "unit", "shown", "ts_ns"),
    [
        (1_700_000_000, "s", 1_700_000_000_000, 1_700_000_000 * 10**9),
        (1_700_000_000_123_456_789, "ns", "1700000000123.456789", 1_700_000_000_123_456_789),
        ("2023-11-14T22:13:20.5Z", "ms", 1_700_000_000_500, 1_700_000_000_500_000_000),
        ("2023-11-14T23:13:20+01:00", "s", 1_700_000_000_000, 1_700_000_000_000_000_000),
    ],
)
def test_times_are_given_in_the_unit_of_the_application(given: object, unit: str, shown: object, ts_ns: int) -> None:
    ((record, found_ns),) = read(topic({"time_unit": unit}), ts=given)
    assert found_ns == ts_ns
    assert msgspec.json.encode(record.phenomenonTime).decode() == str(shown)


def test_a_decimal_time_is_exact() -> None:
    value = json.dumps(MESSAGE).replace("1700000000123", "1700000000.123456789").encode()
    ((_, ts_ns),) = topic({"time_unit": "s"}).read(value, 0, 0)
    assert ts_ns == 1_700_000_000_123_456_789


@pytest.mark.parametrize(
    ("given", "result"),
    [(0.1, 0.1), (-3, -3.0), ("12.5", 12.5), ("-1e3", -1000.0), (True, 1.0), (False, 0.0), (10**30, 1e30)],
)
def test_a_value_can_be_a_number_or_its_text_or_a_boolean(given: object, result: float) -> None:
    ((record, _),) = read(topic(), rpm=given)
    assert record.result == result


@pytest.mark.parametrize("given", [5, -5, 2**63])
def test_keys_and_ids_can_be_integers(given: int) -> None:
    ((record, _),) = read(topic(), machine={"id": given}, msg=given)
    assert (record.thing, record.id) == (str(given), str(given))


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"machine": {}}, "there is no key at $.machine.id"),
        ({"machine": {"id": None}}, "key at $.machine.id: expected a string or an integer"),
        ({"machine": {"id": 1.5}}, "expected a string or an integer"),
        ({"machine": {"id": ""}}, "1 to 256 characters"),
        ({"machine": {"id": "x" * 257}}, "got 257"),
        ({"ts": "yesterday"}, "time at $.ts: "),
        ({"ts": True}, "expected a number or an ISO-8601 string"),
        ({"ts": 10**30}, "outside the years"),
        ({"ts": [1]}, "expected a number or an ISO-8601 string"),
        ({"rpm": "fast"}, "'fast' is not a number"),
        ({"rpm": "1" * 401}, "is not a number"),
        ({"rpm": "1e999"}, "too large for a double"),
        ({"rpm": 10**399}, "too large for a double"),
        ({"rpm": None}, "expected a number"),
        ({"rpm": [1]}, "expected a number"),
        ({"msg": {}}, "id at $.msg: expected a string or an integer"),
    ],
)
def test_a_record_that_cannot_be_read_rejects_its_message(more: dict[str, Any], reason: str) -> None:
    with pytest.raises(Unreadable) as refused:
        read(
            topic({"name": "always", "key": "'x'", "time": "kafka.timestamp", "value": "$.fine", "id": None}, {}),
            fine=1,
            **more,
        )
    assert "stream 'speed': " in str(refused.value)
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "is empty"),
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b'{"a": 1} {}', "not JSON"),
        (b'{"a": NaN}', "not JSON"),
        (b'"' + b"x" * MESSAGE_BYTES_MAX + b'"', f"more than {MESSAGE_BYTES_MAX}"),
        (b"[" * 100_000, f"more than {DEPTH_MAX} levels"),
        # Neither the caller's stack nor what follows changes the reason.
        (b"[" * (DEPTH_MAX + 1) + b"x", f"more than {DEPTH_MAX} levels"),
        (b'{"a":[' * 51, f"more than {DEPTH_MAX} levels"),
        # The time is linear: otherwise, this would take the better part of an hour.
        (b'"' + b'\\"' * 300_000 + b"1" * (NUMBER_LENGTH_MAX + 1), "not JSON"),
        (b"[" * 101 + b'"' + b'\\"' * 300_000 + b"1" * (NUMBER_LENGTH_MAX + 1), f"more than {DEPTH_MAX} levels"),
        (b"[" * (DEPTH_MAX + 1) + b"]" * (DEPTH_MAX + 1), f"more than {DEPTH_MAX} levels"),
        (b'{"rpm": 1e9999999}', "an exponent has more than 6 digits"),
        (b'{"rpm": -1E-0000000}', "an exponent has more than 6 digits"),
        (b'{"junk": ' + b"1" * 401 + b"}", "a number of more than 400 characters"),
        (b'{"junk": -0.' + b"1" * 400 + b"}", "a number of more than 400 characters"),
        (b'["' + b"[" * 2 + b"]" + b'\\"' * 300_000 + b'"]', "no key"),
    ],
)
def test_what_is_not_json_is_rejected(value: bytes, reason: str) -> None:
    with pytest.raises(Unreadable, match=reason):
        topic().read(value, 0, 0)


def test_brackets_in_strings_and_in_wide_messages_do_not_count_as_depth() -> None:
    assert read(topic(), text="[" * 500, wide=[[1]] * 500, escaped='\\"[' * 200)[0][0].thing == "m1"


def test_a_tombstone_has_no_records() -> None:
    assert topic({"key": "'x'", "time": "kafka.timestamp", "value": "$", "id": None}).read(None, 0, 0) == []


@pytest.mark.parametrize("text", ["-0", "-0.0", "0", "1e3"])
def test_a_string_has_the_value_of_the_number_in_it(text: str) -> None:
    message = '{"machine":{"id":"m"},"ts":1,"msg":"a","rpm":%s}'
    (number,), (string,) = (topic().read((message % one).encode(), 0, 0) for one in (text, f'"{text}"'))
    assert repr(number.record.result) == repr(string.record.result)
