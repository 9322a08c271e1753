"""Reads messages from a consumer's partitions as columns, by calling librdkafka directly.

librdkafka delivers the messages and errors of each partition to this reader's queue instead of the consumer's queue.
The consumer's queue still receives everything else: logs, statistics and broker errors.

**Memory.** Messages live in librdkafka's memory. `read` returns copies, and destroys the messages before returning.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Collection
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from confluent_kafka import KafkaError, KafkaException

from broker.kafka.native.library import handle_of, library, load_loops
from broker.wire.columns import StringColumn

if TYPE_CHECKING:
    from confluent_kafka import Consumer
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

_NO_ERROR = 0


class Fetched(NamedTuple):
    """n messages of one partition, in offset order.

    ``append_ms``: the timestamps of the messages. ``is_null``: which values are null, or None if none are. ``key``: the
    keys, with an empty string for each null, or None if the keys of this topic are not read.
    """

    topic: str
    partition: int
    offset: Ints
    append_ms: Ints
    value: StringColumn
    is_null: NDArray[np.bool_] | None
    key: StringColumn | None


class Event(NamedTuple):
    """Anything but a message that librdkafka delivers for a partition: an error, or the log's end at ``offset``."""

    error: KafkaError
    topic: str
    partition: int
    offset: int


class NativeReader:
    """Reads messages from partitions of one consumer. Not thread-safe.

    The consumer's methods, such as ``poll``, no longer return messages from these partitions, even after the reader is
    closed. Close the reader before the consumer: closing the consumer blocks until the reader is closed. A reader
    that is not closed explicitly is closed when it is garbage-collected or the interpreter exits.
    """

    def __init__(self, consumer: Consumer, count_max: int, keyed: Collection[str] = ()) -> None:
        """Prepare to read; no partition is read until it is added. Raises `Unavailable`.

        ``count_max``: the maximum number of messages that a call to `read` can return. ``keyed``: the topics whose keys
        are read, too.
        """
        self._memory, self._library = load_loops(), library()
        self._handle = handle_of(consumer)
        self._messages = np.empty(count_max, dtype=np.int64)
        self._keyed = frozenset(keyed)
        rows = self._memory.ROWS_WITH_KEYS if keyed else self._memory.ROWS
        self._found = np.empty((rows, count_max), dtype=np.int64)
        self._kind = np.zeros(1, dtype=np.int64)
        # Remove the error callback, which librdkafka would call for partition errors during `read`. confluent_kafka's
        # callback expects to run within a method of the consumer, and would abort the process. Without a callback,
        # librdkafka logs the errors instead.
        self._library.rd_kafka_conf_set_error_cb(self._library.rd_kafka_conf(self._handle), None)
        self._queue: int = self._library.rd_kafka_queue_new(self._handle)
        self._added: set[tuple[str, int]] = set()
        self._fresh: set[tuple[str, int]] = set()
        # The consumer must outlive the queue.
        self._finalizer = weakref.finalize(self, _release, consumer, self._handle, self._queue, self._added)

    def add(self, topic: str, partition: int) -> None:
        """Start reading a partition. Raises KafkaException if librdkafka does not know the partition.

        Call this before every assignment of the partition to the consumer.
        """
        self._added.add((topic, partition))
        # `read` keeps redirecting the partition to this queue until something arrives. If the partition was assigned
        # before, librdkafka ends the old assignment asynchronously, and stops delivering to this queue when it does.
        self._fresh.add((topic, partition))
        _forward(self._handle, topic, partition, self._queue)

    def remove(self, topic: str, partition: int) -> None:
        """Stop redirecting a partition to this reader. Call this when it is no longer assigned to the consumer."""
        self._fresh.discard((topic, partition))

    def read(self, count_max: int, wait_s: float) -> tuple[list[Fetched], list[Event]]:
        """Wait up to ``wait_s`` for at most ``count_max`` messages and events, and return those that have arrived."""
        for topic, partition in self._fresh:
            _forward(self._handle, topic, partition, self._queue)
        wait_ms = max(0, int(wait_s * 1000))
        count = 0
        try:
            count = max(
                0,
                self._library.rd_kafka_consume_batch_queue(
                    self._queue, wait_ms, self._messages.ctypes.data, min(count_max, len(self._messages))
                ),
            )
            self._memory.describe(self._messages[:count], self._found, self._kind)
            if self._keyed:
                self._memory.describe_keys(self._messages[:count], self._found)
            return self._sort(count)
        finally:
            self._memory.destroy(self._messages[:count])

    def close(self) -> None:
        """Stop reading."""
        self._finalizer()

    def _sort(self, count: int) -> tuple[list[Fetched], list[Event]]:
        # Cache topic names by handle only during this call, because librdkafka may later reuse the address of a handle.
        self._topics: dict[int, str] = {}
        found = self._found[:, :count]
        events, which = [], None
        errors = found[self._memory.READ_ERROR]
        if errors.any():
            events = [self._event(at) for at in errors.nonzero()[0].tolist()]
            which = (errors == _NO_ERROR).nonzero()[0]
            found = found.take(which, axis=1)
        topics, partitions = found[self._memory.READ_TOPIC], found[self._memory.READ_PARTITION]
        # Split the messages where the partition changes. There are few such places, because messages of one partition
        # arrive in long runs.
        changes = np.flatnonzero((np.diff(topics) != 0) | (np.diff(partitions) != 0)) + 1
        runs: dict[tuple[str, int], list[Ints]] = {}
        for begin, end in pairwise([0, *changes.tolist(), found.shape[1]] if found.shape[1] else []):
            place = self._topic(int(topics[begin])), int(partitions[begin])
            runs.setdefault(place, []).append(found[:, begin:end])
        fetched = [self._fetched(place, np.concatenate(parts, axis=1)) for place, parts in runs.items()]
        if self._fresh:
            self._fresh -= runs.keys() | {(event.topic, event.partition) for event in events}
        return fetched, events

    def _fetched(self, place: tuple[str, int], found: Ints) -> Fetched:
        payload = found[self._memory.READ_PAYLOAD]
        is_null = payload == 0
        key = None
        if place[0] in self._keyed:
            key = self._strings(found[self._memory.READ_KEY], found[self._memory.READ_KEY_LENGTH])
        return Fetched(
            *place,
            found[self._memory.READ_OFFSET].copy(),
            found[self._memory.READ_TIME].copy(),
            self._strings(payload, found[self._memory.READ_LENGTH]),
            is_null if is_null.any() else None,
            key,
        )

    def _strings(self, address: Ints, length: Ints) -> StringColumn:
        end = length.cumsum()
        start = end - length
        data = np.empty(int(end[-1]), dtype=np.uint8)
        self._memory.gather(address, start, end, data)
        return StringColumn(data, start, end)

    def _event(self, at: int) -> Event:
        code, topic, partition, payload, length, offset, _ = self._found[: self._memory.ROWS, at].tolist()
        text = ctypes.string_at(payload, length).decode(errors="replace") if payload else ""
        error = KafkaError(code, text) if text else KafkaError(code)
        return Event(error, self._topic(topic), partition, offset)

    def _topic(self, handle: int) -> str:
        """Return the topic name for a librdkafka topic handle, or an empty string if the handle is null."""
        if not handle:
            return ""
        name = self._topics.get(handle)
        if name is None:
            name = self._topics[handle] = self._library.rd_kafka_topic_name(handle).decode()
        return name


def _forward(handle: int, topic: str, partition: int, queue: int | None) -> None:
    """Make librdkafka deliver a partition's messages to ``queue``, or to the partition's own queue if it is None."""
    loaded = library()
    own = loaded.rd_kafka_queue_get_partition(handle, topic.encode(), partition)
    if not own:
        raise KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION, f"{topic} [{partition}]"))  # noqa: SLF001 - public
    loaded.rd_kafka_queue_forward(own, queue)
    loaded.rd_kafka_queue_destroy(own)


def _release(_consumer: Consumer, handle: int, queue: int, added: set[tuple[str, int]]) -> None:
    for topic, partition in added:
        with suppress(KafkaException):
            _forward(handle, topic, partition, None)
    library().rd_kafka_queue_destroy(queue)
