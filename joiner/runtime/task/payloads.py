"""What results need of the records that the engine holds: columns, in the order of the offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Self

import numpy as np

from broker.wire.columns import StringColumn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

_ROOM_MIN: Final = 1024
"""Records that there is room for at least."""

_RECORD_BYTES: Final = 240
"""Of a held record beside what is shown of it: columns here and in the engine. Measured."""


class Rows(NamedTuple):
    """n records of one side, in the order of their offsets.

    Offset, number of the thing, time in ns (int64), value (float64), and what results show of the record (a
    `broker.wire.records.Side` as JSON).
    """

    seq: Ints
    key: Ints
    ts_ns: Ints
    result: NDArray[np.float64]
    shown: StringColumn

    def take(self, which: Ints) -> Rows:
        """Those of an index."""
        return Rows._make(column.take(which) for column in self)

    def bytes_held(self) -> int:
        """How many bytes of memory they take while they are held, about."""
        return int(self.shown.lengths().sum()) + len(self.seq) * _RECORD_BYTES

    @classmethod
    def room(cls, n: int, shown_bytes: int = 0) -> Self:
        """Columns of ``n`` entries that mean nothing yet, and room for so much that is shown."""
        seq, key, ts_ns, start, end = (np.empty(n, dtype=np.int64) for _ in range(5))
        shown = StringColumn(np.empty(shown_bytes, dtype=np.uint8), start, end)
        return cls(seq, key, ts_ns, np.empty(n, dtype=np.float64), shown)

    @classmethod
    def concat(cls, parts: Sequence[Rows]) -> Self:
        """One after the other."""
        seq, key, ts_ns, result, shown = zip(*parts, strict=True)
        numbers = map(np.concatenate, (seq, key, ts_ns, result))
        return cls._make((*numbers, StringColumn.concat(shown)))


class Payloads:
    """The rows of one side of one join. New ones are appended; when most are gone, the rest is moved together."""

    def __init__(self, rows: Rows | None = None) -> None:
        """Begin with ``rows``, whose shown texts are packed."""
        self._rows = Rows.room(0) if rows is None else rows
        self._count = self._used = len(self._rows.seq)
        self._shown_bytes = len(self._rows.shown.data)
        self._lives = np.ones(self._count, dtype=bool)
        self.size = self._rows.bytes_held()
        """Bytes of memory, about."""

    def __len__(self) -> int:
        return self._count

    def add(self, rows: Rows) -> None:
        """Take rows whose offsets are above all that came before."""
        more, shown = len(rows.seq), rows.shown.packed()
        if self._used + more > len(self._lives) or self._shown_bytes + len(shown.data) > len(self._rows.shown.data):
            self._move_together(more, len(shown.data))
        self._append(rows._replace(shown=shown))
        self._count += more
        self.size += rows.bytes_held()

    def find(self, seq: Ints) -> Rows:
        """The rows of offsets that are here."""
        return self._rows.take(self._at(seq))

    def remove(self, seq: Ints) -> None:
        """Forget the rows of offsets that are here, each given once."""
        at = self._at(seq)
        self._lives[at] = False
        self._count -= len(at)
        self.size -= self._rows.take(at).bytes_held()

    def rows(self) -> Rows:
        """All that is here."""
        return self._rows.take(np.flatnonzero(self._lives[: self._used]))

    def count_later(self, ts_ns: int) -> int:
        """How many of the rows here have a later time."""
        used = slice(self._used)
        return int(np.count_nonzero(self._lives[used] & (self._rows.ts_ns[used] > ts_ns)))

    def _at(self, seq: Ints) -> Ints:
        return self._rows.seq[: self._used].searchsorted(seq)

    def _move_together(self, more: int, more_shown_bytes: int) -> None:
        rows = self.rows()
        rows = rows._replace(shown=rows.shown.packed())
        room = max(_ROOM_MIN, 2 * (len(rows.seq) + more))
        self._rows = Rows.room(room, 2 * (len(rows.shown.data) + more_shown_bytes))
        self._lives = np.zeros(room, dtype=bool)
        self._used = self._shown_bytes = 0
        self._append(rows)

    def _append(self, rows: Rows) -> None:
        """There is room for them; what they show is packed."""
        here = slice(self._used, self._used + len(rows.seq))
        for column, values in zip(self._rows[:-1], rows[:-1], strict=True):
            column[here] = values
        shown, more = self._rows.shown, rows.shown
        shown.start[here] = more.start + self._shown_bytes
        shown.end[here] = more.end + self._shown_bytes
        shown.data[self._shown_bytes : self._shown_bytes + len(more.data)] = more.data
        self._lives[here] = True
        self._used, self._shown_bytes = here.stop, self._shown_bytes + len(more.data)
