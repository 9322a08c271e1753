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

from typing import TYPE_CHECKING, Final, NamedTuple, Self

import numpy as np

from joiner.core.held import DONE, Merged
from joiner.core.order import segment_starts

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

    The frontiers before and after a step; and ``frontier``, shape (n,), the other stream's now, for each record.
    """

    before: Ints
    now: Ints
    frontier: Ints

    @classmethod
    def of(cls, before: Ints, now: Ints, merged: Merged) -> Self:
        """What is known of the keys of ``merged``."""
        left, right = merged.of_key.spread(now[0]), merged.of_key.spread(now[1])
        return cls(before, now, np.where(merged.is_right, left, right))

    def other_before(self, merged: Merged, at: Ints) -> Ints:
        """The frontier of the other stream before the step, for the records at ``at``."""
        number = merged.of_key.start.searchsorted(at, side="right") - 1
        found: Ints = self.before[1 - merged.is_right.take(at), number]
        return found


class Relation(NamedTuple):
    """A relation of every record, shape (n,) each: its partner, if one is ``there``.

    ``now`` and ``before``: whether it is certain after the step, and was before it; ``open``: wanted, and not decided
    yet.
    """

    partner: Ints
    there: Bools
    now: Bools
    before: Bools
    open: Bools


class Relations(NamedTuple):
    """The two relations of every record."""

    prev: Relation
    next: Relation


class _Neighbour(NamedTuple):
    """Where each record's neighbour stands, and whether there is one; shape (n,)."""

    at: Ints
    there: Bools


def relate(merged: Merged, known: Known, wants: tuple[Wants, Wants]) -> Relations:
    """The relations of the records of both sides."""
    old = merged.old.nonzero()[0]
    # What decided these was told long ago, and is not here any more.
    done = old.compress(merged.notes(old) & DONE)
    judge = _judge_nearest if wants[0].nearest or wants[1].nearest else _judge_both
    prev, following = judge(merged, known, _find_neighbours(merged), old, done)
    return Relations(
        _if_wanted(prev, by_side(merged.is_right, wants[0].prev, wants[1].prev)),
        _if_wanted(following, by_side(merged.is_right, wants[0].next, wants[1].next)),
    )


def _find_neighbours(merged: Merged) -> tuple[_Neighbour, _Neighbour]:
    """The previous and the next neighbour of every record."""
    of_key, runs, ties = merged.of_key, merged.runs, merged.ties
    prev, following = runs.begin - 1, runs.behind
    has_prev = prev >= of_key.spread(of_key.start)
    has_next = following < of_key.spread(of_key.start + of_key.length)
    if len(ties.start):
        # A left record's previous neighbour stands behind it, the last of the equal ones; a right one's next before it.
        entries = ties.entries()
        right = merged.is_right[entries]
        lefts, rights = entries[~right], entries[right]
        following = following.copy()
        prev[lefts] = ties.spread(ties.start + ties.length - 1)[~right]
        following[rights] = ties.spread(ties.start)[right]
        has_prev[lefts] = has_next[rights] = True
    return _Neighbour(prev, has_prev), _Neighbour(following, has_next)


def _judge_both(
    merged: Merged, known: Known, neighbours: tuple[_Neighbour, _Neighbour], old: Ints, done: Ints
) -> Relations:
    """Certain is prev by itself, and next by itself."""
    prev, following = neighbours
    ts, next_ts = merged.ts, merged.ts.take(following.at, mode="clip")
    passed, reached = known.frontier > ts, next_ts <= known.frontier
    if len(merged.ties.start):
        reached |= next_ts == ts
    prev_now, next_now = prev.there & passed, following.there & reached
    next_now[done] = False
    next_open = ~next_now
    next_open[done] = False
    prev_before, next_before = np.zeros((2, len(ts)), dtype=bool)
    ts, next_ts, frontier = ts.take(old), next_ts.take(old), known.other_before(merged, old)
    # What is new was not late, so it is nobody's previous neighbour for whom the frontier had passed.
    prev_before[old] = prev_now.take(old) & (frontier > ts)
    behind = merged.old.take(following.at.take(old), mode="clip")
    next_before[old] = next_now.take(old) & behind & ((next_ts <= frontier) | (next_ts == ts))
    return Relations(
        Relation(*prev, prev_now, prev_before, ~passed), Relation(*following, next_now, next_before, next_open)
    )


def _judge_nearest(
    merged: Merged, known: Known, neighbours: tuple[_Neighbour, _Neighbour], old: Ints, done: Ints
) -> Relations:
    """Certain is one of the two, once nothing nearer can come."""
    prev, following = neighbours
    ts, next_ts = merged.ts, merged.ts.take(following.at, mode="clip")
    to_prev, to_next = gap(ts, ts.take(prev.at, mode="clip")), gap(next_ts, ts)
    is_prev = prev.there & (~following.there | (to_prev <= to_next))

    def decided(which: Ints | slice, frontier: Ints) -> tuple[Bools, Bools]:
        next_known = following.there[which] & ((next_ts[which] <= frontier) | (to_next[which] == 0))
        near = (to_prev[which] <= gap(frontier, ts[which])) | next_known
        return is_prev[which] & (frontier > ts[which]) & near, next_known & ~is_prev[which]

    prev_now, next_now = decided(slice(None), known.frontier)
    prev_now[done] = next_now[done] = False
    is_open = ~prev_now & ~next_now
    is_open[done] = False
    prev_before, next_before = np.zeros((2, len(ts)), dtype=bool)
    behind = merged.old.take(following.at.take(old), mode="clip")
    prev_known, next_known = decided(old, known.other_before(merged, old))
    prev_before[old] = prev_now[old] & prev_known
    next_before[old] = next_now[old] & behind & next_known
    # The other one of the two is not looked for.
    return Relations(
        Relation(prev.at, is_prev, prev_now, prev_before, is_open),
        Relation(following.at, following.there & ~is_prev, next_now, next_before, is_open),
    )


def new_pairs(merged: Merged, relations: Relations) -> tuple[Ints, Ints]:
    """The pairs that became certain: indices of the left and of the right records, ordered by (left, right)."""
    found = []
    if len(merged.ties.start):
        tied = merged.ties.entries()
        found.append(_pairs_of_equal_times(merged.is_right, relations, tied))
        apart = np.ones(len(merged.key), dtype=bool)
        apart[tied] = False
        relations = Relations(*(_if_wanted(relation, apart) for relation in relations))
    prev, following = relations
    next_told, prev_told = following.now & ~following.before, prev.now & ~prev.before
    # Where a run begins, its first record is the next neighbour of the one before, which is its previous one: a single
    # pair, which the next neighbour tells, or has told, unless the previous one was quicker.
    begins = merged.runs.new[1:]
    next_told[:-1] &= ~(begins & prev.before[1:])
    prev_told[1:] &= ~(begins & following.now[:-1])
    for relation, told in ((following, next_told), (prev, prev_told)):
        at = told.nonzero()[0]
        if len(at) or not found:
            found.append(_of_relation(merged.is_right, relation.partner, at))
    if len(found) == 1:
        return found[0]
    code = np.concatenate([(left << _SHIFT) + right for left, right in found])
    # Each part is in order already, which this way of sorting makes use of.
    code.sort(kind="stable")
    return code >> _SHIFT, code & _MASK


_SHIFT: Final = 32
_MASK: Final = (1 << _SHIFT) - 1


def _pairs_of_equal_times(is_right: Bools, relations: Relations, tied: Ints) -> tuple[Ints, Ints]:
    """The new pairs of the records at ``tied``, where any of four relations may hold a pair together."""
    codes = []
    for relation in relations:
        at = tied[relation.now[tied]]
        left, right = _of_relation(is_right, relation.partner, at)
        codes.append((left << _SHIFT) + (right << 1) + ~relation.before[at])
    code = np.concatenate(codes)
    code.sort(kind="stable")
    # Of the relations that hold a pair, one that was certain before stands first, and tells that it is not new.
    told = code[np.flatnonzero(segment_starts(code >> 1) & (code & 1).astype(bool))]
    return told >> _SHIFT, (told & _MASK) >> 1


def _of_relation(is_right: Bools, partners: Ints, at: Ints) -> tuple[Ints, Ints]:
    """The pairs of the records at ``at`` with their partners: the left ones, the right ones."""
    partner = partners.take(at)
    left = np.where(is_right.take(at), partner, at)
    return left, at + partner - left


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
    now, before, still = (flags & wanted for flags in (relation.now, relation.before, relation.open))
    return relation._replace(now=now, before=before, open=still)
