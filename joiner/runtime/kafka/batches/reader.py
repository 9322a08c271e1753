"""Reads batches of the input with a consumer: as columns where the native calls are available, else as objects.

Both readers return the same for the same log: tests/integration/test_batch_reader.py.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import Final, Protocol

from confluent_kafka import Consumer, KafkaError

from broker.kafka.native.library import Unavailable
from broker.kafka.native.reader import NativeReader
from joiner.runtime.kafka.batches.messages import Read, sort_columns, sort_messages

_EVENTS_MAX: Final = 100
"""The most events of the client that one poll handles, besides messages."""

_STRAY: Final = KafkaError(
    KafkaError._FAIL,  # noqa: SLF001 - the public name
    "messages were delivered to the consumer instead of the reader: a defect to report",
)

_log = logging.getLogger(__name__)


class BatchReader(Protocol):
    """Reads the partitions that a consumer is assigned. For one thread at a time."""

    def add(self, topic: str, unit: int) -> None:
        """Read a partition from here on. Call it before the consumer is assigned the partition."""
        ...

    def remove(self, topic: str, unit: int) -> None:
        """Note that a partition is no longer assigned to the consumer."""
        ...

    def read(self, count_max: int, wait_s: float) -> Read:
        """Read what has arrived. Wait at most ``wait_s`` for ``count_max`` messages and events."""
        ...

    def close(self) -> None:
        """Stop reading. Call it before the consumer is closed."""
        ...


class ObjectReader:
    """Reads with `Consumer.consume`."""

    def __init__(self, consumer: Consumer, topics: Sequence[str]) -> None:
        self._consumer, self._topics = consumer, topics

    def add(self, topic: str, unit: int) -> None:
        """See `BatchReader`."""

    def remove(self, topic: str, unit: int) -> None:
        """See `BatchReader`."""

    def read(self, count_max: int, wait_s: float) -> Read:
        """See `BatchReader`."""
        return sort_messages(self._consumer.consume(count_max, wait_s), self._topics)

    def close(self) -> None:
        """See `BatchReader`."""


class ColumnReader:
    """Reads with a `NativeReader`."""

    def __init__(self, consumer: Consumer, topics: Sequence[str], count_max: int) -> None:
        """``count_max``: the most messages of one `read`. Raises `Unavailable`."""
        self._native = NativeReader(consumer, count_max)
        # Errors of brokers, and the client's log; no messages.
        self._events = ObjectReader(consumer, topics)

    def add(self, topic: str, unit: int) -> None:
        """See `BatchReader`."""
        self._native.add(topic, unit)

    def remove(self, topic: str, unit: int) -> None:
        """See `BatchReader`."""
        self._native.remove(topic, unit)

    def read(self, count_max: int, wait_s: float) -> Read:
        """See `BatchReader`."""
        read = sort_columns(*self._native.read(count_max, wait_s))
        others = self._events.read(_EVENTS_MAX, 0)
        read.errors.extend(others.errors)
        for unit, topics in others.batches.items():
            # Cannot be: every partition is added before it is assigned. The unit is claimed again.
            read.errors.extend((_STRAY, unit, topic) for topic in topics)
        return read

    def close(self) -> None:
        """See `BatchReader`."""
        self._native.close()


def make_batch_reader(consumer: Consumer, topics: Sequence[str], count_max: int, *, native: bool) -> BatchReader:
    """Make a reader of these topics. ``native``: read columns, if that is available."""
    # A fake consumer has objects only; that is nothing to report.
    if native and isinstance(consumer, Consumer):
        try:
            return ColumnReader(consumer, topics, count_max)
        except Unavailable as why:
            _log_once(str(why))
    return ObjectReader(consumer, topics)


@functools.cache
def _log_once(why: str) -> None:
    _log.info("messages are read as objects, because the native calls are unavailable: %s", why)
