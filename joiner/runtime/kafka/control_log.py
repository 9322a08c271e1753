"""Reads and writes the control topic."""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial
from typing import Final

import msgspec
from confluent_kafka import OFFSET_END, KafkaError, KafkaException, TopicPartition

from broker.kafka.appender import Appender
from joiner.runtime.clock import Clock
from joiner.runtime.control import Record, decode, encode
from joiner.runtime.kafka.clients import describe, known_range, make_consumer, make_producer
from joiner.runtime.settings import JoinerSettings

_FLUSH_S: Final = 1.0
"""How long to wait for Kafka to acknowledge a record. After that, the client keeps retrying in the background."""

_LASTS_S: Final = 60.0
"""How long a record may wait for earlier ones. Those that matter are repeated."""

_log = logging.getLogger(__name__)


class ControlLog:
    """Reads new records from the control topic, and writes to it. Only writing is thread-safe."""

    def __init__(self, settings: JoinerSettings) -> None:
        """Start reading at the log's end as of Kafka's first answer. Does not wait for that answer."""
        self._topic = settings.control_topic
        self._consumer = make_consumer(settings.kafka, settings.application.name, fetch_queue_backoff_ms=2)
        make = partial(make_producer, settings.kafka, linger_ms=0)
        self._appender = Appender(make, self._topic, 0, _LASTS_S)
        self._begin_at(OFFSET_END)

    def begin_now(self, clock: Clock) -> None:
        """Wait until the end of the log is known, so that no later record is missed.

        Raises KafkaException if no request succeeds within `TIMEOUT_S`.
        """
        self._begin_at(known_range(self._consumer, clock, self._topic, 0)[1])

    def read(self, wait_s: float = 0.0) -> list[tuple[Record, int]]:
        """Return new records, each with its append time in ms since the epoch. Wait up to ``wait_s`` seconds."""
        with suppress(KafkaException, BufferError):
            self._appender.poll()
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
        try:
            if not self._appender.write(encode(record), _FLUSH_S):
                name = type(record).__name__
                _log.warning("%s has not been written to %s yet; retrying", name, self._topic)
        except (KafkaException, BufferError) as error:
            _log.warning("%s could not be written to %s: %s", type(record).__name__, self._topic, describe(error))

    def post(self, record: msgspec.Struct) -> None:
        """Append a record without waiting for Kafka. It may be lost, or replaced by a later record of its type."""
        with suppress(KafkaException, BufferError):
            self._appender.append(encode(record), type(record).__name__)

    def close(self) -> None:
        """Stop reading."""
        self._consumer.close()

    def _begin_at(self, offset: int) -> None:
        self._consumer.assign([TopicPartition(self._topic, 0, offset)])
