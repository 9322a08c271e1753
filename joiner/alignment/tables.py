"""The neighbours of the rows of a whole table in another one, in two passes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from joiner.core.compiled import COUNT, GIVEN, INTS, compiled, gap

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

NONE: Final = -1
"""The index of a neighbour that does not exist."""


class Neighbours(NamedTuple):
    """For each of n rows, the index of its previous and next neighbour in the other table, or `NONE`; shape (n,)."""

    previous: Ints
    next: Ints


class TimeOrder(NamedTuple):
    """The rows of a table ordered by time, and by their place if the times are equal.

    ``key`` (small non-negative integers), ``ts`` (ns) and ``row`` (the place in the table) have shape (n,).
    """

    key: Ints
    ts: Ints
    row: Ints


def in_time_order(key: Ints, ts: Ints) -> TimeOrder:
    """Order the rows of a table. A table that is in order already is not copied."""
    if (ts[1:] >= ts[:-1]).all():
        return TimeOrder(key, ts, np.arange(len(ts)))
    row = ts.argsort(kind="stable")
    return TimeOrder(key.take(row), ts.take(row), row)


def neighbours(of: TimeOrder, among: TimeOrder) -> Neighbours:
    """Return the neighbours of the rows of one table among those of another table, in the order of the first table."""
    keys = 1 + int(max(of.key.max(initial=0), among.key.max(initial=0)))
    previous, following = np.empty((2, len(of.row)), dtype=np.int64)
    _find_previous(*of, *among, keys, previous)
    _find_next(*of, *among, keys, following)
    return Neighbours(previous, following)


def nearest(ts: Ints, found: Neighbours, other_ts: Ints) -> Ints:
    """Return the index of the nearer neighbour of each row, the previous one at equal distances; shape (n,).

    ``ts``, ``other_ts``: the times of the rows and of the other table in ns, in the order of the tables.
    """
    chosen = np.empty(len(ts), dtype=np.int64)
    _choose_nearest(ts, found.previous, found.next, other_ts, chosen)
    return chosen


def distances(ts: Ints, at: Ints, other_ts: Ints) -> NDArray[np.uint64]:
    """Return how far each row is from the other table's row at index ``at``, in ns; 0 where that is `NONE`."""
    found = np.zeros(len(ts), dtype=np.uint64)
    there = (at != NONE).nonzero()[0]
    other = other_ts.take(at[there])
    # The times may be so far apart that only an unsigned int64 holds the difference.
    found[there] = (np.maximum(ts[there], other) - np.minimum(ts[there], other)).view(np.uint64)
    return found


_ORDER: Final = (GIVEN, GIVEN, GIVEN)


@compiled(COUNT, *_ORDER, *_ORDER, COUNT, INTS)
def _find_previous(
    key: Ints, ts: Ints, row: Ints, other_key: Ints, other_ts: Ints, other_row: Ints, keys: int, found: Ints
) -> int:
    last, other = np.full(keys, NONE), 0
    for at in range(len(ts)):
        while other < len(other_ts) and other_ts[other] <= ts[at]:
            last[other_key[other]] = other_row[other]
            other += 1
        found[row[at]] = last[key[at]]
    return other


@compiled(COUNT, *_ORDER, *_ORDER, COUNT, INTS)
def _find_next(
    key: Ints, ts: Ints, row: Ints, other_key: Ints, other_ts: Ints, other_row: Ints, keys: int, found: Ints
) -> int:
    first, other = np.full(keys, NONE), len(other_ts) - 1
    for at in range(len(ts) - 1, -1, -1):
        while other >= 0 and other_ts[other] >= ts[at]:
            first[other_key[other]] = other_row[other]
            other -= 1
        found[row[at]] = first[key[at]]
    return other


@compiled(COUNT, GIVEN, GIVEN, GIVEN, GIVEN, INTS)
def _choose_nearest(ts: Ints, previous: Ints, following: Ints, other_ts: Ints, chosen: Ints) -> int:
    for at in range(len(ts)):
        before, after = previous[at], following[at]
        if after == NONE or (before != NONE and gap(ts[at], other_ts[before]) <= gap(other_ts[after], ts[at])):
            chosen[at] = before
        else:
            chosen[at] = after
    return len(ts)
