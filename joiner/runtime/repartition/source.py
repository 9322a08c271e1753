"""Reads the topics to copy, as a member of the consumer group of all processes that repartition.

The group assigns the partitions, and its generation fences members that have lost theirs. A partition is read once its
committed offset is known: as long as the transaction of another process is open, Kafka does not tell the offset.
Partitions that are assigned together begin together, unless that takes too long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from broker.kafka.group_member import give_partitions_back, member_config
from broker.kafka.topics import TopicFacts
from joiner.runtime.clock import Clock
from joiner.runtime.kafka.batches.gaps import GapVerifier
from joiner.runtime.kafka.batches.reader import make_batch_reader
from joiner.runtime.kafka.clients import is_passing, log_range, make_consumer
from joiner.runtime.kafka.transaction import OwnershipInDoubt
from joiner.runtime.repartition.awaited import AwaitedOffsets
from joiner.runtime.repartition.merging import Part, Place, TimeMerger
from joiner.runtime.repartition.prior import Prior, RepartitionError, reset_offset
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

_OUT_OF_RANGE: Final = KafkaError._AUTO_OFFSET_RESET  # noqa: SLF001 - the public name of the constant


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
        self._awaited = AwaitedOffsets(self._consumer, clock)
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
        for (topic, _), count in self._awaited.counts.items():
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
                raise self._out_of_range(topic, partition)
            if not is_passing(error, partition):
                raise KafkaException(error)

    def _out_of_range(self, topic: str, partition: int) -> RepartitionError:
        """Return the error for a position that the log does not contain. Raises KafkaException."""
        at = self._fetched.get((topic, partition))
        low, high = log_range(self._consumer, topic, partition)
        if at is not None and at < low:
            why, option = f"it begins at {low}, so retention has deleted messages that were not copied", "--to-earliest"
        else:
            # With the first offset, all messages would be copied a second time.
            why, option = f"it ends at {high}, so the log has lost messages that were copied", "--to-latest"
            if at is not None and at <= high:
                why = f"it has lost messages that were copied, and has grown to {high} since"
        way_out = reset_offset(self._settings, topic, partition, option)
        return RepartitionError(
            f"{topic} partition {partition} has no offset {at}: {why}. To go on with what is left, {way_out}"
        )

    def _begin(self) -> None:
        """Begin to read the partitions whose committed offsets are known by now."""
        if not (begun := self._awaited.ask()):
            return
        for place in begun:
            self._resume(place)
            self._reader.add(place.topic, place.partition)
        self._consumer.incremental_assign(
            [TopicPartition(one.topic, one.partition, self._positions[one.topic, one.partition]) for one in begun]
        )

    def _resume(self, committed: TopicPartition) -> None:
        place = committed.topic, committed.partition
        at, progress = self._starts.of(committed)
        self._notes[place] = encode_progress(progress)
        self._fetched[place] = at
        self._merger.begin(place)
        self._move(place, at)

    def _on_assign(self, consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        self._awaited.add([(place.topic, place.partition) for place in partitions])
        # Otherwise, the client would assign them itself. `_begin` does so, once their offsets are known.
        consumer.incremental_assign([])

    def _on_revoke(self, consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        revoked = {(place.topic, place.partition) for place in partitions}
        for place in revoked:
            self._awaited.remove(place)
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
