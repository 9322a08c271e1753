"""What results need of the records that the engine holds: columns, in the order of the offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Self

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

_ROOM_MIN: Final = 1024
"""Records that there is room for at least."""

_RECORD_BYTES: Final = 480
"""Of a held record beside its id: columns here and in the engine, and the objects of what is shown. Measured."""


class Rows(NamedTuple):
    """n records of one side, in the order of their offsets.

    Offset, number of the thing, time in ns (int64), value (float64), what results show of the record (an array of
    `broker.wire.Side`), and how many bytes of memory it takes while it is held, about (int64).
    """

    seq: Ints
    key: Ints
    ts_ns: Ints
    result: NDArray[np.float64]
    shown: NDArray[np.object_]
    size: Ints

    def take(self, which: Ints) -> Rows:
        """Those of an index."""
        return Rows._make(column.take(which) for column in self)

    def part(self, begin: int, end: int) -> Rows:
        """Those from one index up to another; not a copy."""
        return Rows._make(column[begin:end] for column in self)

    @classmethod
    def room(cls, n: int) -> Self:
        """Columns of ``n`` entries that mean nothing yet."""
        seq, key, ts_ns, size = (np.empty(n, dtype=np.int64) for _ in range(4))
        return cls(seq, key, ts_ns, np.empty(n, dtype=np.float64), np.empty(n, dtype=object), size)

    @classmethod
    def together(cls, parts: Sequence[Rows]) -> Self:
        """One after the other."""
        return cls._make(map(np.concatenate, zip(*parts, strict=True)))


def sizes(ids: Sequence[str]) -> Ints:
    """How many bytes of memory records with these ids take, about."""
    return np.fromiter(map(len, ids), dtype=np.int64, count=len(ids)) + _RECORD_BYTES


class Payloads:
    """The rows of one side of one join. New ones are appended; when most are gone, the rest is moved together."""

    def __init__(self, rows: Rows | None = None) -> None:
        """Begin with ``rows``."""
        self._rows = Rows.room(0)
        self._lives = np.zeros(0, dtype=bool)
        self._used = self._count = 0
        self.size = 0
        """Bytes of memory, about."""
        if rows is not None:
            self.add(rows)

    def __len__(self) -> int:
        return self._count

    def add(self, rows: Rows) -> None:
        """Take rows whose offsets are above all that came before."""
        more = len(rows.seq)
        if self._used + more > len(self._lives):
            self._move_together(more)
        end = self._used + more
        for column, values in zip(self._rows, rows, strict=True):
            column[self._used : end] = values
        self._lives[self._used : end] = True
        self._used, self._count = end, self._count + more
        self.size += int(rows.size.sum())

    def find(self, seq: Ints) -> Rows:
        """The rows of offsets that are here."""
        return self._rows.take(self._at(seq))

    def remove(self, seq: Ints) -> None:
        """Forget the rows of offsets that are here, each given once."""
        at = self._at(seq)
        self._lives[at] = False
        self._rows.shown[at] = None
        self._count -= len(at)
        self.size -= int(self._rows.size[at].sum())

    def rows(self) -> Rows:
        """All that is here."""
        return self._rows.take(np.flatnonzero(self._lives[: self._used]))

    def count_later(self, ts_ns: int) -> int:
        """How many of the rows here have a later time."""
        used = slice(self._used)
        return int(np.count_nonzero(self._lives[used] & (self._rows.ts_ns[used] > ts_ns)))

    def _at(self, seq: Ints) -> Ints:
        return self._rows.seq[: self._used].searchsorted(seq)

    def _move_together(self, more: int) -> None:
        rows = self.rows()
        self._used = len(rows.seq)
        self._rows = Rows.room(max(_ROOM_MIN, 2 * (self._used + more)))
        for column, values in zip(self._rows, rows, strict=True):
            column[: self._used] = values
        self._lives = np.zeros(len(self._rows.seq), dtype=bool)
        self._lives[: self._used] = True
