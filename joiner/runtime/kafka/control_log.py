"""Reads and writes the control topic."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from typing import Final

import msgspec
from confluent_kafka import OFFSET_END, KafkaError, KafkaException, Producer, TopicPartition

from joiner.runtime.clock import Clock
from joiner.runtime.control import Record, decode, encode
from joiner.runtime.kafka.clients import describe, known_end, make_consumer, make_producer
from joiner.runtime.settings import JoinerSettings

_FLUSH_S: Final = 1.0
"""How long to wait for Kafka to acknowledge a record. After that, the client keeps retrying in the background."""

_log = logging.getLogger(__name__)


class ControlLog:
    """Reads new records from the control topic, and writes to it. Only writing is thread-safe."""

    def __init__(self, settings: JoinerSettings) -> None:
        """Start reading at the log's end as of Kafka's first answer. Does not wait for that answer."""
        self._settings = settings
        self._topic = settings.control_topic
        self._consumer = make_consumer(settings.kafka, settings.application.name, fetch_queue_backoff_ms=2)
        self._producer: Producer | None = None
        self._lock = threading.Lock()
        self._begin_at(OFFSET_END)

    def begin_now(self, clock: Clock) -> None:
        """Wait until the end of the log is known, so that no later record is missed.

        Raises KafkaException if no request succeeds within `TIMEOUT_S`.
        """
        self._begin_at(known_end(self._consumer, clock, self._topic, 0))

    def read(self, wait_s: float = 0.0) -> list[tuple[Record, int]]:
        """Return new records, each with its append time in ms since the epoch. Wait up to ``wait_s`` seconds."""
        found = []
        for message in self._consumer.consume(100, wait_s):
            error = message.error()
            if error is not None:
                # The log was truncated or recreated, or Kafka is unreachable. Records may be missed, but those that
                # matter are repeated.
                if error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001 - the public name
                    self._begin_at(OFFSET_END)
                _log.debug("%s: %s", self._topic, error.str())
                continue
            record = decode(message.value())
            if record is not None:
                found.append((record, int(message.timestamp()[1])))
        return found

    def write(self, record: msgspec.Struct) -> None:
        """Append a record. It may be delayed or lost if Kafka is unreachable, which is harmless."""
        with self._lock:
            producer = self._producer = self._producer or make_producer(self._settings.kafka, linger_ms=0)
        try:
            self._append(producer, record)
        except (KafkaException, BufferError) as error:
            _log.warning("%s could not be written to %s: %s", type(record).__name__, self._topic, describe(error))

    def post(self, record: msgspec.Struct) -> None:
        """Append a record without waiting for it to be written. It may be lost."""
        with self._lock:
            producer = self._producer = self._producer or make_producer(self._settings.kafka, linger_ms=0)
        with suppress(KafkaException, BufferError):
            producer.produce(self._topic, encode(record), partition=0)
            producer.poll(0)

    def close(self) -> None:
        """Stop reading."""
        self._consumer.close()

    def _append(self, producer: Producer, record: msgspec.Struct) -> None:
        producer.produce(self._topic, encode(record), partition=0)
        if producer.flush(_FLUSH_S):
            _log.warning("%s has not been written to %s yet; retrying", type(record).__name__, self._topic)

    def _begin_at(self, offset: int) -> None:
        self._consumer.assign([TopicPartition(self._topic, 0, offset)])
