"""The size of the output is linear in the size of the MQTT message, so a small message cannot fill Kafka or memory."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

import connector.formats.events
from broker.wire.records import encode
from connector.formats.events import Parser, dead_letter

EVENT_BYTES_MAX: Final = 256 * 1024
PARSER: Final = Parser("ms", EVENT_BYTES_MAX)

GROWTH_MAX: Final = 100
"""Bytes written to Kafka per byte of a payload and its topic; see docs/connector.md."""

ALLOWANCE_BYTES: Final = 2048
"""Bytes written to Kafka for the dead letter of an empty message."""


def bytes_to_kafka(payload: bytes, topic: str = "machine/states") -> int:
    """Return the bytes of the records and dead letters for a message, including the keys."""
    parsed = PARSER.parse(payload)
    assert parsed.records or parsed.refusals
    dead_letters = sum(len(encode(dead_letter(refusal, topic))) for refusal in parsed.refusals)
    return dead_letters + sum(len(encode(record)) + len(record.thing.encode()) for record in parsed.records)


def assert_linear(payload: bytes, topic: str = "machine/states") -> None:
    bound = GROWTH_MAX * (len(payload) + len(topic.encode())) + ALLOWANCE_BYTES
    assert bytes_to_kafka(payload, topic) <= bound


def event(quantities: str, thing: str = '"R"', identity: str = '"e"', time: str = "0") -> bytes:
    return f'{{"Thing":{thing},"id":{identity},"Timestamp":{time},{quantities}}}'.encode()


def many(value: str, count: int) -> str:
    return ",".join(f'"{number:x}":{value}' for number in range(count))


HOSTILE: Final = {
    "zeros after a time": event(many("1", 1500), time='"2019-04-01T05:26:20.' + "0" * 50_000 + 'Z"'),
    "zeros after a time, many quantities": event(many("1", 20_000), time='"2019-04-01T05:26:20.' + "0" * 60_000 + 'Z"'),
    "long names, many quantities": event(many("1", 25_000), f'"{"t" * 256}"', f'"{"i" * 256}"'),
    "names that grow when escaped": event(many("1", 10_000), '"' + "\\u0001" * 256 + '"', '"' + "\\u0001" * 256 + '"'),
    "many quantities": event(many("1", 25_000)),
    "many refused quantities": event(many("null", 20_000)),
    "many refused quantities, long names": event(many('""', 20_000), f'"{"t" * 256}"', f'"{"i" * 256}"'),
    "a few refused quantities, long names": event(many('""', 16), '"' + "\\u0001" * 256 + '"', f'"{"i" * 256}"'),
    "refused quantities of long names": event(",".join(f'"{"n" * 5000}{number}":1' for number in range(40))),
    "no JSON": b"\x00" * 250_000,
    "no UTF-8": b"\xff" * 250_000,
    "nothing": b"",
}


@pytest.mark.parametrize("payload", [pytest.param(payload, id=name) for name, payload in HOSTILE.items()])
def test_a_hostile_message_becomes_at_most_a_hundred_times_its_bytes(payload: bytes) -> None:
    assert len(payload) <= EVENT_BYTES_MAX
    assert_linear(payload)


def test_a_long_topic_is_not_copied_into_each_dead_letter() -> None:
    topic = "t" * 65_535
    assert bytes_to_kafka(event(many("null", 16)), topic) < 3 * len(topic)


# The smallest and the largest value of every part that is copied, in all combinations.
names = st.sampled_from(["R", "R0815", "t" * 256, "\x01" * 256, "\U0001f600" * 256, '"' * 256, "é" * 257])
times = st.sampled_from(
    [0, -9_214_560_000_000, "2019-04-01T05:26:20Z", "2019-04-01T05:26:20.123456789+02:00"]
) | st.integers(0, 2000).map(lambda zeros: "2019-04-01T05:26:20." + "0" * zeros + "Z")
values: st.SearchStrategy[Any] = st.sampled_from(
    [0, 1e5, 1e15, -1.7976931348623157e308, None, "", "\\" * 40, [], {"a": None}, "\U0001f600"]
)


@given(
    thing=names,
    identity=names,
    time=times,
    count=st.sampled_from([0, 1, 2, 15, 16, 17, 40, 100, 400]),
    value=values,
    other=values,
    others=st.integers(0, 20),
    topic=st.sampled_from(["t", "machine/states", "\x01" * 256, "é" * 400]),
    is_ascii=st.booleans(),
)
def test_bytes_to_kafka_are_linear_in_bytes_from_mqtt(  # noqa: PLR0913 - all parts that can be copied
    *, thing: str, identity: str, time: Any, count: int, value: Any, other: Any, others: int, topic: str, is_ascii: bool
) -> None:
    quantities = {f"{number:x}": value for number in range(count)} | {f"o{number:x}": other for number in range(others)}
    fields = {"Thing": thing, "Timestamp": time, "id": identity, **quantities}
    assert_linear(json.dumps(fields, ensure_ascii=is_ascii, separators=(",", ":")).encode(), topic)


@given(st.binary(max_size=300), st.text(max_size=300))
def test_bytes_that_are_no_event_grow_no_more(payload: bytes, topic: str) -> None:
    assert_linear(payload, topic)


def test_an_event_is_hashed_a_bounded_number_of_times_whatever_is_refused_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hashed = 0

    class Counting:
        """Stands in for the part of `hashlib` that the parser uses, and counts the hashed bytes."""

        @staticmethod
        def sha256(text: bytes) -> Any:
            nonlocal hashed
            hashed += len(text)
            return hashlib.sha256(text)

    monkeypatch.setattr(connector.formats.events, "hashlib", Counting)
    payload = event(many("null", 2000))
    PARSER.parse(payload)
    assert hashed <= 2 * len(payload), f"{hashed} bytes were hashed for a payload of {len(payload)}"
    few = event(many("null", 5) + ',"n":"' + "x" * 5000 + '"')
    hashed = 0
    PARSER.parse(few)
    assert hashed <= 2 * len(few)
