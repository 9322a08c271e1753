"""Which records a buffer can let go.

A record leaves as soon as no future and no pending record can have it as a neighbour, and only from the front of its
stream and key: one in the middle also keeps older ones from being neighbours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from joiner.core.frontier import FOREVER, less
from joiner.core.held import Merged
from joiner.core.match import Known, Relation, Relations, Wants, gap
from joiner.core.order import NOBODY

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]


def find_kept(
    merged: Merged, known: Known, relations: Relations, wants: tuple[Wants, Wants], tolerance_ns: int | None
) -> Bools:
    """Which records must be held on, shape (n,). With a tolerance, neighbours that are farther away count as none."""
    if not len(merged.key):
        return merged.old
    sides = (~merged.is_right, merged.is_right)
    at, behind = np.arange(len(merged.key)), len(merged.key)
    needed = relations.next.open.copy()
    reached = merged.ts <= known.frontier
    for side, of_side in enumerate(sides):
        if wants[1 - side].prev:
            # The last one up to the other side's frontier is the previous neighbour of whatever comes next there.
            last = np.maximum.reduceat(np.where(reached & of_side, at, NOBODY), known.first)
            needed[last[last != NOBODY]] = True
    # What comes later has a time from the frontier on, which must not be farther than the tolerance.
    if tolerance_ns is not None:
        needed &= reaches(merged.ts, known.frontier, tolerance_ns)
    if (known.now == FOREVER).any():
        needed &= known.frontier != FOREVER
    # The other side can still send its time; or a twin may come, an equal time or itself again, to recognise it by.
    needed |= merged.ts >= known.own(np.minimum(known.now, known.now[::-1]))
    add_tentative(needed, merged.ts, relations.prev, tolerance_ns)
    # By side and key: the first one that is needed.
    first = [np.minimum.reduceat(np.where(needed & of_side, at, behind), known.first) for of_side in sides]
    kept: Bools = at >= known.own(np.array(first))
    return kept


def add_tentative(which: Bools, ts: Ints, relation: Relation, tolerance_ns: int | None) -> None:
    """Add the records that a pending record of the other side has as its neighbour for now."""
    pending = np.flatnonzero(relation.open & (relation.partner != NOBODY))
    at = relation.partner[pending]
    which[at[within(ts[at], ts[pending], tolerance_ns)]] = True


def reaches(ts: Ints, until: Ints, tolerance_ns: int | None) -> Bools:
    """Whether ``until - ts`` is at most the tolerance."""
    if tolerance_ns is None:
        return np.ones(len(ts), dtype=bool)
    return ts >= less(until, tolerance_ns)


def within(left_ts: Ints, right_ts: Ints, tolerance_ns: int | None) -> Bools:
    """Whether two times are at most the tolerance apart; exact over the whole range of int64."""
    if tolerance_ns is None:
        return np.ones(len(left_ts), dtype=bool)
    return gap(np.maximum(left_ts, right_ts), np.minimum(left_ts, right_ts)) <= np.uint64(tolerance_ns)
