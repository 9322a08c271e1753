"""Which records a buffer can let go.

A record leaves as soon as no future and no pending record can have it as a neighbour, and only from the front of its
stream and key: one in the middle also keeps older ones from being neighbours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from joiner.core.frontier import less
from joiner.core.held import DONE, Merged
from joiner.core.match import Known, Relation, Relations, Wants, gap
from joiner.core.order import Segments

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]


def find_kept(
    merged: Merged, known: Known, relations: Relations, wants: tuple[Wants, Wants], tolerance_ns: int | None
) -> Ints:
    """The indices of the records that must be held on, ascending: of each side and key, the last ones.

    None of these can be let go from the middle: whatever keeps a record, a time that may still come or a neighbour that
    does, keeps all behind it, too. With a tolerance, neighbours that are farther away count as none.
    """
    # The other side can still send their times; or a twin may come, an equal time or itself again, to recognise it by.
    alive = merged.ts >= merged.of_key.spread(np.minimum(known.now[0], known.now[1]))
    tail = _tail(merged, alive)
    entries = tail.entries()
    starts, at = tail.length.cumsum() - tail.length, np.arange(len(entries))
    of_side = merged.is_right.take(entries) == _SIDES
    # By side and key, the last one up to the other side's frontier is the previous neighbour of whatever comes there.
    reached = merged.ts.take(entries) <= known.frontier.take(entries)
    asked = np.array([[wants[1].prev], [wants[0].prev]])
    last = np.maximum.reduceat(np.where(of_side & reached & asked, at, -1), starts, axis=1)
    needed = relations.next.open.copy()
    needed[entries[last[last >= 0]]] = True
    # What comes later has a time from the frontier on, which must not be farther than the tolerance.
    if tolerance_ns is not None:
        needed &= reaches(merged.ts, known.frontier, tolerance_ns)
    needed |= alive
    add_tentative(needed, merged.ts, relations.prev, tolerance_ns)
    return needed.nonzero()[0]


_SIDES: Final = np.array([[False], [True]])


def _tail(merged: Merged, alive: Bools) -> Segments:
    """Of each key the records from the last two that stand before the first living one on, one of either side.

    None before these is needed: they are farther from everything that may still come or is pending.
    """
    start, end = merged.of_key.start, merged.of_key.start + merged.of_key.length
    living = np.append(alive.nonzero()[0], len(alive))
    last = np.minimum(living[living.searchsorted(start)], end) - 1
    # Of its own side, it is itself that one; of the other, the one before its run.
    first = np.where(last < start, start, np.maximum(merged.runs.begin[last] - 1, start))
    return Segments(first, end - first)


def note_done(merged: Merged, relations: Relations, wants: tuple[Wants, Wants], kept: Ints) -> None:
    """Note of the kept records whose certain next, or nearest, neighbour is not kept that they are done with."""
    is_kept = np.zeros(len(merged.key), dtype=bool)
    is_kept[kept] = True
    for relation in relations if wants[0].nearest or wants[1].nearest else (relations.next,):
        certain = kept.compress(relation.now.take(kept))
        merged.note(certain.compress(~is_kept.take(relation.partner.take(certain))), DONE)


def add_tentative(which: Bools, ts: Ints, relation: Relation, tolerance_ns: int | None) -> None:
    """Add the records that a pending record of the other side has as its neighbour for now."""
    pending = (relation.open & relation.there).nonzero()[0]
    at = relation.partner.take(pending)
    which[at[within(ts[at], ts[pending], tolerance_ns)]] = True


def reaches(ts: Ints, until: Ints, tolerance_ns: int | None) -> Bools:
    """Whether ``until - ts`` is at most the tolerance."""
    if tolerance_ns is None:
        return np.ones(len(ts), dtype=bool)
    return ts >= less(until, tolerance_ns)


def within(left_ts: Ints, right_ts: Ints, tolerance_ns: int | None) -> Bools:
    """Whether two times are at most the tolerance apart; exact over the whole range of int64."""
    if tolerance_ns is None:
        return np.ones(len(left_ts), dtype=bool)
    return gap(np.maximum(left_ts, right_ts), np.minimum(left_ts, right_ts)) <= np.uint64(tolerance_ns)
