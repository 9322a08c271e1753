"""Determines which neighbour relations are certain, and which pairs of records became certain in a step.

Each record has up to two relations: one to its previous neighbour and one to its next neighbour. Two records are a pair
if at least one relation of either record connects them. A relation is certain once no further input can change it. For
a record r, let F be the frontier of the other side:

    previous of r     certain once F > r.ts; not yet at F = r.ts, because a record with the same time may still follow
    next of r is s    certain once s.ts <= F, or if s.ts = r.ts (a later record with this time has a later position)

    nearest of r      the previous neighbour, unless the next one is strictly nearer. The previous one is certain once
                      F > r.ts and no nearer record can follow, because F is at least as far from r as the previous
                      neighbour, or because the next neighbour is certain. The next one is certain once s.ts <= F

A certain relation stays certain, so the buffer does not need to remember which pairs it has emitted. A pair is emitted
in the step in which the first of its relations becomes certain: at least one is certain at the new frontiers, and none
was certain at the old frontiers with both records present.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numba import types

from joiner.core.arguments import TIME_MAX_NS, NeighbourSpec
from joiner.core.compiled import FLAG, TABLE, compiled, gap, is_apart_at_most, named, several
from joiner.core.record_store import DONE, EMITTED, NOTES, ORDINAL, SEQ, TS, Side

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Flags = NDArray[np.uint8]


_SPEC: Final = named(NeighbourSpec, FLAG, FLAG, FLAG)
SPECS: Final = several(_SPEC, _SPEC)


class Relations(NamedTuple):
    """The relations of a side's n records to their previous neighbours (row `PREV`) and next neighbours (row `NEXT`).

    ``at``: the neighbour's index among the records of the other side, or `NONE`, int64 of shape (2, n). ``known``: the
    state of the relation, a combination of `NOW`, `BEFORE`, `OPEN` and `HERE`, uint8 of shape (2, n).
    """

    at: Ints
    known: Flags


RELATIONS: Final = named(Relations, TABLE, types.Array(types.uint8, 2, "C"))

PREV, NEXT = 0, 1
NONE: Final = -1

NOW: Final = 1
"""The relation is certain after the step."""
BEFORE: Final = 2
"""The relation was certain before the step, with both records present."""
OPEN: Final = 4
"""The record looks for this neighbour, and the relation is not certain yet."""
HERE: Final = 8
"""A candidate for this neighbour is present. With ``nearest``, only the nearer of the two is a candidate."""


class NeighbourView(NamedTuple):
    """The facts that determine a record's relations: its time, its present neighbours and the other side's frontier.

    ``before``, ``now``: the other side's frontier before and after the step. All times are in ns. ``is_old``,
    ``is_next_old``: whether the record, or its next neighbour, was present before the step. ``is_done``: whether the
    record's next or nearest neighbour became certain in an earlier step and has been evicted.
    """

    ts: int
    is_old: bool
    is_done: bool
    has_prev: bool
    prev_ts: int
    has_next: bool
    next_ts: int
    is_next_old: bool
    before: int
    now: int


@compiled()
def relate(own: Side, other: Side, before: Ints, now: Ints, spec: NeighbourSpec) -> Relations:
    """Return the relations of the records on side ``own`` to the records on side ``other``.

    ``before``, ``now``: the frontiers of the other side before and after the step, shape (k,), ns. ``spec``: which
    neighbours the records look for.
    """
    times, seq, notes = own.rows[TS], own.rows[SEQ], own.rows[NOTES]
    other_times, other_seq = other.rows[TS], other.rows[SEQ]
    at, known = np.empty((2, len(times)), dtype=np.int64), np.empty((2, len(times)), dtype=np.uint8)
    for k in range(len(now)):
        begin, end = other.begin[k], other.begin[k + 1]
        first, behind = begin, begin
        for i in range(own.begin[k], own.begin[k + 1]):
            ts = times[i]
            while first < end and other_times[first] < ts:
                first += 1
            behind = max(behind, first)
            while behind < end and other_times[behind] <= ts:
                behind += 1
            prev, following = behind - 1, min(first, end - 1)
            view = NeighbourView(
                ts,
                seq[i] <= own.since,
                notes[i] & DONE != 0,
                behind > begin,
                other_times[prev] if behind > begin else 0,
                first < end,
                other_times[following] if first < end else 0,
                first < end and other_seq[following] <= other.since,
                before[k],
                now[k],
            )
            at[PREV, i] = prev if view.has_prev else NONE
            at[NEXT, i] = following if view.has_next else NONE
            of_prev, of_next = _judge_nearest(view) if spec.nearest else _judge_both(view)
            known[PREV, i] = of_prev if spec.prev else 0
            known[NEXT, i] = of_next if spec.next else 0
    return Relations(at, known)


@compiled()
def _judge_both(view: NeighbourView) -> tuple[int, int]:
    """Return the states of a record's relations to its previous and next neighbours, which are independent here."""
    of_prev = OPEN if view.now <= view.ts else 0
    if view.has_prev:
        # A new record was not late, so it cannot be the previous neighbour of a record below the old frontier.
        was_known = view.is_old and view.before > view.ts
        of_prev |= HERE | (NOW if view.now > view.ts else 0) | (BEFORE if was_known else 0)
    if view.is_done:
        return of_prev, 0
    if not _is_next_known(view, view.now):
        return of_prev, OPEN | (HERE if view.has_next else 0)
    next_was_known = view.is_old and view.is_next_old and _is_next_known(view, view.before)
    return of_prev, HERE | NOW | (BEFORE if next_was_known else 0)


@compiled()
def _judge_nearest(view: NeighbourView) -> tuple[int, int]:
    """Like `_judge_both`, but for a record that looks only for the nearer of its two neighbours."""
    if view.is_done:
        return 0, 0
    is_prev = view.has_prev and not (view.has_next and gap(view.next_ts, view.ts) < gap(view.ts, view.prev_ts))
    is_known = _is_nearest_known(view, is_prev, view.now)
    was_there = view.is_old and (is_prev or view.is_next_old)
    was_known = is_known and was_there and _is_nearest_known(view, is_prev, view.before)
    known = (NOW if is_known else OPEN) | (BEFORE if was_known else 0)
    if is_prev:
        return known | HERE, known & OPEN
    return known & OPEN, known | (HERE if view.has_next else 0)


@compiled()
def _is_nearest_known(view: NeighbourView, is_prev: bool, frontier: int) -> bool:  # noqa: FBT001 - a compiled loop has no keyword arguments
    is_next_known = _is_next_known(view, frontier)
    if not is_prev:
        return is_next_known
    # A frontier above the last valid time means that the stream has ended, so distances to it are meaningless.
    has_ended = frontier > TIME_MAX_NS
    is_beyond = not gap(frontier, view.ts) < gap(view.ts, view.prev_ts)
    return frontier > view.ts and (is_next_known or has_ended or is_beyond)


@compiled()
def _is_next_known(view: NeighbourView, frontier: int) -> bool:
    """Return whether a record's next neighbour is present and no record can still arrive before it."""
    return view.has_next and (view.next_ts <= frontier or view.next_ts == view.ts)


@compiled()
def emit_pairs(
    left: Side, right: Side, of_left: Relations, of_right: Relations, tolerance: np.uint64
) -> tuple[Ints, Ints, Ints, Ints]:
    """Return the pairs within ``tolerance`` ns that became certain: left and right log positions, then both ordinals.

    Pairs are sorted by the index of the left record, then of the right one. Sets `EMITTED` in the notes of the records.
    """
    lefts, rights = left.rows, right.rows
    (left_at, left_known), (right_at, right_known) = of_left, of_right
    # There cannot be more pairs than relations.
    found, count = np.empty((4, 2 * (lefts.shape[1] + rights.shape[1])), dtype=np.int64), 0
    for k in range(len(left.begin) - 1):
        begin, end = right.begin[k], right.begin[k + 1]
        for i in range(left.begin[k], left.begin[k + 1]):
            first, last, step = _find_partners(left_at, right_at, i, begin, end)
            for j in range(first, last + 1, step):
                known = _known(left_at, left_known, i, j) | _known(right_at, right_known, j, i)
                if known & (NOW | BEFORE) == NOW and is_apart_at_most(tolerance, lefts[TS, i], rights[TS, j]):
                    found[0, count], found[2, count] = lefts[SEQ, i], lefts[NOTES, i] >> ORDINAL
                    found[1, count], found[3, count] = rights[SEQ, j], rights[NOTES, j] >> ORDINAL
                    lefts[NOTES, i] |= EMITTED
                    rights[NOTES, j] |= EMITTED
                    count += 1
    return found[0, :count], found[1, :count], found[2, :count], found[3, :count]


@compiled()
def _find_partners(left_at: Ints, right_at: Ints, i: int, begin: int, end: int) -> tuple[int, int, int]:
    """Return the range of right records related to the left record ``i``: first index, last index and step.

    If there are none, the range is empty: the last index is before the first.

    The records whose next neighbour is ``i`` are consecutive and end at the previous neighbour of ``i``. Those whose
    previous neighbour is ``i`` are consecutive too, and begin at the next neighbour of ``i``.
    """
    prev, following = left_at[PREV, i], left_at[NEXT, i]
    first, last = prev, following
    is_next_of_prev = prev != NONE and right_at[NEXT, prev] == i
    while is_next_of_prev and first > begin and right_at[NEXT, first - 1] == i:
        first -= 1
    is_prev_of_next = following != NONE and right_at[PREV, following] == i
    while is_prev_of_next and last + 1 < end and right_at[PREV, last + 1] == i:
        last += 1
    if prev == NONE:
        return (following, last, 1) if following != NONE else (0, -1, 1)
    if following == NONE:
        return first, prev, 1
    if prev < following:
        return first, last, 1
    # Both neighbours have the time of ``i``, so the next neighbour does not come after the previous one.
    if is_next_of_prev or is_prev_of_next:
        return min(first, following), max(prev, last), 1
    return following, prev, max(prev - following, 1)


@compiled()
def _known(at: Ints, known: Flags, i: int, partner: int) -> int:
    """Return the combined flags of record ``i``'s relations to ``partner``."""
    of_prev = known[PREV, i] if at[PREV, i] == partner else 0
    of_next = known[NEXT, i] if at[NEXT, i] == partner else 0
    return of_prev | of_next


@compiled()
def is_open(known: int) -> bool:
    """Return whether a relation is still uncertain."""
    return known & OPEN != 0


@compiled()
def is_tentative(known: int) -> bool:
    """Return whether a relation is still uncertain but has a candidate."""
    return known & (OPEN | HERE) == OPEN | HERE
