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

from joiner.core.frontier import NEVER
from joiner.core.held import Merged
from joiner.core.order import NOBODY, Neighbours, find_neighbours, segment_starts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]
    Gaps = NDArray[np.uint64]


class Wants(NamedTuple):
    """Which neighbours the records of one side look for; ``nearest``: only the nearer one of the two."""

    prev: bool
    next: bool
    nearest: bool = False


_DIRECTIONS: Final = {
    "both": Wants(prev=True, next=True),
    "backward": Wants(prev=True, next=False),
    "forward": Wants(prev=False, next=True),
    "nearest": Wants(prev=True, next=True, nearest=True),
}
_NOTHING: Final = Wants(prev=False, next=False)

DIRECTIONS: Final = tuple(_DIRECTIONS)
DRIVERS: Final = ("both", "left", "right")


def wants_of(direction: str, driver: str) -> tuple[Wants, Wants]:
    """What the left and the right records look for."""
    wants = _DIRECTIONS[direction]
    return (_NOTHING if driver == "right" else wants), (_NOTHING if driver == "left" else wants)


class Known(NamedTuple):
    """What is known of the two streams by key of a merged table, shape (2, keys) each, left and right.

    The frontiers before and after a step, and the largest times that were released. ``place`` is where a record
    finds its own side's entry in the flat form of these, shape (n,); ``first``: where the records
    of each key begin; ``frontier``: the other stream's, now, for each record, shape (n,).
    """

    before: Ints
    now: Ints
    gone: Ints
    first: Ints
    place: Ints
    frontier: Ints

    def own(self, by_side: Ints, at: Ints | slice = slice(None)) -> Ints:
        """What the records at ``at`` have of one of these for their own stream."""
        return by_side.ravel()[self.place[at]]

    def other(self, by_side: Ints, at: Ints | slice = slice(None)) -> Ints:
        """The same for the other stream."""
        return by_side[::-1].ravel()[self.place[at]]


class Relation(NamedTuple):
    """A relation of every record: its partner or `NOBODY`; whether it counts for certain, now and before the step.

    ``open``: wanted, and not decided yet.
    """

    partner: Ints
    now: Bools
    before: Bools
    open: Bools


class Relations(NamedTuple):
    """The two relations of every record."""

    prev: Relation
    next: Relation


def relate(merged: Merged, known: Known, wants: tuple[Wants, Wants]) -> Relations:
    """The relations of the records of both sides."""
    is_right, ts = merged.is_right, merged.ts
    neighbours = find_neighbours(is_right, merged.new_key, merged.ties)
    # A record at or below what the other side has released has its next neighbour among that, told long ago.
    old = np.flatnonzero(merged.old)
    done = old[ts[old] <= known.other(known.gone, old)]
    neighbours.next[done] = NOBODY
    if wants[0].nearest or wants[1].nearest:
        prev, following = _judge_nearest(merged, known, neighbours, done)
    else:
        prev, following = _judge_both(merged, known, neighbours, old, done)
    return Relations(
        _if_wanted(prev, by_side(is_right, wants[0].prev, wants[1].prev)),
        _if_wanted(following, by_side(is_right, wants[0].next, wants[1].next)),
    )


def new_pairs(merged: Merged, relations: Relations) -> tuple[Ints, Ints]:
    """The pairs that became certain: indices of the left and of the right records, ordered by (left, right)."""
    prev, following = _said_once(relations)
    if merged.ties is not None:
        return _each_once(merged.is_right, prev, following)
    left, right = _held_together(merged.is_right, prev, np.flatnonzero(prev.now & ~prev.before))
    more = np.flatnonzero(following.now & ~following.before)
    if not len(more):
        return left, right
    more_left, more_right = _held_together(merged.is_right, following, more)
    code = np.append((left << _SHIFT) + right, (more_left << _SHIFT) + more_right)
    # Each of the two is in order already, which this way of sorting makes use of.
    code.sort(kind="stable")
    return code >> _SHIFT, code & _MASK


_SHIFT: Final = 32
_MASK: Final = (1 << _SHIFT) - 1


def _each_once(is_right: Bools, prev: Relation, following: Relation) -> tuple[Ints, Ints]:
    """As `new_pairs`, where equal times on both sides may hold a pair together by any of four relations."""
    codes = []
    for relation in (prev, following):
        at = np.flatnonzero(relation.now)
        left, right = _held_together(is_right, relation, at)
        codes.append((left << _SHIFT) + (right << 1) + ~relation.before[at])
    code = np.concatenate(codes)
    code.sort()
    # Of the relations that hold a pair, one that was certain before stands first, and tells that it is not new.
    emitted = code[np.flatnonzero(segment_starts(code >> 1) & (code & 1).astype(bool))]
    return emitted >> _SHIFT, (emitted & _MASK) >> 1


def _held_together(is_right: Bools, relation: Relation, at: Ints) -> tuple[Ints, Ints]:
    """The pairs of the records at ``at`` with their partners: the left ones, the right ones."""
    partner = relation.partner[at]
    left = np.where(is_right[at], partner, at)
    return left, at + partner - left


def _said_once(relations: Relations) -> Relations:
    """Where x is the previous of y and y the next of x, the first of these says what both do."""
    prev, following = relations
    at = np.arange(len(prev.partner))
    # An index of `NOBODY` gives the last entry, whose next is nobody.
    mutual = following.partner[prev.partner] == at
    now = prev.now | (mutual & following.now[prev.partner])
    before = prev.before | (mutual & following.before[prev.partner])
    alone = prev.partner[following.partner] != at
    return Relations(
        prev._replace(now=now, before=before), following._replace(now=following.now & alone, before=following.before)
    )


def _judge_both(merged: Merged, known: Known, neighbours: Neighbours, old: Ints, done: Ints) -> Relations:
    """Certain is prev by itself, and next by itself."""
    prev, following = neighbours
    has_prev, has_next = prev != NOBODY, following != NOBODY
    ts, frontier = merged.ts, known.frontier
    next_ts = ts[following]
    passed, next_now = frontier > ts, has_next & ((next_ts <= frontier) | (next_ts == ts))
    prev_now, next_open = has_prev & passed, ~next_now
    next_open[done] = False
    ts, next_ts, frontier = ts[old], next_ts[old], known.other(known.before, old)
    prev_before, next_before = np.zeros((2, len(passed)), dtype=bool)
    prev_before[old] = prev_now[old] & merged.old[prev[old]] & (frontier > ts)
    next_before[old] = next_now[old] & merged.old[following[old]] & ((next_ts <= frontier) | (next_ts == ts))
    return Relations(
        Relation(prev, prev_now, prev_before, ~passed), Relation(following, next_now, next_before, next_open)
    )


def _judge_nearest(merged: Merged, known: Known, neighbours: Neighbours, done: Ints) -> Relations:
    """Certain is one of the two, once nothing nearer can come."""
    prev, following = neighbours
    ts, gone = merged.ts, known.other(known.gone)
    has_prev, has_next = prev != NOBODY, following != NOBODY
    # Where the previous neighbour has been released, it was the last one that was.
    to_prev, to_next = gap(ts, np.where(has_prev, ts[prev], gone)), gap(ts[following], ts)
    is_prev = (has_prev | (gone != NEVER)) & (~has_next | (to_prev <= to_next))

    def decided(by_side: Ints) -> tuple[Bools, Bools]:
        frontier = known.other(by_side)
        next_known = has_next & ((ts[following] <= frontier) | (to_next == 0))
        prev_known = is_prev & (frontier > ts) & ((to_prev <= gap(frontier, ts)) | next_known)
        prev_known[done] = False
        return prev_known, next_known & ~is_prev

    prev_now, next_now = decided(known.now)
    prev_before, next_before = decided(known.before)
    prev_before &= merged.old & merged.old[prev]
    next_before &= merged.old & merged.old[following]
    is_open = ~prev_now & ~next_now
    is_open[done] = False
    # The other one of the two is not looked for.
    prev, following = np.where(is_prev, prev, NOBODY), np.where(is_prev, NOBODY, following)
    return Relations(
        Relation(prev, prev_now & has_prev, prev_before, is_open), Relation(following, next_now, next_before, is_open)
    )


def gap(later: Ints, earlier: Ints) -> Gaps:
    """``later - earlier`` in ns; exact over the whole range of int64 where it is not negative, else of no meaning."""
    # The difference of two int64 fits into uint64, where the subtraction wraps to it.
    return later.view(np.uint64) - earlier.view(np.uint64)


def by_side(is_right: Bools, left: bool, right: bool) -> Bools | np.bool_:  # noqa: FBT001 - of each side the same
    """For each record what is true of its side."""
    return np.bool_(left) if left == right else np.where(is_right, right, left)


def _if_wanted(relation: Relation, wanted: Bools | np.bool_) -> Relation:
    if wanted is np.True_:
        return relation
    return relation._replace(now=relation.now & wanted, before=relation.before & wanted, open=relation.open & wanted)
