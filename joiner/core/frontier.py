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


class Frontier:
    """The frontier of one stream: by key, and what covers all keys."""

    def __init__(self, lateness_ns: int, *, by_partition: bool = False) -> None:
        """``by_partition``: a record tells of all keys, not of its own alone."""
        self.lateness_ns = lateness_ns
        self.by_partition = by_partition
        self.by_key: Ints = np.empty(0, dtype=np.int64)
        self.of_all = int(NEVER)

    def at(self, keys: Ints) -> Ints:
        """``F`` of each of ``keys``; shape as ``keys``, ns."""
        return np.maximum(self.by_key[keys], self.of_all)

    def grow(self, keys: int) -> None:
        """Make room for keys below ``keys``."""
        self.by_key = grown(self.by_key, keys)

    def concerns_all(self, records: Records, marks: Marks) -> bool:
        """Whether a batch may move the frontier of keys that it does not name."""
        return bool((self.by_partition and len(records.key)) or (marks.key == ALL_KEYS).any())

    def advance(self, records: Records, marks: Marks) -> Ints:
        """Take a batch in log order; returns the indices of the records that are late. Keys must have room."""
        promise = less(records.ts, self.lateness_ns)
        if self.by_partition or len(marks.key):
            return self._advance_with_marks(records, promise, marks).nonzero()[0]
        raise_keys = self._raise_keys_in_order if records.in_order else self._raise_keys
        before = raise_keys(records.key, promise)
        if len(before) and records.in_order and records.ts[0] >= max(before.max(), self.of_all):
            return _NOBODY
        return (records.ts < np.maximum(before, self.of_all)).nonzero()[0]

    def _advance_with_marks(self, records: Records, promise: Ints, marks: Marks) -> Bools:
        covers = marks.key == ALL_KEYS
        seq = np.append(records.seq, marks.seq[~covers])
        order = np.argsort(seq)
        own = np.full_like(promise, NEVER) if self.by_partition else promise
        of_keys = np.empty_like(seq)
        of_keys[order] = self._raise_keys(
            np.append(records.key, marks.key[~covers])[order], np.append(own, marks.ts[~covers])[order]
        )
        of_keys = of_keys[: len(promise)]
        # With `by_partition`, what is late for its key tells nothing of the others.
        counts = np.flatnonzero(records.ts >= of_keys) if self.by_partition else np.arange(0)
        of_all = self._raise_all(
            np.append(records.seq[counts], marks.seq[covers]),
            np.append(promise[counts], marks.ts[covers]),
            records.seq,
        )
        return records.ts < np.maximum(of_all, of_keys)

    def end(self) -> None:
        """The stream has ended: nothing comes any more."""
        self.of_all = int(FOREVER)

    def _raise_all(self, seq: Ints, promise: Ints, asked: Ints) -> Ints:
        """Take promises for all keys; returns what covered all of them just before each position in ``asked``."""
        if not len(seq):
            return np.full_like(asked, self.of_all)
        order = np.argsort(seq)
        highest = np.maximum.accumulate(np.append(self.of_all, promise[order]))
        self.of_all = int(highest[-1])
        return highest[np.searchsorted(seq[order], asked)]

    def _raise_keys_in_order(self, key: Ints, promise: Ints) -> Ints:
        """As `_raise_keys`, of promises that rise across keys: none is late for another one of its batch."""
        before = self.by_key.take(key)
        # Of equal keys the last one is assigned last, and is the largest.
        self.by_key[key] = np.maximum(before, promise)
        return before

    def _raise_keys(self, key: Ints, promise: Ints) -> Ints:
        """Take promises for single keys, in log order; returns the frontier of each one's key just before it."""
        if not len(key):
            return promise
        order = grouping_order(key)
        key, promise = key[order], promise[order]
        starts = segment_starts(key)
        highest = _running_max(promise, starts)
        of_key = Segments.of(starts)
        keys = key[of_key.start]
        known = self.by_key[keys]
        self.by_key[keys] = np.maximum(known, highest[of_key.start + of_key.length - 1])
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


def grown(values: Ints, length: int) -> Ints:
    """``values`` with room for ``length``, new places holding `NEVER`; doubles so that growing stays cheap."""
    if length <= len(values):
        return values
    larger = np.full(max(length, 2 * len(values)), NEVER, dtype=np.int64)
    larger[: len(values)] = values
    return larger


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
