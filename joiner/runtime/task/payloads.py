"""Holds record payloads, from which results are composed, as columns ordered by position.

If a record arrived as JSON, ``shown`` is its form in results. If it arrived as Arrow, it is held in a short form:
``shown`` is its id (empty if it has none), preceded by its quantity and a NUL if its side accepts any quantity.
`with_json` converts the short form to the form in results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Self

import numpy as np
from numba import types

from broker.times import UNIT_NS, mean_text
from broker.wire.bulk import encode_sides, escape, position_pieces
from broker.wire.columns import StringColumn, decimals, glue
from broker.wire.compiled import INTS, INTS_OUT, compiled
from broker.wire.records import encode_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

_ROOM_MIN: Final = 1024
"""The smallest capacity, in records."""

_RECORD_BYTES: Final = 240
"""Bytes that a held record needs in addition to ``shown``, for the columns here and in the engine. Measured."""


class Rows(NamedTuple):
    """n records of one side, in order of their positions.

    Columns: position, number of the thing, time in ns (int64), value (float64), and the record's form in results (a
    `broker.wire.records.Side` as JSON), or its short form. A position is an offset, or an offset and a row (see
    `broker.wire.records.ROW_BITS`).
    """

    seq: Ints
    key: Ints
    ts_ns: Ints
    result: NDArray[np.float64]
    shown: StringColumn

    def take(self, which: Ints) -> Rows:
        """Return the rows at these indices."""
        return Rows._make(column.take(which) for column in self)

    def bytes_held(self) -> int:
        """Return the approximate memory in bytes that the rows take while they are held."""
        return int(self.shown.lengths().sum()) + len(self.seq) * _RECORD_BYTES

    @classmethod
    def room(cls, n: int, shown_bytes: int = 0) -> Self:
        """Return uninitialised columns of ``n`` entries, with ``shown_bytes`` for the strings."""
        seq, key, ts_ns, start, end = (np.empty(n, dtype=np.int64) for _ in range(5))
        shown = StringColumn(np.empty(shown_bytes, dtype=np.uint8), start, end)
        return cls(seq, key, ts_ns, np.empty(n, dtype=np.float64), shown)

    @classmethod
    def concat(cls, parts: Sequence[Rows]) -> Self:
        """Return the rows of all parts, in order. There must be at least one part."""
        seq, key, ts_ns, result, shown = zip(*parts, strict=True)
        numbers = map(np.concatenate, (seq, key, ts_ns, result))
        return cls._make((*numbers, StringColumn.concat(shown)))


def with_json(rows: Rows, quantity: str | None, time_unit: str) -> Rows:
    """Convert rows from the short form to the form in results. ``quantity``: what their side selects (None: any)."""
    if not len(rows.seq):
        return rows
    quantities, ids = split_short(rows.shown, quantity)
    positions = glue(*position_pieces(rows.seq, has_rows=True))
    ids = glue(ids, positions.where(ids.lengths() == 0))
    results = StringColumn.of_lines(encode_lines(rows.result.tolist()))
    shown = encode_sides(escape(quantities), encode_times(rows.ts_ns, time_unit), results, escape(ids))
    return rows._replace(shown=shown)


def split_short(shown: StringColumn, quantity: str | None) -> tuple[StringColumn, StringColumn]:
    """Return the quantities and the ids of rows in short form. ``quantity``: see `with_json`."""
    if quantity is not None:
        return StringColumn.repeated(quantity.encode(), len(shown)), shown
    split = np.array([text.index(b"\0") for text in shown.each()], dtype=np.int64)
    ends = shown.start + split
    return StringColumn(shown.data, shown.start, ends), StringColumn(shown.data, ends + 1, shown.end)


def encode_times(ts_ns: Ints, time_unit: str) -> StringColumn:
    """Return times as exact numbers in ``time_unit``, as JSON."""
    whole, rest = np.divmod(ts_ns, UNIT_NS[time_unit])
    if not rest.any():
        return decimals(whole)
    return StringColumn.of([mean_text(one, one, time_unit).encode() for one in ts_ns.tolist()])


class Payloads:
    """The rows of one side of a join. New rows are appended; when the columns are full, the held rows are compacted."""

    def __init__(self, rows: Rows | None = None) -> None:
        """Start with ``rows``, whose strings must be packed."""
        self._rows = Rows.room(0) if rows is None else rows
        self._count = self._used = len(self._rows.seq)
        self._shown_bytes = len(self._rows.shown.data)
        self._lives = np.ones(self._count, dtype=bool)
        self.size = self._rows.bytes_held()
        """Approximate bytes of memory."""

    def __len__(self) -> int:
        return self._count

    def add(self, rows: Rows) -> None:
        """Append rows. Their positions must be greater than all earlier ones."""
        more, shown = len(rows.seq), rows.shown.packed()
        if self._used + more > len(self._lives) or self._shown_bytes + len(shown.data) > len(self._rows.shown.data):
            self._compact(more, len(shown.data))
        self._append(rows._replace(shown=shown))
        self._count += more
        self.size += rows.bytes_held()

    def find(self, seq: Ints) -> Rows:
        """Return the rows at these positions. All must be held."""
        return self._rows.take(self._at(seq))

    def find_numbers(self, seq: Ints) -> Rows:
        """Return the rows at these positions, but with an empty ``shown``, shape (0,). All must be held."""
        at, rows = self._at(seq), self._rows
        nothing = StringColumn.repeated(b"", 0)
        return Rows(np.ascontiguousarray(seq), rows.key.take(at), rows.ts_ns.take(at), rows.result.take(at), nothing)

    def remove(self, seq: Ints) -> None:
        """Remove the rows at these positions. All must be held, and none may be given twice."""
        at, shown = self._at(seq), self._rows.shown
        self._lives[at] = False
        self._count -= len(at)
        self.size -= int((shown.end.take(at) - shown.start.take(at)).sum()) + len(at) * _RECORD_BYTES

    def rows(self) -> Rows:
        """Return all rows that are held."""
        return self._rows.take(np.flatnonzero(self._lives[: self._used]))

    def count_later(self, ts_ns: int) -> int:
        """Return the number of rows with a time later than ``ts_ns``."""
        used = slice(self._used)
        return int(np.count_nonzero(self._lives[used] & (self._rows.ts_ns[used] > ts_ns)))

    def latest_ns(self) -> int | None:
        """Return the largest time of all rows, or None if there are none."""
        used = slice(self._used)
        times = self._rows.ts_ns[used][self._lives[used]]
        return int(times.max()) if len(times) else None

    def _at(self, seq: Ints) -> Ints:
        found = np.empty(len(seq), dtype=np.int64)
        _find(self._rows.seq[: self._used], np.ascontiguousarray(seq), found)
        return found

    def _compact(self, more: int, more_shown_bytes: int) -> None:
        rows = self.rows()
        rows = rows._replace(shown=rows.shown.packed())
        room = max(_ROOM_MIN, 2 * (len(rows.seq) + more))
        self._rows = Rows.room(room, 2 * (len(rows.shown.data) + more_shown_bytes))
        self._lives = np.zeros(room, dtype=bool)
        self._used = self._shown_bytes = 0
        self._append(rows)

    def _append(self, rows: Rows) -> None:
        """Append rows. They must fit into the capacity, and their strings must be packed."""
        here = slice(self._used, self._used + len(rows.seq))
        for column, values in zip(self._rows[:-1], rows[:-1], strict=True):
            column[here] = values
        shown, more = self._rows.shown, rows.shown
        shown.start[here] = more.start + self._shown_bytes
        shown.end[here] = more.end + self._shown_bytes
        shown.data[self._shown_bytes : self._shown_bytes + len(more.data)] = more.data
        self._lives[here] = True
        self._used, self._shown_bytes = here.stop, self._shown_bytes + len(more.data)


@compiled(types.void, INTS, INTS, INTS_OUT)
def _find(held: Ints, wanted: Ints, found: Ints) -> None:
    """Find the index of each wanted position among the held ones, which are ascending. All must be held.

    The wanted positions of a key are in order, so each search starts at the last index found and proceeds in growing
    steps.
    """
    low = 0
    for row in range(len(wanted)):
        position, step = wanted[row], 1
        if held[low] <= position:
            while low + step < len(held) and held[low + step] <= position:
                low += step
                step *= 2
            high = min(low + step, len(held))
        else:
            high = low
            while high - step > 0 and held[high - step] > position:
                high -= step
                step *= 2
            low = max(high - step, 0)
        while high - low > 1:
            middle = (low + high) // 2
            if held[middle] <= position:
                low = middle
            else:
                high = middle
        found[row] = low
