"""Finds unmatched records, which are in no pair and can no longer be paired.

Let F be the frontier of the other side. A record x can still be paired if, within the tolerance, at least one of these
conditions holds:

    own relation       a relation of x is open, so a record that arrives at F or at x.ts may become its neighbour
    future record      a record s may arrive at the later of F and x.ts, and x is the last record of its side before s;
                       or s may arrive at x.ts (with ``nearest``, just before x.ts), and x is the first record after it
    pending record     a record y of the other side is present, its relation is open, and x is its candidate

It is enough to consider a single future record at the most favourable time, because any further record could only
compete with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from joiner.core.arguments import NeighbourSpec
from joiner.core.compiled import compiled, gap, is_apart_at_most, is_within
from joiner.core.frontier import FOREVER, NEVER
from joiner.core.match import NEXT, PREV, Relations, is_open, is_tentative
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
    spec: NeighbourSpec,
    tolerance: np.uint64,
) -> Ints:
    """Return the log positions of unmatched records not emitted before. Sets `EMITTED` in their notes.

    ``frontier``: the other side's frontiers, shape (k,), ns. ``spec``: which neighbours the other side's records look
    for.
    """
    ts, notes, known = own.rows[TS], own.rows[NOTES], relations.known
    is_candidate = _find_candidates(own, other, of_other, tolerance)
    found, count = np.empty(len(ts), dtype=np.int64), 0
    for k in range(len(frontier)):
        until = frontier[k]
        for at in range(own.begin[k], own.begin[k + 1]):
            before = ts[at - 1] if at > own.begin[k] else NEVER
            behind = ts[at + 1] if at + 1 < own.begin[k + 1] else FOREVER
            may_match = is_candidate[at] or (
                until != FOREVER
                and is_within(tolerance, until, ts[at])
                and (
                    is_open(known[PREV, at] | known[NEXT, at])
                    or _may_become_neighbour(before, ts[at], behind, until, spec, tolerance)
                )
            )
            if not may_match and not notes[at] & EMITTED:
                notes[at] |= EMITTED
                found[count] = own.rows[SEQ, at]
                count += 1
    return found[:count]


@compiled()
def _may_become_neighbour(
    before: int, ts: int, behind: int, until: int, spec: NeighbourSpec, tolerance: np.uint64
) -> bool:
    """Return whether a record at ``ts`` may become the neighbour of a future record on the other side.

    ``before``, ``behind``: the times of the records before and after it on its own side. ``until``: the other side's
    frontier. Times are in ns.
    """
    arrives = max(until, ts)
    as_prev = spec.prev and behind > arrives
    as_next = spec.next and until <= ts and before < ts
    if spec.nearest:
        as_prev = as_prev and not (behind != FOREVER and gap(behind, arrives) < gap(arrives, ts))
        # A future record one ns before `ts` must be nearer to `ts` than to `before`.
        has_room = before == NEVER or not gap(ts, before) <= 2  # noqa: PLR2004
        as_next = as_next and until < ts and bool(tolerance > 0) and has_room
    return as_prev or as_next


@compiled()
def _find_candidates(own: Side, other: Side, of_other: Relations, tolerance: np.uint64) -> Flags:
    """Return, for each of the n records, whether it is the candidate of an open relation on the other side."""
    ts, others = own.rows[TS], other.rows[TS]
    partners, known = of_other
    found = np.zeros(len(ts), dtype=np.uint8)
    for at in range(len(others)):
        for which in (PREV, NEXT):
            partner = partners[which, at]
            if is_tentative(known[which, at]) and is_apart_at_most(tolerance, others[at], ts[partner]):
                found[partner] = True
    return found
