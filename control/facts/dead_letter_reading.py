"""Reads dead letters from their topic: all new ones continuously, or a single one with its contents."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import TYPE_CHECKING, Final

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from broker.kafka.topics import TopicFacts, topic_facts
from broker.wire.start_records import read_start
from control.facts.dead_letters import LETTERS_MAX, DeadLetter, DeadLetterIndex, describe
from joiner.runtime.kafka.clients import EOF_CODE, LATEST, is_passing, make_admin, make_consumer, timed_out

if TYPE_CHECKING:
    from collections.abc import Callable

    from joiner.runtime.clock import Clock
    from joiner.runtime.settings import JoinerSettings

_ASK_S: Final = 2.0
"""How often to ask Kafka for the ends of the topic, or whether a missing topic exists by now."""

_TIMEOUT_S: Final = 5.0
"""The timeout of a request. A partition whose reading makes no progress for longer than this is reported."""

_READ_MAX: Final = 100
"""How many messages are in memory at once. Each may be as large as Kafka allows."""

_READ_S: Final = 0.25
_BUFFER_KB: Final = 4_096
"""How much of the topic the client prefetches. The limit keeps large dead letters from filling the memory."""


class LetterGone(Exception):
    """No message exists at this place. The text says why."""


class LetterReading:
    """Follows the topic, starting with its last messages. Only one thread may call `read`.

    After an error, reading continues where it left off, unless the topic was deleted.
    """

    def __init__(self, settings: JoinerSettings, clock: Clock, letters: DeadLetterIndex) -> None:
        """Adds the dead letters that it reads to ``letters``."""
        self._settings, self._clock, self._letters = settings, clock, letters
        self._topic_id = ""
        self._positions: dict[int, int] = {}
        """How far each partition has been read."""
        self._unread: dict[int, int] = {}
        """The partitions not yet read up to the end they had at the start, with that end."""
        self._early: list[DeadLetter] = []
        """Dead letters that were read but are held back until no such partitions are left."""
        self._behind: dict[int, tuple[int, float]] = {}
        """The partitions not read to their ends: each one's position, and since when it has not advanced."""
        self._passing = ""

    def read(self, stop: threading.Event, note_success: Callable[[], None]) -> None:
        """Read until ``stop`` is set. Call ``note_success`` whenever nothing is missing. Raises KafkaException."""
        settings, topic = self._settings, self._settings.topics.rejected
        admin = make_admin(settings.kafka)
        self._behind.clear()
        with closing(self._consumer()) as consumer:
            is_assigned = False
            while not stop.is_set():
                found = topic_facts(admin, [topic], _TIMEOUT_S).get(topic)
                if found is None or found.topic_id != self._topic_id:
                    self._forget()
                    consumer.unassign()
                    is_assigned = False
                if found is None:
                    self._letters.renew(self._now_ms(), "")
                    note_success()
                    stop.wait(_ASK_S)
                    continue
                if not is_assigned or found.partitions != len(self._positions):
                    self._assign(consumer, found)
                    is_assigned = True
                self._read_some(consumer, stop)
                if not stop.is_set() and self._check_ends(admin):
                    note_success()

    def _consumer(self) -> Consumer:
        return make_consumer(
            self._settings.kafka,
            self._settings.application.name,
            enable_partition_eof=True,
            fetch_wait_max_ms=500,
            queued_max_messages_kbytes=_BUFFER_KB,
        )

    def _now_ms(self) -> int:
        return round(1000 * self._clock.wall_s())

    def _forget(self) -> None:
        """Forget the topic, which no longer exists."""
        self._topic_id = ""
        for memory in (self._positions, self._unread, self._early, self._behind):
            memory.clear()
        self._letters.clear()

    def _assign(self, consumer: Consumer, found: TopicFacts) -> None:
        """Continue reading where it stopped or, if the topic is new, start with its last messages."""
        topic = self._settings.topics.rejected
        ranges = {
            partition: consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=_TIMEOUT_S)
            for partition in range(found.partitions)
        }
        if any(at > ranges[partition][1] for partition, at in self._positions.items()):
            self._forget()  # the log was truncated
        self._topic_id = found.topic_id
        tail = max(1, LETTERS_MAX // found.partitions)
        for partition, (low, end) in ranges.items():
            if partition not in self._positions:
                self._positions[partition] = max(low, end - tail)
                if self._positions[partition] < end:
                    self._unread[partition] = end
            self._positions[partition] = max(low, self._positions[partition])
        consumer.assign([TopicPartition(topic, partition, at) for partition, at in self._positions.items()])

    def _read_some(self, consumer: Consumer, stop: threading.Event) -> None:
        until_s = self._clock.monotonic_s() + _ASK_S
        while self._clock.monotonic_s() < until_s and not stop.is_set():
            messages = consumer.consume(_READ_MAX, _READ_S)
            try:
                for message in messages:
                    self._apply(message)
            finally:
                self._add_early()

    def _apply(self, message: Message) -> None:
        error, partition, offset = message.error(), message.partition() or 0, message.offset() or 0
        if error is None:
            if read_start(message.value()) is None:
                at_ms = int(message.timestamp()[1])
                self._early.append(describe(self._settings, partition, offset, at_ms, message.value())[0])
            self._reached(partition, offset + 1)
        elif error.code() == EOF_CODE:
            self._reached(partition, offset)
        elif is_passing(error, message.partition()):
            self._passing = error.str()
        else:
            raise KafkaException(error)

    def _reached(self, partition: int, offset: int) -> None:
        self._positions[partition] = offset
        if offset >= self._unread.get(partition, 0):
            self._unread.pop(partition, None)

    def _add_early(self) -> None:
        """Keep the dead letters read so far, unless some that were there at the start are still missing."""
        if self._early and (not self._unread or len(self._early) > 2 * LETTERS_MAX):
            self._letters.add(sorted(self._early, key=lambda one: (one.at_ms, one.partition, one.offset)))
            self._early.clear()

    def _check_ends(self, admin: AdminClient) -> bool:
        """Return whether everything was read up to the last stable offsets of a moment ago. Report late partitions."""
        topic, now_s = self._settings.topics.rejected, self._clock.monotonic_s()
        wanted = {TopicPartition(topic, partition): LATEST for partition in self._positions}
        found = admin.list_offsets(wanted, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=_TIMEOUT_S)
        ends = {asked.partition: future.result().offset for asked, future in found.items()}
        behind = {}
        for partition, at in self._positions.items():
            if at < ends[partition]:
                before_at, since_s = self._behind.get(partition, (at, now_s))
                behind[partition] = at, since_s if at == before_at else now_s
        self._behind = behind
        if not behind:
            self._passing = ""
        late = [f"{topic} [{one}]" for one, (_, since_s) in sorted(behind.items()) if now_s - since_s > _TIMEOUT_S]
        if late:
            # Stop holding back the dead letters that were read.
            self._unread.clear()
            cause = f": {self._passing}" if self._passing else ""
            self._letters.report(f"{', '.join(late)} cannot be read{cause}")
        elif not self._unread:
            self._letters.renew(self._now_ms(), "")
        return not late and not self._unread


def read_message(consumer: Consumer, clock: Clock, place: tuple[str, int, int], until_s: float) -> Message:
    """Return the committed message at a place: a topic, a partition and an offset.

    ``consumer`` must come from `make_reader`. ``until_s``: on the monotonic clock. Raises `LetterGone`, and
    KafkaException if Kafka does not answer in time.
    """
    topic, partition, offset = place
    known = consumer.list_topics(topic, timeout=_left_s(clock, until_s)).topics[topic]
    if known.error is not None and known.error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
        raise KafkaException(known.error)
    if partition not in known.partitions:
        raise LetterGone(f"there is no {topic} [{partition}]")
    asked = TopicPartition(topic, partition, offset)
    low, end = consumer.get_watermark_offsets(asked, timeout=_left_s(clock, until_s))
    if offset < low:
        raise LetterGone(f"{topic} [{partition}] now begins at offset {low}: retention has removed everything before")
    if offset >= end:
        raise LetterGone(f"{topic} [{partition}] ends at offset {end}")
    consumer.assign([asked])
    while True:
        for message in consumer.consume(1, min(_READ_S, _left_s(clock, until_s))):
            error, at = message.error(), message.offset() or 0
            if error is None and at == offset:
                return message
            if error is not None and error.code() != EOF_CODE and not is_passing(error, message.partition()):
                raise KafkaException(error)
            if at > offset:
                raise LetterGone(
                    f"{topic} [{partition}] has no message at offset {offset}: it was rolled back, or removed"
                )


def _left_s(clock: Clock, until_s: float) -> float:
    left_s = until_s - clock.monotonic_s()
    if left_s <= 0:
        raise timed_out("Kafka has not answered in time")
    return left_s
