"""The loop between MQTT and Kafka, tested without either: is the memory for in-flight messages bounded?"""

# ruff: noqa: SLF001 - the loop is driven step by step

from __future__ import annotations

import json
from typing import Any

from broker.kafka.producer import Outgoing
from connector.bridge import Bridge
from connector.session import Message
from connector.settings import ConnectorSettings, Settings

MIB = 1024 * 1024


class KeepingProducer:
    """A producer that stores records and confirms none of them."""

    def __init__(self) -> None:
        self.sent: list[Outgoing[Any]] = []

    def send(self, _topic: str, records: list[Outgoing[Any]]) -> None:
        """Store the records."""
        self.sent += records


def bridge() -> tuple[Bridge, KeepingProducer]:
    own = ConnectorSettings(in_flight_bytes_max=4 * MIB)
    found, producer = Bridge(Settings(connector=own), lambda: False), KeepingProducer()
    found._forwarder._producer = producer  # type: ignore[assignment] # only `send` is used here
    return found, producer


def event(quantities: int, value: object = 1) -> bytes:
    fields = {
        "Thing": "t" * 40,
        "Timestamp": 0,
        "id": "i" * 36,
        **{f"{number:x}": value for number in range(quantities)},
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def accepted_until_full(payload: bytes) -> tuple[int, int]:
    """Return how many messages are accepted until the ledger is full, and how many bytes are sent to Kafka for them."""
    found, producer = bridge()
    count = 0
    while not found._ledger.is_full:
        count += 1
        found._accept([Message("machine/states", payload, count)])
    return count, sum(len(record.key or b"") + len(record.value) for record in producer.sent)


def test_what_is_under_way_is_bounded_by_the_bytes_of_the_records_and_not_of_the_messages() -> None:
    payload = event(1000)
    count, to_kafka = accepted_until_full(payload)
    most_of_one = 100 * len(payload)
    assert to_kafka <= 4 * MIB + most_of_one
    assert 1 < count < 4 * MIB // len(payload) / 10


def test_dead_letters_count_as_well() -> None:
    payload = b"\x00" * 64 * 1024
    _count, to_kafka = accepted_until_full(payload)
    assert to_kafka <= 4 * MIB + 7 * len(payload)


def test_small_messages_are_bounded_by_their_number() -> None:
    found, _producer = bridge()
    for number in range(1000):
        found._accept([Message("machine/states", event(2), number)])
    assert not found._ledger.is_full
    assert 1000 * 2 * 1024 < found._ledger.size_bytes < 1000 * 2 * 2048


def test_at_a_stop_accepted_messages_are_sent_without_waiting_for_more() -> None:
    found, producer = bridge()
    found._accept([Message("machine/states", event(2), 1)])
    flushed: list[float] = []

    def flush(timeout_s: float) -> bool:
        flushed.append(timeout_s)
        for record in producer.sent:
            found._ledger.confirm(record.ticket)
        return True

    producer.flush = flush  # type: ignore[attr-defined] # used only when stopping
    found._finish()
    assert len(flushed) == 1
    assert not len(found._ledger)
