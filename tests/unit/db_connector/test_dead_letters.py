"""Dead letters are small enough for Kafka to accept, whatever the record."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from broker.kafka.producer import Outgoing
from broker.settings import KafkaSettings
from broker.wire.records import Rejected
from db_connector.kafka import dead_letters
from db_connector.kafka.dead_letters import DeadLetterWriter

MESSAGE_BYTES_MAX = 1_000_000
"""librdkafka's `message.max.bytes`."""


class Keeping:
    """A producer that only stores the records."""

    def __init__(self, *_given: Any, **_settings: Any) -> None:
        self.sent: list[Outgoing[None]] = []

    def __class_getitem__(cls, _item: object) -> type[Keeping]:
        return cls

    def send(self, _topic: str, records: list[Outgoing[None]]) -> None:
        """Store the records."""
        self.sent += records


def dead_letter_of(
    monkeypatch: pytest.MonkeyPatch, key: bytes | None, value: bytes, identity: str | None
) -> Outgoing[None]:
    monkeypatch.setattr(dead_letters, "LastingProducer", Keeping)
    dead = DeadLetterWriter(KafkaSettings(), "machine.rejected")
    record: Any = SimpleNamespace(
        key=lambda: key, value=lambda: value, topic=lambda: "machine.out", partition=lambda: 2, offset=lambda: 7
    )
    dead.send(record, "thing has a newline, which an InfluxDB tag cannot hold", identity)
    producer: Any = dead._producer  # noqa: SLF001 - the records written
    (sent,) = producer.sent
    return Outgoing(sent.key, sent.value, None)


@pytest.mark.parametrize(
    ("key", "value", "identity"),
    [
        (b"thing", b"x" * 980_000, "i" * 980_000),
        (b"k" * 900_000, b"\x01" * 40_000, None),
        (b"k" * 64 * 1024, b"\x01" * 64 * 1024, "\x01" * 1024),
    ],
)
def test_a_dead_letter_is_smaller_than_kafkas_limit(
    monkeypatch: pytest.MonkeyPatch, key: bytes, value: bytes, identity: str | None
) -> None:
    dead_letter = dead_letter_of(monkeypatch, key, value, identity)
    assert len(dead_letter.key or b"") + len(dead_letter.value) < MESSAGE_BYTES_MAX
    decoded = msgspec.json.decode(dead_letter.value, type=Rejected)
    assert (decoded.topic, decoded.partition, decoded.offset) == ("machine.out", 2, 7)


def test_a_regular_key_and_id_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    dead_letter = dead_letter_of(monkeypatch, b"lathe", b"{}", "power:0:1:2")
    assert dead_letter.key == b"lathe"
    assert msgspec.json.decode(dead_letter.value, type=Rejected).id == "power:0:1:2"
