"""Who is whose neighbour: one sort of both sides over key and time, then positions.

The records of both sides lie in one table in the order (key, ts). In it a record's previous neighbour is the last
record of the other side before it, its next neighbour the first one behind it, where times are not equal. Both follow
from where the sides change; nothing is searched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Self, TypeVar

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]

T = TypeVar("T", bound=np.generic)

NOBODY: Final = -1
"""The index of a neighbour that is not there."""

_BITS: Final = 63
"""Of an int64 that is not negative."""


class Segments(NamedTuple):
    """Runs of equal entries in a table: where each begins and how long it is; shape (k,) each."""

    start: Ints
    length: Ints

    @classmethod
    def of(cls, starts: Bools) -> Self:
        """The segments that begin where ``starts``, shape (n,), is true."""
        start = np.flatnonzero(starts)
        length = np.empty_like(start)
        np.subtract(start[1:], start[:-1], out=length[:-1])
        length[-1:] = len(starts) - start[-1:]
        return cls(start, length)

    def spread(self, values: NDArray[T]) -> NDArray[T]:
        """A value for each segment, (k,), as one for each entry, (n,)."""
        return np.repeat(values, self.length)

    def take(self, which: Ints) -> Self:
        """Some of the segments."""
        return type(self)(self.start[which], self.length[which])

    def entries(self) -> Ints:
        """The indices of all entries, one segment after the other."""
        begins = np.cumsum(self.length) - self.length
        return self.spread(self.start - begins) + np.arange(int(self.length.sum()))


class Neighbours(NamedTuple):
    """For each record the index of its neighbours on the other side, or `NOBODY`; shape (n,) each."""

    prev: Ints
    next: Ints


def sorting_order(key: Ints, ts: Ints) -> Ints:
    """The indices that sort by (key, ts); equal ones stay in the order in which they stand."""
    if np.count_nonzero(ts[1:] < ts[:-1]) > _RUNS_FEW:
        return _packed_order(key, ts)
    by_time = np.argsort(ts, kind="stable")
    return by_time[grouping_order(key[by_time])]


def grouping_order(key: Ints) -> Ints:
    """The indices that sort by key alone; equal ones stay in the order in which they stand."""
    if not len(key) or int(key.max()) > np.iinfo(np.uint16).max:
        return _packed_order(key, np.zeros_like(key))
    # Numbers of 16 bits are sorted by counting.
    return np.argsort(key.astype(np.uint16), kind="stable")


_RUNS_FEW: Final = 64
"""Rising runs that are quicker merged than sorted from the beginning."""


def _packed_order(key: Ints, ts: Ints) -> Ints:
    """As `sorting_order`, in the same time whatever the order is: key, time and index are put into one number."""
    n = len(key)
    if not n:
        return np.empty(0, dtype=np.int64)
    key_min, ts_min = int(key.min()), int(ts.min())
    ts_bits = (int(ts.max()) - ts_min).bit_length()
    index_bits = n.bit_length()
    if (int(key.max()) - key_min).bit_length() + ts_bits + index_bits > _BITS:
        # Far apart: 100,000 keys times a day of nanoseconds do not fit into one number.
        return np.lexsort((ts, key))
    packed = (((key - key_min) << ts_bits) + (ts - ts_min) << index_bits) + np.arange(n)
    packed.sort()
    order: Ints = packed & ((1 << index_bits) - 1)
    return order


def segment_starts(*columns: NDArray[np.generic]) -> Bools:
    """True where any of the columns differs from the entry before; shape (n,), true at 0."""
    starts = np.empty(len(columns[0]), dtype=bool)
    starts[:1] = True
    np.not_equal(columns[0][1:], columns[0][:-1], out=starts[1:])
    for column in columns[1:]:
        starts[1:] |= column[1:] != column[:-1]
    return starts


def find_neighbours(is_right: Bools, new_key: Bools, ties: Segments | None) -> Neighbours:
    """The neighbours of every record of a table in the order (key, ts), of equal ones the left records first.

    ``new_key`` is true where a key begins. ``ties``: the segments of equal (key, ts); None: there are no such.
    """
    n = len(is_right)
    at = np.arange(n)
    # The table is runs of records of one side. Behind the last one before its run and ahead of the first one behind it
    # nothing of the other side comes nearer.
    new_run = new_key.copy()
    new_run[1:] |= is_right[1:] != is_right[:-1]
    run = np.maximum.accumulate(np.where(new_run, at, 0))
    next_run = np.full(n + 1, n)
    np.minimum.accumulate(np.where(new_run, at, n)[::-1], out=next_run[n - 1 :: -1] if n else next_run[:0])
    prev, following = run - 1, next_run[1:]
    prev[new_key[run]] = NOBODY
    following[np.append(new_key, np.True_)[following]] = NOBODY
    if ties is not None:
        _see_ties(prev, following, is_right, ties)
    return Neighbours(prev, following)


def _see_ties(prev: Ints, following: Ints, is_right: Bools, ties: Segments) -> None:
    """Where both sides have the same time, a left record's previous neighbour stands behind it, among the equal ones.

    And so does a right record's next one before it.
    """
    mixed = ties.take(np.flatnonzero(is_right[ties.start] != is_right[ties.start + ties.length - 1]))
    entries = mixed.entries()
    right = is_right[entries]
    prev[entries[~right]] = mixed.spread(mixed.start + mixed.length - 1)[~right]
    following[entries[right]] = mixed.spread(mixed.start)[right]


def distinct(keys: list[Ints]) -> Ints:
    """The different ones of small integers from 0 on, ascending."""
    there = np.zeros(max((int(some.max()) for some in keys if len(some)), default=-1) + 1, dtype=bool)
    for some in keys:
        there[some] = True
    return np.flatnonzero(there)
