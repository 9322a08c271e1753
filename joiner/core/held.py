"""The records a buffer holds, and which of them it can let go.

Held records are columns, in the order (key, ts, seq) within each key. A record leaves as soon as no future and no
pending record can have it as a neighbour, and only from the front of its key: one in the middle also keeps older
ones from being neighbours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from joiner.core.frontier import FOREVER, less
from joiner.core.match import Relation, Relations, Side
from joiner.core.order import NOBODY, position_in_segment, segment_starts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]


class Held(NamedTuple):
    """Records of one stream: key, time in ns, log position, identity, ordinal among equal times; int64 (n,) each."""

    key: Ints
    ts: Ints
    seq: Ints
    identity: Ints
    ordinal: Ints

    @classmethod
    def nothing(cls) -> Self:
        """No records."""
        return cls(*(np.empty(0, dtype=np.int64) for _ in cls._fields))

    def take(self, which: Ints | Bools) -> Held:
        """The records of an index or a mask."""
        return Held(*(column[which] for column in self))

    def plus(self, other: Held) -> Held:
        """These records and then ``other``."""
        return Held(*(np.concatenate(pair) for pair in zip(self, other, strict=True)))


def merge(old: Held, new: Held, *, identified: bool) -> tuple[Held, Bools, Ints]:
    """Put new records among the old ones.

    Returns the records in the order (key, ts, seq), a mask of the old ones among them, and the positions (seq)
    of duplicates that were left out: those with the key, time and identity of an earlier record.
    """
    both = old.plus(new)
    order = np.lexsort((both.ts, both.key))  # stable: equal times stay in log order, old ones first
    merged, is_old = both.take(order), order < len(old.key)
    starts = segment_starts(merged.key, merged.ts)
    duplicate_seq = np.empty(0, dtype=np.int64)
    if starts.all():
        return merged, is_old, duplicate_seq
    if identified:
        duplicate = _repeats(merged, starts)
        if duplicate.any():
            duplicate_seq = merged.seq[duplicate]
            merged, is_old = merged.take(~duplicate), is_old[~duplicate]
            starts = segment_starts(merged.key, merged.ts)
    # A group of equal times that still gets records has lost none (they are held until the stream's own frontier
    # has passed them), so its positions are its ordinals; a group that has lost some keeps those it was given.
    ordinal = np.where(is_old, merged.ordinal, position_in_segment(starts))
    return merged._replace(ordinal=ordinal), is_old, duplicate_seq


def _repeats(merged: Held, starts: Bools) -> Bools:
    """Which records repeat the identity of an earlier one of their group of equal key and time."""
    group = np.cumsum(starts)
    shared = np.flatnonzero(np.bincount(group)[group] > 1)
    order = shared[np.lexsort((merged.identity[shared], group[shared]))]
    repeated = np.zeros(len(starts), dtype=bool)
    repeated[order] = ~segment_starts(group[order], merged.identity[order])
    return repeated


def find_released(
    side: Side,
    own_now: Ints,
    relations: Relations,
    other: Side,
    of_other: Relations,
    tolerance_ns: int | None,
) -> Bools:
    """Which records of ``side`` nobody can have as a neighbour any more; shape (n,).

    ``own_now`` is the own stream's frontier of each record's key, ``relations`` and ``of_other`` those of the two
    sides. With a tolerance, neighbours that are farther away count as none.
    """
    if not len(side.key):
        return np.empty(0, dtype=bool)
    # What comes later has a time from the frontier on, which must not be farther than the tolerance.
    in_reach = _reaches(side.ts, side.other_now, tolerance_ns) & (side.other_now != FOREVER)
    still_last = _last_before(side)
    awaits_next = (side.ts > side.other_gone) & ~relations.next.now
    needed = in_reach & (still_last | awaits_next)
    needed |= side.ts >= side.other_now
    # A record that may still get a twin (an equal time, or itself again) is kept to recognise it by.
    needed |= side.ts >= own_now
    _add_tentative(needed, side, other, of_other.prev, tolerance_ns)
    key_starts = segment_starts(side.key)
    wanted = np.cumsum(needed)
    before_key = np.maximum.accumulate(np.where(key_starts, wanted - needed, 0))
    released: Bools = wanted == before_key
    return released


def _last_before(side: Side) -> Bools:
    """Whether a future record of the other side can have the record as its previous neighbour."""
    last = np.empty(len(side.key), dtype=bool)
    last[-1:] = True
    last[:-1] = (side.key[1:] != side.key[:-1]) | (side.ts[1:] > side.other_now[:-1])
    return last


def _add_tentative(needed: Bools, side: Side, other: Side, prev: Relation, tolerance_ns: int | None) -> None:
    """Add the records that a pending record of the other side has as its previous neighbour for now."""
    pending = np.flatnonzero((prev.partner != NOBODY) & ~prev.now)
    at = prev.partner[pending]
    needed[at[_reaches(side.ts[at], other.ts[pending], tolerance_ns)]] = True


def _reaches(ts: Ints, until: Ints, tolerance_ns: int | None) -> Bools:
    """Whether ``until - ts`` is at most the tolerance."""
    if tolerance_ns is None:
        return np.ones(len(ts), dtype=bool)
    return ts >= less(until, tolerance_ns)


def within(left_ts: Ints, right_ts: Ints, tolerance_ns: int | None) -> Bools:
    """Whether two times are at most the tolerance apart; exact over the whole range of int64."""
    if tolerance_ns is None:
        return np.ones(len(left_ts), dtype=bool)
    high, low = np.maximum(left_ts, right_ts), np.minimum(left_ts, right_ts)
    # The difference of two int64 fits into uint64, where the subtraction wraps to it.
    return (high.view(np.uint64) - low.view(np.uint64)) <= np.uint64(tolerance_ns)
