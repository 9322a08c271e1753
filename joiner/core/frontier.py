"""Tracks the frontier of each key and finds late records.

The frontier ``F(key)`` is the key's largest time minus the lateness, or the highest watermark that covers the key,
whichever is larger. A record whose time is below ``F(key)`` when it arrives is late, and does not advance the frontier.
With ``by_partition``, the whole stream's largest time is used instead of the key's. Records are processed one at a
time, in log order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from joiner.core.arguments import ALL_KEYS, Records, Watermarks
from joiner.core.compiled import COUNT, FLAG, GIVEN, INTS, compile_declared, compiled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

NEVER: Final = np.iinfo(np.int64).min
"""The frontier of a key until a record or a watermark advances it: below every valid time."""

FOREVER: Final = np.iinfo(np.int64).max
"""The frontier of a stream that has ended: above every valid time."""


class Frontiers:
    """The frontiers of s streams in ns: ``by_key``, shape (s, keys), and ``of_all``, for all keys, shape (s, 1)."""

    def __init__(self, lateness_ns: Sequence[int], *, by_partition: bool = False) -> None:
        """``lateness_ns``: the lateness of each stream. ``by_partition``: whether a record advances the frontier of all
        keys.
        """
        # Every buffer creates its frontiers before it runs a loop.
        compile_declared("joiner.core")
        self.lateness_ns = lateness_ns
        self.by_partition = by_partition
        self.by_key: Ints = np.empty((len(lateness_ns), 0), dtype=np.int64)
        self.of_all: Ints = np.full((len(lateness_ns), 1), NEVER)

    def at(self, keys: Ints) -> Ints:
        """Return the frontiers of each key, shape (s, k), ns. Keys must be below the largest count passed to `grow`."""
        return np.maximum(self.by_key.take(keys, axis=1), self.of_all)

    def reached(self, keys: Ints, new: tuple[Records, Records]) -> Ints:
        """Return the larger of each key's frontier and its latest time in ``new``, by stream, shape (s, k), ns.

        ``keys`` are ascending.
        """
        found = self.at(keys)
        for side, records in enumerate(new):
            np.maximum.at(found[side], keys.searchsorted(records.key), records.ts)
        return found

    def known_keys(self) -> Ints:
        """Return the keys, ascending, whose frontier in at least one stream is above the one shared by all keys."""
        return np.flatnonzero((self.by_key > self.of_all).any(axis=0))

    def grow(self, keys: int) -> None:
        """Allocate state for all keys below ``keys``. The capacity at least doubles, so calls are cheap on average."""
        have = self.by_key.shape[1]
        if keys > have:
            more = np.full((len(self.by_key), max(keys - have, have)), NEVER)
            self.by_key = np.hstack([self.by_key, more])

    def concerns_all(self, records: Records, watermarks: Watermarks) -> bool:
        """Return whether a batch may advance the frontiers of keys that have no records or watermarks in it."""
        return bool(
            (self.by_partition and len(records.key)) or (len(watermarks.key) and watermarks.key.min() == ALL_KEYS)
        )

    def advance(self, side: int, records: Records, watermarks: Watermarks) -> Ints:
        """Advance the frontiers of the stream with index ``side`` by a batch. Return the indices of its late records.

        Each key must be below the largest count passed to `grow`.
        """
        lateness_ns, of_key, of_all = self.lateness_ns[side], self.by_key[side], self.of_all[side]
        return _advance(
            records.key, records.ts, records.seq, *watermarks, lateness_ns, self.by_partition, of_key, of_all
        )

    def end(self) -> None:
        """Advance all frontiers to `FOREVER`: all streams have ended."""
        self.of_all[:] = FOREVER


@compiled(INTS, GIVEN, GIVEN, GIVEN, GIVEN, GIVEN, GIVEN, COUNT, FLAG, INTS, INTS)
def _advance(  # noqa: PLR0913, PLR0917 - a compiled loop takes arrays, not objects
    key: Ints,
    ts: Ints,
    seq: Ints,
    watermark_key: Ints,
    watermark_ts: Ints,
    watermark_seq: Ints,
    lateness_ns: int,
    by_partition: bool,  # noqa: FBT001 - a compiled loop has no keyword arguments
    of_key: Ints,
    of_all: Ints,
) -> Ints:
    """Advance the frontiers of one stream by n records and m watermarks in log order.

    Updates ``of_key``, shape (keys,), and ``of_all``, shape (1,), in place; both are int64 ns. ``key``, ``ts``,
    ``seq``: the records, int64 of shape (n,). ``watermark_key``, ``watermark_ts``, ``watermark_seq``: the watermarks,
    int64 of shape (m,). Times are in ns. Log positions increase within the records and within the watermarks. Returns
    the indices of the late records, ascending, as an int64 array.
    """
    late, count, watermark = np.empty_like(ts), 0, 0
    for i in range(len(key)):
        while watermark < len(watermark_key) and watermark_seq[watermark] < seq[i]:
            _add_watermark(watermark_key[watermark], watermark_ts[watermark], of_key, of_all)
            watermark += 1
        if ts[i] < of_key[key[i]] or ts[i] < of_all[0]:
            late[count] = i
            count += 1
            continue
        promise = less(ts[i], lateness_ns)
        if by_partition:
            of_all[0] = max(of_all[0], promise)
        else:
            of_key[key[i]] = max(of_key[key[i]], promise)
    for rest in range(watermark, len(watermark_key)):
        _add_watermark(watermark_key[rest], watermark_ts[rest], of_key, of_all)
    return late[:count]


@compiled()
def _add_watermark(key: int, ts: int, of_key: Ints, of_all: Ints) -> None:
    if key == ALL_KEYS:
        of_all[0] = max(of_all[0], ts)
    else:
        of_key[key] = max(of_key[key], ts)


@compiled()
def less(ts: int, duration_ns: int) -> int:
    """Return ``ts - duration_ns``, saturating at the smallest int64."""
    return ts - duration_ns if ts >= NEVER + duration_ns else NEVER
