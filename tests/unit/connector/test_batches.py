"""Do the records of many events share few messages, and is an event acknowledged once its message is confirmed?"""

# ruff: noqa: SLF001 - the loop is driven step by step

from __future__ import annotations

import json
from typing import Any

import pytest

from broker.kafka.producer import Outgoing
from broker.partitioner import partition_of
from broker.settings import TopicSettings
from broker.wire.arrow.rows import read_rows
from broker.wire.records import Record
from connector import batches
from connector.acknowledgement import Ticket, Tickets
from connector.batches import RecordBatches
from connector.bridge import Bridge
from connector.session import Message
from connector.settings import Settings
from tests.unit.connector.test_bridge import KeepingProducer

PARTITIONS = 3
KAFKA_BYTES_MAX = 1_000_000
"""librdkafka's `message.max.bytes`."""


def records_in(value: bytes) -> list[tuple[str | None, str | None, int, float, bytes]]:
    found = []
    for rows in read_rows(value, "ms"):
        assert rows.id is not None
        for at in range(len(rows)):
            thing, quantity = rows.thing.names[rows.thing.number[at]], rows.quantity.names[rows.quantity.number[at]]
            found.append((thing, quantity, int(rows.ts_ns[at]), float(rows.result[at]), rows.id[at]))
    return found


def bridge() -> tuple[Bridge, KeepingProducer]:
    topics = TopicSettings(partitions=PARTITIONS, data_format="arrow")
    found, producer = Bridge(Settings(topics=topics), lambda: False), KeepingProducer()
    found._forwarder._producer = producer  # type: ignore[assignment] # only `send` is used here
    return found, producer


def event(thing: str, number: int, **quantities: Any) -> bytes:
    return json.dumps({"Thing": thing, "Timestamp": number, "id": f"e{number}", **quantities}).encode()


def test_all_events_of_a_block_share_a_message_for_each_partition() -> None:
    found, producer = bridge()
    things = [f"R{number}" for number in range(9)]
    events = [event(thing, at, speed=at, torque=0.5, bad="no number") for at, thing in enumerate(things)]
    found._accept([Message("machine/states", payload, at + 1) for at, payload in enumerate(events)])
    data = [one for one in producer.sent if isinstance(one.ticket, tuple)]
    assert len(data) == PARTITIONS
    for message in data:
        number = partition_of(message.key or b"", PARTITIONS)
        assert records_in(message.value) == [
            (thing, quantity, at * 10**6, value, f"e{at}".encode())
            for at, thing in enumerate(things)
            if partition_of(thing.encode(), PARTITIONS) == number
            for quantity, value in (("speed", float(at)), ("torque", 0.5))
        ]
    assert len(producer.sent) == PARTITIONS + len(things), "a dead letter for each bad quantity"


def test_an_event_is_acknowledged_once_its_message_and_its_dead_letters_are_confirmed() -> None:
    found, producer = bridge()
    found._accept([Message("t", event("a", 1, speed=1, bad="x"), 1), Message("t", event("a", 2, speed=2), 2)])
    data, dead_letter = producer.sent
    found._forwarder._confirm(data.ticket)
    assert found._release() == [], "the dead letter of the first event is not confirmed"
    found._forwarder._confirm(dead_letter.ticket)
    assert found._release() == [1, 2]


def test_a_message_is_limited_in_records_and_in_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "RECORDS_MAX", 5)
    collected = RecordBatches(1, "ms")
    tickets = [Ticket(at, 0, 1) for at in range(4)]
    for at, ticket in enumerate(tickets):
        collected.add("a", at, [Record("a", str(number), at, 1.0, "i" * 50) for number in range(3)], ticket)
    messages: list[Outgoing[Tickets]] = collected.take()
    assert [len(records_in(message.value)) for message in messages] == [6, 6]
    assert [message.ticket for message in messages] == [tuple(tickets[:2]), tuple(tickets[2:])]
    assert collected.take() == []
    monkeypatch.setattr(batches, "SIZE_BYTES_MAX", 100)
    for ticket in tickets:
        collected.add("a", 1, [Record("a", "q", 1, 1.0, "i" * 100)], ticket)
    assert len(collected.take()) == 4


@pytest.mark.parametrize("identity", ["i" * 256, "\U0001f6b2" * 64], ids=["ascii", "four bytes a character"])
def test_an_event_of_any_size_gives_messages_that_kafka_accepts(identity: str) -> None:
    found, producer = bridge()
    quantities = {f"q{number}": number for number in range(9000)}
    small, large = event("a", 1, speed=1), json.dumps({"Thing": "a", "Timestamp": 2, "id": identity, **quantities})
    found._accept([Message("t", small, 1), Message("t", large.encode(), 2), Message("t", small, 3)])
    assert max(len(message.value) for message in producer.sent) < KAFKA_BYTES_MAX
    sent = [record for message in producer.sent for record in records_in(message.value)]
    expected = [("a", name, 2 * 10**6, float(value), identity.encode()) for name, value in quantities.items()]
    one = ("a", "speed", 10**6, 1.0, b"e1")
    assert sent == [one, *expected, one]
    for message in producer.sent[:-1]:
        found._forwarder._confirm(message.ticket)
        assert 2 not in found._release(), "its last records are not confirmed"
    found._forwarder._confirm(producer.sent[-1].ticket)
    assert found._release() == [2, 3]


def test_many_events_with_names_of_several_bytes_a_character_give_messages_that_kafka_accepts() -> None:
    found, producer = bridge()
    identity = b'"' + "\u5ea6".encode() * 250
    events = [event("a", at, speed=at).replace(b'"e', identity) for at in range(2000)]
    found._accept([Message("t", payload, at + 1) for at, payload in enumerate(events)])
    assert sum(len(records_in(message.value)) for message in producer.sent) == len(events)
    assert max(len(message.value) for message in producer.sent) < KAFKA_BYTES_MAX


def test_times_that_are_finer_than_the_unit_stay_exact() -> None:
    found, producer = bridge()
    payload = b'{"Thing": "a", "Timestamp": 1.000001, "id": "e", "speed": 1}'
    found._accept([Message("t", payload, 1)])
    assert records_in(producer.sent[0].value)[0][2] == 1_000_001
