"""Finds the records that can be evicted from the buffer.

A record can be evicted once it can no longer become a neighbour of a record that has yet to arrive, or of a held record
whose neighbours are not certain yet. For each stream and key, the oldest records are evicted first. If one in the
middle were missing, an older one would be mistaken for a neighbour.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from joiner.core.arguments import NeighbourSpec
from joiner.core.compiled import compiled, is_within
from joiner.core.match import NEXT, NOW, PREV, Relations, is_open, is_tentative
from joiner.core.record_store import DONE, NOTES, SEQ, TS, Side

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


@compiled()
def evict(
    left: Side,
    right: Side,
    of_left: Relations,
    of_right: Relations,
    frontiers: Ints,
    specs: tuple[NeighbourSpec, NeighbourSpec],
    tolerance: np.uint64,
    ends: bool,  # noqa: FBT001 - a compiled loop has no keyword arguments
) -> tuple[Ints, Ints, Ints, Ints]:
    """Return the first record to keep for each key on each side, and the log positions of the evicted records.

    The result consists of four arrays: the indices of the first left and the first right records to keep, shape (k,)
    each, and the log positions of the evicted left and right records. ``frontiers``: shape (2, k), ns. ``ends``:
    whether both streams have ended, in which case no record is kept. Sets `DONE` in the notes of kept records whose
    certain neighbour is evicted.
    """
    if ends:
        lefts, rights = left.begin[1:], right.begin[1:]
        return lefts, rights, _positions_before(left, lefts), _positions_before(right, rights)
    of_left_side, of_right_side = frontiers[0], frontiers[1]
    lefts = _find_kept(left, right, of_left, of_right, of_left_side, of_right_side, specs[1], tolerance)
    rights = _find_kept(right, left, of_right, of_left, of_right_side, of_left_side, specs[0], tolerance)
    _note_done(left, of_left, lefts, rights, specs[0])
    _note_done(right, of_right, rights, lefts, specs[1])
    return lefts, rights, _positions_before(left, lefts), _positions_before(right, rights)


@compiled()
def _find_kept(
    own: Side,
    other: Side,
    relations: Relations,
    of_other: Relations,
    frontier: Ints,
    other_frontier: Ints,
    other_spec: NeighbourSpec,
    tolerance: np.uint64,
) -> Ints:
    """Return, for each key, the index of the first record that must be kept, shape (k,).

    A record, and every record after it, must be kept while a future or pending record may need it. Neighbours beyond
    the tolerance are ignored.
    """
    ts, others = own.rows[TS], other.rows[TS]
    kept = np.empty_like(frontier)
    for k in range(len(frontier)):
        until = other_frontier[k]
        # From this time on, the other side may still send records, or this side may still send duplicates and records
        # with equal times.
        alive = min(frontier[k], until)
        at, end = own.begin[k], own.begin[k + 1]
        while (
            at < end
            and ts[at] < alive
            and not (is_open(relations.known[NEXT, at]) and is_within(tolerance, until, ts[at]))
        ):
            at += 1
        if other_spec.prev:
            at = min(at, _find_last(ts, own.begin[k], end, until, tolerance))
        for pending in range(other.begin[k], other.begin[k + 1]):
            prev = of_other.at[PREV, pending]
            if is_tentative(of_other.known[PREV, pending]) and is_within(tolerance, others[pending], ts[prev]):
                at = min(at, prev)
                break
        kept[k] = at
    return kept


@compiled()
def _find_last(ts: Ints, begin: int, end: int, until: int, tolerance: np.uint64) -> int:
    """Return the index of the record that would be the previous neighbour of a record arriving at ``until``.

    This is the last record up to ``until``, the other side's frontier. Returns ``end`` if there is none within the
    tolerance.
    """
    for at in range(end - 1, begin - 1, -1):
        if ts[at] <= until:
            return at if is_within(tolerance, until, ts[at]) else end
    return end


@compiled()
def _note_done(own: Side, relations: Relations, kept: Ints, other_kept: Ints, spec: NeighbourSpec) -> None:
    """Set `DONE` in the notes of kept records whose next or nearest neighbour is certain but not kept.

    An evicted previous neighbour needs no note unless ``nearest`` is set, because every record before it is evicted
    too.
    """
    partner, known = relations
    for k in range(len(kept)):
        for at in range(kept[k], own.begin[k + 1]):
            if (known[NEXT, at] & NOW and partner[NEXT, at] < other_kept[k]) or (
                spec.nearest and known[PREV, at] & NOW and partner[PREV, at] < other_kept[k]
            ):
                own.rows[NOTES, at] |= DONE


@compiled()
def _positions_before(own: Side, kept: Ints) -> Ints:
    """Return the log positions of the evicted records: for each key, all records before its index in ``kept``."""
    count = 0
    for k in range(len(kept)):
        count += kept[k] - own.begin[k]
    found, count = np.empty(count, dtype=np.int64), 0
    for k in range(len(kept)):
        for at in range(own.begin[k], kept[k]):
            found[count] = own.rows[SEQ, at]
            count += 1
    return found
