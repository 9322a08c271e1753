"""Numbers the records of a stream that have the same key and time, so that their results can be told apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


class Ordinals:
    """Assigns each record its index, from 0, among the accepted records with the same key and time.

    Times below a key's frontier are forgotten, because any further record with such a time is late.
    """

    def __init__(self) -> None:
        self._counts: dict[int, dict[int, int]] = {}

    def assign(self, key: Ints, ts: Ints) -> Ints:
        """Return the ordinals of the next records, which must be ordered by position; int64, shape (n,)."""
        found, counts = [], self._counts
        for one, at in zip(key.tolist(), ts.tolist(), strict=True):
            of_key = counts.get(one)
            if of_key is None:
                of_key = counts[one] = {}
            ordinal = of_key.get(at, 0)
            of_key[at] = ordinal + 1
            found.append(ordinal)
        return np.array(found, dtype=np.int64)

    def forget(self, keys: Ints, frontier_ns: Callable[[Ints], Ints]) -> None:
        """Forget the times below the frontiers of ``keys``. ``frontier_ns`` returns the frontier of each given key."""
        many = np.array([key for key in keys.tolist() if len(self._counts.get(key, ())) > 1], dtype=np.int64)
        self._keep(many, frontier_ns)

    def forget_all(self, frontier_ns: Callable[[Ints], Ints]) -> None:
        """Forget all times below their key's frontier, and the keys that have no times left."""
        self._keep(np.array(list(self._counts), dtype=np.int64), frontier_ns)

    def table(self) -> Ints:
        """Return the state for `load`: key, time and count, shape (3, n), in order."""
        rows = sorted((key, ts, count) for key, of_key in self._counts.items() for ts, count in of_key.items())
        return np.array(rows, dtype=np.int64).reshape(-1, 3).T

    def load(self, table: Ints) -> None:
        """Restore what `table` has returned."""
        for key, ts, count in table.T.tolist():
            self._counts.setdefault(key, {})[ts] = count

    def _keep(self, keys: Ints, frontier_ns: Callable[[Ints], Ints]) -> None:
        if not len(keys):
            return
        for key, frontier in zip(keys.tolist(), frontier_ns(keys).tolist(), strict=True):
            kept = {ts: count for ts, count in self._counts[key].items() if ts >= frontier}
            if kept:
                self._counts[key] = kept
            else:
                del self._counts[key]
