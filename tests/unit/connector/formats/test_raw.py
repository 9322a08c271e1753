"""Messages that are forwarded unchanged: their keys, and which are skipped or refused."""

from __future__ import annotations

from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.wire.records import encode
from connector.formats.contents import EMPTY, RETAINED, Context, Copy, Found
from connector.formats.events import Parser, dead_letter
from connector.formats.messages import MessageParser
from connector.formats.raw import COPY_BYTES_MAX
from connector.templates import RawSettings

TEMPLATE: Final = {
    "format": "raw",
    "topic": "plant/{site}/{device}/#",
    "kafka_topic": "plant.raw",
    "key": "{site}/{device}",
}


def messages(bytes_max: int = 2**18, **template: Any) -> MessageParser:
    settings = RawSettings.model_validate(TEMPLATE | template)
    return MessageParser([settings], Parser("ms", bytes_max), Context("ms", bytes_max, lambda: 0, "run"))


def reason(found: Found) -> str:
    assert found.copies == ()
    ((refusal,),) = [part.refusals for part in found.parts]
    return refusal.reason


def test_the_levels_of_the_topic_make_the_key() -> None:
    found = messages().parse("plant/a/oven/state", b'{"v": [1]}', is_retained=False)
    assert found == Found(copies=[Copy("plant.raw", "a/oven", b'{"v": [1]}')])


def test_empty_and_retained_messages_are_skipped() -> None:
    empty = messages().parse("plant/a/oven", b"", is_retained=False)
    assert (empty.parts, empty.copies, empty.skipped) == ((), (), {EMPTY: 1})
    retained = messages().parse("plant/a/oven", b"1", is_retained=True)
    assert (retained.parts, retained.copies, retained.skipped) == ((), (), {RETAINED: 1})


@pytest.mark.parametrize(
    ("topic", "payload", "text"),
    [
        ("plant/a/oven", b"x" * (2**18 + 1), "more than events.event_bytes_max = 262144"),
        (f"plant/a/{'x' * 256}", b"x", "the key in the MQTT topic has 258 characters, more than 256"),
    ],
)
def test_what_is_too_large_is_refused_with_the_reason(topic: str, payload: bytes, text: str) -> None:
    assert text in reason(messages().parse(topic, payload, is_retained=False))


def test_no_payload_is_larger_than_what_kafka_accepts() -> None:
    wide = messages(bytes_max=2**24)
    assert wide.parse("plant/a/oven", b"x" * COPY_BYTES_MAX, is_retained=False).copies
    found = wide.parse("plant/a/oven", b"x" * (COPY_BYTES_MAX + 1), is_retained=False)
    assert "more than the 900000 that Kafka accepts" in reason(found)


def test_an_empty_key_is_refused() -> None:
    assert "the key in the MQTT topic is empty" in reason(
        messages(key="{site}").parse("plant//x", b"1", is_retained=False)
    )


@given(payload=st.binary(max_size=300), levels=st.lists(st.text(max_size=300), min_size=2, max_size=4))
def test_any_bytes_are_forwarded_unchanged_or_refused(payload: bytes, levels: list[str]) -> None:
    topic = "/".join(["plant", *levels])
    found = messages().parse(topic, payload, is_retained=False)
    if found.copies:
        (copy,) = found.copies
        assert copy.value == payload
        assert copy.key == "/".join(topic.split("/")[1:3])
    else:
        assert bool(found.parts) != bool(found.skipped)
    letters = [encode(dead_letter(refusal, topic)) for part in found.parts for refusal in part.refusals]
    assert sum(map(len, letters)) <= 100 * (len(payload) + len(topic.encode())) + 2048
