"""Which records may still get into a pair: the others are unmatched if they are in none.

A record x may if one of these is so, each of them within the tolerance:

    own relation      one that x looks for is open: what comes next, at the other side's frontier F or at x.ts, takes it
    of one to come    s comes at F or x.ts, whichever is later, and x is the last record of its side before it; or at
                      x.ts, and x is the first one behind it; where s looks for the nearest, just before x.ts
    of a pending one  y of the other side is there, its relation is open, and x is its neighbour for now

One record that comes at the best moment, or none, does as much as any continuation: more of them only compete.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from joiner.core.frontier import FOREVER, NEVER
from joiner.core.held import Merged
from joiner.core.match import Known, Relations, Wants, gap
from joiner.core.release import add_tentative, reaches

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]


def may_match(
    merged: Merged, known: Known, relations: Relations, wants: tuple[Wants, Wants], tolerance_ns: int | None
) -> Bools:
    """Which records some continuation of the streams puts into a pair, shape (n,)."""
    frontier = known.frontier
    of_one_to_come = np.where(
        merged.is_right,
        _is_found(merged, frontier, wants[0], tolerance_ns),
        _is_found(merged, frontier, wants[1], tolerance_ns),
    )
    possible = relations.prev.open | relations.next.open | of_one_to_come
    possible &= (frontier != FOREVER) & reaches(merged.ts, frontier, tolerance_ns)
    for relation in relations:
        add_tentative(possible, merged.ts, relation, tolerance_ns)
    return possible


def _is_found(merged: Merged, frontier: Ints, wants: Wants, tolerance_ns: int | None) -> Bools:
    """Whether a record of the other side that is still to come, and ``wants`` neighbours, may find each record."""
    before, behind = _own_neighbours(merged)
    ahead, first = frontier <= merged.ts, before < merged.ts
    comes = np.maximum(frontier, merged.ts)
    as_prev = behind > comes
    as_next = ahead & first
    if wants.nearest:
        as_prev &= (behind == FOREVER) | (gap(comes, merged.ts) <= gap(behind, comes))
        as_next &= (frontier < merged.ts) & ((before == NEVER) | (gap(merged.ts, before) > 2))  # noqa: PLR2004 - ns: 1 to x
        as_next &= tolerance_ns is None or tolerance_ns > 0
    return (as_prev & wants.prev) | (as_next & wants.next)


def _own_neighbours(merged: Merged) -> tuple[Ints, Ints]:
    """The times of the record before and of the one behind each in its own stream; `NEVER`, `FOREVER` where none is."""
    before, behind = np.full_like(merged.ts, NEVER), np.full_like(merged.ts, FOREVER)
    for side in (False, True):
        at = np.flatnonzero(merged.is_right == side)
        one, following = at[:-1], at[1:]
        same = merged.key[one] == merged.key[following]
        before[following[same]], behind[one[same]] = merged.ts[one[same]], merged.ts[following[same]]
    return before, behind
