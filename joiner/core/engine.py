"""`LocalStreamBuffer`: joins each record with its neighbours in the other stream.

Its output depends only on the records and watermarks consumed from each stream, not on how the two streams interleave,
how they are split into batches, or whether the buffer was restored from a snapshot along the way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from joiner.core import snapshot
from joiner.core.arguments import (
    ALL_KEYS,
    SIDES,
    Options,
    Records,
    Watermarks,
    check_identities,
    check_records,
    check_rising,
    check_watermarks,
)
from joiner.core.backlog import HeldRecords, is_backlog
from joiner.core.compiled import distinct
from joiner.core.errors import ArgumentError
from joiner.core.evaluate import evaluate, find_bounds
from joiner.core.frontier import NEVER, Frontiers
from joiner.core.record_store import COLUMNS, KEY, SEQ, TS, Side

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

__all__ = ["ALL_KEYS", "LocalStreamBuffer", "Step"]

_LEFT, _RIGHT = 0, 1


@dataclass(frozen=True)
class Step:
    """The result of one step: int64 arrays of shape (n,), with a different n for each group below.

    All arrays except the ordinals contain log positions.

    Attributes:
        left_seq, right_seq: the two records of each pair that became certain, ordered by (key, left time and position,
            right time and position).
        left_ordinal, right_ordinal: the index of each of these records among the records of its stream with the same
            key and time, counted from 0.
        left_late_seq, right_late_seq: records that were below their stream's frontier when they arrived, ascending.
        left_duplicate_seq, right_duplicate_seq: records with the same key, time and identity as an earlier record in
            their stream, ascending.
        left_released_seq, right_released_seq: records that the buffer no longer holds, in no particular order. Later
            steps do not refer to them.
        left_unmatched_seq, right_unmatched_seq: records that are in no pair and can no longer be paired, ascending.
            Empty unless ``emit_unmatched`` includes the side.

    """

    left_seq: Ints
    right_seq: Ints
    left_ordinal: Ints
    right_ordinal: Ints
    left_late_seq: Ints
    right_late_seq: Ints
    left_duplicate_seq: Ints
    right_duplicate_seq: Ints
    left_released_seq: Ints
    right_released_seq: Ints
    left_unmatched_seq: Ints
    right_unmatched_seq: Ints

    def __repr__(self) -> str:
        counts = {
            "pairs": len(self.left_seq),
            "late": len(self.left_late_seq) + len(self.right_late_seq),
            "duplicates": len(self.left_duplicate_seq) + len(self.right_duplicate_seq),
            "unmatched": len(self.left_unmatched_seq) + len(self.right_unmatched_seq),
        }
        return f"Step({', '.join(f'{name}={count}' for name, count in counts.items())})"


class LocalStreamBuffer:
    """The incremental neighbour join of two streams.

    Emits all pairs of records with equal keys in which one is the previous or the next neighbour of the other. Records
    are ordered by time and log position. The previous neighbour of a record is the last record of the other stream with
    the same or an earlier time. The next neighbour is the first one with the same or a later time. Each pair is emitted
    once, as soon as no further input can change it (docs/semantics.md).

    Args:
        tolerance_ns: how far apart in time the two records of a pair may be; None means no limit. The tolerance drops
            pairs; it does not change which records are neighbours.
        lateness_ns: how far a record may be behind the largest time of its stream and key (or only of its stream, see
            ``watermark_scope``) before it is late. One value for both sides, or (left, right).
        direction: which neighbours a record looks for: ``"backward"`` (previous), ``"forward"`` (next), ``"both"``,
            or ``"nearest"`` (the nearer of the two, and the previous one if the distances are equal).
        driver: the side whose records look for neighbours: ``"left"``, ``"right"`` or ``"both"``.
            ``driver="left", direction="backward"`` is the as-of join of each left record.
        watermark_scope: which frontier a record's time advances: that of its ``"key"``, or that of the whole
            ``"partition"`` (for inputs in time order across keys).
        emit_unmatched: the sides whose unmatched records are emitted: ``"left"``, ``"right"``, ``"both"`` or
            ``"none"``.

    Raises:
        ArgumentError: if an option is invalid. The message names the option and says why.

    >>> import numpy as np
    >>> def column(*values): return np.array(values, dtype=np.int64)
    >>> buffer = LocalStreamBuffer(tolerance_ns=15)
    >>> speed = (column(7, 7), column(10, 30), column(0, 1))   # keys, times in ns, log positions
    >>> torque = (column(7), column(20), column(0))
    >>> step = buffer.push(left=speed, right=torque)
    >>> step
    Step(pairs=2, late=0, duplicates=0, unmatched=0)
    >>> list(zip(step.left_seq.tolist(), step.right_seq.tolist()))
    [(0, 0), (1, 0)]
    >>> buffer
    <LocalStreamBuffer(tolerance_ns=15) records=3 keys=1>

    """

    def __init__(
        self,
        *,
        tolerance_ns: int | None = None,
        lateness_ns: int | tuple[int, int] = 0,
        direction: str = "both",
        driver: str = "both",
        watermark_scope: str = "key",
        emit_unmatched: str = "none",
    ) -> None:
        self._options = options = Options(
            tolerance_ns=tolerance_ns,
            lateness_ns=lateness_ns,
            direction=direction,
            driver=driver,
            watermark_scope=watermark_scope,
            emit_unmatched=emit_unmatched,
        )
        # Computed once instead of in every step.
        self._rules = options.neighbour_specs, options.tolerance, options.emits_unmatched
        self._frontiers = Frontiers(options.lateness_by_side_ns, by_partition=watermark_scope == "partition")
        self._held = HeldRecords()
        self._last_seq: list[int | None] = [None, None]
        self._has_identities: list[bool | None] = [None, None]
        self._closed = False

    def push(
        self,
        *,
        left: Sequence[object] | None = None,
        right: Sequence[object] | None = None,
        left_watermarks: Sequence[object] | None = None,
        right_watermarks: Sequence[object] | None = None,
    ) -> Step:
        """Consume the next records and watermarks of both sides. Return the pairs and other output of this step.

        Args:
            left: ``(keys, ts_ns, seq)``, int64 arrays of shape (n,): non-negative keys, event times in ns since the
                epoch, log positions. An optional fourth array contains identities. A record with the same key, time and
                identity as an earlier record of its side is a duplicate, which is reported and not joined.
            right: the same for the right side.
            left_watermarks: ``(keys, ts_ns, seq)``, int64 arrays of shape (n,). A watermark promises that no record of
                its key, or of any key (`ALL_KEYS`), will follow with a time below its own.
            right_watermarks: the same for the right side.

        The records and watermarks of a side share one sequence of positions, which must be strictly increasing.

        Raises:
            ArgumentError: if an argument is invalid, or if the buffer is closed. The message names the argument and,
                if a single value is invalid, its index. The buffer is unchanged.

        """
        self._check_open("push")
        records = check_records("left", left), check_records("right", right)
        watermarks = (
            check_watermarks("left_watermarks", left_watermarks),
            check_watermarks("right_watermarks", right_watermarks),
        )
        return self.step(records, watermarks)

    def close(self, *, left: Sequence[object] | None = None, right: Sequence[object] | None = None) -> Step:
        """Consume the last records and end both streams. All relations become certain, and the buffer is emptied.

        Takes the same records and raises the same errors as `push`. Any later `close` or `push` raises
        `ArgumentError`.
        """
        self._check_open("close")
        records = check_records("left", left), check_records("right", right)
        return self.step(records, (check_watermarks("left_watermarks", None),) * 2, ends=True)

    def step(
        self, records: tuple[Records, Records], watermarks: tuple[Watermarks, Watermarks], *, ends: bool = False
    ) -> Step:
        """Do the work of `push`, or of `close` if ``ends``, on validated records and watermarks (left, right).

        This lets several buffers share validated records. It does not check whether the buffer is closed. Raises
        `ArgumentError` if positions do not strictly increase, or if a side has identities in only some batches.
        """
        last_seq = [
            check_rising(SIDES[side], records[side], watermarks[side], self._last_seq[side]) for side in (_LEFT, _RIGHT)
        ]
        self._has_identities = check_identities(records, self._has_identities)
        # From here on, nothing raises.
        since = [NEVER if last is None else last for last in self._last_seq]
        self._last_seq, self._closed = last_seq, ends
        keys = _touched_keys(self._frontiers, self._held, records, watermarks, all_held=ends)
        self._grow(int(keys.max(initial=-1)) + 1)
        before = self._frontiers.at(keys)
        late = [self._frontiers.advance(side, records[side], watermarks[side]) for side in (_LEFT, _RIGHT)]
        if ends:
            self._frontiers.end()
        late_seq = records[_LEFT].seq[late[_LEFT]], records[_RIGHT].seq[late[_RIGHT]]
        accepted = records[_LEFT].without(late[_LEFT]), records[_RIGHT].without(late[_RIGHT])
        now = self._frontiers.at(keys)
        sides, duplicate_seq = self._held.merge(keys, accepted, self._frontiers, since, self._has_identities)
        touched = len(keys) + sum(len(batch.key) for batch in accepted)
        return self._evaluate(keys, sides, before, now, late_seq + duplicate_seq, touched=touched, ends=ends)

    def __len__(self) -> int:
        """Return the total number of records held on both sides."""
        return len(self._held)

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self._options.changed().items())
        closed = " closed" if self._closed else ""
        return f"<LocalStreamBuffer({options}) records={len(self)} keys={len(self._held.keys())}{closed}>"

    def held_seq(self) -> tuple[Ints, Ints]:
        """Return the log positions of the records held on the left and right, each ascending, shape (n,)."""
        return np.sort(self._held.rows(_LEFT)[SEQ]), np.sort(self._held.rows(_RIGHT)[SEQ])

    def held_records(self) -> tuple[Ints, Ints]:
        """Return the keys, times (ns) and positions of the records held on the left and right, shape (3, n) each."""
        return self._held.rows(_LEFT)[[KEY, TS, SEQ]], self._held.rows(_RIGHT)[[KEY, TS, SEQ]]

    def held_by_key(self) -> tuple[Ints, Ints]:
        """Return the keys for which records are held, ascending, and how many are held for each, both of shape (k,)."""
        return (keys := self._held.keys()), self._held.count(keys)

    def known_keys(self) -> Ints:
        """Return, in ascending order, the keys that have held records or a frontier above the one shared by all keys.

        Any other key is in the same state as a key that was never used, so its number can be assigned to a new key.
        """
        return np.union1d(self._frontiers.known_keys(), self._held.keys())

    def left_frontier_of_unused_ns(self) -> int:
        """Return the left stream's frontier for all unused keys, in ns."""
        return int(self._frontiers.of_all[_LEFT, 0])

    def frontier_ns(self, keys: Sequence[int] | Ints) -> tuple[Ints, Ints]:
        """Return the left and right streams' frontiers for each of ``keys``, in ns, shape (k,) each.

        Until a record or a watermark advances the frontier of a key, it is the smallest int64.
        """
        asked = np.asarray(keys, dtype=np.int64)
        self._grow(int(asked.max(initial=-1)) + 1)
        left, right = self._frontiers.at(asked)
        return left, right

    def bounds_ns(self, keys: Ints) -> tuple[Ints, int]:
        """Return the bounds of ``keys`` (ascending), shape (k,), and of unused keys, in ns, as in `find_bounds`."""
        frontiers = np.stack(self.frontier_ns(keys))
        of_unused = find_bounds(_NO_RECORDS, _NO_RECORDS, self._frontiers.of_all, *self._rules[:2])
        return find_bounds(*self._held.in_table(keys), frontiers, *self._rules[:2]), int(of_unused[0])

    def snapshot(self) -> bytes:
        """Serialize the options and the whole state for `restore`."""
        left, right = self._held.rows(_LEFT), self._held.rows(_RIGHT)
        header: dict[str, Any] = {
            **self._options.to_json(),
            "of_all": self._frontiers.of_all.ravel().tolist(),
            "last_seq": self._last_seq,
            "identified": self._has_identities,
            "closed": self._closed,
            "lefts": left.shape[1],
        }
        columns = {f"{name}.frontier": of_side for name, of_side in zip(SIDES, self._frontiers.by_key, strict=True)}
        columns |= zip(COLUMNS, np.concatenate((left, right), axis=1), strict=True)
        return snapshot.pack(header, columns)

    @classmethod
    def restore(cls, data: bytes) -> Self:
        """Restore a snapshot. Raises `SnapshotError`, or `NewerSnapshotError` if a newer release wrote the snapshot."""
        header, columns = snapshot.unpack(data)
        buffer = cls(**vars(Options.from_json(header)))
        buffer._frontiers.of_all[:, 0] = header["of_all"]
        buffer._frontiers.by_key = np.stack([columns[f"{name}.frontier"] for name in SIDES])
        buffer._grow(buffer._frontiers.by_key.shape[1])
        rows = np.stack([columns[name] for name in COLUMNS])
        for side, of_side in enumerate(np.split(rows, [header["lefts"]], axis=1)):
            buffer._held.load(side, of_side)
        buffer._last_seq, buffer._has_identities = header["last_seq"], header["identified"]
        buffer._closed = header["closed"]
        return buffer

    def _check_open(self, call: str) -> None:
        if self._closed:
            message = f"{call} after close: both streams have ended"
            raise ArgumentError(message)

    def _grow(self, keys: int) -> None:
        self._frontiers.grow(keys)
        self._held.grow(keys)

    def _evaluate(
        self,
        keys: Ints,
        sides: tuple[Side, Side],
        before: Ints,
        now: Ints,
        left_out: tuple[Ints, Ints, Ints, Ints],
        *,
        touched: int,
        ends: bool,
    ) -> Step:
        """Apply the rules to all records of ``keys``, and evict the records that are no longer needed.

        ``before``, ``now``: the frontiers before and after the batch, shape (2, k), ns. ``left_out``: the positions of
        the late records (left, right), then of the duplicates (left, right). ``touched``: the number of keys plus the
        number of new records.
        """
        left, right = sides
        specs, tolerance, emits_unmatched = self._rules
        found = evaluate(left, right, before, now, specs, tolerance, emits_unmatched, ends)
        released = found.left_released, found.right_released
        kept_records = left.begin[-1] + right.begin[-1] - len(found.left_released) - len(found.right_released)
        kept = found.left_kept, found.right_kept
        self._held.put(keys, sides, kept, now, has_backlog=is_backlog(kept_records, touched))
        return Step(*found[:4], *left_out, *released, np.sort(found.left_unmatched), np.sort(found.right_unmatched))


def _touched_keys(
    frontiers: Frontiers,
    held: HeldRecords,
    records: Sequence[Records],
    watermarks: Sequence[Watermarks],
    *,
    all_held: bool,
) -> Ints:
    """Return the keys that a batch can affect, ascending. ``all_held``: include every key that has records."""
    keys = [batch.key for batch in records] + [
        batch.key[batch.key != ALL_KEYS] for batch in watermarks if len(batch.key)
    ]
    if all_held or any(map(frontiers.concerns_all, records, watermarks)):
        keys += held.keys_by_side()
    left, right, *more = keys
    return distinct(left, right, np.concatenate(more) if more else _NOTHING)


_NOTHING: Final = np.empty(0, dtype=np.int64)
_NO_RECORDS: Final = Side(np.empty((len(COLUMNS), 0), dtype=np.int64), np.zeros(2, dtype=np.int64), 0)
"""A side without records, for one key."""
