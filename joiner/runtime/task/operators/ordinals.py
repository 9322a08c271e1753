"""Numbers the records of a stream that have the same key and time, so that their results can be told apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numba import types

from broker.wire.compiled import COLUMNS_OUT, INTS, INTS_OUT, compiled

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

_KEY, _TS, _COUNT = range(3)
"""The rows of a table of counts, shape (3, n)."""

_SLOTS_MIN: Final = 1 << 12
"""The number of slots in the smallest hash table."""


class Ordinals:
    """Assigns each record its index, from 0, among the accepted records with the same key and time.

    Times below a key's frontier are forgotten, because any further record with such a time is late.
    """

    def __init__(self) -> None:
        # An open-addressing hash table, at most half full. Ties are rare, but every record has to be looked up. A
        # dictionary for each key took a quarter of an align's time.
        self._slots: Ints = np.zeros((3, _SLOTS_MIN), dtype=np.int64)
        self._used = 0

    def assign(self, key: Ints, ts: Ints) -> Ints:
        """Return the next records' ordinals, an int64 array of shape (n,). The records must be ordered by position."""
        if 2 * (self._used + len(key)) > self._slots.shape[1]:
            self._put(self._counts(), more=len(key))
        return self._add(key, ts, np.ones_like(key))

    def forget(self, frontier_ns: Callable[[Ints], Ints]) -> None:
        """Like `forget_all`, but only if the table has filled up, so that the cost per record is constant."""
        if 3 * self._used > self._slots.shape[1]:
            self.forget_all(frontier_ns)

    def forget_all(self, frontier_ns: Callable[[Ints], Ints]) -> None:
        """Forget all times below their key's frontier. ``frontier_ns`` returns the frontier of each given key."""
        counts = self._counts()
        self._put(counts.compress(counts[_TS] >= frontier_ns(counts[_KEY]), axis=1))

    def table(self) -> Ints:
        """Return the state for `load`: key, time and count, shape (3, n), in order."""
        counts = self._counts()
        return counts.take(np.lexsort((counts[_TS], counts[_KEY])), axis=1)

    def load(self, table: Ints) -> None:
        """Restore what `table` has returned."""
        self._put(table)

    def _counts(self) -> Ints:
        """Return the table of all counts, in no particular order."""
        return self._slots.compress(self._slots[_COUNT] > 0, axis=1)

    def _put(self, counts: Ints, more: int = 0) -> None:
        """Move these counts to a new hash table, which stays less than a quarter full with ``more`` further counts."""
        room = counts.shape[1] + more
        self._slots = np.zeros((3, max(_SLOTS_MIN, 1 << (4 * room).bit_length())), dtype=np.int64)
        self._used = 0
        self._add(*counts)

    def _add(self, key: Ints, ts: Ints, count: Ints) -> Ints:
        """Add to the counts of these keys and times. Return the counts before each addition."""
        found = np.empty_like(key)
        self._used += _add(key, ts, count, self._slots, found)
        return found


@compiled()
def _hash(key: int, ts: int) -> np.int64:
    """Mix all bits, because times are often multiples of a round number of ns."""
    state = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(ts)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.int64(state >> np.uint64(1))


@compiled(types.int64, INTS, INTS, INTS, COLUMNS_OUT, INTS_OUT)
def _add(key: Ints, ts: Ints, count: Ints, slots: Ints, found: Ints) -> int:
    """Implement `Ordinals._add`, writing its result to ``found``. Return how many empty slots were used."""
    used, last = 0, slots.shape[1] - 1
    for row in range(len(key)):
        slot = _hash(key[row], ts[row]) & last
        while slots[_COUNT, slot] and (slots[_KEY, slot] != key[row] or slots[_TS, slot] != ts[row]):
            slot = (slot + 1) & last
        found[row] = slots[_COUNT, slot]
        if not found[row]:
            slots[_KEY, slot], slots[_TS, slot] = key[row], ts[row]
            used += 1
        slots[_COUNT, slot] += count[row]
    return used
