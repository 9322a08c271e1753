"""Decodes the messages of one unit and topic into columns for each stream of each operator, and into dead letters.

A stream is a side of a join, or the driver or a column of an align; here, all of them are called sides.

Every message is exactly one of the following: a record for the sides that select it, a watermark, rejected, or not
selected. The checks are made in a fixed order, which the tester relies on: is the message readable, selected, not too
far in the future, in its key's partition? Start records (see `broker.wire.start_records`) are not selected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from broker.partitioner import partition_of
from broker.wire.bulk import encode_sides, escape, read_plain
from broker.wire.columns import glue
from broker.wire.numbers import to_ns
from broker.wire.records import (
    ROW_BITS,
    Record,
    Rejected,
    Unreadable,
    Watermark,
    decode_data,
    decode_records,
    reject,
)
from broker.wire.start_records import read_start
from joiner.core.arguments import ALL_KEYS
from joiner.runtime.task.decoding.intake import Intake, Records, SideInput, records_of
from joiner.runtime.task.decoding.keys import Keys
from joiner.runtime.task.decoding.messages import Messages, int64
from joiner.runtime.task.payloads import Rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joiner.runtime.settings import JoinerSettings

    Ints = NDArray[np.int64]

ONLY_WATERMARKS: Final = "a JSON message must be a watermark, because topics.data_format is arrow"
"""The reason for rejecting a JSON record in a topic whose messages hold many records."""

_SINGLY: Final = 16
"""Groups of at most this many messages are decoded one by one if any of them is not a plain record."""


class TopicDecoder:
    """Decodes the messages of one input topic for all operators of one unit."""

    def __init__(self, settings: JoinerSettings, topic: str, unit: int, keys: Keys) -> None:
        self._topic = topic
        self._unit = unit
        self._keys = keys
        self._partitions = settings.topics.partitions
        self._source = settings.application.shared_name
        self._time_unit = settings.events.time_unit
        self._has_rows = settings.topics.has_rows
        self._max_future_skew_ns = settings.application.max_future_skew
        self._whole: list[tuple[int, int]] = []
        self._by_quantity: dict[str, list[tuple[int, int]]] = {}
        for number, operator in enumerate(settings.operators):
            for place, stream in enumerate(operator.streams.values()):
                selection = settings.selection(stream)
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
            if read_start(value) is not None:
                # The input may be the results of an application with replicas.
                intake.not_selected += 1
                continue
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
        records = records_of(int64([offset]), int64([ts_ns]), [record])
        selectors = [self._by_quantity.get(record.quantity, self._whole)]
        self._share_out(intake, records, int64([key]), int64([0]), selectors)

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
        self._check_skew(append_ms, ts_ns)
        return ALL_KEYS if thing is None else self._number(thing)

    def _check_skew(self, append_ms: int, ts_ns: int) -> None:
        if ts_ns > append_ms * 1_000_000 + self._max_future_skew_ns:
            ahead_s = (ts_ns - append_ms * 1_000_000) // 10**9
            reason = f"its time is {ahead_s} s ahead of its arrival, more than application.max_future_skew allows"
            raise Unreadable(reason)

    def _number(self, thing: str) -> int:
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
        times_ns = to_ns(plain.time, unit)
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
    times_ns = to_ns(times, unit)
    return None if times_ns is None else records_of(seq, times_ns, records)
