"""Applies the rules of the join, in order, to all records of the keys that a step touches."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from joiner.core.arguments import NeighbourSpec
from joiner.core.compiled import DURATION, FLAG, INTS, TABLE, compiled, named, several
from joiner.core.match import SPECS, emit_pairs, relate
from joiner.core.record_store import SIDE, Side
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
    """Find the new pairs, unmatched records and evictable records among all records with one of a step's k keys.

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
