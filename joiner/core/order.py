"""Who is whose neighbour: one sort of both sides over key and time, then positions.

The records of both sides lie in one table in the order (key, ts), of equal ones the left first. It consists of runs
of records of one key and side. A record's previous neighbour is the last one before its run, its next neighbour the
first one behind it, where times are not equal: nothing is searched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Self, TypeVar

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]

T = TypeVar("T", bound=np.generic)

_BITS: Final = 63
"""Of an int64 that is not negative."""


class Segments(NamedTuple):
    """Runs of equal entries in a table: where each begins and how long it is; shape (k,) each."""

    start: Ints
    length: Ints

    @classmethod
    def of(cls, starts: Bools) -> Self:
        """The segments that begin where ``starts``, shape (n,), is true."""
        start = starts.nonzero()[0]
        length = np.empty_like(start)
        np.subtract(start[1:], start[:-1], out=length[:-1])
        length[-1:] = len(starts) - start[-1:]
        return cls(start, length)

    def spread(self, values: NDArray[T]) -> NDArray[T]:
        """A value for each segment, (k,), as one for each entry, (n,)."""
        return values.repeat(self.length)

    def take(self, which: Ints) -> Self:
        """Some of the segments."""
        return type(self)(self.start[which], self.length[which])

    def entries(self) -> Ints:
        """The indices of all entries, one segment after the other."""
        ends = self.length.cumsum()
        found: Ints = (self.start - ends + self.length).repeat(self.length)
        found += np.arange(len(found))
        return found


def sorting_order(key: Ints, ts: Ints) -> Ints:
    """The indices that sort by (key, ts); equal ones stay in the order in which they stand."""
    if np.count_nonzero(ts[1:] < ts[:-1]) > _RUNS_FEW:
        return _packed_order(key, ts)
    by_time = ts.argsort(kind="stable")
    return by_time.take(grouping_order(key.take(by_time)))


def grouping_order(key: Ints) -> Ints:
    """The indices that sort by key alone; equal ones stay in the order in which they stand."""
    if not len(key) or int(key.max()) > np.iinfo(np.uint16).max:
        return _packed_order(key, np.zeros_like(key))
    # Numbers of 16 bits are sorted by counting.
    return key.astype(np.uint16).argsort(kind="stable")


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


class Runs(NamedTuple):
    """Runs of records of one key and side.

    For each record, shape (n,): whether it is the first of its run, where its run begins, and where the one behind it.
    """

    new: Bools
    begin: Ints
    behind: Ints

    @classmethod
    def of(cls, new_run: Bools) -> Self:
        """The runs that begin where ``new_run``, shape (n,), is true."""
        n = len(new_run)
        at = np.arange(n)
        behind = np.full(n + 1, n)
        np.minimum.accumulate(np.where(new_run, at, n)[::-1], out=behind[:n][::-1])
        return cls(new_run, np.maximum.accumulate(np.where(new_run, at, 0)), behind[1:])


def distinct(keys: list[Ints], largest: int) -> Ints:
    """The different ones of small integers from 0 on, ascending."""
    there = np.zeros(largest + 1, dtype=bool)
    for some in keys:
        there[some] = True
    return there.nonzero()[0]
