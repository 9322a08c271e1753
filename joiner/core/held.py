"""The records a buffer holds: a table of both sides, and where in it the records of each key lie.

A step takes the records of the keys that it touches and puts back those that are still needed. The table is a log:
what is put back is appended, and when most of it has been taken out again, the rest is moved together. So a step costs
what it touches, however many keys are held.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import numpy as np

from joiner.core.order import Segments, segment_starts, sorting_order

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]

_ROOM_MIN: Final = 1024
"""Records that the table has room for at least."""


class Rows(NamedTuple):
    """Records of both sides, shape (n,) each, int64 but for the flags.

    Key, time in ns, log position in the own stream, whether of the right side, identity, ordinal among equal times of
    the own side, and whether it has been in a pair or told to be unmatched.
    """

    key: Ints
    ts: Ints
    seq: Ints
    is_right: Bools
    identity: Ints
    ordinal: Ints
    told: Bools

    @classmethod
    def room(cls, n: int) -> Self:
        """Columns of ``n`` entries that mean nothing yet."""
        flags = {"is_right", "told"}
        columns: list[Any] = [np.zeros(n, dtype=np.bool_ if name in flags else np.int64) for name in cls._fields]
        return cls(*columns)

    @classmethod
    def new(cls, key: Ints, ts: Ints, seq: Ints, identity: Ints | None, *, is_right: bool) -> Self:
        """Records that have just come in."""
        n = len(key)
        nothing = np.zeros(n, dtype=np.int64)
        flags = np.full(n, is_right), np.zeros(n, dtype=np.bool_)
        return cls(key, ts, seq, flags[0], nothing if identity is None else identity, nothing, flags[1])

    def take(self, which: Ints | Bools) -> Self:
        """The records of an index or a mask."""
        columns: list[Any] = [column[which] for column in self]
        return type(self)(*columns)

    @classmethod
    def together(cls, parts: list[Rows]) -> Self:
        """One after the other."""
        return cls._make(map(np.concatenate, zip(*parts, strict=True)))


class Held:
    """What is held of all keys."""

    def __init__(self, rows: Rows | None = None) -> None:
        """``rows``, in the order of key."""
        self._table = Rows.room(0)
        self._used = self._live = 0
        self._start = np.empty(0, dtype=np.int64)
        self._count = np.empty(0, dtype=np.int64)
        if rows is not None and len(rows.key):
            self.grow(int(rows.key[-1]) + 1)
            self.put(np.empty(0, dtype=np.int64), rows)

    def __len__(self) -> int:
        return self._live

    def grow(self, keys: int) -> None:
        """Make room for keys below ``keys``."""
        if keys > len(self._count):
            more = np.zeros(max(keys, 2 * len(self._count)) - len(self._count), dtype=np.int64)
            self._start, self._count = np.append(self._start, more), np.append(self._count, more)

    def keys(self) -> Ints:
        """The keys of which records are held, ascending."""
        return np.flatnonzero(self._count)

    def count(self, keys: Ints) -> Ints:
        """How many records are held of each of ``keys``."""
        return self._count[keys]

    def rows(self, keys: Ints) -> Rows:
        """The records of ``keys``: one key after the other, each in the order (time, position)."""
        return self._table.take(Segments(self._start[keys], self._count[keys]).entries())

    def put(self, keys: Ints, rows: Rows) -> None:
        """Hold ``rows``, in the order of key, as all that is held of their keys, and nothing of the other ``keys``."""
        self._live += len(rows.key) - int(self._count[keys].sum())
        self._count[keys] = 0
        if self._used + len(rows.key) > len(self._table.key):
            self._move_together(len(rows.key))
        end = self._used + len(rows.key)
        for column, values in zip(self._table, rows, strict=True):
            column[self._used : end] = values
        of_key = Segments.of(segment_starts(rows.key))
        key = rows.key[of_key.start]
        self._start[key], self._count[key] = self._used + of_key.start, of_key.length
        self._used = end

    def _move_together(self, more: int) -> None:
        keys = self.keys()
        rows, count = self.rows(keys), self._count[keys]
        self._used = len(rows.key)
        self._table = Rows.room(max(_ROOM_MIN, 2 * (self._used + more)))
        for column, values in zip(self._table, rows, strict=True):
            column[: self._used] = values
        self._start[keys] = np.cumsum(count) - count


class Merged(NamedTuple):
    """The records of some keys, those held before and new ones, in the order (key, ts).

    Equal ones stand in the order (side, log position). ``key``, ``ts``, ``is_right``, ``old`` (held before) and
    ``new_key`` (true where a key begins) are in that order; ``ties`` are the segments of equal (key, ts), None where
    there are no equal ones. What else is known of the records, ``rows`` has, where ``order`` leads to: first left ones,
    then from ``rights_at`` on right ones, duplicates among them.
    """

    key: Ints
    ts: Ints
    is_right: Bools
    old: Bools
    new_key: Bools
    ties: Segments | None
    rows: Rows
    order: Ints
    rights_at: int

    def of(self, at: Ints) -> Rows:
        """The records at ``at``, whole."""
        return self.rows.take(self.order[at])

    def seq_by_side(self, which: Bools) -> tuple[Ints, Ints]:
        """The log positions of some of the records, the left ones and the right ones."""
        chosen = np.zeros(len(self.rows.key), dtype=bool)
        chosen[self.order] = which
        at = np.flatnonzero(chosen)
        lefts = int(np.searchsorted(at, self.rights_at))
        seq = self.rows.seq[at]
        return seq[:lefts], seq[lefts:]


def merge(held: Rows, new: tuple[Rows, Rows], *, identified: bool) -> tuple[Merged, Rows]:
    """Put new left and right records among the held ones; returns also the duplicates that were left out.

    A duplicate has the side, key, time and identity of an earlier record.
    """
    left, right = (held.take(np.flatnonzero(held.is_right == side)) for side in (False, True))
    rows = Rows.together([left, new[0], right, new[1]])
    old = np.zeros(len(rows.key), dtype=bool)
    rights_at = len(left.key) + len(new[0].key)
    old[: len(left.key)] = old[rights_at : rights_at + len(right.key)] = True
    order = sorting_order(rows.key, rows.ts)
    key, ts = rows.key[order], rows.ts[order]
    new_key, new_time = segment_starts(key), segment_starts(key, ts)
    duplicates, ties = rows.take(order[:0]), None
    if not new_time.all():
        if identified:
            repeated = _repeats(rows, order, new_time)
            duplicates, order = rows.take(order[repeated]), np.delete(order, repeated)
            key, ts = rows.key[order], rows.ts[order]
            new_key, new_time = segment_starts(key), segment_starts(key, ts)
        ties = Segments.of(new_time)
        _give_ordinals(rows, order, old, ties, rights_at)
    return Merged(key, ts, order >= rights_at, old[order], new_key, ties, rows, order, rights_at), duplicates


def _give_ordinals(rows: Rows, order: Ints, old: Bools, ties: Segments, rights_at: int) -> None:
    """Set the place of each new record among those of its side in its group of equal key and time.

    A group of equal times that still gets records has lost none (they are held until the stream's own frontier has
    passed them), so its positions are its ordinals; a group that has lost some keeps those it was given.
    """
    shared = ties.take(np.flatnonzero(ties.length > 1)).entries()
    at = order[shared]
    groups = Segments.of(segment_starts(rows.key[at], rows.ts[at], at >= rights_at))
    ordinal = np.arange(len(at)) - groups.spread(groups.start)
    new = np.flatnonzero(~old[at])
    rows.ordinal[at[new]] = ordinal[new]


def _repeats(rows: Rows, order: Ints, starts: Bools) -> Ints:
    """Which entries of ``order`` repeat the identity of an earlier one of their side, key and time."""
    group = 2 * np.cumsum(starts) + rows.is_right[order]
    shared = np.flatnonzero(np.bincount(group)[group] > 1)
    identity = rows.identity[order[shared]]
    by_identity = np.lexsort((identity, group[shared]))
    repeated = ~segment_starts(group[shared][by_identity], identity[by_identity])
    return np.sort(shared[by_identity[repeated]])
