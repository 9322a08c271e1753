"""Reads the topics to copy, as a member of the consumer group of all processes that repartition.

The group assigns the partitions, and its generation fences members that have lost theirs. A partition is read once its
committed offset is known: as long as the transaction of another process is open, Kafka does not tell the offset. Other
partitions are read in the meantime.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from broker.kafka.group_member import give_partitions_back, member_config
from broker.kafka.topics import TopicFacts, is_passing
from joiner.runtime.clock import Clock
from joiner.runtime.kafka.batches.gaps import GapVerifier
from joiner.runtime.kafka.batches.reader import make_batch_reader
from joiner.runtime.kafka.clients import is_passing as is_passing_event
from joiner.runtime.kafka.clients import make_consumer
from joiner.runtime.kafka.transaction import OwnershipInDoubt
from joiner.runtime.repartition.merging import Part, Place, TimeMerger
from joiner.runtime.repartition.prior import Prior, RepartitionError
from joiner.runtime.repartition.progress import encode_progress
from joiner.runtime.repartition.starts import Starts
from joiner.runtime.settings import JoinerSettings
from joiner.runtime.task.decoding.messages import Messages

if TYPE_CHECKING:
    from joiner.runtime.kafka.batches.messages import Read

_BATCH_MESSAGES: Final = 5_000
"""The maximum number of messages in a transaction."""

_FETCHED_KIB: Final = 16 * 1024
"""The size of the messages that the client fetches ahead, which limits the memory that copying takes."""

_ASK_S: Final = 0.5
"""How long to wait for the committed offsets, and between two such requests."""

_LONG_S: Final = 10.0
"""After how long a committed offset that cannot be read is reported, and how often. A transaction of a process that has
died ends by then."""

_OUT_OF_RANGE: Final = KafkaError._AUTO_OFFSET_RESET  # noqa: SLF001 - the public name of the constant

_log = logging.getLogger(__name__)


class SourceReader:
    """Reads the topics to copy from the partitions that the group assigns to this process. Not thread-safe."""

    def __init__(
        self,
        settings: JoinerSettings,
        facts: Mapping[str, TopicFacts],
        clock: Clock,
        prior: Mapping[Place, Prior],
    ) -> None:
        """``facts``: those of the topics to copy and of the repartition topics. ``prior``: see `read_prior`.

        Raises KafkaException.
        """
        self._settings, self._clock = settings, clock
        self._topics = sorted(settings.repartitioned)
        self._asked: dict[Place, float] = {}
        """Assigned partitions whose committed offsets are not known yet, and since when."""
        self._unread: dict[Place, int] = {}
        """Those of them that have waited for long, and the number of their offsets."""
        self._ask_s = 0.0
        self._warn_s = 0.0
        self._positions: dict[Place, int] = {}
        """The offset of each partition up to which messages have been returned."""
        self._fetched: dict[Place, int] = {}
        """The offset of each partition up to which messages have been fetched."""
        self._merger = TimeMerger(clock)
        self._paused: set[Place] = set()
        self._notes: dict[Place, str] = {}
        self._uncommitted: set[Place] = set()
        """Partitions whose position has changed since `offsets`."""
        application = settings.application
        self._consumer = make_consumer(
            settings.kafka,
            settings.repartition_group,
            client_id=application.instance,
            enable_partition_eof=True,
            fetch_queue_backoff_ms=2,
            fetch_wait_max_ms=max(1, application.commit_interval // 1_000_000),
            queued_max_messages_kbytes=_FETCHED_KIB,
            **member_config(application.session_timeout, None),
        )
        self._starts = Starts(settings, facts, prior, self._consumer)
        self._reader = make_batch_reader(
            self._consumer, self._topics, _BATCH_MESSAGES, native=application.native, keyed=self._topics
        )
        self._gaps = GapVerifier(settings, clock)
        self._consumer.subscribe(
            self._topics,
            on_assign=self._on_assign,
            on_revoke=partial(self._on_revoke),
            on_lost=partial(self._on_revoke),
        )

    @property
    def consumer(self) -> Consumer:
        """The group member."""
        return self._consumer

    def read(self, wait_s: float) -> list[Part]:
        """Return the next messages, waiting up to ``wait_s`` for more of them.

        Raises KafkaException, `RepartitionError` if the next messages are gone, and what `GapVerifier` raises.
        """
        self._begin()
        read = self._reader.read(_BATCH_MESSAGES, wait_s)
        self._check(read)
        for partition, by_topic in read.batches.items():
            for topic, messages in by_topic.items():
                if (topic, partition) in self._positions:  # it may have been revoked
                    self._add((topic, partition), messages)
        for partition, ends in read.ends.items():
            for topic, end in ends.items():
                if (topic, partition) in self._positions and self._fetched[topic, partition] <= end:
                    self._fetched[topic, partition] = end
                    self._merger.end((topic, partition))
        parts = self._merger.take()
        for topic, partition, messages in parts:
            self._move((topic, partition), messages.last + 1)
        for place, at in self._fetched.items():
            # Behind the last message, there may be what is no message.
            if at > self._positions[place] and not self._merger.holds(place):
                self._move(place, at)
        self._pause_what_is_ahead()
        return parts

    def _add(self, place: Place, messages: Messages) -> None:
        topic, partition = place
        at = self._fetched[place]
        new = messages.part(int(messages.offset.searchsorted(at)), len(messages))
        if len(new):
            try:
                self._gaps.check(partition, {topic: at}, {topic: new})
            except OwnershipInDoubt:
                message = f"{topic} partition {partition}: retention has deleted messages from offset {at} on"
                raise RepartitionError(message) from None
            self._fetched[place] = new.last + 1
            self._merger.add(place, new)

    def _pause_what_is_ahead(self) -> None:
        full = set(self._merger.full())
        if more := full - self._paused:
            self._consumer.pause([TopicPartition(*place) for place in sorted(more)])
        if fewer := self._paused - full:
            self._consumer.resume([TopicPartition(*place) for place in sorted(fewer)])
            for place in fewer:
                self._merger.resume(place)
        self._paused = full

    def offsets(self) -> list[TopicPartition]:
        """Return the positions that have changed since the last call, as offsets to commit."""
        changed, self._uncommitted = sorted(self._uncommitted), set()
        return [TopicPartition(*place, self._positions[place], self._notes[place]) for place in changed]

    def lags(self) -> dict[str, int]:
        """Return the number of offsets that are not copied yet, by topic, of the partitions read here. No request."""
        found: dict[str, int] = {}
        for (topic, _), count in self._unread.items():
            found[topic] = found.get(topic, 0) + count
        for (topic, partition), at in self._positions.items():
            end = self._consumer.get_watermark_offsets(TopicPartition(topic, partition), cached=True)[1]
            found[topic] = found.get(topic, 0) + max(0, end - at)
        return found

    def close(self) -> None:
        """Leave the group."""
        give_partitions_back(self._consumer, self._clock.monotonic_s)
        self._reader.close()
        self._consumer.close()
        self._gaps.close()

    def _move(self, place: Place, to: int) -> None:
        self._positions[place] = to
        self._uncommitted.add(place)

    def _check(self, read: Read) -> None:
        for error, partition, topic in read.errors:
            if error.code() == _OUT_OF_RANGE and topic is not None and partition is not None:
                at = self._positions.get((topic, partition))
                message = (
                    f"{topic} partition {partition} has no offset {at}: retention has deleted messages that were not "
                    f"copied, or the log has lost some. To go on with what is left, stop all processes that "
                    "repartition, then set the group's offset of this partition: kafka-consumer-groups "
                    f"--bootstrap-server … --group {self._settings.repartition_group} --topic {topic}:{partition} "
                    "--reset-offsets --to-earliest --execute"
                )
                raise RepartitionError(message)
            if not is_passing_event(error, partition):
                raise KafkaException(error)

    def _begin(self) -> None:
        """Begin to read the partitions whose committed offsets can be known by now."""
        now_s = self._clock.monotonic_s()
        if not self._asked or now_s < self._ask_s:
            return
        places = [TopicPartition(*place) for place in sorted(self._asked)]
        try:
            found = self._consumer.committed(places, _ASK_S)
        except KafkaException as error:
            if not is_passing(error):
                raise
            found = []
        self._ask_s = self._clock.monotonic_s() + _ASK_S
        begun = [place for place in found if place.error is None and (place.topic, place.partition) in self._asked]
        for place in begun:
            self._resume(place)
            self._forget_asked(place.topic, place.partition)
            self._reader.add(place.topic, place.partition)
        self._consumer.incremental_assign(
            [TopicPartition(one.topic, one.partition, self._positions[one.topic, one.partition]) for one in begun]
        )
        self._warn_of_waiting()

    def _forget_asked(self, topic: str, partition: int) -> None:
        self._asked.pop((topic, partition), None)
        self._unread.pop((topic, partition), None)

    def _warn_of_waiting(self) -> None:
        now_s = self._clock.monotonic_s()
        waiting = sorted(place for place, since_s in self._asked.items() if now_s - since_s > _LONG_S)
        if not waiting or now_s < self._warn_s:
            return
        self._warn_s = now_s + _LONG_S
        shown = ", ".join(f"{topic} [{partition}]" for topic, partition in waiting)
        _log.warning(
            "repartitioning: the committed offsets of %s cannot be read, so these partitions are not copied: either "
            "Kafka does not answer, or a transaction that commits them has not ended (see recovery.md)",
            shown,
        )
        # Until their committed offsets are known, all their messages count as not copied.
        with suppress(KafkaException):
            for place in waiting:
                low, high = self._consumer.get_watermark_offsets(TopicPartition(*place), timeout=_ASK_S)
                self._unread[place] = high - low

    def _resume(self, committed: TopicPartition) -> None:
        place = committed.topic, committed.partition
        at, progress = self._starts.of(committed)
        self._notes[place] = encode_progress(progress)
        self._fetched[place] = at
        self._merger.begin(place)
        self._move(place, at)

    def _on_assign(self, consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        now_s = self._clock.monotonic_s()
        self._asked |= {(place.topic, place.partition): now_s for place in partitions}
        self._ask_s = 0.0
        # Otherwise, the client would assign them itself. `_begin` does so, once their offsets are known.
        consumer.incremental_assign([])

    def _on_revoke(self, consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        revoked = {(place.topic, place.partition) for place in partitions}
        for place in revoked:
            self._forget_asked(*place)
        self._uncommitted -= revoked
        mine = sorted(revoked & self._positions.keys())
        if paused := revoked & self._paused:
            # Otherwise, they would still be paused when they are assigned again.
            consumer.resume([TopicPartition(*place) for place in sorted(paused)])
            self._paused -= paused
        for place in mine:
            del self._positions[place], self._fetched[place]
            self._merger.remove(place)
            self._reader.remove(*place)
        consumer.incremental_unassign([TopicPartition(*place) for place in mine])
