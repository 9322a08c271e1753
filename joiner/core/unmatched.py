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

from joiner.core.compiled import compiled, gap, is_apart_at_most, is_within
from joiner.core.frontier import FOREVER, NEVER
from joiner.core.match import NEXT, PREV, NeighbourSpec, Relations, is_open, is_tentative
from joiner.core.record_store import EMITTED, NOTES, SEQ, TS, Side

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Flags = NDArray[np.uint8]


@compiled()
def find_unmatched(
    own: Side,
    other: Side,
    relations: Relations,
    of_other: Relations,
    frontier: Ints,
    wants: NeighbourSpec,
    tolerance: np.uint64,
) -> Ints:
    """The positions of the records that are in no pair and cannot get into one, which is noted of them.

    ``frontier`` and ``wants`` are those of the other side.
    """
    ts, notes, known = own.rows[TS], own.rows[NOTES], relations.known
    is_found = _find_tentative(own, other, of_other, tolerance)
    found, count = np.empty(len(ts), dtype=np.int64), 0
    for k in range(len(frontier)):
        until = frontier[k]
        for at in range(own.begin[k], own.begin[k + 1]):
            before = ts[at - 1] if at > own.begin[k] else NEVER
            behind = ts[at + 1] if at + 1 < own.begin[k + 1] else FOREVER
            may_match = is_found[at] or (
                until != FOREVER
                and is_within(tolerance, until, ts[at])
                and (
                    is_open(known[PREV, at] | known[NEXT, at])
                    or _may_be_found(before, ts[at], behind, until, wants, tolerance)
                )
            )
            if not may_match and not notes[at] & EMITTED:
                notes[at] |= EMITTED
                found[count] = own.rows[SEQ, at]
                count += 1
    return found[:count]


@compiled()
def _may_be_found(before: int, ts: int, behind: int, until: int, wants: NeighbourSpec, tolerance: np.uint64) -> bool:
    """Whether a record of the other side that is still to come may find this one, which stands between two others."""
    comes = max(until, ts)
    as_prev = wants.prev and behind > comes
    as_next = wants.next and until <= ts and before < ts
    if wants.nearest:
        as_prev = as_prev and not (behind != FOREVER and gap(behind, comes) < gap(comes, ts))
        # One ns before it, and farther from the one before.
        has_room = before == NEVER or not gap(ts, before) <= 2  # noqa: PLR2004
        as_next = as_next and until < ts and bool(tolerance > 0) and has_room
    return as_prev or as_next


@compiled()
def _find_tentative(own: Side, other: Side, of_other: Relations, tolerance: np.uint64) -> Flags:
    """Which records a pending one of the other side has as its neighbour for now, shape (n,)."""
    ts, others = own.rows[TS], other.rows[TS]
    partners, known = of_other
    found = np.zeros(len(ts), dtype=np.uint8)
    for at in range(len(others)):
        for which in (PREV, NEXT):
            partner = partners[which, at]
            if is_tentative(known[which, at]) and is_apart_at_most(tolerance, others[at], ts[partner]):
                found[partner] = True
    return found
