"""Finds the neighbours of a table's rows in another table, and interpolates between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numba import types

from joiner.alignment.interpolation import FLOATS, GIVEN_FLOATS, value_at, value_between
from joiner.core.compiled import COUNT, DURATION, GIVEN, INTS, compiled, gap

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

NONE: Final = -1
"""The index of a nonexistent neighbour."""


class TimeOrder(NamedTuple):
    """A table's rows ordered by time; rows with equal times keep their order in the table.

    ``key`` (small non-negative integers), ``ts`` (ns) and ``row`` (the place in the table) have shape (n,).
    """

    key: Ints
    ts: Ints
    row: Ints


def order_of(ts: Ints) -> Ints | None:
    """Return the indices that sort a table's rows by time, or None if the rows are already in order."""
    return None if (ts[1:] >= ts[:-1]).all() else ts.argsort(kind="stable")


def in_time_order(key: Ints, ts: Ints, row: Ints | None) -> TimeOrder:
    """Order a table's rows by time. ``row``: from `order_of`. If it is None, contiguous columns are not copied."""
    if row is None:
        return TimeOrder(np.ascontiguousarray(key), np.ascontiguousarray(ts), np.arange(len(ts)))
    return TimeOrder(key.take(row), ts.take(row), row)


def previous_of(of: TimeOrder, among: TimeOrder) -> Ints:
    """Return, for each row of ``of``, the index of its previous neighbour in ``among``, or `NONE` if it has none.

    The result is an int64 array of shape (n,). Its elements, and the indices they contain, follow the tables' own
    order, not time order.
    """
    found = np.empty(len(of.row), dtype=np.int64)
    _find_previous(*of, *among, _count_keys(of, among), found)
    return found


def next_of(of: TimeOrder, among: TimeOrder) -> Ints:
    """Like `previous_of`, but for each row's next neighbour."""
    found = np.empty(len(of.row), dtype=np.int64)
    _find_next(*of, *among, _count_keys(of, among), found)
    return found


def nearest_of(of: TimeOrder, among: TimeOrder, ts: Ints, other_ts: Ints) -> Ints:
    """Return the index of each row's nearest neighbour, or `NONE`. If both are equally near, the previous one is taken.

    ``ts``, ``other_ts``: the times of the two tables' rows in ns. Like the indices, they follow the tables' own order.
    """
    chosen = np.empty(len(ts), dtype=np.int64)
    neighbours = previous_of(of, among), next_of(of, among)
    _choose_nearest(np.ascontiguousarray(ts), *neighbours, np.ascontiguousarray(other_ts), chosen)
    return chosen


def interpolated(
    of: TimeOrder, among: TimeOrder, numbers: Floats, tolerance: np.uint64 | None, period: float | None
) -> Floats:
    """Return the value at the time of each row of ``of``, in the order of its table, or NaN where there is none.

    The result is a float64 array of shape (n,). ``numbers``: the values of the other table's rows, NaN where missing.
    ``tolerance``: how far a row's two neighbours may be from each other, in ns; None means no limit. ``period``: see
    `interpolation`; None means that values do not repeat.
    """
    found = np.full(len(of.row), np.nan)
    limit = np.uint64(2**64 - 1) if tolerance is None else tolerance
    _interpolate(*of, *among, _count_keys(of, among), numbers, limit, period or 0.0, found)
    return found


def _count_keys(of: TimeOrder, among: TimeOrder) -> int:
    return 1 + int(max(of.key.max(initial=0), among.key.max(initial=0)))


def distances(ts: Ints, at: Ints, other_ts: Ints) -> NDArray[np.uint64]:
    """Return how far each row is from the other table's row at index ``at``, in ns; 0 where ``at`` is `NONE`."""
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


@compiled(COUNT, *_ORDER, *_ORDER, COUNT, GIVEN_FLOATS, DURATION, types.float64, FLOATS)
def _interpolate(  # noqa: PLR0913, PLR0917 - a compiled loop takes arrays, not objects
    key: Ints,
    ts: Ints,
    row: Ints,
    other_key: Ints,
    other_ts: Ints,
    other_row: Ints,
    keys: int,
    numbers: Floats,
    tolerance: np.uint64,
    period: float,
    found: Floats,
) -> int:
    """Write the interpolated values to ``found``, which must contain only NaN initially.

    The first pass stores each row's next neighbour. The second finds each previous neighbour and interpolates
    immediately, so it need not store them.
    """
    after, first, other = np.empty_like(ts), np.full(keys, NONE), len(other_ts) - 1
    for at in range(len(ts) - 1, -1, -1):
        while other >= 0 and other_ts[other] >= ts[at]:
            first[other_key[other]] = other
            other -= 1
        after[at] = first[key[at]]
    last, other = np.full(keys, NONE), 0
    for at in range(len(ts)):
        while other < len(other_ts) and other_ts[other] <= ts[at]:
            last[other_key[other]] = other
            other += 1
        previous, following = last[key[at]], after[at]
        if NONE in (previous, following) or gap(other_ts[following], other_ts[previous]) > tolerance:
            continue
        t0, v0 = other_ts[previous], numbers[other_row[previous]]
        if t0 == ts[at]:
            found[row[at]] = value_at(v0, period)
        else:
            v1 = numbers[other_row[following]]
            found[row[at]] = value_between(ts[at], t0, v0, other_ts[following], v1, period)
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
