"""Computes the same result as the oracle, but fast enough for millions of records.

It shares no code with the engine and is not incremental. All records are sorted once by key and time, neighbours are
found by binary search, and relations that are not certain at the final frontiers are dropped. Property tests compare it
with the nested loops of `joiner.check.model.oracle`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from joiner.check.model.oracle import ALL_KEYS, Watermark

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from joiner.check.model.oracle import Rec

    Ints = NDArray[np.int64]

_NOTHING_YET: Final = np.iinfo(np.int64).min
_ENDED: Final = np.iinfo(np.int64).max


class Answer(NamedTuple):
    """The pairs (left seq, right seq) that must have been emitted, and the seqs of each side's late records."""

    pairs: set[tuple[int, int]]
    left_late: set[int]
    right_late: set[int]


def join(
    left: Sequence[Rec | Watermark],
    right: Sequence[Rec | Watermark],
    *,
    tolerance_ns: int | None = None,
    lateness_ns: int | tuple[int, int] = 0,
    direction: str = "both",
    driver: str = "both",
    watermark_scope: str = "key",
    closed: bool = False,
) -> Answer:
    """Return the same result as `joiner.check.model.oracle.join`, but faster."""
    lateness = lateness_ns if isinstance(lateness_ns, tuple) else (lateness_ns, lateness_ns)
    judges = [Judge(lateness[side], watermark_scope) for side in (0, 1)]
    late: list[set[int]] = [set(), set()]
    for side, entries in enumerate((left, right)):
        for entry in entries:
            if isinstance(entry, Watermark):
                judges[side].watermark(entry.key, entry.ts)
            elif judges[side].judge(entry.key, entry.ts, entry.seq, entry.event) == LATE:
                late[side].add(entry.seq)
    r_stream, s_stream = (judge.stream() for judge in judges)
    pairs = certain_pairs(r_stream, s_stream, tolerance_ns, direction=direction, driver=driver, closed=closed)
    seqs = zip(pairs.left_seq.tolist(), pairs.right_seq.tolist(), strict=True)
    return Answer(set(seqs), *late)


def unmatched(
    left: Stream,
    right: Stream,
    tolerance_ns: int | None,
    *,
    direction: str = "both",
    driver: str = "both",
) -> tuple[set[int], set[int]]:
    """Return the same result as `joiner.check.model.oracle.unmatched`, but faster.

    For each record without a pair, this checks whether any possible future record of the other stream could pair with
    it.
    """
    paired = certain_pairs(left, right, tolerance_ns, direction=direction, driver=driver, closed=True)
    sides = ("left", left, right, paired.left_seq), ("right", right, left, paired.right_seq)
    found: list[set[int]] = []
    for name, own, other, has_pair in sides:
        drives, other_drives = driver in {"both", name}, driver != name
        own_times, other_times = own.times_by_key(), other.times_by_key()
        frontier, place = other.frontier_of(own.key), np.arange(len(own.key)) - np.searchsorted(own.key, own.key)
        unpaired: set[int] = set()
        for at in np.flatnonzero(~np.isin(own.seq, has_pair)).tolist():
            key, ts = int(own.key[at]), int(own.ts[at])
            future_times = [
                future
                for future in {max(int(frontier[at]), ts), ts, ts - 1}
                if future >= frontier[at] and (tolerance_ns is None or abs(future - ts) <= tolerance_ns)
            ]
            others, here = other_times.get(key, []), int(place[at])
            has_neighbour = drives and any(_is_neighbour(ts, future, others, direction) for future in future_times)
            is_neighbour = other_drives and any(
                here in _neighbours_of(future, own_times[key], direction) for future in future_times
            )
            if not has_neighbour and not is_neighbour:
                unpaired.add(int(own.seq[at]))
        found.append(unpaired)
    return found[0], found[1]


def _is_neighbour(ts: int, future: int, others: list[int], direction: str) -> bool:
    """Return whether a new record at time ``future`` would become a neighbour of a record at ``ts``.

    ``others``: the times of the records already read on the new record's side, ascending.
    """
    before, behind = bisect_right(others, ts), bisect_left(others, ts)
    is_prev = future <= ts and bisect_right(others, future) == before
    is_next = future >= ts and bisect_right(others, future) == behind
    if direction == "nearest":
        is_next &= not is_prev and (not before or future - ts < ts - others[before - 1])
        is_prev &= behind == len(others) or ts - future <= others[behind] - ts
    return (is_prev and direction != "forward") or (is_next and direction != "backward")


def _neighbours_of(future: int, times: list[int], direction: str) -> set[int]:
    """Return the indices in ``times`` (ascending) of the neighbours of a new record at ``future``."""
    before, behind = bisect_right(times, future) - 1, bisect_left(times, future)
    has_prev, has_next = before >= 0 and direction != "forward", behind < len(times) and direction != "backward"
    if direction == "nearest" and has_prev and has_next:
        has_next = times[behind] - future < future - times[before]
        has_prev = not has_next
    return {place for place, has in ((before, has_prev), (behind, has_next)) if has}


ACCEPTED: Final = 0
LATE: Final = 1
DUPLICATE: Final = 2


class Judge:
    """Classifies the records of one stream, in log order, as accepted, late or duplicate."""

    def __init__(self, lateness_ns: int, watermark_scope: str = "key") -> None:
        """``watermark_scope``: whether a record advances the frontier of its "key" or of the whole "partition"."""
        self._lateness_ns = lateness_ns
        self._by_partition = watermark_scope == "partition"
        self._frontiers: dict[int, int] = {}
        self._events: set[tuple[int, int, str]] = set()
        self._accepted: list[tuple[int, int, int]] = []

    def watermark(self, key: int, ts: int) -> None:
        """Advance the frontier of ``key``, or of `ALL_KEYS`, to ``ts`` unless it is already higher."""
        if ts > self._frontiers.get(key, _NOTHING_YET):
            self._frontiers[key] = ts

    def judge(self, key: int, ts: int, seq: int, event: str | None) -> int:
        """Classify the next record as `ACCEPTED`, `LATE` or `DUPLICATE`. Store it if it is accepted."""
        frontiers = self._frontiers
        own = frontiers.get(key, _NOTHING_YET)
        if ts < own or ts < frontiers.get(ALL_KEYS, _NOTHING_YET):
            return LATE
        if event is not None:
            identity = (key, ts, event)
            if identity in self._events:
                return DUPLICATE
            self._events.add(identity)
        self._accepted.append((key, ts, seq))
        self.watermark(ALL_KEYS if self._by_partition else key, ts - self._lateness_ns)
        return ACCEPTED

    def stream(self) -> Stream:
        """Return the accepted records in sorted order, with the current frontiers."""
        table = np.array(self._accepted, dtype=np.int64).reshape(-1, 3)
        key, ts, seq = table[np.lexsort((table[:, 2], table[:, 1], table[:, 0]))].T
        return Stream(key, ts, seq, dict(self._frontiers))


@dataclass(frozen=True)
class Stream:
    """The accepted records of one stream, sorted by (key, ts, seq), and the frontier of each key that has one."""

    key: Ints
    ts: Ints
    seq: Ints
    frontiers: dict[int, int]

    def times_by_key(self) -> dict[int, list[int]]:
        """Return the times of each key's records, ascending."""
        if not len(self.key):
            return {}
        keys, starts = np.unique(self.key, return_index=True)
        return dict(zip(keys.tolist(), map(np.ndarray.tolist, np.split(self.ts, starts[1:])), strict=True))

    def frontier_of(self, keys: Ints) -> Ints:
        """Return the frontier of each of ``keys`` in ns, shape (n,). ``keys`` must be sorted."""
        everywhere = max(self.frontiers.get(ALL_KEYS, _NOTHING_YET), int(_NOTHING_YET))
        distinct, counts = np.unique(keys, return_counts=True)
        own = [max(self.frontiers.get(key, _NOTHING_YET), everywhere) for key in distinct.tolist()]
        return np.repeat(np.array(own, dtype=np.int64), counts)


class Pairs(NamedTuple):
    """n pairs sorted by (left seq, right seq): seqs, times in ns, and ordinals among equal keys and times.

    All arrays have shape (n,).
    """

    left_seq: Ints
    right_seq: Ints
    left_ts: Ints
    right_ts: Ints
    left_ordinal: Ints
    right_ordinal: Ints


def certain_pairs(
    left: Stream,
    right: Stream,
    tolerance_ns: int | None,
    *,
    direction: str = "both",
    driver: str = "both",
    closed: bool = False,
) -> Pairs:
    """Return all pairs within the tolerance that are certain, given the frontiers of the two streams.

    See `joiner.check.model.oracle.join` for the options.
    """
    left_place, right_place = _places(left, right)
    from_left = from_right = (left_place[:0], left_place[:0])
    if driver != "right":
        from_left = _neighbours(left, left_place, right, right_place, direction, closed=closed)
    if driver != "left":
        from_right = _neighbours(right, right_place, left, left_place, direction, closed=closed)[::-1]
    once = np.unique(np.concatenate([at[0] * len(right.ts) + at[1] for at in (from_left, from_right)]))
    at_left, at_right = np.divmod(once, max(len(right.ts), 1))
    if tolerance_ns is not None:
        near = _distance(left.ts[at_left], right.ts[at_right]) <= np.uint64(tolerance_ns)
        at_left, at_right = at_left[near], at_right[near]
    order = np.lexsort((right.seq[at_right], left.seq[at_left]))
    at_left, at_right = at_left[order], at_right[order]
    return Pairs(
        left.seq[at_left],
        right.seq[at_right],
        left.ts[at_left],
        right.ts[at_right],
        _ordinals(left_place)[at_left],
        _ordinals(right_place)[at_right],
    )


def _places(left: Stream, right: Stream) -> tuple[Ints, Ints]:
    """Number the left and right records so that the numbers order both sides' records by (key, time).

    Equal keys and times get equal numbers. The numbers are computed from the ranks of keys and times, because numbers
    computed from times in ns would overflow.
    """
    times, rank = np.unique(np.concatenate([left.ts, right.ts]), return_inverse=True)
    keys, key_rank = np.unique(np.concatenate([left.key, right.key]), return_inverse=True)
    del keys
    place = (key_rank * len(times) + rank).astype(np.int64)
    return place[: len(left.ts)], place[len(left.ts) :]


def _neighbours(
    own: Stream, place: Ints, other: Stream, others: Ints, direction: str, *, closed: bool
) -> tuple[Ints, Ints]:
    """Return the indices of the records with a certain neighbour in the other stream, and the neighbours' indices."""
    here = np.arange(len(place), dtype=np.int64)
    frontier = np.full(len(place), _ENDED) if closed else other.frontier_of(own.key)
    if not len(others):
        return here[:0], here[:0]
    before = np.searchsorted(others, place, side="right") - 1
    after = np.minimum(np.searchsorted(others, place, side="left"), len(others) - 1)
    has_before = (before >= 0) & (other.key[before] == own.key)
    has_after = (others[after] >= place) & (other.key[after] == own.key)
    previous, following = other.ts[before], other.ts[after]
    is_before = has_before & (frontier > own.ts)
    is_after = has_after & ((following <= frontier) | (following == own.ts))
    if direction == "nearest":
        to_before = _distance(own.ts, previous)
        is_nearer = has_before & (~has_after | (to_before <= _distance(own.ts, following)))
        is_before &= is_nearer & (is_after | (frontier == _ENDED) | (to_before <= _distance(own.ts, frontier)))
        is_after &= ~is_nearer
    is_before &= direction != "forward"
    is_after &= direction != "backward"
    return (
        np.concatenate([here[is_before], here[is_after]]),
        np.concatenate([before[is_before], after[is_after]]),
    )


def _distance(left_ts: Ints, right_ts: Ints) -> NDArray[np.uint64]:
    """Return the distance between two times in ns as uint64, because it can exceed int64."""
    return np.maximum(left_ts, right_ts).view(np.uint64) - np.minimum(left_ts, right_ts).view(np.uint64)


def _ordinals(place: Ints) -> Ints:
    return np.arange(len(place), dtype=np.int64) - np.searchsorted(place, place, side="left")
