"""Reads the last records of one thing in both streams of a join, and the join's results for them.

Only the ends of the partitions are read (`control.facts.lookup.tail`). Records are selected and decoded as in the
joiner. They include late records and duplicates, which are in no pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import msgspec
import numpy as np
from confluent_kafka import KafkaException, TopicPartition

from broker.partitioner import partition_of
from broker.wire.records import ROW_BITS, position_text
from control.facts.lookup.one_at_a_time import Unavailable
from control.facts.lookup.pairs import Pair, ResultsOf, between, results_in
from control.facts.lookup.tail import Tail, make_tail_reader
from control.facts.lookup.unit_state import AsOf, check_same, read_topic_ids
from joiner.runtime.kafka.batches.registry import schemas_of
from joiner.runtime.kafka.checkpoint_log import read_appended
from joiner.runtime.kafka.clients import log_range
from joiner.runtime.kafka.readers import Readers
from joiner.runtime.model import UnitStopped
from joiner.runtime.task.decoding.factory import make_decoder
from joiner.runtime.task.decoding.keys import Keys
from joiner.runtime.task.decoding.messages import Messages

if TYPE_CHECKING:
    from collections.abc import Mapping

    from confluent_kafka import Consumer, Message

    from control.facts.lookup.one_at_a_time import Deadline
    from joiner.operators import JoinSettings
    from joiner.runtime.clock import Clock
    from joiner.runtime.settings import JoinerSettings
    from joiner.runtime.task.decoding.intake import Intake

LIMIT_MAX: Final = 500
"""The maximum number of records shown per stream."""

_TIMEOUT_S: Final = 5.0

_BEFORE_MS: Final = 1_000
"""A result is appended after its records, but perhaps by another broker, whose clock may differ by this much."""

_SIDES: Final = ("left", "right")


class Searched(msgspec.Struct, frozen=True):
    """The range of offsets read from a partition, ``end`` excluded.

    ``is_cut``: whether a limit was reached, so that older records or results were not found.
    """

    begin: int
    end: int
    is_cut: bool


class ShownRecord(msgspec.Struct, frozen=True):
    """A record. ``position``: as in ids. ``at_ms``: when Kafka appended it. ``is_consumed``: at the last checkpoint."""

    position: str
    time_ns: int
    value: float
    at_ms: int
    is_consumed: bool


class StreamRecords(msgspec.Struct, frozen=True):
    """The last records of the thing in a stream, ordered by position.

    ``name``: what the stream selects, a quantity or else a topic.
    """

    name: str
    topic: str
    records: list[ShownRecord]
    searched: Searched


class Frontiers(msgspec.Struct, frozen=True):
    """The frontiers of the thing in ns, or None if there is none."""

    left_ns: int | None
    right_ns: int | None
    as_of: AsOf


class ThingRecords(msgspec.Struct, frozen=True):
    """The last records of a thing in both streams of a join, and the pairs they are part of.

    ``as_of``: the last checkpoint, or None if the unit has never run. It was read before the records and the results.
    ``results``: the range of results read. ``frontiers``: None if the keys of the unit were not read recently.
    """

    join: str
    thing: str
    unit: int
    as_of: AsOf | None
    left: StreamRecords
    right: StreamRecords
    pairs: list[Pair]
    results: Searched
    frontiers: Frontiers | None = None


class Subject(NamedTuple):
    """The thing and the join whose records are read."""

    settings: JoinerSettings
    join: JoinSettings
    thing: str

    @property
    def unit(self) -> int:
        """The unit of the thing."""
        return partition_of(self.thing.encode(), self.settings.topics.partitions)

    def topic(self, side: str) -> str:
        """Return the topic of a side."""
        return str(self.settings.selection(self.join.streams[side])["topic"])

    def name(self, side: str) -> str:
        """Return what a side selects."""
        return self.settings.selection(self.join.streams[side])["quantity"] or self.topic(side)


def read_records(subject: Subject, clock: Clock, limit: int, deadline: Deadline) -> ThingRecords:
    """Read at most ``limit`` records of each side, and their pairs.

    Raises `Unavailable` if a topic does not exist or the unit runs with different settings, and KafkaException.
    """
    settings, unit = subject.settings, subject.unit
    topic_ids = read_topic_ids(settings)
    topics = {side: subject.topic(side) for side in _SIDES}
    absent = sorted({*topics.values(), settings.topics.out} - topic_ids.keys())
    if absent:
        raise Unavailable(f"{', '.join(absent)} does not exist yet")
    with closing(Readers(settings, clock)) as readers:
        as_of = _last_checkpoint(readers, unit, topic_ids)
    deadline.check()
    consumed = {} if as_of is None else as_of.offsets
    with closing(make_tail_reader(settings)) as consumer:
        search = _Search(subject, consumer, clock, deadline)
        found: dict[str, StreamRecords] = {}
        for topic in dict.fromkeys(topics.values()):
            sides = [side for side in _SIDES if topics[side] == topic]
            found |= search.records(topic, sides, limit, consumed.get(topic, 0))
        pairs, results = search.pairs(found)
    return ThingRecords(subject.join.name, subject.thing, unit, as_of, found["left"], found["right"], pairs, results)


def _last_checkpoint(readers: Readers, unit: int, topic_ids: Mapping[str, str]) -> AsOf | None:
    if readers.settings.state_topic not in topic_ids:
        return None
    try:
        found = read_appended(readers, unit)
    except UnitStopped as error:
        raise Unavailable(str(error)) from error
    if found is None:
        return None
    check_same(readers.settings, found.checkpoint, topic_ids)
    return AsOf("checkpoint", found.checkpoint.offsets, found.appended_ms)


class _Search:
    """Searches the ends of the partitions of one unit."""

    def __init__(self, subject: Subject, consumer: Consumer, clock: Clock, deadline: Deadline) -> None:
        self._subject, self._consumer, self._clock, self._deadline = subject, consumer, clock, deadline

    def records(self, topic: str, sides: Sequence[str], limit: int, consumed: int) -> dict[str, StreamRecords]:
        """Return the last records of the sides that read a topic. ``consumed``: the next offset to consume."""
        subject = self._subject
        tail = self._tail(topic, 0, has_many=subject.settings.topics.has_rows)
        found: dict[str, list[ShownRecord]] = {side: [] for side in sides}
        for part in tail.parts(self._deadline.check):
            for side, records in records_in(subject, topic, part, consumed).items():
                found[side] = [*records, *found[side]][-limit:]
            if all(len(records) >= limit for records in found.values()):
                break
        end = Searched(tail.begin, tail.end, is_cut=False)
        return {
            side: StreamRecords(
                subject.name(side),
                topic,
                records,
                msgspec.structs.replace(end, is_cut=len(records) < limit and not tail.is_whole),
            )
            for side, records in found.items()
        }

    def pairs(self, shown: Mapping[str, StreamRecords]) -> tuple[list[Pair], Searched]:
        """Return the pairs of the records shown, and the range of results read."""
        subject = self._subject
        topic, wanted = subject.settings.topics.out, ResultsOf(subject.join.name, subject.unit, subject.thing)
        records = [one for side in _SIDES for one in shown[side].records]
        if not records:
            return [], Searched(0, 0, is_cut=False)
        begin = self._offset_at(topic, min(one.at_ms for one in records) - _BEFORE_MS)
        tail = self._tail(topic, begin, has_many=subject.settings.application.results == "arrow")
        found: list[Pair] = []
        for part in tail.parts(self._deadline.check):
            of_part: list[Pair] = []
            for message in part:
                self._deadline.check()
                of_part += results_in(message.value(), wanted)
            found = [*of_part, *found]
        positions = [[one.position for one in shown[side].records] for side in _SIDES]
        return between(found, *positions), Searched(tail.begin, tail.end, is_cut=not tail.is_whole)

    def _tail(self, topic: str, begin: int, *, has_many: bool) -> Tail:
        low, end = log_range(self._consumer, topic, self._subject.unit)
        span = min(max(low, begin), end), end
        return Tail(self._consumer, self._clock, (topic, self._subject.unit), span, has_many=has_many)

    def _offset_at(self, topic: str, at_ms: int) -> int:
        """Return the offset of the first message appended at this time or later, or the largest number if none was."""
        (place,) = self._consumer.offsets_for_times([TopicPartition(topic, self._subject.unit, at_ms)], _TIMEOUT_S)
        if place.error is not None:
            raise KafkaException(place.error)
        return place.offset if place.offset >= 0 else _NO_OFFSET


_NO_OFFSET: Final = 2**63 - 1


class _KafkaMessage(Protocol):
    """The part of `Message` that is used here."""

    def offset(self) -> int | None: ...
    def timestamp(self) -> tuple[int, int]: ...
    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...


def records_in(
    subject: Subject, topic: str, messages: Sequence[_KafkaMessage | Message], consumed: int
) -> dict[str, list[ShownRecord]]:
    """Return the thing's records in messages of an input topic, by side. ``consumed``: see `_Search.records`."""
    settings = subject.settings
    found: dict[str, list[ShownRecord]] = {}
    # A message with many records is decoded alone, because its columns may be much larger than the message.
    size = 1 if settings.topics.has_rows else max(1, len(messages))
    for begin in range(0, len(messages), size):
        for side, records in _records_in(subject, topic, messages[begin : begin + size], consumed).items():
            found.setdefault(side, []).extend(records)
    return found


def _records_in(
    subject: Subject, topic: str, messages: Sequence[_KafkaMessage | Message], consumed: int
) -> dict[str, list[ShownRecord]]:
    settings, number = subject.settings, subject.settings.join.index(subject.join)
    offsets, times_ms = [one.offset() or 0 for one in messages], [int(one.timestamp()[1]) for one in messages]
    keys = Keys(subject.unit, settings.topics.partitions)
    message_keys = [one.key() for one in messages] if topic in settings.keyed_topics else None
    given = Messages.of(offsets, times_ms, [one.value() for one in messages], message_keys)
    try:
        intake = make_decoder(settings, topic, subject.unit, keys, schemas_of(settings)).decode(given)
    except UnitStopped as error:  # a schema is not available
        raise Unavailable(str(error)) from error
    key = keys.number(subject.thing)
    return {
        side: _shown(intake, (number, stream), key, given, consumed, has_rows=settings.topics.has_rows)
        for stream, side in enumerate(_SIDES)
        if (number, stream) in intake.sides
    }


def _shown(
    intake: Intake, target: tuple[int, int], key: int | None, given: Messages, consumed: int, *, has_rows: bool
) -> list[ShownRecord]:
    rows = intake.sides[target].rows()
    which = (rows.key == key).nonzero()[0]
    seq = rows.seq.take(which)
    offset = seq >> ROW_BITS if has_rows else seq
    at_ms = given.append_ms.take(np.searchsorted(given.offset, offset))
    columns = seq, offset, rows.ts_ns.take(which), rows.result.take(which), at_ms
    return [
        ShownRecord(position_text(place, has_rows=has_rows), ts_ns, value, appended_ms, at < consumed)
        for place, at, ts_ns, value, appended_ms in zip(*(column.tolist() for column in columns), strict=True)
    ]
