"""What a step brings forth, once the records of its keys are together: the rules of the join, one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from joiner.core.compiled import DURATION, FLAG, INTS, TABLE, compiled, named, several
from joiner.core.match import OF_BOTH, NeighbourSpec, emit_pairs, relate
from joiner.core.record_store import SIDE, Side
from joiner.core.release import evict
from joiner.core.unmatched import find_unmatched

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


class Evaluation(NamedTuple):
    """What is certain now: log positions, but for ``*_ordinal`` and ``*_kept``.

    ``left_seq`` to ``right_ordinal``: the new pairs, as in `Step`; ``*_unmatched``, ``*_released``: as there, in any
    order; ``*_kept``: where in each key the records begin that are held on, shape (k,).
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
    OF_BOTH,
    DURATION,
    several(FLAG, FLAG),
    FLAG,
)
def evaluate(
    left: Side,
    right: Side,
    before: Ints,
    now: Ints,
    wants: tuple[NeighbourSpec, NeighbourSpec],
    tolerance: np.uint64,
    emits_unmatched: tuple[bool, bool],
    ends: bool,  # noqa: FBT001 - a loop takes no keywords
) -> Evaluation:
    """What all records of the keys of a step bring forth.

    ``before``, ``now``: the frontiers before and after the step, (2, k); ``emits_unmatched``: of which side that is
    asked for; ``ends``: nothing comes behind them.
    """
    of_left = relate(left, right, before[1], now[1], wants[0])
    of_right = relate(right, left, before[0], now[0], wants[1])
    left_seq, right_seq, left_ordinal, right_ordinal = emit_pairs(left, right, of_left, of_right, tolerance)
    left_unmatched = right_unmatched = np.empty(0, dtype=np.int64)
    if emits_unmatched[0]:
        left_unmatched = find_unmatched(left, right, of_left, of_right, now[1], wants[1], tolerance)
    if emits_unmatched[1]:
        right_unmatched = find_unmatched(right, left, of_right, of_left, now[0], wants[0], tolerance)
    kept = evict(left, right, of_left, of_right, now, wants, tolerance, ends)
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
