"""Plain numbers: thing and quantity come from the MQTT topic, the value from the payload, the time from the clock."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.wire.records import Record, encode
from connector.formats.contents import Context
from connector.formats.events import UNREADABLE_TOPIC, Parsed, Parser, dead_letter
from connector.formats.messages import MessageParser
from connector.formats.numbers import NUMBER_BYTES_MAX
from connector.templates import NumberSettings

NOW_NS: Final = 1554096460415_999_999
NAMES: Final = ("thing", "quantity", "site")


class Events(Parser):
    """Stands in for the parser of events."""

    def __init__(self) -> None:
        super().__init__("ms", 1024)

    def parse(self, payload: bytes) -> Parsed:
        return Parsed("an event", len(payload), [], [])


def parser(*templates: dict[str, Any], time_unit: str = "ms") -> MessageParser:
    settings = [NumberSettings(format="number", **one) for one in templates]
    return MessageParser(settings, Events(), Context(time_unit, 2**18, lambda: NOW_NS, "run"))


def parsed_by(messages: MessageParser, topic: str, payload: bytes) -> Parsed | None:
    """Return what the message of a number contains, or None if it is read as an event."""
    (parsed,) = messages.parse(topic, payload, is_retained=False).parts
    return parsed if parsed.thing != "an event" else None


def parse(topic: str, payload: bytes, *templates: dict[str, Any]) -> Parsed | None:
    return parsed_by(parser(*templates), topic, payload)


def record(topic: str, payload: bytes, *templates: dict[str, Any]) -> Record:
    parsed = parse(topic, payload, *templates)
    assert parsed is not None
    assert parsed.refusals == []
    (found,) = parsed.records
    return found


def reason(topic: str, payload: bytes, *templates: dict[str, Any]) -> str:
    parsed = parse(topic, payload, *templates)
    assert parsed is not None
    assert (parsed.thing, parsed.records) == ("", [])
    (refusal,) = parsed.refusals
    assert refusal.value == payload
    return refusal.reason


PLANT: Final = {"topic": "plant/{site}/+/{thing}/{quantity}/#", "thing": "{site}-{thing}"}


def test_the_levels_of_the_topic_name_the_thing_and_the_quantity() -> None:
    assert record("plant/a/hall/oven/temperature", b"21.5", PLANT) == Record(
        "a-oven", "temperature", 1554096460415, 21.5, "run-1"
    )
    assert record("x/oven", b"1", {"topic": "x/{thing}", "quantity": "power"}).quantity == "power"
    assert record("x/power", b"1", {"topic": "x/{quantity}", "thing": "oven"}).thing == "oven"


@pytest.mark.parametrize(("unit", "time"), [("s", 1554096460), ("ms", 1554096460415), ("ns", NOW_NS)])
def test_the_time_is_that_of_the_arrival_rounded_down_to_the_unit(unit: str, time: int) -> None:
    parsed = parsed_by(parser({"topic": "{thing}/{quantity}"}, time_unit=unit), "a/b", b"1")
    assert parsed is not None
    assert parsed.records[0].phenomenonTime == time
    assert parsed.time_ns == NOW_NS // 10 ** {"s": 9, "ms": 6, "ns": 0}[unit] * 10 ** {"s": 9, "ms": 6, "ns": 0}[unit]


def test_each_received_message_has_an_id_of_its_own() -> None:
    numbers = parser({"topic": "{thing}/{quantity}"})
    found = [parsed_by(numbers, "a/b", b"1") for _ in range(3)]
    assert [parsed.records[0].id for parsed in found if parsed is not None] == ["run-1", "run-2", "run-3"]


def test_a_dead_letter_is_identified_by_its_topic_and_its_text() -> None:
    ids = []
    for topic, payload in [("a/b", b"NaN"), ("a/c", b"NaN"), ("a/b", b"on"), ("a/b", b"NaN")]:
        parsed = parse(topic, payload, {"topic": "{thing}/{quantity}"})
        assert parsed is not None
        ids.append(dead_letter(parsed.refusals[0], topic).id)
    assert re.fullmatch("mqtt:[0-9a-f]{32}", ids[0])
    assert len({*ids}) == 3
    assert ids[0] == ids[3]


def test_the_first_template_that_matches_is_used() -> None:
    narrow = {"topic": "plant/{thing}/power", "quantity": "electric_power"}
    wide = {"topic": "plant/{thing}/{quantity}"}
    assert record("plant/a/power", b"1", narrow, wide).quantity == "electric_power"
    assert record("plant/a/speed", b"1", narrow, wide).quantity == "speed"


@pytest.mark.parametrize(
    "topic", ["machine/states", "plant/a/hall/oven", "Plant/a/hall/oven/t", UNREADABLE_TOPIC, "", "$SYS/x"]
)
def test_a_topic_that_matches_no_template_may_carry_events(topic: str) -> None:
    assert parse(topic, b"1", PLANT) is None


def test_a_wildcard_at_the_beginning_matches_no_topic_of_the_broker_and_none_that_cannot_be_read() -> None:
    for template in ({"topic": "{thing}/#", "quantity": "q"}, {"topic": "#", "thing": "t", "quantity": "q"}):
        assert parse("$SYS/load", b"1", template) is None
        assert parse(UNREADABLE_TOPIC, b"1", template) is None
        assert parse("a", b"1", template) is not None


def test_a_retained_message_is_skipped_because_its_time_is_unknown() -> None:
    found = parser(PLANT).parse("plant/a/hall/oven/t", b"1", is_retained=True)
    assert (found.parts, found.skipped) == ((), {"retained": 1})
    assert parser(PLANT).parse("machine/states", b"1", is_retained=True).skipped == {}


@pytest.mark.parametrize(
    ("payload", "value"),
    [
        (b"0", 0), (b"-0", 0), (b"21.50", 21.5), (b" \t\r\n7 \n", 7), (b"1e3", 1000.0), (b"-1.5E-3", -0.0015),
        (b"9007199254740993", 9007199254740992.0), (b"0." + b"1" * 398, 0.1111111111111111), (b"1e-999", 0.0),
    ],
)  # fmt: skip
def test_a_number_as_in_json_is_the_value(payload: bytes, value: float) -> None:
    assert record("plant/a/hall/oven/t", payload, PLANT).result == value


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (b"", "the payload is empty"),
        (b" \n", "the payload is empty"),
        (b"on", "not a number as in JSON: on"),
        (b"true", "not a number as in JSON: true"),
        (b"null", "not a number"),
        (b"NaN", "not a number"),
        (b"Infinity", "not a number"),
        (b"1,5", "not a number"),
        (b"1.", "not a number"),
        (b"01", "not a number"),
        (b"+1", "not a number"),
        (b"1 2", "not a number"),
        (b"1_000", "not a number"),
        (b"0x10", "not a number"),
        (b'"1"', "not a number"),
        (b"[1]", "not a number"),
        (b'{"v": 1}', "not a number"),
        (b"21.5 \xc2\xb0C", "not a number"),
        (b"\xc2\xa01", "not a number"),
        ("٣".encode(), "not a number"),
        (b"\xff\xfe", "not a number"),
        (b"\x0b1", "not a number"),
        (b"1e999", "the number is beyond the range of a 64-bit float: 1e999"),
        (b"9" * NUMBER_BYTES_MAX, "beyond the range"),
        (b"1" * (NUMBER_BYTES_MAX + 1), "401 bytes long, more than the 400"),
    ],
)
def test_any_other_payload_is_refused_with_the_reason(payload: bytes, text: str) -> None:
    assert text in reason("plant/a/hall/oven/t", payload, PLANT)


@pytest.mark.parametrize(
    ("topic", "text"),
    [
        ("plant/a/hall/oven/", "the quantity in the MQTT topic is empty"),
        ("plant/a/hall/oven/" + "q" * 257, "the quantity in the MQTT topic has 257 characters, more than 256"),
        ("plant/a/hall/" + "t" * 255 + "/q", "the thing in the MQTT topic has 257 characters, more than 256"),
    ],
)
def test_a_name_that_no_record_may_have_is_refused(topic: str, text: str) -> None:
    assert text in reason(topic, b"1", PLANT)


def test_a_dead_letter_names_the_topic() -> None:
    parsed = parse("plant/a/hall/oven/t", b"off", PLANT)
    assert parsed is not None
    letter = dead_letter(parsed.refusals[0], "plant/a/hall/oven/t")
    assert (letter.topic, letter.value) == ("plant/a/hall/oven/t", "off")


levels = st.sampled_from(["", "a", "b", "$a", "+", "#", "a.b", "a\nb", "{thing}", "{quantity}", "{site}", "é"])
topics = st.lists(st.sampled_from(["", "a", "b", "$a", "a.b", "axb", "a\nb", "é"]), min_size=1, max_size=6)


@st.composite
def templates(draw: st.DrawFn) -> str:
    found: list[str] = []
    for level in draw(st.lists(levels, min_size=1, max_size=5)):
        if level not in found or level not in {f"{{{name}}}" for name in NAMES}:
            found.append(level)
    if "#" in found:
        found = found[: found.index("#") + 1]
    return "/".join(found) or "+"


def plain_match(template: list[str], topic: list[str]) -> dict[str, str] | None:
    """Return the levels of the topic by name, or None if it does not match: MQTT 3.1.1, section 4.7."""
    if topic[0].startswith("$") and (template[0] in {"+", "#"} or template[0].startswith("{")):
        return None
    found: dict[str, str] = {}
    for place, level in enumerate(template):
        if level == "#":
            return found
        if place == len(topic):
            return None
        if level.startswith("{"):
            found[level[1:-1]] = topic[place]
        elif level not in {"+", topic[place]}:
            return None
    return found if len(topic) == len(template) else None


@given(template=templates(), topic=topics)
def test_a_template_matches_as_the_standard_says(template: str, topic: list[str]) -> None:
    named = {name: f"<{{{name}}}>" for name in NAMES if f"{{{name}}}" in template.split("/")}
    settings = {"topic": template, "thing": "t" + "".join(named.values()), "quantity": "q"}
    expected = plain_match(template.split("/"), topic)
    parsed = parse("/".join(topic), b"1", settings)
    if expected is None:
        assert parsed is None
        return
    assert parsed is not None
    assert parsed.thing == "t" + "".join(f"<{expected[name]}>" for name in named)


numbers_as_text = st.from_regex(re.compile(rb"\A[ \t]?-?[0-9]{1,20}(\.[0-9]{1,20})?(e[+-]?[0-9]{1,3})?\n?\Z"))


@given(payload=st.binary(max_size=450) | numbers_as_text)
def test_a_payload_is_a_number_exactly_if_it_is_one_in_json(payload: bytes) -> None:
    parsed = parse("plant/a/hall/oven/t", payload, PLANT)
    assert parsed is not None
    assert len(parsed.records) + len(parsed.refusals) == 1
    try:
        value: Any = json.loads(payload.decode(), parse_constant=str) if len(payload) <= NUMBER_BYTES_MAX else None
    except ValueError:
        value = None
    is_number = type(value) in {int, float} and abs(value) < 2e308 and not payload.startswith(b"\xef\xbb\xbf")
    assert bool(parsed.records) == is_number
    if is_number:
        assert parsed.records[0].result == float(value)


LONGEST: Final = {"thing": "\x01" * 115 + "{thing}{site}", "quantity": "\x01" * 118 + "{quantity}"}
MESSAGES: Final = parser(
    {"topic": "x/{thing}/{quantity}/{site}", **LONGEST}, {"topic": "#", "thing": "t", "quantity": "q"}
)
names = st.text(max_size=300) | st.sampled_from(["\x01" * 256, "\U0001f600" * 200, '"' * 100])


@given(levels=st.lists(names, min_size=1, max_size=5), payload=st.binary(max_size=450) | numbers_as_text)
def test_a_hostile_message_never_raises_and_becomes_at_most_a_hundred_times_its_bytes(
    levels: list[str], payload: bytes
) -> None:
    topic = "/".join(["x", *levels])
    parsed = parsed_by(MESSAGES, topic, payload)
    assert parsed is not None
    dead_letters = sum(len(encode(dead_letter(refusal, topic))) for refusal in parsed.refusals)
    to_kafka = dead_letters + sum(len(encode(one)) + len(one.thing.encode()) for one in parsed.records)
    assert to_kafka <= 100 * (len(payload) + len(topic.encode())) + 2048
