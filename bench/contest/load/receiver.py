"""Receives a contender's results and their arrival times, using little CPU time because the contender needs it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple

from confluent_kafka import Consumer, TopicPartition

from broker.kafka.native.library import Unavailable
from broker.kafka.native.reader import NativeReader
from broker.wire.columns import StringColumn
from joiner.runtime.kafka.clients import make_consumer

if TYPE_CHECKING:
    from bench.contest.job import Job

_AT_ONCE: Final = 5_000
_WAIT_S: Final = 0.002


class Arrived(NamedTuple):
    """Results, and when they arrived (in ns)."""

    at_ns: int
    values: StringColumn


class Receiver:
    """Consumes the result topic of a job from its beginning."""

    def __init__(self, job: Job) -> None:
        self._consumer = make_consumer(job.kafka, job.name, fetch_wait_max_ms=5, auto_offset_reset="earliest")
        self._reader = _reader_of(self._consumer)
        if self._reader is not None:
            for number in range(job.partitions):
                self._reader.add(job.out, number)
        self._consumer.assign([TopicPartition(job.out, number, 0) for number in range(job.partitions)])

    def receive(self, seconds: float) -> list[Arrived]:
        """Return what arrives within ``seconds``."""
        end_s, arrived = time.monotonic() + seconds, []
        while time.monotonic() < end_s:
            columns = self._read()
            now_ns = time.time_ns()
            arrived += [Arrived(now_ns, column) for column in columns]
        return arrived

    def _read(self) -> list[StringColumn]:
        if self._reader is None:
            messages = self._consumer.consume(_AT_ONCE, _WAIT_S)
            values = [message.value() or b"" for message in messages if message.error() is None]
            return [StringColumn.of(values)] if values else []
        fetched, _ = self._reader.read(_AT_ONCE, _WAIT_S)
        # Handles the Kafka client's events, such as errors, which the native reader leaves in its queue.
        self._consumer.poll(0)
        return [part.value for part in fetched]

    def close(self) -> None:
        """Stop receiving."""
        if self._reader is not None:
            self._reader.close()
        self._consumer.close()


def _reader_of(consumer: Consumer) -> NativeReader | None:
    try:
        return NativeReader(consumer, _AT_ONCE)
    except Unavailable:
        return None
