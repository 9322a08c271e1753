"""Decodes the messages of one unit and topic into columns for each stream of each operator, and into dead letters.

A stream is a side of a join, or the driver or a column of an align; here, all of them are called sides.

Every message is exactly one of the following: a record for the sides that select it, a watermark, rejected, or not
selected. The checks are made in a fixed order, which the tester relies on: is the message readable, selected, not too
far in the future, in its key's partition?
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import numpy as np

from broker.partitioner import partition_of
from broker.times import TIME_MAX_NS, TIME_MIN_NS, UNIT_NS
from broker.wire.bulk import encode_sides, escape, read_plain
from broker.wire.columns import StringColumn, glue
from broker.wire.records import (
    ROW_BITS,
    Record,
    Rejected,
    Side,
    Unreadable,
    Watermark,
    decode_data,
    decode_records,
    encode_lines,
    reject,
)
from joiner.core.arguments import ALL_KEYS
from joiner.runtime.task.payloads import Rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from joiner.runtime.settings import JoinerSettings

    Ints = NDArray[np.int64]

LEFT: Final = 0
RIGHT: Final = 1

ONLY_WATERMARKS: Final = "a JSON message must be a watermark, because topics.data_format is arrow"
"""The reason for rejecting a JSON record in a topic whose messages hold many records."""

_NO_ROWS: Final = Rows.room(0)

_SINGLY: Final = 16
"""Groups of at most this many messages are decoded one by one if any of them is not a plain record."""


@dataclass(frozen=True)
class Messages:
    """n Kafka messages of one partition, in offset order, as columns.

    Columns: offsets, the broker's append times in ms (int64, shape (n,)), and values. ``is_null``: whether each value
    is null (a tombstone), or None if none is. A null is an empty string in ``value``.
    """

    offset: Ints
    append_ms: Ints
    value: StringColumn
    is_null: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.offset)

    @property
    def first(self) -> int:
        """The first offset."""
        return int(self.offset[0])

    @property
    def last(self) -> int:
        """The last offset."""
        return int(self.offset[-1])

    @classmethod
    def of(cls, offset: Sequence[int], append_ms: Sequence[int], value: Sequence[bytes | None]) -> Self:
        """Convert lists to columns."""
        nulls = np.array([one is None for one in value], dtype=bool)
        values = StringColumn.of([one or b"" for one in value])
        return cls(_int64(offset), _int64(append_ms), values, nulls if nulls.any() else None)

    @classmethod
    def concat(cls, parts: Sequence[Messages]) -> Messages:
        """Return the messages of all parts, in order. There must be at least one part."""
        if len(parts) == 1:
            return parts[0]
        nulls = None
        if any(part.is_null is not None for part in parts):
            nulls = np.concatenate(
                [np.zeros(len(part), dtype=bool) if part.is_null is None else part.is_null for part in parts]
            )
        return cls(
            np.concatenate([part.offset for part in parts]),
            np.concatenate([part.append_ms for part in parts]),
            StringColumn.concat([part.value for part in parts]),
            nulls,
        )

    def part(self, begin: int, end: int) -> Messages:
        """Return the messages from index ``begin`` up to ``end``; the bytes of the values are not copied."""
        rows = slice(begin, end)
        value = StringColumn(self.value.data, self.value.start[rows], self.value.end[rows])
        nulls = None if self.is_null is None or not self.is_null[rows].any() else self.is_null[rows]
        return Messages(self.offset[rows], self.append_ms[rows], value, nulls)

    def values(self) -> list[bytes | None]:
        """Return a list of the values."""
        values: list[bytes | None] = [*self.value.each()]
        if self.is_null is not None:
            for at in self.is_null.nonzero()[0].tolist():
                values[at] = None
        return values


class Records(NamedTuple):
    """n records of one topic: offsets, times in ns, things, quantities, ids, values, and the JSON for results."""

    seq: Ints
    ts_ns: Ints
    thing: StringColumn
    quantity: StringColumn
    id: StringColumn
    result: NDArray[np.float64]
    shown: StringColumn

    def take(self, which: Ints) -> Records:
        """Return the records at these indices."""
        return Records._make(column.take(which) for column in self)


@dataclass
class SideInput:
    """A batch for one side, in log order: the records with hashes of their ids, and the watermarks.

    ``mixed``: whether the side selects any quantity, so that an event may yield several records with the same id.
    """

    mixed: bool = False
    parts: list[Rows] = field(default_factory=list)
    identities: list[Ints] = field(default_factory=list)
    watermark_key: list[int] = field(default_factory=list)
    watermark_ts_ns: list[int] = field(default_factory=list)
    watermark_seq: list[int] = field(default_factory=list)

    def rows(self) -> Rows:
        """Return all records."""
        if not self.parts:
            return _NO_ROWS
        if len(self.parts) > 1:
            self.parts = [Rows.concat(self.parts)]
        return self.parts[0]

    def columns(self) -> tuple[Ints, Ints, Ints, Ints] | None:
        """Return the records' keys, times, positions and identities for the engine, or None if there are none."""
        if not self.parts:
            return None
        rows = self.rows()
        return rows.key, rows.ts_ns, rows.seq, np.concatenate(self.identities)

    def watermarks(self) -> tuple[Ints, Ints, Ints] | None:
        """Return the keys, times and positions of the watermarks, or None if there are none."""
        if not self.watermark_key:
            return None
        return _int64(self.watermark_key), _int64(self.watermark_ts_ns), _int64(self.watermark_seq)


@dataclass
class Intake:
    """A decoded batch: the input for each stream (by operator number and stream number), dead letters, and counts.

    ``records``: the number of records, watermarks and unreadable messages.
    """

    sides: dict[tuple[int, int], SideInput] = field(default_factory=dict)
    rejected: list[Rejected] = field(default_factory=list)
    records: int = 0
    not_selected: int = 0
    watermarks: int = 0


class Keys:
    """Maps the things of a unit to numbers. A thing keeps its number for as long as an operator refers to it."""

    def __init__(self, unit: int, partitions: int, things: Sequence[str] = ()) -> None:
        self._unit = unit
        self._partitions = partitions
        self.things = list(things)
        """The things by number, with an empty string for each free number."""
        self._number = {thing: number for number, thing in enumerate(things) if thing}
        self._free = [number for number, thing in enumerate(things) if not thing]
        self._in_use = np.empty(0, dtype=np.int64)

    def number(self, thing: str) -> int | None:
        """Return a thing's number, assigning one if it is new, or None if the thing belongs to another partition."""
        number = self._number.get(thing)
        if number is None:
            if partition_of(thing.encode(), self._partitions) != self._unit:
                return None
            if self._free:
                number = self._free.pop()
                self.things[number] = thing
            else:
                number = len(self.things)
                self.things.append(thing)
            self._number[thing] = number
        return number

    def numbers(self, things: StringColumn) -> Ints | None:
        """Return the numbers of these things, or None if any of them belongs to another partition."""
        which, first = things.distinct()
        found = [self.number(thing.decode()) for thing in things.take(first).each()]
        return None if None in found else np.array(found, dtype=np.int64).take(which)

    def keep(self, known: Ints) -> None:
        """Keep only the things with these numbers. Forget all other things, and free their numbers."""
        kept = set(known.tolist())
        self._number = {thing: number for thing, number in self._number.items() if number in kept}
        self.things = [thing if number in kept else "" for number, thing in enumerate(self.things)]
        del self.things[max(self._number.values(), default=-1) + 1 :]
        self._free = [number for number, thing in enumerate(self.things) if not thing]
        self._in_use = np.empty(0, dtype=np.int64)

    def numbers_in_use(self) -> Ints:
        """Return all numbers in use. Cached, because every commit uses them and they rarely change."""
        if len(self._in_use) != len(self._number):
            self._in_use = np.fromiter(self._number.values(), dtype=np.int64, count=len(self._number))
        return self._in_use

    def __len__(self) -> int:
        return len(self._number)


class TopicDecoder:
    """Decodes the messages of one input topic for all operators of one unit."""

    def __init__(self, settings: JoinerSettings, topic: str, unit: int, keys: Keys) -> None:
        self._topic = topic
        self._unit = unit
        self._keys = keys
        self._partitions = settings.topics.partitions
        self._source = settings.application.name
        self._time_unit = settings.events.time_unit
        self._has_rows = settings.topics.has_rows
        self._max_future_skew_ns = settings.application.max_future_skew
        self._whole: list[tuple[int, int]] = []
        self._by_quantity: dict[str, list[tuple[int, int]]] = {}
        for number, operator in enumerate(settings.operators):
            for place, stream in enumerate(operator.streams.values()):
                selection = settings.stream(stream)
                if selection["topic"] != topic:
                    continue
                if selection["quantity"] is None:
                    self._whole.append((number, place))
                else:
                    self._by_quantity.setdefault(selection["quantity"], []).append((number, place))
        for sides in self._by_quantity.values():
            sides.extend(self._whole)

    def decode(self, messages: Messages) -> Intake:
        """Decode a batch of messages, which are in offset order."""
        intake = Intake(records=len(messages))
        self._decode(intake, messages)
        return intake

    def _decode(self, intake: Intake, messages: Messages) -> None:
        """Decode the messages together if all are plain records; otherwise decode each half separately."""
        count = len(messages)
        if not count or self._decode_together(intake, messages):
            return
        if count <= _SINGLY:
            self._decode_singly(intake, messages)
            return
        for begin, end in ((0, count // 2), (count // 2, count)):
            self._decode(intake, messages.part(begin, end))

    def _decode_together(self, intake: Intake, messages: Messages) -> bool:
        """Decode the messages in one pass if all are plain. Otherwise, leave ``intake`` unchanged and return False."""
        records = _read_together(messages, self._time_unit)
        # Check all records against a single, stricter limit. If one exceeds it, each is checked individually.
        if (
            records is None
            or int(records.ts_ns.max()) > int(messages.append_ms.min()) * 1_000_000 + self._max_future_skew_ns
        ):
            return False
        number, first = records.quantity.distinct()
        names = [name.decode() for name in records.quantity.take(first).each()]
        selectors = [self._by_quantity.get(name, self._whole) for name in names]
        if not all(selectors):
            which = np.array([bool(sides) for sides in selectors]).take(number).nonzero()[0]
            records, number = records.take(which), number.take(which)
        keys = self._keys.numbers(records.thing)
        if keys is None:
            return False
        intake.not_selected += len(messages) - len(number)
        if len(number):
            self._share_out(intake, records, keys, number, selectors)
        return True

    def _share_out(
        self, intake: Intake, records: Records, keys: Ints, number: Ints, selectors: list[list[tuple[int, int]]]
    ) -> None:
        """Add the records to the sides that select their quantities.

        ``number``: the number of each record's quantity. ``selectors``: for each such number, the sides that select it.
        """
        rows = Rows(records.seq, keys, records.ts_ns, records.result, records.shown)
        for target in sorted({target for sides in selectors for target in sides}):
            wanted = np.array([target in sides for sides in selectors])
            which = None if wanted.all() else wanted.take(number).nonzero()[0]
            mine, ids = (rows, records.id) if which is None else (rows.take(which), records.id.take(which))
            side = self._side(intake, target)
            if side.mixed:
                # JSON contains no NUL, so different pairs of quantity and id yield different strings.
                quantity = records.quantity if which is None else records.quantity.take(which)
                named, first = quantity.distinct()
                ids = glue(escape(quantity.take(first)).take(named), b"\0", ids)
            side.parts.append(mine)
            # Hashes are compared only among records of one stream, key and time. The probability that two different ids
            # collide is 2**-64.
            side.identities.append(ids.hashes())

    def _decode_singly(self, intake: Intake, messages: Messages) -> None:
        columns = messages.offset.tolist(), messages.append_ms.tolist(), messages.values()
        for offset, append_ms, value in zip(*columns, strict=True):
            try:
                content, ts_ns = decode_data(value, self._time_unit)
                if isinstance(content, Watermark):
                    self._add_watermark(intake, offset, append_ms, content, ts_ns)
                elif self._has_rows:
                    # The position of such a record would have no row.
                    raise Unreadable(ONLY_WATERMARKS)
                else:
                    self._add_record(intake, offset, append_ms, content, ts_ns)
            except Unreadable as reason:
                intake.rejected.append(self._dead_letter(value, str(reason), offset))

    def _dead_letter(self, value: bytes | None, reason: str, offset: int, row: int = -1) -> Rejected:
        return reject(
            value,
            reason,
            source=self._source,
            topic=self._topic,
            partition=self._unit,
            offset=offset,
            row=row,
        )

    def _add_record(self, intake: Intake, offset: int, append_ms: int, record: Record, ts_ns: int) -> None:
        if not self._by_quantity.get(record.quantity, self._whole):
            intake.not_selected += 1
            return
        key = self._checked_key(append_ms, record.thing, ts_ns)
        records = records_of(_int64([offset]), _int64([ts_ns]), [record])
        selectors = [self._by_quantity.get(record.quantity, self._whole)]
        self._share_out(intake, records, _int64([key]), _int64([0]), selectors)

    def _add_watermark(self, intake: Intake, offset: int, append_ms: int, watermark: Watermark, ts_ns: int) -> None:
        if watermark.quantity is None:
            targets = {target for sides in self._by_quantity.values() for target in sides} | set(self._whole)
        else:
            # A watermark for one quantity does not cover a side that selects the whole topic.
            targets = set(self._by_quantity.get(watermark.quantity, [])) - set(self._whole)
        if not targets:
            intake.not_selected += 1
            return
        key = self._checked_key(append_ms, watermark.thing, ts_ns)
        intake.watermarks += 1
        for target in sorted(targets):
            side = self._side(intake, target)
            side.watermark_key.append(key)
            side.watermark_ts_ns.append(ts_ns)
            side.watermark_seq.append(offset << ROW_BITS if self._has_rows else offset)

    def _checked_key(self, append_ms: int, thing: str | None, ts_ns: int) -> int:
        if ts_ns > append_ms * 1_000_000 + self._max_future_skew_ns:
            ahead_s = (ts_ns - append_ms * 1_000_000) // 10**9
            reason = f"its time is {ahead_s} s ahead of its arrival, more than application.max_future_skew allows"
            raise Unreadable(reason)
        if thing is None:
            return ALL_KEYS
        key = self._keys.number(thing)
        if key is None:
            right = partition_of(thing.encode(), self._partitions)
            reason = (
                f"thing {thing!r} belongs to partition {right}, but the message is in partition {self._unit}: "
                "its producer must use the murmur2 partitioner and the thing as key"
            )
            raise Unreadable(reason)
        return key

    def _side(self, intake: Intake, target: tuple[int, int]) -> SideInput:
        side = intake.sides.get(target)
        if side is None:
            side = intake.sides[target] = SideInput(mixed=target in self._whole)
        return side


def _read_together(messages: Messages, unit: str) -> Records | None:
    """Return the records if all messages are plain records with times in whole units, otherwise None."""
    seq = messages.offset
    plain = None if messages.is_null is not None else read_plain(messages.value)
    if plain is not None:
        times_ns = _times_ns(plain.time, unit)
        if times_ns is None:
            return None
        shown = encode_sides(plain.quantity, plain.time_digits, plain.result.encoded, plain.id)
        return Records(seq, times_ns, plain.thing, plain.quantity, plain.id, plain.result.value, shown)
    records = decode_records(messages.values())
    if records is None or any(type(record.phenomenonTime) is not int for record in records):
        return None
    try:
        times = np.array([record.phenomenonTime for record in records], dtype=np.int64)
    except OverflowError:
        return None
    times_ns = _times_ns(times, unit)
    return None if times_ns is None else records_of(seq, times_ns, records)


def _times_ns(times: Ints, unit: str) -> Ints | None:
    """Convert times to ns. Return None if any is out of range."""
    unit_ns = UNIT_NS[unit]
    if times.min() < -(-TIME_MIN_NS // unit_ns) or times.max() > TIME_MAX_NS // unit_ns:
        return None
    return times * unit_ns


def records_of(seq: Ints, ts_ns: Ints, records: Sequence[Record]) -> Records:
    """Convert records that were decoded as objects to columns."""
    sides = [Side(one.quantity, one.phenomenonTime, one.result, one.id) for one in records]
    things, quantities, ids = (
        StringColumn.of([text.encode() for text in texts])
        for texts in zip(*((one.thing, one.quantity, one.id) for one in records), strict=True)
    )
    result = np.array([one.result for one in records], dtype=np.float64)
    return Records(seq, ts_ns, things, quantities, ids, result, StringColumn.of_lines(encode_lines(sides)))


def _int64(values: Sequence[int]) -> Ints:
    return np.array(values, dtype=np.int64)
