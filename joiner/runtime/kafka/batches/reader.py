"""Reads batches of the input: as columns, through calls into the native client library, or else as message objects.

For the same log, both readers return the same batches (tests/integration/test_batch_reader.py).
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple, Protocol

from confluent_kafka import Consumer, KafkaError

from broker.kafka.native.library import Unavailable
from broker.kafka.native.reader import NativeReader
from joiner.runtime.kafka.batches.messages import Read, sort_columns, sort_messages

_EVENTS_MAX: Final = 100
"""Maximum number of client events other than messages that one poll handles."""

_STRAY: Final = KafkaError(
    KafkaError._FAIL,  # noqa: SLF001 - the public name
    "messages were delivered to the consumer instead of the reader: report this bug",
)

_log = logging.getLogger(__name__)


class ReaderOptions(NamedTuple):
    """The options of `make_batch_reader`."""

    native: bool = False
    keyed: Collection[str] = ()


class BatchReader(Protocol):
    """Reads the partitions assigned to a consumer. Not thread-safe."""

    def add(self, topic: str, unit: int) -> None:
        """Start reading a partition. Call this before assigning the partition to the consumer."""
        ...

    def remove(self, topic: str, unit: int) -> None:
        """Stop reading a partition that is no longer assigned to the consumer."""
        ...

    def read(self, count_max: int, wait_s: float) -> Read:
        """Return the events and at most ``count_max`` messages that have arrived. Wait up to ``wait_s`` seconds."""
        ...

    def close(self) -> None:
        """Stop reading. Call this before closing the consumer."""
        ...


class ObjectReader:
    """Reads with `Consumer.consume`."""

    def __init__(self, consumer: Consumer, topics: Sequence[str], keyed: Collection[str] = ()) -> None:
        """``keyed``: the topics whose keys are read, too."""
        self._consumer, self._topics, self._keyed = consumer, topics, keyed

    def add(self, topic: str, unit: int) -> None:
        """See `BatchReader`."""

    def remove(self, topic: str, unit: int) -> None:
        """See `BatchReader`."""

    def read(self, count_max: int, wait_s: float) -> Read:
        """See `BatchReader`."""
        return sort_messages(self._consumer.consume(count_max, wait_s), self._topics, self._keyed)

    def close(self) -> None:
        """See `BatchReader`."""


class ColumnReader:
    """Reads with a `NativeReader`."""

    def __init__(self, consumer: Consumer, topics: Sequence[str], count_max: int, keyed: Collection[str] = ()) -> None:
        """``count_max``: maximum number of messages per `read`. Raises `Unavailable` if there are no native calls."""
        self._native = NativeReader(consumer, count_max, keyed)
        # Delivers broker errors and the client's log lines, but no messages.
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
            # This should not happen, because every partition is added before it is assigned. If it does, the unit is
            # claimed again.
            read.errors.extend((_STRAY, unit, topic) for topic in topics)
        return read

    def close(self) -> None:
        """See `BatchReader`."""
        self._native.close()


def make_batch_reader(
    consumer: Consumer, topics: Sequence[str], count_max: int, *, native: bool, keyed: Collection[str] = ()
) -> BatchReader:
    """Create a reader for these topics.

    ``native``: whether to read columns, if native calls are available. ``keyed``: the topics whose keys are read, too.
    """
    # The fake consumer used in tests supports only objects, so there is nothing to log.
    if native and isinstance(consumer, Consumer):
        try:
            return ColumnReader(consumer, topics, count_max, keyed)
        except Unavailable as why:
            _log_once(str(why))
    return ObjectReader(consumer, topics, keyed)


@functools.cache
def _log_once(why: str) -> None:
    _log.info("messages are read as objects, because the native calls are unavailable: %s", why)
