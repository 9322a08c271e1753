"""Who is whose neighbour: one sort of both sides over key and time, then positions.

In the merged order a record's previous neighbour is the last record of the other side that stands at or before
the end of its group of equal (key, time), its next neighbour the first one at or after the group's start. Both
are running counts; nothing is searched. Keys and times are never packed into one number: 100,000 keys times a
day of nanoseconds overflow int64.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

NOBODY: Final = -1
"""The index of a neighbour that is not there."""


class Neighbours(NamedTuple):
    """For each record of one side the index of its neighbours on the other side, or `NOBODY`; shape (n,) each."""

    prev: Ints
    next: Ints


def segment_starts(*columns: NDArray[np.generic]) -> NDArray[np.bool_]:
    """True where any of the columns differs from the entry before; shape (n,), true at 0."""
    starts = np.empty(len(columns[0]), dtype=bool)
    starts[:1] = True
    np.not_equal(columns[0][1:], columns[0][:-1], out=starts[1:])
    for column in columns[1:]:
        starts[1:] |= column[1:] != column[:-1]
    return starts


def position_in_segment(starts: NDArray[np.bool_]) -> Ints:
    """0, 1, 2, … within each segment; shape (n,)."""
    at = np.arange(len(starts))
    return at - np.maximum.accumulate(np.where(starts, at, 0))


def find_neighbours(left: tuple[Ints, Ints], right: tuple[Ints, Ints]) -> tuple[Neighbours, Neighbours]:
    """The neighbours of the left records and of the right ones.

    ``left`` and ``right`` are (key, ts), each side in the order (key, ts, seq).
    """
    (left_key, left_ts), (right_key, right_ts) = left, right
    n_left = len(left_key)
    key, ts = np.concatenate([left_key, right_key]), np.concatenate([left_ts, right_ts])
    order = np.lexsort((ts, key))
    is_right = order >= n_left
    starts = segment_starts(key[order], ts[order])
    group = np.cumsum(starts) - 1
    # By group: how many right records stand before its start, and up to its end; the left ones are the rest.
    start_at = np.flatnonzero(starts)
    end_at = np.append(start_at[1:], len(order))
    rights = np.concatenate([[0], np.cumsum(is_right)])
    right_before, right_until = rights[start_at], rights[end_at]
    left_before, left_until = start_at - right_before, end_at - right_until
    group_of_left, group_of_right = group[~is_right], group[is_right]
    of_left = Neighbours(
        _same_key(right_until[group_of_left] - 1, left_key, right_key),
        _same_key(right_before[group_of_left], left_key, right_key),
    )
    of_right = Neighbours(
        _same_key(left_until[group_of_right] - 1, right_key, left_key),
        _same_key(left_before[group_of_right], right_key, left_key),
    )
    return of_left, of_right


def _same_key(index: Ints, key: Ints, other_key: Ints) -> Ints:
    """``index`` where the other side has such a record of the same key, else `NOBODY`."""
    if not len(other_key):
        return np.full(len(index), NOBODY, dtype=np.int64)
    there = (index >= 0) & (index < len(other_key))
    there &= other_key[np.where(there, index, 0)] == key
    return np.where(there, index, NOBODY)
