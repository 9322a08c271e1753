"""Parsing turns every payload into records and refusals. It neither alters nor drops anything, and never raises."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.wire.records import (
    QUANTITIES_MAX,
    RECORD_BYTES_MAX,
    REFUSED_MAX,
    REJECTED_BYTES_MAX,
    Record,
    decode_data,
    encode,
)
from connector.formats.events import REASON_LENGTH_MAX, Parser, dead_letter

BYTES_MAX = 4096
PARSER = Parser("ms", BYTES_MAX)
GOOD: dict[str, Any] = {"Thing": "R0815", "Timestamp": 1554096460415, "id": "e1", "speed": 288.2, "torque": 3}


def event(**changes: Any) -> bytes:
    """Return the valid event with members replaced, or omitted if None is given."""
    return json.dumps({k: v for k, v in {**GOOD, **changes}.items() if v is not None}).encode()


def raw(member: str, text: str) -> bytes:
    """Return the valid event with the JSON text of one member replaced."""
    texts = {name: json.dumps(value) for name, value in GOOD.items()} | {member: text}
    return ("{" + ",".join(f'"{name}":{value}' for name, value in texts.items()) + "}").encode()


def test_an_event_becomes_one_record_for_each_quantity() -> None:
    parsed = PARSER.parse(event())
    assert parsed.records == [
        Record("R0815", "speed", 1554096460415, 288.2, "e1"),
        Record("R0815", "torque", 1554096460415, 3, "e1"),
    ]
    assert parsed.refusals == []
    assert (parsed.thing, parsed.time_ns) == ("R0815", 1554096460415 * 10**6)


WHOLE = [
    pytest.param(b"", "the payload is empty", id="empty"),
    pytest.param(b"\x00\xff\xfe\x80", "not a JSON object", id="binary"),
    pytest.param(bytes(range(256)), "not a JSON object", id="all bytes"),
    pytest.param(event()[:-9], "not a JSON object", id="truncated"),
    pytest.param(b"{", "not a JSON object", id="opening brace"),
    pytest.param(event() + b"x", "not a JSON object", id="trailing characters"),
    pytest.param(event() + event(), "not a JSON object", id="two events"),
    pytest.param(b"\xef\xbb\xbf" + event(), "not a JSON object", id="byte order mark"),
    pytest.param(event().decode().encode("utf-16"), "not a JSON object", id="utf-16"),
    pytest.param(b"null", "not a JSON object", id="null"),
    pytest.param(b"[" + event() + b"]", "not a JSON object", id="array"),
    pytest.param(b'"text"', "not a JSON object", id="string"),
    pytest.param(b"17", "not a JSON object", id="number"),
    pytest.param(b"{}", "Thing is missing", id="empty object"),
    pytest.param(b'{"a":' + b"[" * 3000 + b"]" * 3000 + b"}", "more than", id="too large and deep"),
    pytest.param(b'{"a":' + b"[" * 1500 + b"]" * 1500 + b"}", "more than 256 brackets", id="deep"),
    pytest.param(raw("speed", "NaN"), "JSON has no NaN", id="NaN"),
    pytest.param(raw("speed", "-Infinity"), "JSON has no NaN and no Infinity", id="Infinity"),
    pytest.param(raw("Timestamp", "NaN"), "JSON has no NaN", id="time NaN"),
    pytest.param(raw("speed", "01"), "not a JSON object", id="leading zero"),
    pytest.param(raw("speed", "1."), "not a JSON object", id="bare point"),
    pytest.param(raw("Thing", '"\\ud800"'), "not a JSON object", id="half a surrogate pair"),
    pytest.param(event(Thing=None), "Thing is missing", id="no Thing"),
    pytest.param(event(Thing=""), "Thing is empty", id="empty Thing"),
    pytest.param(event(Thing="x" * 257), "Thing has 257 characters, more than 256", id="long Thing"),
    pytest.param(event(Thing=815), "Thing must be a string, not 815", id="Thing a number"),
    pytest.param(raw("Thing", "null"), "Thing must be a string, not null", id="Thing null"),
    pytest.param(raw("Thing", '["R"]'), 'Thing must be a string, not ["R"]', id="Thing an array"),
    pytest.param(raw("Thing", '"a').replace(b"Thing", b"Thing"), "not a JSON object", id="Thing unclosed"),
    pytest.param(event(id=None), "id is missing", id="no id"),
    pytest.param(event(id=""), "id is empty", id="empty id"),
    pytest.param(event(id="x" * 257), "id has 257 characters, more than 256", id="long id"),
    pytest.param(event(id=7), "id must be a string, not 7", id="id a number"),
    pytest.param(raw("id", "true"), "id must be a string, not true", id="id a boolean"),
    pytest.param(event(Timestamp=None), "Timestamp is missing", id="no Timestamp"),
    pytest.param(raw("Timestamp", "null"), "Timestamp: time null is neither", id="time null"),
    pytest.param(raw("Timestamp", "true"), "Timestamp: time true is neither", id="time a boolean"),
    pytest.param(raw("Timestamp", "[1]"), "Timestamp: time [1] is neither", id="time an array"),
    pytest.param(event(Timestamp=""), "is not an ISO-8601 time", id="time empty"),
    pytest.param(event(Timestamp="soon"), "is not an ISO-8601 time", id="time a word"),
    pytest.param(event(Timestamp="2019-04-01T05:26:20"), "has no offset from UTC", id="time without offset"),
    pytest.param(event(Timestamp="2019-02-30T05:26:20Z"), "does not exist", id="30th of February"),
    pytest.param(event(Timestamp="0001-01-01T00:00:00Z"), "outside the years 1678-2261", id="year 1"),
    pytest.param(event(Timestamp="9999-12-31T23:59:59Z"), "outside the years 1678-2261", id="year 9999"),
    pytest.param(event(Timestamp=-62135596800000), "outside the years 1678-2261", id="year 1 in ms"),
    pytest.param(event(Timestamp=253402300799000), "outside the years 1678-2261", id="year 9999 in ms"),
    pytest.param(event(Timestamp=10**40), "", id="time of forty digits"),
    pytest.param(raw("Timestamp", "1e999999"), "outside the years 1678-2261", id="time a huge power"),
    pytest.param(raw("Timestamp", "1.00000001"), "finer than a nanosecond", id="time too fine"),
    pytest.param(event(speed=None, torque=None), "the event has no quantity", id="no quantity"),
    pytest.param(event(Timestamp="2019-04-01T05:26:20." + "0" * 40 + "Z"), "has 61 characters", id="long ISO time"),
    pytest.param(
        event(Thing="x" * 256, id="y" * 256, speed=None, torque=None, **{f"{number:x}": 1 for number in range(300)}),
        "repeating Thing and id in 300 records would take 231600 bytes, more than 64 times the event's",
        id="long names in many records",
    ),
    pytest.param(event(pad="x" * BYTES_MAX), "more than events.event_bytes_max = 4096", id="too large"),
    pytest.param(raw("speed", '1,"speed":2'), "the member 'speed' occurs more than once", id="twice"),
    pytest.param(raw("speed", '1,"spe\\u0065d":2'), "'speed' occurs more than once", id="twice, escaped"),
    pytest.param(raw("Thing", '"A","Thing":"B"'), "the member 'Thing' occurs more than once", id="two Things"),
]


@pytest.mark.parametrize(("payload", "reason"), WHOLE)
def test_a_payload_that_is_not_an_event_is_refused_as_a_whole_with_the_reason(payload: bytes, reason: str) -> None:
    parsed = PARSER.parse(payload)
    assert parsed.records == []
    (refusal,) = parsed.refusals
    assert reason in refusal.reason
    assert refusal.value == payload
    made = dead_letter(refusal, "machine/states")
    digest = hashlib.sha256(payload).hexdigest()
    assert (made.id, made.length, made.sha256) == (f"mqtt:{digest[:32]}", len(payload), digest)
    assert (made.source, made.topic) == ("connector", "machine/states")


PART = [
    pytest.param("true", "quantity 'bad' is a boolean, not a number", id="true"),
    pytest.param("false", "quantity 'bad' is a boolean, not a number", id="false"),
    pytest.param("null", "quantity 'bad' is null, not a number", id="null"),
    pytest.param('"12.5"', "quantity 'bad' is a string, not a number", id="string"),
    pytest.param('"NaN"', "quantity 'bad' is a string, not a number", id="NaN as text"),
    pytest.param("[1]", "quantity 'bad' is an array, not a number", id="array"),
    pytest.param('{"value":1}', "quantity 'bad' is an object, not a number", id="object"),
    pytest.param("1e400", "quantity 'bad' is beyond the range of a 64-bit float: 1e400", id="1e400"),
    pytest.param("-" + "9" * 400, "beyond the range of a 64-bit float", id="400 digits"),
]


@pytest.mark.parametrize(("text", "reason"), PART)
def test_a_bad_quantity_is_refused_alone_and_the_good_ones_go_on(text: str, reason: str) -> None:
    payload = raw("bad", text)
    parsed = PARSER.parse(payload)
    assert [record.quantity for record in parsed.records] == ["speed", "torque"]
    (refusal,) = parsed.refusals
    assert reason in refusal.reason
    assert refusal.identity == f"mqtt:{hashlib.sha256(payload).hexdigest()[:32]}:bad"
    kept = {
        name: bytes(value) for name, value in msgspec.json.decode(refusal.value, type=dict[str, msgspec.Raw]).items()
    }
    assert kept == {
        "Thing": b'"R0815"', "Timestamp": b"1554096460415", "id": b'"e1"', "bad": text.encode(),
    }  # fmt: skip


def test_beyond_sixteen_invalid_quantities_one_dead_letter_has_them_all_and_the_valid_ones_are_forwarded() -> None:
    bad = {f"b{number}": None for number in range(REFUSED_MAX + 1)}
    payload = json.dumps({**GOOD, **bad}).encode()
    parsed = PARSER.parse(payload)
    assert [record.quantity for record in parsed.records] == ["speed", "torque"]
    (refusal,) = parsed.refusals
    assert refusal.value == payload
    assert refusal.reason == (
        "17 quantities of the event are invalid (limit 16); the first error: quantity 'b0' is null, not a number"
    )
    assert dead_letter(refusal, "t").id == f"mqtt:{hashlib.sha256(payload).hexdigest()[:32]}"
    assert len(PARSER.parse(json.dumps({**GOOD, **bad, "b0": 1}).encode()).refusals) == REFUSED_MAX


@pytest.mark.parametrize("bad", [{}, {"bad": None}])
def test_an_event_has_at_most_so_many_quantities(bad: dict[str, Any]) -> None:
    head = {name: GOOD[name] for name in ("Thing", "Timestamp", "id")}
    most = {f"q{number}": 1 for number in range(QUANTITIES_MAX - len(bad))}
    parser = Parser("ms", 10**6)
    assert len(parser.parse(json.dumps(head | most | bad).encode()).records) == len(most)
    (refusal,) = parser.parse(json.dumps(head | most | bad | {"one more": 1}).encode()).refusals
    assert refusal.reason == "the event has 10001 quantities, more than 10000"


def test_a_dead_letter_shows_the_beginning_of_a_long_topic() -> None:
    (refusal,) = PARSER.parse(b"").refusals
    assert dead_letter(refusal, "t" * 256).topic == "t" * 256
    assert dead_letter(refusal, "t" * 257).topic == "t" * 256 + "..."


def test_a_quantity_with_a_bad_name_is_refused_alone() -> None:
    parsed = PARSER.parse(event(**{"": 1, "n" * 257: 2}))
    assert [record.quantity for record in parsed.records] == ["speed", "torque"]
    assert [refusal.reason.rpartition("...")[2] for refusal in parsed.refusals] == [
        "the name of quantity '' is empty",
        " has 257 characters, more than 256",
    ]


def test_long_names_that_begin_alike_have_different_identities() -> None:
    parsed = PARSER.parse(event(**{"n" * 300 + "a": 1, "n" * 300 + "b": 2}))
    first, second = parsed.refusals
    assert first.identity != second.identity


def test_an_event_of_bad_quantities_alone_is_an_event_whose_parts_are_refused() -> None:
    parsed = PARSER.parse(event(speed="fast", torque=True))
    assert parsed.records == []
    assert len(parsed.refusals) == 2


@pytest.mark.parametrize(
    "text",
    [
        "1554096460415",
        "-1",
        "0",
        "1554096460415.5",
        "1554096460415.000001",
        "1.554096460415e12",
        '"2019-04-01T05:26:20.468+02:00"',
        '"2019-04-01T05:26:20.123456789Z"',
        "7258118400000",
    ],
)
def test_a_time_is_forwarded_exactly_as_given(text: str) -> None:
    parsed = PARSER.parse(raw("Timestamp", text))
    assert parsed.refusals == []
    for record in parsed.records:
        sent = encode(record)
        assert f'"phenomenonTime":{text},'.encode() in sent
        assert decode_data(sent, "ms")[1] == parsed.time_ns


@pytest.mark.parametrize(
    "text",
    ["1", "-3", "288.2", "-1.338134765625", "0.1", "5e-324", "1.7976931348623157e308", "9007199254740993",
     "123456789012345678901234567890", "1e3", "-0.0"],
)  # fmt: skip
def test_a_number_is_altered_no_more_than_float64_does(text: str) -> None:
    (speed, _torque) = PARSER.parse(raw("speed", text)).records
    record, _time_ns = decode_data(encode(speed), "ms")
    assert isinstance(record, Record)
    assert record.result == float(text)


def test_an_integer_that_float64_holds_keeps_its_text() -> None:
    (speed, _torque) = PARSER.parse(raw("speed", "9007199254740991")).records
    assert b'"result":9007199254740991,' in encode(speed)


def test_colons_and_quotes_in_strings_are_not_parsed_as_members() -> None:
    parsed = PARSER.parse(event(Thing='a":1,"a', id="x:y:z"))
    assert parsed.refusals == []
    assert parsed.thing == 'a":1,"a'


def test_a_nested_repeat_is_no_repeat_of_the_event() -> None:
    parsed = PARSER.parse(raw("bad", '{"speed":1,"speed":2}'))
    assert len(parsed.records) == 2
    assert "is an object" in parsed.refusals[0].reason


@pytest.mark.parametrize(("unit", "time"), [("s", 1554096460), ("us", 1554096460415000), ("ns", 1554096460415000001)])
def test_a_bare_number_is_in_the_configured_unit(unit: str, time: int) -> None:
    parsed = Parser(unit, BYTES_MAX).parse(event(Timestamp=time))
    assert decode_data(encode(parsed.records[0]), unit)[1] == parsed.time_ns


def test_two_megabytes_are_refused_with_their_first_64_kib() -> None:
    payload = event(pad="x" * 2_000_000)
    made = dead_letter(PARSER.parse(payload).refusals[0], "t")
    assert made.length == len(payload)
    assert made.value.encode() == payload[:REJECTED_BYTES_MAX]


def test_a_reason_stays_short_whatever_the_payload() -> None:
    payload = raw("Timestamp", '"2019-04-01T05:26:20.' + "1" * 3000 + '"')
    (refusal,) = PARSER.parse(payload).refusals
    assert len(refusal.reason) <= REASON_LENGTH_MAX + 3


NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
VALUES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.lists(st.integers())
)


@given(st.dictionaries(NAMES, VALUES, max_size=REFUSED_MAX), st.integers(-(9 * 10**12), 9 * 10**12))
def test_every_quantity_is_a_record_or_a_refusal(quantities: dict[str, Any], time: int) -> None:
    body = {
        "Thing": "T",
        "Timestamp": time,
        "id": "i",
        **{f"q{name}": v for name, v in quantities.items()},
    }
    parsed = Parser("ms", 10**6).parse(json.dumps(body, ensure_ascii=False).encode("utf-8", "replace"))
    assert len(parsed.records) + len(parsed.refusals) == max(1, len(quantities))
    for record in parsed.records:
        sent = encode(record)
        assert len(sent) <= RECORD_BYTES_MAX
        assert decode_data(sent, "ms")[1] == parsed.time_ns == time * 10**6


@given(st.binary(max_size=200) | st.text().map(str.encode))
def test_arbitrary_bytes_never_raise_and_never_vanish(payload: bytes) -> None:
    parsed = PARSER.parse(payload)
    assert parsed.records or parsed.refusals
    for refusal in parsed.refusals:
        encode(dead_letter(refusal, "t"))


@given(st.data())
def test_a_damaged_event_never_raises_and_never_vanishes(data: st.DataObject) -> None:
    payload = bytearray(event(time="2019-04-01T05:26:20Z"))
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    parsed = PARSER.parse(bytes(payload))
    assert parsed.records or parsed.refusals
    for record in parsed.records:
        decode_data(encode(record), "ms")
