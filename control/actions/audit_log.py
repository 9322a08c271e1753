"""Reads and writes the audit topic of an application."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from broker.kafka.topics import ensure_topics, topic_facts
from control.actions.audit import Record, audit_topic, audit_topic_spec, decode, encode
from joiner.runtime.kafka.clients import (
    EOF_CODE,
    describe,
    is_passing,
    make_admin,
    make_consumer,
    make_producer,
    timed_out,
)

if TYPE_CHECKING:
    from joiner.runtime.clock import Clock
    from joiner.runtime.settings import JoinerSettings

APPEND_S: Final = 10.0
"""How long an append may take. A record that Kafka has not acknowledged by then is not sent any more."""

_STOP_S: Final = 1.0
"""How long an append may take once the service stops."""

_TIMEOUT_S: Final = 5.0
_LOOK_S: Final = 5.0
"""How often to look for a topic that does not exist yet."""

_READ_MAX: Final = 1_000

_log = logging.getLogger(__name__)


class Audited(NamedTuple):
    """A record with its offset and its append time in ms since the epoch."""

    record: Record
    offset: int
    at_ms: int


class AuditLog:
    """The audit topic. Appending is thread-safe; only one thread may read."""

    def __init__(self, settings: JoinerSettings, clock: Clock, stop: threading.Event) -> None:
        """Read from the beginning. The topic is created by the first append. ``stop``: set when the service stops."""
        self._settings, self._clock = settings, clock
        self._topic = audit_topic(settings)
        self._stop = stop
        self._admin = make_admin(settings.kafka)
        self._consumer: Consumer | None = None
        self._producer: Producer | None = None
        self._lock = threading.Lock()
        self._exists = False
        self._look_s = clock.monotonic_s()
        self.is_current = False
        """Whether everything that was there has been read, and reading has not been interrupted since."""

    def read(self, wait_s: float) -> list[Audited]:
        """Return the records that have arrived, in order. Wait up to ``wait_s`` seconds. Raises KafkaException."""
        consumer = self._open(wait_s)
        if consumer is None:
            return []
        found = []
        for message in consumer.consume(_READ_MAX, wait_s):
            if (error := message.error()) is not None:
                self._note(error, message.partition(), consumer)
                continue
            record = decode(message.value())
            if record is not None:
                found.append(Audited(record, message.offset() or 0, int(message.timestamp()[1])))
        return found

    def append(self, record: Record) -> None:
        """Append a record, and wait until it is written.

        Raises KafkaException if it was not acknowledged within `APPEND_S`; it may have been written all the same.
        Raises `broker.kafka.topics.TopicError` if the topic is unsuitable.
        """
        producer = self._ready()
        outcome: list[KafkaError | None] = []

        def note(error: KafkaError | None, _message: Message) -> None:
            outcome.append(error)

        producer.produce(self._topic, encode(record), partition=0, on_delivery=note)
        is_last, until_s = False, self._clock.monotonic_s() + 2 * APPEND_S
        while not outcome and (now_s := self._clock.monotonic_s()) < until_s:
            if self._stop.is_set() and not is_last:
                is_last, until_s = True, min(until_s, now_s + _STOP_S)
            producer.poll(0.1)
        if not outcome:
            raise timed_out(f"Kafka has not acknowledged a record of {self._topic}")
        if outcome[0] is not None:
            raise KafkaException(outcome[0])

    def post(self, record: Record) -> None:
        """Append a record without waiting. It may be lost."""
        with self._lock:
            producer = self._producer
        if producer is not None:
            with suppress(KafkaException, BufferError):
                producer.produce(self._topic, encode(record), partition=0)
                producer.poll(0)

    def prepare(self) -> None:
        """Make `post` possible. Raises as `append` does."""
        self._ready()

    def close(self, wait_s: float) -> None:
        """Wait up to ``wait_s`` seconds until the last records are written, and stop reading."""
        if self._producer is not None:
            self._producer.flush(wait_s)
        if self._consumer is not None:
            self._consumer.close()

    def _ready(self) -> Producer:
        with self._lock:
            if not self._exists:
                ensure_topics(self._admin, [audit_topic_spec(self._settings)])
                self._exists = True
            if self._producer is None:
                self._producer = make_producer(
                    self._settings.kafka, linger_ms=0, message_timeout_ms=round(1000 * APPEND_S)
                )
            return self._producer

    def _open(self, wait_s: float) -> Consumer | None:
        """Return the consumer, or None after ``wait_s`` seconds if the topic does not exist."""
        if self._consumer is None:
            is_due = self._exists or self._clock.monotonic_s() >= self._look_s
            if not is_due or self._topic not in topic_facts(self._admin, [self._topic], _TIMEOUT_S):
                self._look_s = self._clock.monotonic_s() + _LOOK_S if is_due else self._look_s
                # A topic that does not exist has been read.
                self.is_current = not self._exists
                self._clock.sleep(wait_s)
                return None
            self._consumer = make_consumer(
                self._settings.kafka,
                self._settings.application.name,
                enable_partition_eof=True,
                fetch_wait_max_ms=100,
                fetch_queue_backoff_ms=2,
            )
            self.is_current = False
            self._consumer.assign([TopicPartition(self._topic, 0, OFFSET_BEGINNING)])
        return self._consumer

    def _note(self, error: KafkaError, partition: int | None, consumer: Consumer) -> None:
        if error.code() == EOF_CODE:
            self.is_current = True
            return
        _log.debug("%s: %s", self._topic, describe(KafkaException(error)))
        if not is_passing(error, partition):
            # Reading from the beginning again changes nothing in what is known.
            self.is_current = False
            consumer.assign([TopicPartition(self._topic, 0, OFFSET_BEGINNING)])
