"""Decodes Arrow messages, which hold many records each, into the same columns as `decoder`.

All records in a message are consumed together, because the vector C contains message offsets. Rows are checked in the
same order as JSON records: is the row readable, selected, not too far in the future, in its key's partition? Each
distinct name in a message is looked up once, and no step creates a Python object for each valid record.

The records are held in a short form, which `joiner.runtime.task.payloads` defines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from broker.wire.arrow.rows import ArrowRows, read_rows
from broker.wire.columns import StringColumn, glue
from broker.wire.records import ROW_BITS, Unreadable
from joiner.runtime.task.decoding.decoder import TopicDecoder
from joiner.runtime.task.decoding.intake import Intake
from joiner.runtime.task.decoding.messages import Messages
from joiner.runtime.task.payloads import Rows

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

_JSON_STARTS_WITH: Final = b"{"


class ArrowDecoder(TopicDecoder):
    """Decodes the messages of one input topic for all operators of one unit. Watermarks are JSON messages here, too."""

    def decode(self, messages: Messages) -> Intake:
        """Decode a batch of messages, which are in offset order."""
        intake = Intake()
        columns = messages.offset.tolist(), messages.append_ms.tolist()
        for at, (offset, append_ms) in enumerate(zip(*columns, strict=True)):
            # Copy the bytes, because Arrow requires aligned buffers.
            value = messages.value[at]
            if not value or value.startswith(_JSON_STARTS_WITH):
                intake.records += 1
                self._decode_singly(intake, messages.part(at, at + 1))
                continue
            try:
                for rows in read_rows(value, self._time_unit):
                    self._add_rows(intake, offset, append_ms, rows)
            except Unreadable as reason:
                intake.records += 1
                intake.rejected.append(self._dead_letter(value, str(reason), offset))
        return intake

    def _add_rows(self, intake: Intake, offset: int, append_ms: int, rows: ArrowRows) -> None:
        count = len(rows)
        intake.records += count
        sides_of = [self._by_quantity.get(name or "", self._whole) for name in rows.quantity.names]
        selecting = np.array([bool(sides) for sides in sides_of] + [False]).take(rows.quantity.number)
        wanted = rows.valid & selecting
        intake.not_selected += int(np.count_nonzero(rows.valid)) - int(np.count_nonzero(wanted))
        faults = (~rows.valid).nonzero()[0].tolist()
        latest_ns = append_ms * 1_000_000 + self._max_future_skew_ns
        early = wanted & (rows.ts_ns > latest_ns)
        if early.any():
            faults += early.nonzero()[0].tolist()
            wanted &= ~early
        keys, misplaced = self._keys_of(rows, wanted)
        if misplaced is not None:
            faults += misplaced.nonzero()[0].tolist()
            wanted &= ~misplaced
        self._reject_rows(intake, offset, append_ms, rows, sorted(faults))
        self._share_out_rows(intake, offset, rows, keys, wanted, sides_of)

    def _keys_of(self, rows: ArrowRows, wanted: NDArray[np.bool_]) -> tuple[Ints, NDArray[np.bool_] | None]:
        """Return each wanted row's key, and whether the row belongs to another partition (None if no row does)."""
        labels = rows.thing
        used = np.zeros(len(labels.names) + 1, dtype=np.bool_)
        used[labels.number[wanted] if not wanted.all() else labels.number] = True
        keys, is_misplaced = np.full(len(used), -1, dtype=np.int64), False
        for number in used.nonzero()[0].tolist():
            key = self._keys.number(labels.names[number] or "")
            keys[number] = -1 if key is None else key
            is_misplaced |= key is None
        found = keys.take(labels.number)
        return found, wanted & (found < 0) if is_misplaced else None

    def _reject_rows(self, intake: Intake, offset: int, append_ms: int, rows: ArrowRows, faults: Iterable[int]) -> None:
        for row in faults:
            reason = rows.reason(row) if not rows.valid[row] else ""
            if not reason:
                thing = rows.thing.names[int(rows.thing.number[row])]
                try:
                    self._checked_key(append_ms, thing, int(rows.ts_ns[row]))
                except Unreadable as error:
                    reason = str(error)
            shown = rows.as_json(row, self._time_unit)
            intake.rejected.append(self._dead_letter(shown, reason, offset, rows.first + row))

    def _share_out_rows(
        self,
        intake: Intake,
        offset: int,
        rows: ArrowRows,
        keys: Ints,
        wanted: NDArray[np.bool_],
        sides_of: list[list[tuple[int, int]]],
    ) -> None:
        first = (offset << ROW_BITS) + rows.first
        seq = np.arange(first, first + len(rows), dtype=np.int64)
        whole = Rows(seq, keys, rows.ts_ns, rows.result, StringColumn.repeated(b"", len(rows)))
        for target in sorted({target for sides in sides_of for target in sides}):
            mine = np.array([target in sides for sides in sides_of] + [False]).take(rows.quantity.number)
            mine &= wanted
            which = mine.nonzero()[0]
            if not len(which):
                continue
            part = whole if len(which) == len(rows) else _take(whole, which)
            if rows.id is not None:
                part = part._replace(shown=rows.id if part is whole else rows.id.take(which))
            side = self._side(intake, target)
            if side.mixed:
                names = StringColumn.of([(name or "").encode() for name in rows.quantity.names])
                part = part._replace(shown=glue(names.take(rows.quantity.number.take(which)), b"\0", part.shown))
            side.parts.append(part)
            side.identities.append(_identities(rows, part, which))


def _take(rows: Rows, which: Ints) -> Rows:
    """Return the rows at these indices. Their strings are all empty."""
    seq, key, ts_ns, result, _ = rows
    shown = StringColumn.repeated(b"", len(which))
    return Rows(seq.take(which), key.take(which), ts_ns.take(which), result.take(which), shown)


def _identities(rows: ArrowRows, part: Rows, which: Ints) -> Ints:
    """Return a hash of each record's id, with its quantity if its side accepts any.

    A record without an id gets its position instead, so that it has no duplicates.
    """
    if rows.id is None:
        return part.seq
    hashes = part.shown.hashes()
    unnamed = rows.id.lengths().take(which) == 0
    return np.where(unnamed, part.seq, hashes) if unnamed.any() else hashes
