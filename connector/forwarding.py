"""Parses events, sends their records to Kafka, and keeps track of the events of which Kafka has everything."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from broker.kafka.client_log import client_logger
from broker.kafka.producer import LastingProducer, Outgoing
from broker.kafka.topics import data_topic_specs, wait_for_topics
from broker.wire.records import encode
from connector.acknowledgement import NO_PACKET, Ledger, Tickets
from connector.formats.contents import Found
from connector.formats.events import Parsed, Parser, dead_letter
from connector.templates import RawSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from broker.wire.records import Record
    from connector.batches import RecordBatches
    from connector.settings import Settings

RECORD_OVERHEAD_BYTES: Final = 1024
"""Assumed memory use of an unconfirmed record beyond its key and value; the measured value was 910 bytes."""

_KAFKA_LOG = client_logger("connector.librdkafka")


class Forwarder:
    """Forwards events to Kafka. ``ledger``: the events in flight. ``parser``: parses events."""

    def __init__(self, settings: Settings) -> None:
        """Connect to Kafka in the background."""
        own = settings.connector
        self.ledger = Ledger(messages_max=own.in_flight_max, bytes_max=own.in_flight_bytes_max)
        self._settings = settings
        self.parser = Parser(settings.events.time_unit, settings.events.event_bytes_max)
        self._batches = _record_batches(settings) if settings.topics.has_rows else None
        self._producer = LastingProducer[Tickets](
            settings.kafka,
            _KAFKA_LOG,
            self._confirm,
            linger_ms=own.linger / 1e6,
            compression_type=own.compression,
            batch_size=1024 * 1024,
        )

    def wait_for_topics(self, is_stopping: Callable[[], bool], log: logging.Logger) -> bool:
        """Wait for Kafka, and create and check the topics. Return False if ``is_stopping`` returned True before.

        Raises as `broker.kafka.topics.wait_for_topics` does.
        """
        copies = [one.kafka_topic for one in self._settings.connector.topic if isinstance(one, RawSettings)]
        specs = data_topic_specs(self._settings.topics, copies)
        return wait_for_topics(self._settings.kafka, specs, is_stopping, log, _KAFKA_LOG) is not None

    def accept(self, events: Iterable[tuple[str, bytes, int]]) -> list[Parsed]:
        """Send the records and the dead letters of events. Return what each event contains.

        An event is given as its source, its content and its number; see `forward`, which also says what is raised.
        """
        parse = self.parser.parse
        found = self.forward((source, number, Found((parse(payload),))) for source, payload, number in events)
        return [parsed for one in found for parsed in one.parts]

    def forward(self, messages: Iterable[tuple[str, int, Found]]) -> list[Found]:
        """Send the records, dead letters and copies of parsed messages. Return what each message contains.

        A message is given as its source, named in its dead letters, the number by which the ledger releases it, and
        its content, which may be empty; `NO_PACKET` is not returned by the ledger.
        Raises `broker.kafka.producer.DeliveryError`.
        """
        found: list[Found] = []
        data: list[Outgoing[Tickets]] = []
        dead: list[Outgoing[Tickets]] = []
        copies: dict[str, list[Outgoing[Tickets]]] = {}
        for source, number, content in messages:
            found.append(content)
            records = self._records(content)
            parts = self._divided(content)
            dead_letters = [encode(dead_letter(one, source)) for parsed in content.parts for one in parsed.refusals]
            copied = [(one.kafka_topic, one.key.encode(), one.value) for one in content.copies]
            # Count all records of a part as one: they are in one message, so Kafka confirms them together.
            count = len(records) + len(parts) + len(dead_letters) + len(copied)
            size_bytes = count * RECORD_OVERHEAD_BYTES + sum(map(len, dead_letters)) + sum(map(_size_of, records))
            size_bytes += sum(size for _, _, size in parts) + sum(_size_of(one[1:]) for one in copied)
            ticket = self.ledger.add(number, size_bytes, max(count, 1))
            if not count:
                self.ledger.confirm(ticket)  # nothing to wait for, but messages are acknowledged in order
            if self._batches is not None:
                for parsed, part, _size in parts:
                    self._batches.add(parsed.thing, parsed.time_ns, part, ticket)
            data += [Outgoing(key, value, ticket) for key, value in records]
            dead += [Outgoing(None, value, ticket) for value in dead_letters]
            for topic, key, value in copied:
                copies.setdefault(topic, []).append(Outgoing(key, value, ticket, (("mqtt.topic", source.encode()),)))
        if self._batches is not None:
            data = self._batches.take()
        self._producer.send(self._settings.topics.data, data)
        self._producer.send(self._settings.topics.rejected, dead)
        for topic, messages_of_topic in copies.items():
            self._producer.send(topic, messages_of_topic)
        return found

    def _records(self, content: Found) -> list[tuple[bytes, bytes]]:
        """Return the keys and values of a message's records, each of which is sent on its own."""
        if self._batches is not None:
            return []
        keyed = ((parsed.thing.encode(), parsed.records) for parsed in content.parts)
        return [(key, encode(record)) for key, records in keyed for record in records]

    def _divided(self, content: Found) -> list[tuple[Parsed, Sequence[Record], int]]:
        """Return a message's records as parts, each of which is sent as a whole, with its size in bytes."""
        batches = self._batches
        if batches is None:
            return []
        divided = ((parsed, batches.divide(parsed.records)) for parsed in content.parts if parsed.records)
        return [(parsed, part, batches.size_of(part)) for parsed, parts in divided for part in parts]

    def send(self, messages: Iterable[tuple[bytes, bytes]]) -> None:
        """Send messages, each with its key and value, to the data topic. Raises as `accept` does."""
        outgoing: list[Outgoing[Tickets]] = [
            Outgoing(key, value, self.ledger.add(NO_PACKET, len(key) + len(value) + RECORD_OVERHEAD_BYTES, 1))
            for key, value in messages
        ]
        self._producer.send(self._settings.topics.data, outgoing)

    def poll(self, wait_s: float) -> None:
        """Process Kafka's confirmations. Wait up to ``wait_s`` for the first one. Raises as `accept` does."""
        self._producer.poll(wait_s)

    def flush(self, wait_s: float) -> None:
        """Send all records immediately, and wait up to ``wait_s`` for their confirmation. Raises as `accept` does."""
        self._producer.flush(wait_s)

    def close(self) -> None:
        """Drop what Kafka has not confirmed. Some of it may still arrive."""
        self._producer.close()

    def _confirm(self, tickets: Tickets) -> None:
        """Note Kafka's confirmation of one message. ``tickets`` belong to the events whose records it contains."""
        for ticket in tickets if isinstance(tickets, tuple) else (tickets,):
            self.ledger.confirm(ticket)


def _size_of(message: tuple[bytes, bytes]) -> int:
    key, value = message
    return len(key) + len(value)


def _record_batches(settings: Settings) -> RecordBatches:
    from connector.batches import RecordBatches  # noqa: PLC0415 - pyarrow is an extra

    return RecordBatches(settings.topics.partitions, settings.events.time_unit)
