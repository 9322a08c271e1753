"""How far a stream is: the frontier of each key, and which records came too late for it.

``F(key)`` is the larger of (largest time of the key) - lateness and the highest mark that covers the key. It is
a promise about what comes later; a record below it on arrival is late. Records are judged one after the other in
log order, here for a whole batch at once. A late record never moves the frontier that it is late for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self

import numpy as np

from joiner.core.arguments import ALL_KEYS, Marks, Records
from joiner.core.order import segment_starts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

NEVER: Final = np.iinfo(np.int64).min
"""The frontier of a key of which nothing is known: below every time."""

FOREVER: Final = np.iinfo(np.int64).max
"""The frontier of a stream that has ended: above every time."""


class Frontier:
    """The frontier of one stream: by key, and the highest mark that covers all keys."""

    def __init__(self, lateness_ns: int) -> None:
        self.lateness_ns = lateness_ns
        self.by_key: Ints = np.empty(0, dtype=np.int64)
        self.of_all = int(NEVER)

    def at(self, keys: Ints) -> Ints:
        """``F`` of each of ``keys``; shape as ``keys``, ns."""
        return np.maximum(self.by_key[keys], self.of_all)

    def grow(self, keys: int) -> None:
        """Make room for keys below ``keys``."""
        self.by_key = grown(self.by_key, keys)

    def advance(self, records: Records, marks: Marks) -> NDArray[np.bool_]:
        """Take a batch in log order; returns which records are late, shape (n,). Keys must have room."""
        if not len(marks.key):
            return self._advance_records(records)
        return self._advance_with_marks(records, marks)

    def end(self) -> None:
        """The stream has ended: nothing comes any more."""
        self.of_all = int(FOREVER)

    def copy(self) -> Self:
        """An independent frontier in the same state."""
        twin = type(self)(self.lateness_ns)
        twin.by_key, twin.of_all = self.by_key.copy(), self.of_all
        return twin

    def _advance_records(self, records: Records) -> NDArray[np.bool_]:
        if not len(records.key):
            return np.empty(0, dtype=bool)
        order = np.argsort(records.key, kind="stable")
        key, promise = records.key[order], less(records.ts[order], self.lateness_ns)
        late = np.empty(len(key), dtype=bool)
        late[order] = records.ts[order] < self._before(key, promise)
        return late

    def _advance_with_marks(self, records: Records, marks: Marks) -> NDArray[np.bool_]:
        n, for_all = len(records.key), marks.key == ALL_KEYS
        all_seq, all_ts = marks.seq[for_all], np.maximum.accumulate(marks.ts[for_all])
        one = ~for_all
        key = np.concatenate([records.key, marks.key[one]])
        seq = np.concatenate([records.seq, marks.seq[one]])
        promise = np.concatenate([less(records.ts, self.lateness_ns), marks.ts[one]])
        order = np.lexsort((seq, key))
        before = np.empty(len(key), dtype=np.int64)
        before[order] = self._before(key[order], promise[order])
        if len(all_seq):
            # The last mark for all keys below each record's position counts for it.
            reached = np.searchsorted(all_seq, records.seq)
            by_mark = np.concatenate([[self.of_all], all_ts])[reached]
            before[:n] = np.maximum(before[:n], by_mark)
            self.of_all = max(self.of_all, int(all_ts[-1]))
        return records.ts < before[:n]

    def _before(self, key: Ints, promise: Ints) -> Ints:
        """The frontier just before each entry; entries are in order of (key, position). Moves the frontier."""
        if not len(key):
            return promise
        starts = segment_starts(key)
        highest = _running_max(promise, starts)
        known = self.at(key)
        before = known.copy()
        before[1:] = np.where(starts[1:], before[1:], np.maximum(before[1:], highest[:-1]))
        ends = np.append(starts[1:], np.True_)
        last = key[ends]
        self.by_key[last] = np.maximum(self.by_key[last], highest[ends])
        return before


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


def _running_max(values: Ints, starts: NDArray[np.bool_]) -> Ints:
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
