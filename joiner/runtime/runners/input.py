"""The input of a plain process: a single consumer reads all units, and the units take turns joining what was read.

Each unit is read from offsets that the process specifies. The units are served in rotation during each commit interval
instead of all at its end. This spreads their commits over the interval, and one unit's records need not wait until
those of all other units are joined.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Container, Iterable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from confluent_kafka import KafkaException, TopicPartition

from joiner.runtime.kafka.batches.messages import Read
from joiner.runtime.kafka.batches.parts import split
from joiner.runtime.kafka.batches.reader import make_batch_reader
from joiner.runtime.kafka.clients import log_range, make_consumer
from joiner.runtime.settings import JoinerSettings
from joiner.runtime.task.decoding.messages import Messages
from joiner.runtime.task.flow_control import BatchLimit

_RECORDS_FOR_ONE: Final = 10
"""If messages hold many records each, a batch may be larger by this factor, because each record then costs far less."""

_RECORD_BYTES: Final = 24
"""Approximate size in bytes of a record in a message that holds many."""

_AT_FIRST: Final = 10
"""The number of messages per read until their size is known."""

_FORGETTING: Final = 0.9
"""The largest message size seen so far is multiplied by this factor on every read, so that it decays over time."""

_TURNS_MAX: Final = 4
"""Maximum number of turns per commit interval. Each turn polls the input once, which costs about as much as joining a
few records."""


class InputConsumer:
    """Reads the input topics of the units. Used only by the runner's thread, except for `connect`."""

    def __init__(self, settings: JoinerSettings) -> None:
        application = settings.application
        self._topics = settings.input_topics
        self._limit = _MessageLimit(application.batch_records_max) if settings.topics.has_rows else None
        self._most = application.batch_records_max
        self.records_most = self._most * (_RECORDS_FOR_ONE if settings.topics.has_rows else 1)
        """The maximum number of records in a batch; only approximate if messages hold many records each."""
        self.batch_limit = BatchLimit(settings)
        self._consumer = make_consumer(
            settings.kafka,
            application.name,
            # The end-of-partition event reports positions past control records and aborted records, which are never
            # delivered as messages.
            enable_partition_eof=True,
            fetch_queue_backoff_ms=2,
            fetch_wait_max_ms=max(1, application.commit_interval // 1_000_000),
            queued_max_messages_kbytes=64 * 1024,
        )
        self._reader = make_batch_reader(
            self._consumer, self._topics, self._most, native=application.native, keyed=settings.keyed_topics
        )
        self._rest = Read({}, {}, [])
        """Messages that were read but not returned yet, because they would have made the batch too large."""
        self._lock = threading.Lock()
        self._connecting = 0
        """How many calls of `connect` are in progress."""
        self._is_closed = False

    @property
    def records_max(self) -> int:
        """The maximum number of records in the next batch: fewer than ``records_most`` if they complete many rows."""
        return self.batch_limit.records(self.records_most)

    @property
    def messages_max(self) -> int:
        """The maximum number of messages per read."""
        return self.records_max if self._limit is None else self._limit.messages

    def connect(self, unit: int) -> None:
        """Connect to the leaders of a unit's partitions, so that `add` need not wait for that. Thread-safe.

        Otherwise, librdkafka would look up the leaders of a topic that it has not read before only once a second.
        Raises KafkaException if a request fails.
        """
        with self._lock:
            if self._is_closed:
                return
            self._connecting += 1
        try:
            for topic in self._topics:
                log_range(self._consumer, topic, unit)
        finally:
            with self._lock:
                self._connecting -= 1

    def connect_early(self, unit: int) -> None:
        """Do what `connect` does, but ignore errors: the unit may never be claimed. Thread-safe."""
        with suppress(KafkaException):
            self.connect(unit)

    def add(self, unit: int, offsets: Mapping[str, int]) -> None:
        """Start reading a unit at the given offsets, one for each input topic."""
        for topic in offsets:
            self._reader.add(topic, unit)
        self._consumer.incremental_assign([TopicPartition(topic, unit, at) for topic, at in offsets.items()])

    def remove(self, unit: int, topics: Iterable[str], paused: Iterable[str]) -> None:
        """Stop reading a unit. ``topics``: its input topics. ``paused``: the topics that are currently paused."""
        if paused := list(paused):
            # Otherwise the partitions would still be paused when the unit is claimed again.
            self.resume(unit, paused)
        self._rest.batches.pop(unit, None)
        self._rest.ends.pop(unit, None)
        places = _places(unit, topics)
        self._consumer.incremental_unassign(places)
        for place in places:
            self._reader.remove(place.topic, unit)

    def pause(self, unit: int, topics: Iterable[str]) -> None:
        """Pause topics of a unit."""
        self._consumer.pause(_places(unit, topics))

    def resume(self, unit: int, topics: Iterable[str]) -> None:
        """Resume topics of a unit."""
        self._consumer.resume(_places(unit, topics))

    def read(self, count_max: int, wait_s: float) -> Read:
        """Return at most ``count_max`` messages that are available. If there are fewer, wait for up to ``wait_s``.

        If messages may hold many records each, the number of records is limited as well.
        """
        if self._limit is None:
            return self._reader.read(min(count_max, self.records_max), wait_s)
        if not self._rest.batches:
            self._rest = self._reader.read(min(count_max, self._limit.messages), wait_s)
            self._limit.note(self._rest)
        part, self._rest = split(self._rest, self.records_max)
        return part

    def log_ends(self, unit: int) -> dict[str, int]:
        """Return the end offsets of the unit's input logs, as last reported by Kafka. Sends no request."""
        places = {topic: TopicPartition(topic, unit) for topic in self._topics}
        return {topic: self._consumer.get_watermark_offsets(at, cached=True)[1] for topic, at in places.items()}

    def close(self) -> None:
        """Close the consumer, unless `connect` is still using it in another thread: that would crash the process.

        The consumer is then released when that thread ends.
        """
        with self._lock:
            self._is_closed = True
            is_in_use = self._connecting > 0
        self._reader.close()
        if not is_in_use:
            self._consumer.close()


class _MessageLimit:
    """Limits the number of messages per read when each may hold many records, so that batches do not become too large.

    Reading does not decode messages, so the number of records in a message is estimated from its size. Compressed
    messages may hold far more records than that. If so, one read is returned in several batches.
    """

    def __init__(self, batch_records_max: int) -> None:
        self._bytes_max = _RECORDS_FOR_ONE * batch_records_max * _RECORD_BYTES
        self._messages_max = batch_records_max
        self._largest = 0.0
        self.messages = min(_AT_FIRST, batch_records_max)

    def note(self, read: Read) -> None:
        """Adjust the limit to the sizes of the messages that were read."""
        sizes = [int(part.value.lengths().max()) for parts in read.batches.values() for part in parts.values()]
        if sizes:
            self._largest = max(self._largest * _FORGETTING, *sizes, 1)
            self.messages = max(1, min(self._messages_max, int(self._bytes_max / self._largest)))


def _places(unit: int, topics: Iterable[str]) -> list[TopicPartition]:
    return [TopicPartition(topic, unit) for topic in sorted(topics)]


class UnitInput(NamedTuple):
    """What was read for one unit: its next messages, and the log ends that were reached, by topic."""

    batches: Mapping[str, Messages]
    ends: Mapping[str, int]


class PendingInput:
    """The pending input of all units of a process.

    Args:
        turns_max: the maximum number of turns in a commit interval. There are never more turns than units.

    """

    def __init__(self, turns_max: int = _TURNS_MAX) -> None:
        self._turns_max = turns_max
        self._batches: dict[int, dict[str, list[Messages]]] = {}
        self._ends: dict[int, dict[str, int]] = {}
        self._served_in: dict[int, int] = {}
        """The last turn in which each unit was served."""
        self._turn = 0

    def messages(self, units: Iterable[int]) -> int:
        """Return the number of pending messages of these units."""
        return sum(map(self._count, units))

    def turns(self, units: int) -> int:
        """Return the number of turns per commit interval for this many units."""
        return max(1, min(units, self._turns_max))

    def add(self, read: Read, running: Container[int]) -> None:
        """Add the messages and log ends from one poll, for the running units."""
        for unit, batches in read.batches.items():
            if unit in running:
                parts = self._batches.setdefault(unit, {})
                for topic, messages in batches.items():
                    parts.setdefault(topic, []).append(messages)
        for unit, ends in read.ends.items():
            if unit in running:
                self._ends.setdefault(unit, {}).update(ends)

    def begin_turn(self, units: Iterable[int], records_max: int) -> list[int]:
        """Return which of the running ``units`` to serve in this turn, in the order to serve them.

        These are the units that have waited longest, as many as needed to serve all units once per commit interval,
        plus any other unit whose share of a full batch has arrived. ``records_max``: the number of records in a full
        batch of all units together.
        """
        self._turn += 1
        waiting = sorted(units, key=lambda unit: (self._served_in.get(unit, 0), unit))
        if not waiting:
            return []
        quota = math.ceil(len(waiting) / self.turns(len(waiting)))
        share = records_max / len(waiting)
        due = waiting[:quota] + [unit for unit in waiting[quota:] if self._count(unit) >= share]
        self._served_in |= dict.fromkeys(due, self._turn)
        return due

    def take(self, unit: int) -> UnitInput:
        """Return and remove the pending input of a unit."""
        batches = {topic: Messages.concat(parts) for topic, parts in self._batches.pop(unit, {}).items()}
        return UnitInput(batches, self._ends.pop(unit, {}))

    def drop(self, unit: int) -> None:
        """Discard the pending input of a unit that is no longer running."""
        self._batches.pop(unit, None)
        self._ends.pop(unit, None)
        self._served_in.pop(unit, None)

    def _count(self, unit: int) -> int:
        return sum(len(part) for parts in self._batches.get(unit, {}).values() for part in parts)
