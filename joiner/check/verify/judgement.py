"""Classifies each record of a unit's input as accepted, late, duplicate, rejected or not selected.

These rules apply, in order, to a message in partition u of input topic t, where u is the unit:

1. A start record (see `broker.wire.start_records`) is not selected. Any other message that is neither a record nor a
   watermark is rejected.
2. A record that no side of an operator selects, or a watermark that covers no side, is not selected, and the rules
   below do not apply to it. A watermark without a quantity covers all sides that read t. One with a quantity covers
   the sides that select this quantity, but not a side that reads the whole topic.
3. An entry is rejected if its event time is more than ``max_future_skew`` after the broker's append time, or if its
   thing belongs to another partition.
4. A watermark advances the frontier of every side that it covers. A record is classified for each side that selects
   it: as late if it is below the frontier, otherwise as a duplicate if it is one, otherwise as accepted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from broker.partitioner import partition_of
from broker.wire.records import ROW_BITS, Record, Rejected, Unreadable, Watermark, decode_data, reject
from broker.wire.start_records import read_start
from joiner.check.model.expected import ACCEPTED, LATE, Judge
from joiner.check.model.oracle import ALL_KEYS
from joiner.mapping.reading import MappedTopic
from joiner.runtime.kafka.batches.registry import schemas_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from joiner.check.found.evidence import Message
    from joiner.operators import AlignSettings, JoinSettings
    from joiner.runtime.settings import JoinerSettings

SIDES: Final = ("left", "right")


@dataclass
class SideJudgement:
    """One stream of one operator in one unit. The sets contain positions; see `UnitJudgement.entries`."""

    join: JoinSettings | AlignSettings
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


class Entry(NamedTuple):
    """A record or watermark from an input message, and its position. ``content`` is None if it is neither.

    ``value``: the text that its dead letter would contain. ``has_id``: whether a record has an id, and so can be a
    duplicate. ``is_row``: whether its message consists of rows.
    """

    message: Message
    seq: int
    value: bytes | None
    content: Record | Watermark | None
    ts: int
    fault: str = ""
    has_id: bool = True
    is_row: bool = False


class UnitJudgement:
    """The classification of a unit's input for all sides of all operators.

    An align's driver and columns are called sides too.
    """

    def __init__(self, settings: JoinerSettings, unit: int) -> None:
        self.unit = unit
        self.sides = [
            SideJudgement(
                operator,
                side,
                str(settings.selection(stream)["topic"]),
                settings.selection(stream)["quantity"],
                Judge(operator.lateness_by_stream[side], operator.watermark_scope),
            )
            for operator in settings.operators
            for side, stream in operator.streams.items()
        ]
        self._records: dict[tuple[str, str | None], dict[int, Record]] = {}
        self.rejected: dict[str, Rejected] = {}
        """The dead letters expected for rejected entries, by id."""
        self.rejected_places: set[tuple[str, int]] = set()
        self.not_selected = 0
        self.watermarks = 0
        self.read_count = 0
        self._settings = settings
        self._mappings = {
            topic: MappedTopic(streams, settings.events.time_unit, schemas_of(settings))
            for topic in settings.input_topics
            if (streams := settings.mapped_streams(topic))
        }
        self._has_rows = settings.topics.has_rows
        self._unit_ns = settings.events.time_unit
        self._max_future_skew_ns = settings.application.max_future_skew
        self._keys: dict[str, int] = {}
        self._partitions: dict[str, int] = {}

    @property
    def things(self) -> list[str]:
        """The things read so far. The key of each is its index."""
        return list(self._keys)

    def sides_of(self, operator: str) -> list[SideJudgement]:
        """Return the sides of a join or an align, by its name."""
        return [side for side in self.sides if side.join.name == operator]

    def read(self, topic: str, messages: Iterable[Message]) -> None:
        """Classify the next messages of the unit's partition of ``topic``."""
        sides = [side for side in self.sides if side.topic == topic]
        by_quantity: dict[str, list[SideJudgement]] = {}
        for message in messages:
            self._read(message, sides, by_quantity)

    def _read(self, message: Message, sides: list[SideJudgement], by_quantity: dict[str, list[SideJudgement]]) -> None:
        entries = [*self.entries(message)]
        if message.topic in self._mappings or read_start(message.value) is not None:
            self.read_count += 1
            self.not_selected += not entries
        else:
            self.read_count += len(entries)
        for entry in entries:
            content = entry.content
            if content is None:
                self._reject(entry, entry.fault)
                continue
            if isinstance(content, Watermark):
                self._read_watermark(entry, content, sides)
                continue
            selecting = by_quantity.get(content.quantity)
            if selecting is None:
                selecting = [side for side in sides if side.selects(content.quantity)]
                by_quantity[content.quantity] = selecting
            if not selecting:
                self.not_selected += 1
            elif fault := self._fault(entry, content.thing):
                self._reject(entry, fault)
            else:
                self._judge(entry, content, selecting)

    def entries(self, message: Message) -> Iterator[Entry]:
        """Yield the entries in an input message: a single one, one for each row if messages hold many records, or none.

        A position is the offset or, if messages hold many records, the offset shifted by `ROW_BITS` plus the row.
        """
        if (mapping := self._mappings.get(message.topic)) is not None:
            yield from self._mapped(message, mapping)
            return
        if read_start(message.value) is not None:
            return
        value, seq = message.value, message.offset << ROW_BITS if self._has_rows else message.offset
        if self._has_rows and value and not value.startswith(b"{"):
            yield from self._rows(message, value, seq)
            return
        try:
            content, ts = decode_data(value, self._unit_ns)
        except Unreadable as reason:
            yield Entry(message, seq, value, None, 0, str(reason))
            return
        if self._has_rows and isinstance(content, Record):
            yield Entry(message, seq, value, None, 0, "not a watermark")
        else:
            yield Entry(message, seq, value, content, ts)

    def _mapped(self, message: Message, mapping: MappedTopic) -> Iterator[Entry]:
        """Yield an entry for each record of a message in another program's layout, or one that rejects the message."""
        seq, value = message.offset, message.value
        try:
            found = mapping.read(value, seq, message.time_ms, message.key)
        except Unreadable as reason:
            yield Entry(message, seq, value, None, 0, str(reason))
            return
        entries = [Entry(message, seq, value, one.record, one.ts_ns) for one in found]
        for entry, one in zip(entries, found, strict=True):
            if fault := self._fault(entry, one.record.thing):
                yield Entry(message, seq, value, None, 0, fault)
                return
        yield from entries

    def records_of(self, side: SideJudgement) -> dict[int, Record]:
        """Return records by position: all that ``side`` selects, and possibly those that other sides select."""
        return self._records.setdefault(self._place(side.topic, side.quantity), {})

    def _place(self, topic: str, quantity: str | None) -> tuple[str, str | None]:
        # Several mapped streams can have a record at the same position.
        return topic, quantity if topic in self._mappings else None

    def _rows(self, message: Message, value: bytes, seq: int) -> Iterator[Entry]:
        from joiner.check.found.rows import rows_of  # noqa: PLC0415 - pyarrow is an extra

        try:
            rows = rows_of(value, message.offset, self._unit_ns)
        except Unreadable as reason:
            yield Entry(message, seq, value, None, 0, str(reason))
            return
        for at, row in enumerate(rows):
            fault = "" if row.record is not None else "not a valid row"
            yield Entry(message, seq + at, row.shown, row.record, row.time_ns, fault, row.has_id, is_row=True)

    def offset(self, seq: int) -> int:
        """Return the offset of the message that holds the record at a position."""
        return seq >> ROW_BITS if self._has_rows else seq

    def row(self, seq: int) -> int | None:
        """Return the row of a position, or None if each message holds a single record."""
        return seq & (1 << ROW_BITS) - 1 if self._has_rows else None

    def position(self, seq: int) -> str:
        """Return a position in the form used in ids: the offset, and the row if there is one."""
        return f"{self.offset(seq)}.{self.row(seq)}" if self._has_rows else str(seq)

    def _read_watermark(self, entry: Entry, watermark: Watermark, sides: list[SideJudgement]) -> None:
        covered = [side for side in sides if watermark.quantity is None or watermark.quantity == side.quantity]
        if not covered:
            self.not_selected += 1
        elif fault := self._fault(entry, watermark.thing):
            self._reject(entry, fault)
        else:
            self.watermarks += 1
            key = ALL_KEYS if watermark.thing is None else self._key(watermark.thing)
            for side in covered:
                side.judge.watermark(key, entry.ts)

    def _judge(self, entry: Entry, record: Record, selecting: list[SideJudgement]) -> None:
        seq, key = entry.seq, self._key(record.thing)
        self._records.setdefault(self._place(entry.message.topic, record.quantity), {})[seq] = record
        for side in selecting:
            # A side that reads several quantities may select several records of an event, which are not duplicates.
            quantity = record.quantity
            identity = record.id if side.quantity is not None else f"{len(quantity)}:{quantity}{record.id}"
            verdict = side.judge.judge(key, entry.ts, seq, identity if entry.has_id else None)
            if verdict == ACCEPTED:
                side.accepted.add(seq)
            elif verdict == LATE:
                side.late.add(seq)
            else:
                side.duplicates.add(seq)

    def _key(self, thing: str) -> int:
        return self._keys.setdefault(thing, len(self._keys))

    def _fault(self, entry: Entry, thing: str | None) -> str:
        if entry.ts > entry.message.time_ms * 1_000_000 + self._max_future_skew_ns:
            return "event time beyond max_future_skew"
        if thing is None:
            return ""
        partition = self._partitions.get(thing)
        if partition is None:
            partition = partition_of(thing.encode(), self._settings.topics.partitions)
            self._partitions[thing] = partition
        return "" if partition == self.unit else f"{thing!r} belongs to partition {partition}"

    def _reject(self, entry: Entry, reason: str) -> None:
        message = entry.message
        dead_letter = reject(
            entry.value,
            reason,
            source=self._settings.application.shared_name,
            topic=message.topic,
            partition=message.partition,
            offset=message.offset,
            row=entry.seq & (1 << ROW_BITS) - 1 if entry.is_row else -1,
        )
        self.rejected[dead_letter.id] = dead_letter
        self.rejected_places.add((message.topic, entry.seq))
