"""Which relations are certain, and which pairs became so just now.

A record r has up to two relations, to its previous and to its next neighbour s, and s has two of its own; a pair
may be held together by up to four. Certain means that no continuation of the streams can take the relation away:

    previous of r     once the other side's frontier > r.ts; strictly, an equal time may still come
    next of r is s    once s.ts <= the other side's frontier, or s.ts = r.ts (a later tie has a later position)

    nearest of r     prev, unless next is strictly nearer. prev once the other side's frontier F > r.ts and nothing
                     nearer can come: F is not nearer than prev is, or next is certain; next once s.ts <= F

Certainty is monotone. So there is no memory of emitted pairs: a pair is emitted iff one of its relations is
certain under the new frontiers and none was under the old ones with both records present.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numba import types

from joiner.core.compiled import FLAG, TABLE, compiled, gap, is_apart_at_most, named, several
from joiner.core.record_store import DONE, EMITTED, NOTES, ORDINAL, SEQ, TS, Side

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Flags = NDArray[np.uint8]


class NeighbourSpec(NamedTuple):
    """Which neighbours the records of one side look for; ``nearest``: only the nearer one of the two."""

    prev: bool
    next: bool
    nearest: bool = False


WANTS: Final = named(NeighbourSpec, FLAG, FLAG, FLAG)
OF_BOTH: Final = several(WANTS, WANTS)

_DIRECTIONS: Final = {
    "both": NeighbourSpec(prev=True, next=True),
    "backward": NeighbourSpec(prev=True, next=False),
    "forward": NeighbourSpec(prev=False, next=True),
    "nearest": NeighbourSpec(prev=True, next=True, nearest=True),
}
_NOTHING: Final = NeighbourSpec(prev=False, next=False)

DIRECTIONS: Final = tuple(_DIRECTIONS)
DRIVERS: Final = ("both", "left", "right")


def neighbour_specs(direction: str, driver: str) -> tuple[NeighbourSpec, NeighbourSpec]:
    """What the left and the right records look for."""
    wants = _DIRECTIONS[direction]
    return (_NOTHING if driver == "right" else wants), (_NOTHING if driver == "left" else wants)


class Relations(NamedTuple):
    """The relations of the n records of a side, of each the previous one (`PREV`) and the next (`NEXT`).

    ``at``: where in the other side the neighbour stands, or `NONE`, shape (2, n); ``known``: what is known of the
    relation, the flags `NOW` to `HERE`, shape (2, n).
    """

    at: Ints
    known: Flags


RELATIONS: Final = named(Relations, TABLE, types.Array(types.uint8, 2, "C"))

PREV, NEXT = 0, 1
NONE: Final = -1

NOW: Final = 1
"""Certain after the step."""
BEFORE: Final = 2
"""Certain before the step, with both records there."""
OPEN: Final = 4
"""Looked for, and not decided yet."""
HERE: Final = 8
"""There is such a neighbour for now; of nearest, the other one is none."""


class NeighbourView(NamedTuple):
    """What a record sees of the other side: its time, its neighbours' for now, and the frontier before and after.

    ``is_old``, ``is_next_old``: there before the step; ``is_done``: what decided its next neighbour was told long ago,
    and is not here any more.
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
def relate(own: Side, other: Side, before: Ints, now: Ints, wants: NeighbourSpec) -> Relations:
    """The relations of the records of one side; ``before``, ``now``: the other's frontiers, before and after, (k,)."""
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
            sight = NeighbourView(
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
            at[PREV, i] = prev if sight.has_prev else NONE
            at[NEXT, i] = following if sight.has_next else NONE
            of_prev, of_next = _judge_nearest(sight) if wants.nearest else _judge_both(sight)
            known[PREV, i] = of_prev if wants.prev else 0
            known[NEXT, i] = of_next if wants.next else 0
    return Relations(at, known)


@compiled()
def _judge_both(sight: NeighbourView) -> tuple[int, int]:
    """Certain is prev by itself, and next by itself."""
    of_prev = OPEN if sight.now <= sight.ts else 0
    if sight.has_prev:
        # What is new was not late, so it is nobody's previous neighbour for whom the frontier had passed.
        was_known = sight.is_old and sight.before > sight.ts
        of_prev |= HERE | (NOW if sight.now > sight.ts else 0) | (BEFORE if was_known else 0)
    if sight.is_done:
        return of_prev, 0
    if not _is_next_known(sight, sight.now):
        return of_prev, OPEN | (HERE if sight.has_next else 0)
    next_was_known = sight.is_old and sight.is_next_old and _is_next_known(sight, sight.before)
    return of_prev, HERE | NOW | (BEFORE if next_was_known else 0)


@compiled()
def _judge_nearest(sight: NeighbourView) -> tuple[int, int]:
    """Certain is one of the two, once nothing nearer can come. The other one is not looked for."""
    if sight.is_done:
        return 0, 0
    is_prev = sight.has_prev and not (sight.has_next and gap(sight.next_ts, sight.ts) < gap(sight.ts, sight.prev_ts))
    is_known = _is_nearest_known(sight, is_prev, sight.now)
    was_there = sight.is_old and (is_prev or sight.is_next_old)
    was_known = is_known and was_there and _is_nearest_known(sight, is_prev, sight.before)
    known = (NOW if is_known else OPEN) | (BEFORE if was_known else 0)
    if is_prev:
        return known | HERE, known & OPEN
    return known & OPEN, known | (HERE if sight.has_next else 0)


@compiled()
def _is_nearest_known(sight: NeighbourView, is_prev: bool, frontier: int) -> bool:  # noqa: FBT001 - a loop takes no keywords
    is_next_known = _is_next_known(sight, frontier)
    if not is_prev:
        return is_next_known
    return frontier > sight.ts and (is_next_known or not gap(frontier, sight.ts) < gap(sight.ts, sight.prev_ts))


@compiled()
def _is_next_known(sight: NeighbourView, frontier: int) -> bool:
    """Whether nothing can come before the next neighbour any more."""
    return sight.has_next and (sight.next_ts <= frontier or sight.next_ts == sight.ts)


@compiled()
def emit_pairs(
    left: Side, right: Side, of_left: Relations, of_right: Relations, tolerance: np.uint64
) -> tuple[Ints, Ints, Ints, Ints]:
    """The pairs that became certain, at most ``tolerance`` apart: the positions of both records, and their ordinals.

    In the order of the left records, of each in that of the right ones. It is noted of them that they were in a pair.
    """
    lefts, rights = left.rows, right.rows
    (left_at, left_known), (right_at, right_known) = of_left, of_right
    # No more pairs than relations.
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
    """The right records in a relation to a left one: the first and the last of them, and how far apart they stand.

    Those whose next neighbour it is end with its previous one; those whose previous one it is begin with its next one.
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
    # Equal times on both sides, from the next neighbour to the previous one.
    if is_next_of_prev or is_prev_of_next:
        return min(first, following), max(prev, last), 1
    return following, prev, max(prev - following, 1)


@compiled()
def _known(at: Ints, known: Flags, i: int, partner: int) -> int:
    """What is known of the relations of a record to a partner."""
    of_prev = known[PREV, i] if at[PREV, i] == partner else 0
    of_next = known[NEXT, i] if at[NEXT, i] == partner else 0
    return of_prev | of_next


@compiled()
def is_open(known: int) -> bool:
    """Whether a relation is pending."""
    return known & OPEN != 0


@compiled()
def is_tentative(known: int) -> bool:
    """Whether a relation is pending, and has a neighbour for now."""
    return known & (OPEN | HERE) == OPEN | HERE
