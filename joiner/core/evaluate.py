"""Applies the rules of the join, in order, to all records of the keys that a step touches.

Also finds lower bounds on the times of the pairs that later steps can emit (`find_bounds`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from joiner.core.arguments import NeighbourSpec
from joiner.core.compiled import DURATION, FLAG, INTS, TABLE, compiled, named, several
from joiner.core.frontier import FOREVER, NEVER, less
from joiner.core.match import NEXT, PREV, SPECS, Relations, emit_pairs, is_open, relate
from joiner.core.record_store import SIDE, TS, Side
from joiner.core.release import evict
from joiner.core.unmatched import find_unmatched

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


class Evaluation(NamedTuple):
    """The output of `evaluate` for one step: int64 arrays of log positions, except ``*_ordinal`` and ``*_kept``.

    ``left_seq`` to ``right_ordinal``: the new pairs, as in `Step`. ``*_unmatched``, ``*_released``: as in `Step`, in
    no particular order. ``*_kept``: for each key, the index of the first record that stays in the buffer, shape (k,).
    """

    left_seq: Ints
    right_seq: Ints
    left_ordinal: Ints
    right_ordinal: Ints
    left_unmatched: Ints
    right_unmatched: Ints
    left_kept: Ints
    right_kept: Ints
    left_released: Ints
    right_released: Ints


@compiled(
    named(Evaluation, *(INTS for _ in Evaluation._fields)),
    SIDE,
    SIDE,
    TABLE,
    TABLE,
    SPECS,
    DURATION,
    several(FLAG, FLAG),
    FLAG,
)
def evaluate(
    left: Side,
    right: Side,
    before: Ints,
    now: Ints,
    specs: tuple[NeighbourSpec, NeighbourSpec],
    tolerance: np.uint64,
    emits_unmatched: tuple[bool, bool],
    ends: bool,  # noqa: FBT001 - a compiled loop has no keyword arguments
) -> Evaluation:
    """Find the new pairs, unmatched records and evictable records among all records of a step's k keys.

    ``before``, ``now``: the frontiers before and after the step, shape (2, k), ns. ``specs``, ``emits_unmatched``:
    (left, right). ``tolerance``: ns. ``ends``: whether both streams have ended.
    """
    of_left = relate(left, right, before[1], now[1], specs[0])
    of_right = relate(right, left, before[0], now[0], specs[1])
    left_seq, right_seq, left_ordinal, right_ordinal = emit_pairs(left, right, of_left, of_right, tolerance)
    left_unmatched = right_unmatched = np.empty(0, dtype=np.int64)
    if emits_unmatched[0]:
        left_unmatched = find_unmatched(left, right, of_left, of_right, now[1], specs[1], tolerance)
    if emits_unmatched[1]:
        right_unmatched = find_unmatched(right, left, of_right, of_left, now[0], specs[0], tolerance)
    kept = evict(left, right, of_left, of_right, now, specs, tolerance, ends)
    left_kept, right_kept, left_released, right_released = kept
    return Evaluation(
        left_seq,
        right_seq,
        left_ordinal,
        right_ordinal,
        left_unmatched,
        right_unmatched,
        left_kept,
        right_kept,
        left_released,
        right_released,
    )


@compiled(INTS, SIDE, SIDE, TABLE, SPECS, DURATION)
def find_bounds(
    left: Side, right: Side, frontiers: Ints, specs: tuple[NeighbourSpec, NeighbourSpec], tolerance: np.uint64
) -> Ints:
    """Return, for each of k keys, a lower bound on the mean times of all pairs still to come, rounded down, in ns.

    ``left``, ``right``: all held records of the keys, except those in the backlog, which are later than the records
    that determine the bounds. ``frontiers``: shape (2, k), ns. ``specs``, ``tolerance``: as in `evaluate`. A key's
    bound is `NEVER` while either of its frontiers is.

    A pair is found when one of its records looks for the other. Later records find later neighbours, so it is enough to
    look at the earliest record that may still find one: the first held record whose neighbour is not certain, or a
    record that arrives at its side's frontier. Its neighbour is held, or arrives at the other frontier or later. If two
    records are within the tolerance, their mean time is at most half the tolerance before the later one.
    """
    of_left = relate(left, right, frontiers[1], frontiers[1], specs[0])
    of_right = relate(right, left, frontiers[0], frontiers[0], specs[1])
    bounds = np.empty(frontiers.shape[1], dtype=np.int64)
    for k in range(len(bounds)):
        of_left_side, of_right_side = frontiers[0, k], frontiers[1, k]
        bounds[k] = min(
            _bound_of_side(left, right, of_left, of_left_side, of_right_side, specs[0], tolerance, k),
            _bound_of_side(right, left, of_right, of_right_side, of_left_side, specs[1], tolerance, k),
        )
    return bounds


@compiled()
def _bound_of_side(
    own: Side,
    other: Side,
    relations: Relations,
    frontier: int,
    other_frontier: int,
    spec: NeighbourSpec,
    tolerance: np.uint64,
    k: int,
) -> int:
    """Return the bound for the pairs that records on side ``own`` find; `FOREVER` if they do not look for any."""
    if not (spec.prev or spec.next):
        return FOREVER
    if NEVER in (frontier, other_frontier):
        return NEVER
    others = other.rows[TS, other.begin[k] : other.begin[k + 1]]
    bound = FOREVER
    if spec.prev:
        # With `nearest`, an open relation is marked in both rows, so it is enough to look at one.
        one = min(frontier, _first_open(own, relations, PREV, k))
        bound = _mean_within(tolerance, *_previous_pair(one, others, other_frontier, spec.nearest))
    if spec.next and not spec.nearest:
        held = _first_open(own, relations, NEXT, k)
        if held != FOREVER:
            bound = min(bound, _mean_within(tolerance, held, max(held, other_frontier)))
        following = np.searchsorted(others, frontier)
        partner = max(frontier, other_frontier)
        partner = min(partner, others[following]) if following < len(others) else partner
        bound = min(bound, _mean_within(tolerance, frontier, partner))
    return bound


@compiled()
def _first_open(own: Side, relations: Relations, which: int, k: int) -> int:
    """Return the time of a key's first held record whose relation ``which`` is open, or `FOREVER` if there is none."""
    for at in range(own.begin[k], own.begin[k + 1]):
        if is_open(relations.known[which, at]):
            ts: int = own.rows[TS, at]
            return ts
    return FOREVER


@compiled()
def _previous_pair(one: int, others: Ints, other_frontier: int, nearest: bool) -> tuple[int, int]:  # noqa: FBT001 - a compiled loop has no keyword arguments
    """Return the times of the earliest pair of a record at or after ``one`` with its previous or nearest neighbour.

    ``others``: the times of the held records that may be the neighbour, ascending.
    """
    behind = np.searchsorted(others, one, side="right")
    if behind > 0:
        return one, others[behind - 1]
    partner = other_frontier if len(others) == 0 else min(other_frontier, others[0])
    return one if nearest else max(one, partner), partner


@compiled()
def _mean_within(tolerance: np.uint64, one: int, other: int) -> int:
    """Return the mean of two times, rounded down, but not less than half the tolerance before the later time."""
    # The sum of two times may overflow int64, and so may half the tolerance rounded up.
    mean = (one >> 1) + (other >> 1) + (one & other & 1)
    half, odd = int(tolerance >> np.uint64(1)), int(tolerance & np.uint64(1))
    return max(mean, less(less(max(one, other), half), odd))
