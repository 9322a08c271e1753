"""Reads and writes the audit topic of an application."""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from broker.kafka.errors import is_fatal
from broker.kafka.topics import ensure_topics, topic_facts
from control.actions.audit import Record, audit_topic, audit_topic_spec, decode, encode
from joiner.runtime.kafka.clients import (
    EOF_CODE,
    describe,
    flush,
    is_passing,
    make_admin,
    make_consumer,
    make_producer,
    poll,
    timed_out,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from joiner.runtime.clock import Clock
    from joiner.runtime.settings import JoinerSettings

APPEND_S: Final = 10.0
"""How long an append may take. A record that Kafka has not acknowledged by then is no longer sent."""

_STOP_S: Final = 1.0
"""How long an append may take once the service is stopping."""

_TIMEOUT_S: Final = 5.0
_LOOK_S: Final = 5.0
"""How often to check that the topic exists and is still the same one."""

_READ_MAX: Final = 1_000

_log = logging.getLogger(__name__)


class Audited(NamedTuple):
    """A record with its offset and its append time in ms since the epoch.

    ``generation``: increases when the topic is recreated and its offsets start over.
    """

    record: Record
    offset: int
    at_ms: int
    generation: int = 1


class AuditLog:
    """The audit topic. Appending is thread-safe; only one thread may read."""

    def __init__(self, settings: JoinerSettings, clock: Clock, stop: threading.Event) -> None:
        """Read from the beginning. The first append creates the topic. ``stop``: set when the service stops."""
        self._settings, self._clock = settings, clock
        self._topic = audit_topic(settings)
        self._stop = stop
        self._admin = make_admin(settings.kafka)
        self._consumer: Consumer | None = None
        self._producer: Producer | None = None
        self._lock = threading.Lock()
        self._id = ""
        """The id of the topic being read, or an empty string if there is none."""
        self._read_id = ""
        """The id of the last topic read."""
        self._generation = 0
        self._is_broken = False
        self._is_created = False
        self._look_s = clock.monotonic_s()
        self.trouble = "the audit topic has not been read yet"
        """Why the topic's contents are not known, or an empty string once the topic has been read to its end."""

    def read(self, wait_s: float) -> list[Audited]:
        """Return the records that have arrived, in order. Wait up to ``wait_s`` seconds. Raises KafkaException."""
        if self._clock.monotonic_s() >= self._look_s or (self._is_created and not self._id):
            self._look()
        if self._consumer is None:
            self._clock.sleep(wait_s)
            return []
        found = []
        for message in self._consumer.consume(_READ_MAX, wait_s):
            if (error := message.error()) is not None:
                self._note(error, message.partition())
                continue
            record = decode(message.value())
            if record is not None:
                at_ms = int(message.timestamp()[1])
                found.append(Audited(record, message.offset() or 0, at_ms, self._generation))
        return found

    def append(self, record: Record) -> None:
        """Append a record, and wait until it is written.

        Raises KafkaException if it was not acknowledged within `APPEND_S`. Even then, it may have been written.
        Raises `broker.kafka.topics.TopicError` if the topic is unsuitable.
        """
        producer = self._ready()
        outcome: list[KafkaError | None] = []

        def note(error: KafkaError | None, _message: Message) -> None:
            outcome.append(error)

        with self._noticing_failure(producer):
            producer.produce(self._topic, encode(record), partition=0, on_delivery=note)
            is_last, until_s = False, self._clock.monotonic_s() + 2 * APPEND_S
            while not outcome and (now_s := self._clock.monotonic_s()) < until_s:
                if self._stop.is_set() and not is_last:
                    is_last, until_s = True, min(until_s, now_s + _STOP_S)
                poll(producer, 0.1)
            if not outcome:
                raise timed_out(f"Kafka has not acknowledged a record of {self._topic}")
            if outcome[0] is not None:
                raise KafkaException(outcome[0])

    def post(self, record: Record) -> None:
        """Append a record without waiting. It may be lost. Does nothing before the first `append` or `prepare`."""
        with self._lock:
            producer = self._producer
        if producer is not None:
            with suppress(KafkaException, BufferError), self._noticing_failure(producer):
                producer.produce(self._topic, encode(record), partition=0)
                poll(producer, 0)

    def prepare(self) -> None:
        """Make `post` possible, if the topic exists."""
        if self._id:
            with self._lock:
                self._producer = self._producer or self._make_producer()

    def close(self, wait_s: float) -> None:
        """Wait up to ``wait_s`` seconds until the last records are written, and stop reading."""
        with self._lock:
            producer = self._producer
        if producer is not None:
            with suppress(KafkaException):  # it has failed for good
                flush(producer, wait_s)
        if self._consumer is not None:
            self._consumer.close()

    def _ready(self) -> Producer:
        with self._lock:
            if not self._id and not self._is_created:
                ensure_topics(self._admin, [audit_topic_spec(self._settings)])
                self._is_created = True
            self._producer = self._producer or self._make_producer()
            return self._producer

    def _make_producer(self) -> Producer:
        return make_producer(self._settings.kafka, linger_ms=0, message_timeout_ms=round(1000 * APPEND_S))

    @contextmanager
    def _noticing_failure(self, producer: Producer) -> Iterator[None]:
        """Drop the producer if it has failed for good, so that the next record is given to a new one."""
        try:
            yield
        except KafkaException as error:
            if is_fatal(error.args[0]):
                with self._lock:
                    if self._producer is producer:
                        self._producer = None
            raise

    def _look(self) -> None:
        """Check whether the topic exists. Read it from the beginning if it is not the topic read so far."""
        self._look_s = self._clock.monotonic_s() + _LOOK_S
        facts = topic_facts(self._admin, [self._topic], _TIMEOUT_S).get(self._topic)
        found = "" if facts is None else facts.topic_id
        if found == self._id and not self._is_broken:
            # A topic that does not exist has nothing to read.
            self.trouble = self.trouble if found else ""
            return
        self._is_broken = False
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None
        self._id, self._is_created = found, False
        if not found:
            return
        self._generation += found != self._read_id
        self._read_id = found
        self.trouble = "the audit topic has not been read to its end yet"
        self._consumer = make_consumer(
            self._settings.kafka,
            self._settings.application.name,
            enable_partition_eof=True,
            fetch_wait_max_ms=100,
            fetch_queue_backoff_ms=2,
        )
        self._consumer.assign([TopicPartition(self._topic, 0, OFFSET_BEGINNING)])

    def _note(self, error: KafkaError, partition: int | None) -> None:
        if error.code() == EOF_CODE:
            self.trouble = ""
        elif not is_passing(error, partition):
            # The next `_look` reads it again from the beginning. `History` skips the records already applied.
            self.trouble = f"{self._topic} cannot be read: {describe(KafkaException(error))}"
            self._is_broken = True
