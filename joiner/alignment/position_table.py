"""A table of int64 columns whose rows are looked up by position. It stores pending rows and held records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numba import types

from joiner.core.compiled import COUNT, INTS, compiled

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Flags = NDArray[np.bool_]

_ROOM_MIN: Final = 1024
"""The smallest capacity, in rows."""

SEQ: Final = 0
"""The column of positions."""


class PositionTable:
    """Rows with ascending positions. Finding a row takes O(log n); appending or removing a row takes amortized O(1)."""

    def __init__(self, columns: int) -> None:
        """Create an empty table. Column `SEQ` holds the positions."""
        self._table = np.empty((columns, _ROOM_MIN), dtype=np.int64)
        self._is_gone = np.zeros(_ROOM_MIN, dtype=bool)
        self._count = self._gone = 0

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._count - self._gone

    def rows(self) -> Ints:
        """Return a copy of all rows, shape (columns, n)."""
        return self._table[:, : self._count][:, ~self._is_gone[: self._count]]

    def column(self, which: int) -> Ints:
        """Return a copy of one column of all rows, shape (n,)."""
        return self._table[which, : self._count][~self._is_gone[: self._count]]

    def count_common(self, other: PositionTable) -> int:
        """Return the number of positions that both tables contain."""
        return _count_common(
            self._table[SEQ, : self._count],
            self._is_gone[: self._count],
            other._table[SEQ, : other._count],
            other._is_gone[: other._count],
        )

    def append(self, rows: Ints) -> None:
        """Append rows, shape (columns, n). Their positions must be above those of all earlier rows."""
        needed = self._count + rows.shape[1]
        if needed > self._table.shape[1]:
            self._make_room(rows.shape[1])
        begin, self._count = self._count, self._count + rows.shape[1]
        self._table[:, begin : self._count] = rows
        self._is_gone[begin : self._count] = False

    def find(self, seq: Ints) -> Ints:
        """Return the indices of the rows at these positions, all of which must be in the table.

        The indices are valid until rows are appended or removed.
        """
        return self._table[SEQ, : self._count].searchsorted(seq)

    def part(self, columns: int) -> Ints:
        """Return a view of the first ``columns`` columns of all rows, including removed rows, for in-place changes."""
        return self._table[:columns, : self._count]

    def take(self, at: Ints) -> Ints:
        """Return a copy of the rows at these indices, shape (columns, n)."""
        return self._table.take(at, axis=1)

    def remove(self, at: Ints) -> None:
        """Remove the rows at these indices, which must be distinct."""
        self._is_gone[at] = True
        self._gone += len(at)
        if self._gone > max(_ROOM_MIN, self._count // 2):
            self._make_room(0)

    def _make_room(self, more: int) -> None:
        """Drop removed rows. Reserve twice the space needed for the remaining rows and ``more`` further rows."""
        kept = self.rows()
        self._count, self._gone = kept.shape[1], 0
        room = max(_ROOM_MIN, 2 * (self._count + more))
        self._table = np.empty((len(kept), room), dtype=np.int64)
        self._table[:, : self._count] = kept
        self._is_gone = np.zeros(room, dtype=bool)


_FLAGS: Final = types.Array(types.boolean, 1, "C")


@compiled(COUNT, INTS, _FLAGS, INTS, _FLAGS)
def _count_common(one: Ints, one_is_gone: Flags, other: Ints, other_is_gone: Flags) -> int:
    """Count the positions that are in both tables and removed from neither. Both inputs are ascending."""
    count, at = 0, 0
    for number in range(len(one)):
        while at < len(other) and other[at] < one[number]:
            at += 1
        if at < len(other) and other[at] == one[number] and not one_is_gone[number] and not other_is_gone[at]:
            count += 1
    return count
