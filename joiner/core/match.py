"""Which relations are certain, and which pairs became so just now.

A record r has up to two relations, to its previous and to its next neighbour s, and s has two of its own; a pair
may be held together by up to four. Certain means that no continuation of the streams can take the relation away:

    previous of r     once the other side's frontier > r.ts; strictly, an equal time may still come
    next of r is s    once s.ts <= the other side's frontier, or s.ts = r.ts (a later tie has a later position)

Certainty is monotone. So there is no memory of emitted pairs: a pair is emitted iff one of its relations is
certain under the new frontiers and none was under the old ones with both records present.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from joiner.core.order import NOBODY, Neighbours, find_neighbours

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]

T = TypeVar("T", bound=np.generic)


class Side(NamedTuple):
    """One side's records in the order (key, ts, seq), with what is known of the *other* side's stream.

    ``old``: held before this step. ``other_before``/``other_now``: the other side's frontier of the record's key
    before and after the step. ``other_gone``: the largest time of the key that the other side has released; a
    record at or below it has its next neighbour among the released, certain and emitted long ago.
    """

    key: Ints
    ts: Ints
    old: Bools
    other_before: Ints
    other_now: Ints
    other_gone: Ints


class Relation(NamedTuple):
    """A relation of every record of one side: its partner or `NOBODY`; whether it is certain, now and before."""

    partner: Ints
    now: Bools
    before: Bools


class Relations(NamedTuple):
    """The two relations of one side's records."""

    prev: Relation
    next: Relation


def relate(left: Side, right: Side) -> tuple[Relations, Relations]:
    """The relations of the left records and those of the right ones."""
    of_left, of_right = find_neighbours((left.key, left.ts), (right.key, right.ts))
    return _judge(left, right, of_left), _judge(right, left, of_right)


def new_pairs(left: Relations, right: Relations) -> tuple[Ints, Ints]:
    """The pairs that became certain: indices of the left and of the right records, ordered by (left, right).

    Of the relations that hold a pair together the first in the order left.prev, left.next, right.prev,
    right.next speaks for all of them.
    """
    found = [
        _spoken_for(left.prev, same=[left.next], other=[right.prev, right.next], said=[], other_said=[]),
        _spoken_for(left.next, same=[], other=[right.prev, right.next], said=[left.prev], other_said=[]),
    ]
    flipped = [
        _spoken_for(right.prev, same=[right.next], other=[], said=[], other_said=[left.prev, left.next]),
        _spoken_for(right.next, same=[], other=[], said=[right.prev], other_said=[left.prev, left.next]),
    ]
    left_at = np.concatenate([pair[0] for pair in found] + [pair[1] for pair in flipped])
    right_at = np.concatenate([pair[1] for pair in found] + [pair[0] for pair in flipped])
    order = np.lexsort((right_at, left_at))
    return left_at[order], right_at[order]


def _judge(side: Side, other: Side, neighbours: Neighbours) -> Relations:
    prev = neighbours.prev
    has_prev = prev != NOBODY
    both_old = side.old & _at(other.old, prev, missing=False)
    before_prev, now_prev = side.other_before > side.ts, side.other_now > side.ts
    following = np.where(side.ts > side.other_gone, neighbours.next, NOBODY)
    has_next = following != NOBODY
    both_old_next = side.old & _at(other.old, following, missing=False)
    next_ts = _at(other.ts, following, missing=0)
    tied = next_ts == side.ts
    return Relations(
        Relation(prev, has_prev & now_prev, has_prev & both_old & before_prev),
        Relation(
            following,
            has_next & (tied | (next_ts <= side.other_now)),
            has_next & both_old_next & (tied | (next_ts <= side.other_before)),
        ),
    )


def _spoken_for(
    relation: Relation,
    *,
    same: list[Relation],
    other: list[Relation],
    said: list[Relation],
    other_said: list[Relation],
) -> tuple[Ints, Ints]:
    """The pairs that ``relation`` emits: own index, partner's index.

    ``same`` and ``other`` are the relations of its own side's and of the partner's records that it speaks for
    where they hold the same pair; ``said`` and ``other_said`` are those that speak for it.
    """
    own = np.flatnonzero(relation.partner != NOBODY)
    partner = relation.partner[own]
    silent = np.zeros(len(own), dtype=bool)
    for earlier in said:
        silent |= earlier.partner[own] == partner
    for earlier in other_said:
        silent |= earlier.partner[partner] == own
    own, partner = own[~silent], partner[~silent]
    now, before = relation.now[own], relation.before[own]
    for twin in same:
        holds = twin.partner[own] == partner
        now, before = now | (holds & twin.now[own]), before | (holds & twin.before[own])
    for twin in other:
        holds = twin.partner[partner] == own
        now, before = now | (holds & twin.now[partner]), before | (holds & twin.before[partner])
    emitted = now & ~before
    return own[emitted], partner[emitted]


def _at(values: NDArray[T], index: Ints, *, missing: object) -> NDArray[T]:
    """``values[index]``, and ``missing`` where the index is `NOBODY`."""
    if not len(values):
        return np.full(len(index), missing, dtype=values.dtype)
    return np.where(index == NOBODY, np.asarray(missing, dtype=values.dtype), values[index])
