"""How far a stream is: the frontier of each key, and which records came too late for it.

``F(key)`` is the larger of (largest time of the key) - lateness and the highest mark that covers the key. It is
a promise about what comes later; a record below it on arrival is late. With ``by_partition`` the largest time of the
whole stream takes the place of the key's own. Records are judged one after the other in
log order, here for a whole batch at once. A late record never moves the frontier that it is late for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from joiner.core.arguments import ALL_KEYS, Marks, Records
from joiner.core.order import Segments, grouping_order, segment_starts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]

NEVER: Final = np.iinfo(np.int64).min
"""The frontier of a key of which nothing is known: below every time."""

FOREVER: Final = np.iinfo(np.int64).max
"""The frontier of a stream that has ended: above every time."""


class Frontiers:
    """The frontiers of both streams: of each key, ``by_key`` of shape (2, keys), and what covers all keys, (2, 1)."""

    def __init__(self, lateness_ns: tuple[int, int], *, by_partition: bool = False) -> None:
        """``by_partition``: a record tells of all keys, not of its own alone."""
        self.lateness_ns = lateness_ns
        self.by_partition = by_partition
        self.by_key: Ints = np.empty((2, 0), dtype=np.int64)
        self.of_all: Ints = np.full((2, 1), NEVER)

    def at(self, keys: Ints) -> Ints:
        """``F`` of each of ``keys``, which have room: shape (2, k), ns."""
        return np.maximum(self.by_key.take(keys, axis=1), self.of_all)

    def grow(self, keys: int) -> None:
        """Make room for keys below ``keys``; doubles so that growing stays cheap."""
        have = self.by_key.shape[1]
        if keys > have:
            self.by_key = np.hstack([self.by_key, np.full((2, max(keys - have, have)), NEVER)])

    def concerns_all(self, records: Records, marks: Marks) -> bool:
        """Whether a batch of either side may move the frontier of keys that it does not name."""
        return bool((self.by_partition and len(records.key)) or (len(marks.key) and marks.key.min() == ALL_KEYS))

    def advance(self, side: int, records: Records, marks: Marks, highest: int) -> Ints:
        """Take a batch of one side in log order; returns the indices of the records that are late.

        Keys must have room; ``highest``: of what is known of the side, for the keys of the batch.
        """
        if not len(records.key) and not len(marks.key):
            return _NOBODY
        promise = less(records.ts, self.lateness_ns[side])
        if self.by_partition or len(marks.key):
            return np.flatnonzero(self._advance_with_marks(side, records, promise, marks))
        if records.in_order and promise[0] >= highest:
            # Of equal keys the last one is assigned last, and is the largest.
            self.by_key[side, records.key] = promise
            return _NOBODY
        before = np.maximum(self._raise_keys(side, records.key, promise), self.of_all[side])
        return np.flatnonzero(records.ts < before)

    def _advance_with_marks(self, side: int, records: Records, promise: Ints, marks: Marks) -> Bools:
        covers = marks.key == ALL_KEYS
        seq = np.append(records.seq, marks.seq[~covers])
        order = np.argsort(seq)
        own = np.full_like(promise, NEVER) if self.by_partition else promise
        of_keys = np.empty_like(seq)
        of_keys[order] = self._raise_keys(
            side, np.append(records.key, marks.key[~covers])[order], np.append(own, marks.ts[~covers])[order]
        )
        of_keys = of_keys[: len(promise)]
        # With `by_partition`, what is late for its key tells nothing of the others.
        counts = np.flatnonzero(records.ts >= of_keys) if self.by_partition else np.arange(0)
        of_all = self._raise_all(
            side,
            np.append(records.seq[counts], marks.seq[covers]),
            np.append(promise[counts], marks.ts[covers]),
            records.seq,
        )
        return records.ts < np.maximum(of_all, of_keys)

    def end(self) -> None:
        """The streams have ended: nothing comes any more."""
        self.of_all[:] = FOREVER

    def _raise_all(self, side: int, seq: Ints, promise: Ints, asked: Ints) -> Ints:
        """Take promises for all keys; returns what covered all of them just before each position in ``asked``."""
        order = np.argsort(seq)
        highest = np.maximum.accumulate(np.append(self.of_all[side], promise[order]))
        self.of_all[side] = highest[-1]
        return highest[np.searchsorted(seq[order], asked)]

    def _raise_keys(self, side: int, key: Ints, promise: Ints) -> Ints:
        """Take promises for single keys, in log order; returns the frontier of each one's key just before it."""
        if not len(key):
            return promise
        order = grouping_order(key)
        key, promise = key[order], promise[order]
        starts = segment_starts(key)
        highest = _running_max(promise, starts)
        of_key = Segments.of(starts)
        keys = key[of_key.start]
        known = self.by_key[side, keys]
        self.by_key[side, keys] = np.maximum(known, highest[of_key.start + of_key.length - 1])
        earlier = np.empty_like(highest)
        earlier[1:] = highest[:-1]
        earlier[of_key.start] = NEVER
        before = np.empty_like(highest)
        before[order] = np.maximum(earlier, of_key.spread(known))
        return before


_NOBODY: Final = np.empty(0, dtype=np.int64)


def less(ts: Ints, duration_ns: int) -> Ints:
    """``ts - duration_ns``, held at the least int64 where it would fall below."""
    if not duration_ns:
        return ts
    return np.where(ts < NEVER + duration_ns, NEVER, ts - duration_ns)


def _running_max(values: Ints, starts: Bools) -> Ints:
    """The running maximum within segments; ``starts`` is true at the first entry of each."""
    if bool(np.all((values[1:] >= values[:-1]) | starts[1:])):
        return values
    # Ranks are small, so segment * n + rank cannot overflow where segment * 2**63 + value would.
    n = len(values)
    by_value = np.argsort(values, kind="stable")
    rank = np.empty(n, dtype=np.int64)
    rank[by_value] = np.arange(n)
    base = np.cumsum(starts) * n
    running: Ints = values[by_value[np.maximum.accumulate(base + rank) - base]]
    return running
