"""Classifies each record of a unit's input as accepted, late, duplicate, rejected or not selected.

These rules apply, in order, to a message in partition u of input topic t, where u is the unit:

1. A message that is neither a record nor a watermark is rejected.
2. A record that no side of any join selects is not selected, and neither is a watermark that covers no side; the rules
   below do not apply to them. A watermark without a quantity covers all sides that read t. One with a quantity covers
   the sides that select this quantity, but not a side that reads the whole topic.
3. An entry is rejected if its event time is more than ``max_future_skew`` after the broker's append time, or if its
   thing belongs to another partition.
4. A watermark advances the frontier of every side that it covers. A record is classified for each side that selects
   it: as late if it is below the frontier, otherwise as a duplicate if it is one, otherwise as accepted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from broker.partitioner import partition_of
from broker.wire.records import Record, Rejected, Unreadable, Watermark, decode_data, reject
from joiner.check.model.expected import ACCEPTED, LATE, Judge
from joiner.check.model.oracle import ALL_KEYS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from joiner.check.found.evidence import Message
    from joiner.runtime.settings import JoinerSettings, JoinSettings

SIDES: Final = ("left", "right")


@dataclass
class SideJudgement:
    """One side of one join in one unit. The sets hold offsets."""

    join: JoinSettings
    side: str
    topic: str
    quantity: str | None
    judge: Judge
    accepted: set[int] = field(default_factory=set)
    late: set[int] = field(default_factory=set)
    duplicates: set[int] = field(default_factory=set)

    def selects(self, quantity: str) -> bool:
        """Return whether the side selects records of ``quantity``."""
        return self.quantity is None or self.quantity == quantity


class UnitJudgement:
    """The classification of a unit's input for all sides of all joins."""

    def __init__(self, settings: JoinerSettings, unit: int) -> None:
        self.unit = unit
        self.sides = [
            SideJudgement(
                join,
                side,
                str(stream["topic"]),
                stream["quantity"],
                Judge(join.lateness[SIDES.index(side)], join.watermark_scope),
            )
            for join in settings.join
            for side, stream in (("left", settings.stream(join.left)), ("right", settings.stream(join.right)))
        ]
        self.records: dict[str, dict[int, Record]] = {topic: {} for topic in settings.input_topics}
        """The records that at least one side selects and that are not rejected, by topic and offset."""
        self.rejected: dict[str, Rejected] = {}
        """The dead letters expected for records, by id."""
        self.rejected_places: set[tuple[str, int]] = set()
        self.not_selected = 0
        self.watermarks = 0
        self.read_count = 0
        self._settings = settings
        self._unit_ns = settings.events.time_unit
        self._max_future_skew_ns = settings.application.max_future_skew
        self._keys: dict[str, int] = {}
        self._partitions: dict[str, int] = {}

    def read(self, topic: str, messages: Iterable[Message]) -> None:
        """Classify the next messages of the unit's partition of ``topic``."""
        sides = [side for side in self.sides if side.topic == topic]
        by_quantity: dict[str, list[SideJudgement]] = {}
        for message in messages:
            self.read_count += 1
            try:
                entry, ts = decode_data(message.value, self._unit_ns)
            except Unreadable as reason:
                self._reject(message, str(reason))
                continue
            if isinstance(entry, Watermark):
                self._read_watermark(message, entry, ts, sides)
                continue
            selecting = by_quantity.get(entry.quantity)
            if selecting is None:
                selecting = [side for side in sides if side.selects(entry.quantity)]
                by_quantity[entry.quantity] = selecting
            if not selecting:
                self.not_selected += 1
            elif fault := self._fault(message, entry.thing, ts):
                self._reject(message, fault)
            else:
                self._judge(message, entry, ts, selecting)

    def _read_watermark(self, message: Message, watermark: Watermark, ts: int, sides: list[SideJudgement]) -> None:
        covered = [side for side in sides if watermark.quantity is None or watermark.quantity == side.quantity]
        if not covered:
            self.not_selected += 1
        elif fault := self._fault(message, watermark.thing, ts):
            self._reject(message, fault)
        else:
            self.watermarks += 1
            key = ALL_KEYS if watermark.thing is None else self._key(watermark.thing)
            for side in covered:
                side.judge.watermark(key, ts)

    def _judge(self, message: Message, record: Record, ts: int, selecting: list[SideJudgement]) -> None:
        offset, key = message.offset, self._key(record.thing)
        self.records[message.topic][offset] = record
        for side in selecting:
            # A side that reads several quantities may select more than one record of an event.
            identity = record.id if side.quantity is not None else f"{record.quantity}\0{record.id}"
            verdict = side.judge.judge(key, ts, offset, identity)
            if verdict == ACCEPTED:
                side.accepted.add(offset)
            elif verdict == LATE:
                side.late.add(offset)
            else:
                side.duplicates.add(offset)

    def _key(self, thing: str) -> int:
        return self._keys.setdefault(thing, len(self._keys))

    def _fault(self, message: Message, thing: str | None, ts: int) -> str:
        if ts > message.time_ms * 1_000_000 + self._max_future_skew_ns:
            return "event time beyond max_future_skew"
        if thing is None:
            return ""
        partition = self._partitions.get(thing)
        if partition is None:
            partition = partition_of(thing.encode(), self._settings.topics.partitions)
            self._partitions[thing] = partition
        return "" if partition == self.unit else f"{thing!r} belongs to partition {partition}"

    def _reject(self, message: Message, reason: str) -> None:
        dead_letter = reject(
            message.value,
            reason,
            source=self._settings.application.name,
            topic=message.topic,
            partition=message.partition,
            offset=message.offset,
        )
        self.rejected[dead_letter.id] = dead_letter
        self.rejected_places.add((message.topic, message.offset))
