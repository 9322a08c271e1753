"""Writes copies of messages to the repartition topics, in transactions that also commit the offsets of the originals.

Each producer has a transactional id of its own, because a process does not replace a certain other one: which
partitions a process may commit is decided by the consumer group. If a process dies, Kafka aborts its last transaction
after `TRANSACTION_S`.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from broker.kafka.topics import COPY_BYTES_MAX
from broker.partitioner import partition_of
from broker.wire.origin import ORIGIN_HEADER, Origin, encode_origin
from joiner.mapping.reading import MappedTopic
from joiner.runtime.clock import Clock
from joiner.runtime.kafka.batches.registry import schemas_of
from joiner.runtime.kafka.clients import (
    TRANSACTIONAL,
    abort_if_possible,
    commit,
    connect,
    init_transactions,
    make_producer,
    poll,
    within,
)
from joiner.runtime.repartition.merging import Part, Place, merged_order
from joiner.runtime.repartition.prior import RepartitionError, origin_of, reset_offset
from joiner.runtime.settings import JoinerSettings
from joiner.runtime.task.decoding.messages import Messages

if TYPE_CHECKING:
    from broker.kafka.topics import TopicFacts

TRANSACTION_S: Final = 10.0
"""How long a transaction may take. Messages after an open one are not read, so that nobody waits longer for a process
that has died."""

_OFFSETS_S: Final = 5.0
_FULL_WAIT_S: Final = 0.05

_BUFFER_KIB: Final = 64 * 1024
"""The size of the copies that wait to be sent, which limits the memory that copying takes."""

_KEYS_MAX: Final = 100_000

_SIZE: Final = f"max.message.bytes={COPY_BYTES_MAX + 64 * 1024}"
"""Enough for the largest message that the client accepts, which has at most `COPY_BYTES_MAX` without its header."""

_TIMES: Final = f"message.timestamp.before.max.ms={2**63 - 1},message.timestamp.after.max.ms={2**63 - 1}"

_REFUSALS: Final = {KafkaError.MSG_SIZE_TOO_LARGE: _SIZE, KafkaError.INVALID_TIMESTAMP: _TIMES}
"""The errors that concern a single message, and the settings of the topic that prevent them."""


class CopyWriter:
    """Copies messages with one transactional producer. All methods but `close` raise KafkaException.

    `commit` also raises `SchemaUnavailable` if the schema that a message names cannot be fetched.
    """

    def __init__(self, settings: JoinerSettings, facts: Mapping[str, TopicFacts], clock: Clock) -> None:
        """``facts``: those of the topics to copy, whose ids are noted in the copies."""
        self._settings, self._facts, self._clock = settings, facts, clock
        self._targets = settings.repartitioned
        self._count = settings.topics.partitions
        self._mappings = {
            topic: MappedTopic(settings.mapped_streams(target), settings.events.time_unit, schemas_of(settings))
            for topic, target in self._targets.items()
        }
        self._partition_of = lru_cache(_KEYS_MAX)(partition_of)
        self._producer = make_producer(
            settings.kafka,
            transactional_id=f"{settings.repartition_group}-{uuid.uuid4().hex}",
            transaction_timeout_ms=int(TRANSACTION_S * 1000),
            message_max_bytes=COPY_BYTES_MAX,
            queue_buffering_max_kbytes=_BUFFER_KIB,
            delivery_report_only_error=True,
            **TRANSACTIONAL,
        )
        connect(self._producer, next(iter(facts)))
        init_transactions(self._producer, clock)
        self._is_open = False
        self._refused: Refused | None = None

    def commit(self, parts: Sequence[Part], offsets: Sequence[TopicPartition], member: Consumer) -> None:
        """Copy messages, and commit ``offsets`` as those of ``member``'s group, in one transaction.

        Raises `CopyRefused` if Kafka refuses a copy, or the client itself. In the latter case, the messages before it
        have been committed, so that it alone is left out if somebody sets the offset behind it.
        """
        try:
            self._commit(parts, offsets, member)
        except KafkaException as error:
            poll(self._producer, 0)
            if (refused := self._refused) is not None:
                target = self._targets[refused.origin.topic]
                options = _REFUSALS[refused.error.code()]
                way_out = f"kafka-configs --bootstrap-server … --alter --topic {target} --add-config {options}"
                raise CopyRefused(refused, target, way_out) from error
            if error.args[0].code() == KafkaError._STATE:  # noqa: SLF001 - the public name
                # The transaction has failed. Only calls that begin or end one say why, and this one cannot succeed.
                self._producer.begin_transaction()
            raise

    def _commit(self, parts: Sequence[Part], offsets: Sequence[TopicPartition], member: Consumer) -> None:
        deadline_s = self._clock.monotonic_s() + TRANSACTION_S
        self._producer.begin_transaction()
        self._is_open = True
        stopped = self._copy(parts)
        if stopped is not None:
            offsets = [stopped.cut(place) for place in offsets]
        # After copying, so that a rebalance in the meantime that leaves the partitions here does no harm.
        group = member.consumer_group_metadata()
        send = self._producer.send_offsets_to_transaction
        within(_OFFSETS_S + 1.0, send, list(offsets), group, _OFFSETS_S)
        # If the answer stays away, the next session learns the outcome from the offsets.
        commit(self._producer, self._clock, deadline_s)
        self._is_open = False
        if stopped is not None:
            raise stopped.error

    def close(self) -> None:
        """Abort an open transaction if that is possible at once, so that nobody waits for its timeout."""
        if self._is_open:
            abort_if_possible(self._producer)

    def _copy(self, parts: Sequence[Part]) -> _Stopped | None:
        """Copy the messages of several partitions in the order of their times, and in order within a partition.

        Return where that has stopped if the client refuses a message.
        """
        if not parts:
            return None
        columns = [_columns(part.messages) for part in parts]
        next_rows = [0] * len(parts)
        for number, row in merged_order(parts):
            topic, source, _ = parts[number]
            offsets, times_ms, keys, values = columns[number]
            origin = Origin(topic, source, offsets[row], self._facts[topic].topic_id)
            try:
                self._copy_one(origin, times_ms[row], keys[row], values[row])
            except CopyRefused as error:
                rows = zip(parts, columns, next_rows, strict=True)
                left = {part[:2]: column[0][at] for part, column, at in rows if at < len(column[0])}
                return _Stopped(error, left)
            next_rows[number] = row + 1
        return None

    def _copy_one(self, origin: Origin, at_ms: int, source_key: bytes | None, value: bytes | None) -> None:
        thing = self._mappings[origin.topic].thing_of(value, source_key)
        # A message that cannot be read is copied too, so that the joiner writes its dead letter.
        key, partition = source_key or None, origin.partition % self._count
        if thing is not None:
            key = thing.encode()
            partition = self._partition_of(key, self._count)
        target = self._targets[origin.topic]
        headers: list[tuple[str, str | bytes | None]] = [(ORIGIN_HEADER, encode_origin(origin))]
        while True:
            try:
                # With the timestamp 0, the client would use the current time.
                self._producer.produce(
                    target,
                    value,
                    key,
                    partition,
                    timestamp=max(1, at_ms),
                    headers=headers,
                    on_delivery=self._note_refused,
                )
            except BufferError:
                poll(self._producer, _FULL_WAIT_S)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.MSG_SIZE_TOO_LARGE:
                    raise
                # The client itself refuses it, whatever the configuration of the topic.
                topic, source, offset, _ = origin
                refused = Refused(error.args[0], origin, len(value or b""))
                way_out = reset_offset(self._settings, topic, source, f"--to-offset {offset + 1}")
                raise CopyRefused(refused, target, f"to leave it out, {way_out}") from error
            else:
                return

    def _note_refused(self, error: KafkaError | None, message: Message) -> None:
        """Note the copy that Kafka refuses. It also refuses those sent with it: the largest is to blame."""
        if error is None or error.code() not in _REFUSALS:
            return
        size = len(message.value() or b"")
        if (self._refused is None or size > self._refused.size) and (origin := origin_of(message)) is not None:
            self._refused = Refused(error, origin, size)


class Refused(NamedTuple):
    """A message whose copy Kafka refuses. ``size``: that of its value in bytes."""

    error: KafkaError
    origin: Origin
    size: int


class CopyRefused(RepartitionError):
    """Kafka refuses the copy of a message."""

    def __init__(self, refused: Refused, target: str, way_out: str) -> None:
        error, (self.topic, partition, offset, _), size = refused
        message = f"{self.topic} partition {partition} offset {offset} ({size} bytes) cannot be copied to {target}: "
        super().__init__(f"{message}{error.str()}: {way_out}")


class _Stopped(NamedTuple):
    """Why copying has stopped before its end, and the first offset that is not copied, by partition."""

    error: CopyRefused
    left: Mapping[Place, int]

    def cut(self, place: TopicPartition) -> TopicPartition:
        """Return an offset to commit, or the first one that is not copied."""
        at = self.left.get((place.topic, place.partition), place.offset)
        return TopicPartition(place.topic, place.partition, at, place.metadata)


def _columns(messages: Messages) -> tuple[list[int], list[int], Sequence[bytes | None], list[bytes | None]]:
    """Return the offsets, times, keys and values of messages as lists."""
    keys: Sequence[bytes | None] = [None] * len(messages) if messages.key is None else messages.key.each()
    return messages.offset.tolist(), messages.append_ms.tolist(), keys, messages.values()
