"""`LocalStreamBuffer`: joins each record with its neighbours in the other stream.

What has been emitted is a function of what has been consumed of each stream, and of nothing else: not of the
order in which the two sides came, nor of the batches, nor of a snapshot and restore in between.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from joiner.core import snapshot
from joiner.core.arguments import (
    ALL_KEYS,
    Records,
    Watermarks,
    check_duration,
    check_records,
    check_rising,
    check_watermarks,
)
from joiner.core.backlog import Backlog, is_backlog
from joiner.core.compiled import compile_declared, distinct
from joiner.core.errors import ArgumentError
from joiner.core.evaluate import evaluate
from joiner.core.frontier import NEVER, Frontiers
from joiner.core.match import DIRECTIONS, DRIVERS, neighbour_specs
from joiner.core.record_store import (
    COLUMNS,
    KEY,
    SEQ,
    RecordStore,
    Side,
    in_time_order,
    number,
    table_of,
    without_repeats,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

__all__ = ["ALL_KEYS", "LocalStreamBuffer", "Step"]

_LEFT, _RIGHT = 0, 1
_NAMES: Final = ("left", "right")
WATERMARK_SCOPES: Final = ("key", "partition")
UNMATCHED: Final = ("none", "left", "right", "both")


@dataclass(frozen=True)
class Step:
    """What one step brought forth. All int64, shape (n,); n differs between the groups.

    ``left_seq``/``right_seq`` are the two records of each pair that became certain, in the order of (key, left
    time and position, right time and position); ``left_ordinal``/``right_ordinal`` their places among the records
    of their stream with the same key and time, which are 0 without such ties. ``*_late_seq``: records that came
    after their stream's frontier; ``*_duplicate_seq``: records that came before with the same identity;
    ``*_unmatched_seq``: records that are in no pair and cannot get into one any more, where that is asked for. Each of
    these in ascending order. ``*_released_seq``: records that left the buffer, so that nobody will ask for their
    payload after this step, in any order.
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


class LocalStreamBuffer:
    """The neighbour join of two streams, incrementally.

    Emits all pairs of records of one key in which one is the previous or the next neighbour of the other (the
    last with a time at or before, the first with a time at or after, in the order of time and log position), each
    pair once, as soon as no continuation of the streams could take it away.

    Args:
        tolerance_ns: pairs whose times are farther apart are left out; None: no limit.
        lateness_ns: how far a record may lag behind the largest time of its stream and key; one value for both
            sides or (left, right).
        direction: which neighbours a record looks for: ``"backward"`` (previous), ``"forward"`` (next), ``"both"``,
            or ``"nearest"``, the nearer of the two, the previous one where they are equally near.
        driver: whose records look for neighbours: those of the ``"left"``, of the ``"right"``, or of ``"both"``.
            ``driver="left", direction="backward"`` is the as-of join of each left record.
        watermark_scope: what a record's time advances: the frontier of its ``"key"``, or of the whole ``"partition"``,
            for inputs that are in the order of time across keys.
        emit_unmatched: whose records are told that are in no pair and cannot get into one any more: those of the
            ``"left"``, of the ``"right"``, of ``"both"``, or of ``"none"``.

    Raises:
        ArgumentError: naming the argument and what it may be.

    >>> import numpy as np
    >>> def column(*values): return np.array(values, dtype=np.int64)
    >>> buffer = LocalStreamBuffer()
    >>> speed = (column(7, 7), column(10, 30), column(0, 1))   # keys, times in ns, log positions
    >>> torque = (column(7), column(20), column(0))
    >>> step = buffer.push(left=speed, right=torque)
    >>> list(zip(step.left_seq.tolist(), step.right_seq.tolist()))
    [(0, 0), (1, 0)]

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
        for name, value, known in (
            ("direction", direction, DIRECTIONS),
            ("driver", driver, DRIVERS),
            ("watermark_scope", watermark_scope, WATERMARK_SCOPES),
            ("emit_unmatched", emit_unmatched, UNMATCHED),
        ):
            if value not in known:
                message = f"{name} = {value!r} is not known; it is one of {', '.join(map(repr, known))}"
                raise ArgumentError(message)
        self._direction, self._driver, self._watermark_scope = direction, driver, watermark_scope
        self._emit_unmatched = emit_unmatched
        self._wants = neighbour_specs(direction, driver)
        self._emits_unmatched = emit_unmatched in {"left", "both"}, emit_unmatched in {"right", "both"}
        self._tolerance_ns = None if tolerance_ns is None else check_duration("tolerance_ns", tolerance_ns)
        self._tolerance = _ANY_DISTANCE if self._tolerance_ns is None else np.uint64(self._tolerance_ns)
        sides = lateness_ns if isinstance(lateness_ns, (tuple, list)) else (lateness_ns, lateness_ns)
        if len(sides) != len(_NAMES):
            message = f"lateness_ns must be one value or (left, right), not {len(sides)} values"
            raise ArgumentError(message)
        lateness = [check_duration(f"lateness_ns ({name})", value) for name, value in zip(_NAMES, sides, strict=True)]
        self._frontiers = Frontiers((lateness[_LEFT], lateness[_RIGHT]), by_partition=watermark_scope == "partition")
        self._held = RecordStore(), RecordStore()
        self._waiting = Backlog(), Backlog()
        # Of each key of a step, its index among them.
        self._place = np.empty(0, dtype=np.int64)
        self._last_seq: list[int | None] = [None, None]
        self._identified: list[bool | None] = [None, None]
        self._closed = False

    def push(
        self,
        *,
        left: Sequence[object] | None = None,
        right: Sequence[object] | None = None,
        left_watermarks: Sequence[object] | None = None,
        right_watermarks: Sequence[object] | None = None,
    ) -> Step:
        """Take the next records and watermarks of either side; returns what became certain by them.

        Args:
            left: ``(keys, ts_ns, seq)``, int64 arrays of shape (n,): join keys from 0 on, event times in
                ns since the epoch, log positions. A fourth array of identities makes a record with the key, time
                and identity of an earlier one of its side a duplicate, which is left out and reported.
            right: the same of the other side.
            left_watermarks: ``(keys, ts_ns, seq)``: from its position on, the side promises to send
                nothing below the watermark's time for its key, or for all keys (`ALL_KEYS`).
            right_watermarks: the same of the other side.

        Positions rise strictly on each side, over records and watermarks together.

        Raises:
            ArgumentError: naming the argument and the index; the buffer is then as it was before.

        """
        self._check_open("push")
        records = [check_records("left", left), check_records("right", right)]
        watermarks = [
            check_watermarks("left_watermarks", left_watermarks),
            check_watermarks("right_watermarks", right_watermarks),
        ]
        return self._take(records, watermarks)

    def close(self, *, left: Sequence[object] | None = None, right: Sequence[object] | None = None) -> Step:
        """Both streams have ended, with these last records: everything becomes certain, and the buffer is empty.

        Once only. Arguments and errors are those of `push`.
        """
        self._check_open("close")
        records = [check_records("left", left), check_records("right", right)]
        step = self._take(records, [check_watermarks("left_watermarks", None)] * 2, ends=True)
        self._closed = True
        return step

    def __len__(self) -> int:
        """Records held, of both sides."""
        return sum(len(records) for records in (*self._held, *self._waiting))

    def held_seq(self) -> tuple[Ints, Ints]:
        """The positions of the records held on the left and on the right, ascending."""
        return np.sort(self._everything(_LEFT)[SEQ]), np.sort(self._everything(_RIGHT)[SEQ])

    def held_by_key(self) -> tuple[Ints, Ints]:
        """The keys of which records are held, ascending, and how many of each, of both sides together."""
        keys = self._held_keys()
        counts = [of_side.count(keys) for of_side in (*self._held, *self._waiting)]
        return keys, np.sum(counts, axis=0, dtype=np.int64)

    def known_keys(self) -> Ints:
        """The keys of which a record is held, or more is known than of all keys alike; ascending.

        Every other number is as good as one that was never used, and can be given to another key.
        """
        known = np.flatnonzero((self._frontiers.by_key > self._frontiers.of_all).any(axis=0))
        return np.union1d(known, self._held_keys())

    def frontier_ns(self, keys: Sequence[int] | Ints) -> tuple[Ints, Ints]:
        """The frontiers of the left and right stream for ``keys``, in ns; the least int64 where nothing is known."""
        asked = np.asarray(keys, dtype=np.int64)
        if len(asked):
            self._grow(int(asked.max()) + 1)
        left, right = self._frontiers.at(asked)
        return left, right

    def snapshot(self) -> bytes:
        """The whole state, options included, as bytes for `restore`."""
        options: dict[str, Any] = {
            "tolerance_ns": self._tolerance_ns,
            "direction": self._direction,
            "driver": self._driver,
            "progress": self._watermark_scope,
            "emit_unmatched": self._emit_unmatched,
            "lateness_ns": self._frontiers.lateness_ns,
            "of_all": self._frontiers.of_all.ravel().tolist(),
            "last_seq": self._last_seq,
            "identified": self._identified,
            "closed": self._closed,
        }
        columns = {f"{name}.frontier": of_side for name, of_side in zip(_NAMES, self._frontiers.by_key, strict=True)}
        left, right = self._everything(_LEFT), self._everything(_RIGHT)
        options["lefts"] = left.shape[1]
        columns |= zip(COLUMNS, np.concatenate((left, right), axis=1), strict=True)
        return snapshot.pack(options, columns)

    @classmethod
    def restore(cls, data: bytes) -> Self:
        """The buffer of a snapshot. Raises `SnapshotError` where the bytes are none, damaged, or too new."""
        options, columns = snapshot.unpack(data)
        buffer = cls(
            tolerance_ns=options["tolerance_ns"],
            lateness_ns=tuple(options["lateness_ns"]),
            direction=options["direction"],
            driver=options["driver"],
            watermark_scope=options["progress"],
            emit_unmatched=options["emit_unmatched"],
        )
        buffer._frontiers.of_all[:, 0] = options["of_all"]
        buffer._frontiers.by_key = np.stack([columns[f"{name}.frontier"] for name in _NAMES])
        rows = np.stack([columns[name] for name in COLUMNS])
        buffer._grow(buffer._frontiers.by_key.shape[1])
        for held, table in zip(buffer._held, np.split(rows, [options["lefts"]], axis=1), strict=True):
            keys = np.unique(table[KEY])
            records = in_time_order(np.ascontiguousarray(table))
            side, _ = held.merge(keys, buffer._places_of(keys), records, since=0)
            held.put(keys, side, side.begin[:-1])
        buffer._last_seq, buffer._identified = options["last_seq"], options["identified"]
        buffer._closed = options["closed"]
        return buffer

    def _everything(self, side: int) -> Ints:
        """All records of a side as a table, key by key, each in order."""
        keys = self._held[side].keys()
        waiting = in_time_order(self._waiting[side].all())
        return self._held[side].merge(keys, self._places_of(keys), waiting, since=0)[0].rows

    def _held_keys(self) -> Ints:
        """The keys of which records are held, ascending. Where some wait, others of the key are in the table."""
        return np.union1d(self._held[_LEFT].keys(), self._held[_RIGHT].keys())

    def _check_open(self, call: str) -> None:
        if self._closed:
            message = f"{call} after close: both streams have ended"
            raise ArgumentError(message)

    def _take(self, records: list[Records], watermarks: list[Watermarks], *, ends: bool = False) -> Step:
        """Take the records and watermarks of both sides; ``ends``: nothing comes behind them."""
        last_seq = [
            check_rising(_NAMES[side], records[side], watermarks[side], self._last_seq[side])
            for side in (_LEFT, _RIGHT)
        ]
        self._identified = self._check_identities(records)
        since = [NEVER if last is None else last for last in self._last_seq]
        self._last_seq = last_seq
        keys = self._touched_keys(records, watermarks, all_held=ends)
        before = self._frontiers.at(keys)
        late = [self._frontiers.advance(side, records[side], watermarks[side]) for side in (_LEFT, _RIGHT)]
        if ends:
            self._frontiers.end()
        late_seq = records[_LEFT].seq[late[_LEFT]], records[_RIGHT].seq[late[_RIGHT]]
        accepted = records[_LEFT].but(late[_LEFT]), records[_RIGHT].but(late[_RIGHT])
        sides, repeated_seq = self._sides(keys, accepted, since)
        touched = len(keys) + sum(len(records.key) for records in accepted)
        return self._step(keys, before, sides, late_seq + repeated_seq, touched=touched, ends=ends)

    def _check_identities(self, records: list[Records]) -> list[bool | None]:
        """A side gives identities always or never: without them a duplicate could not be told from a tie."""
        known = list(self._identified)
        for side, batch in enumerate(records):
            if not len(batch.key):
                continue
            has = batch.identity is not None
            if known[side] not in {None, has}:
                message = f"{_NAMES[side]} identity must be given with every batch of a side, or with none"
                raise ArgumentError(message)
            known[side] = has
        return known

    def _touched_keys(self, records: list[Records], watermarks: list[Watermarks], *, all_held: bool) -> Ints:
        """The keys, ascending, for which a batch can change anything; with ``all_held``, those of all held records."""
        keys = [batch.key for batch in records] + [
            batch.key[batch.key != ALL_KEYS] for batch in watermarks if len(batch.key)
        ]
        if all_held or any(map(self._frontiers.concerns_all, records, watermarks)):
            keys += [held.keys() for held in self._held]
        left, right, *more = keys
        found = distinct(left, right, np.concatenate(more) if more else _NOTHING)
        self._grow(int(found[-1]) + 1 if len(found) else 0)
        return found

    def _grow(self, keys: int) -> None:
        self._frontiers.grow(keys)
        for held in self._held:
            held.grow(keys)

    def _places_of(self, keys: Ints) -> Ints:
        """Of each of ``keys`` its index among them; of other keys anything."""
        if len(keys) and len(self._place) <= keys[-1]:
            self._place = np.empty(2 * int(keys[-1]) + 1, dtype=np.int64)
        self._place[keys] = np.arange(len(keys))
        return self._place

    def _sides(
        self, keys: Ints, new: tuple[Records, Records], since: list[int]
    ) -> tuple[tuple[Side, Side], tuple[Ints, Ints]]:
        """All records of the touched ``keys``, new ones among them; the positions of those that came before already."""
        tables = [table_of(records.key, records.ts, records.seq, records.identity) for records in new]
        if any(map(len, self._waiting)):
            until = self._reached(keys, new)
            woken = [waiting.take(keys, until[1 - side]) for side, waiting in enumerate(self._waiting)]
            tables = [np.concatenate(both, axis=1) for both in zip(woken, tables, strict=True)]
        sides, repeated, places = [], [], self._places_of(keys)
        for side, table in enumerate(tables):
            found, has_equal = self._held[side].merge(keys, places, in_time_order(table), since=since[side])
            again = _NOTHING
            if has_equal:
                if self._identified[side]:
                    found, again = without_repeats(found)
                number(found)
            sides.append(found)
            repeated.append(again)
        return (sides[_LEFT], sides[_RIGHT]), (repeated[_LEFT], repeated[_RIGHT])

    def _reached(self, keys: Ints, new: tuple[Records, Records]) -> Ints:
        """How far each side has come with a step for ``keys``, by promise or record: (2, k), ns."""
        reached = self._frontiers.at(keys)
        for side, records in enumerate(new):
            np.maximum.at(reached[side], keys.searchsorted(records.key), records.ts)
        return reached

    def _step(
        self,
        keys: Ints,
        before: Ints,
        sides: tuple[Side, Side],
        left_out: tuple[Ints, Ints, Ints, Ints],
        *,
        touched: int,
        ends: bool,
    ) -> Step:
        """What all records of the touched ``keys`` bring forth; ``before``: the frontiers before the batch, (2, k).

        ``left_out``: the positions of late records of either side, and of repeated ones; ``touched``: keys and new
        records.
        """
        now = self._frontiers.at(keys)
        left, right = sides
        found = evaluate(left, right, before, now, self._wants, self._tolerance, self._emits_unmatched, ends)
        kept = [found.left_kept, found.right_kept]
        released = found.left_released, found.right_released
        if is_backlog(left.begin[-1] + right.begin[-1] - sum(map(len, released)), touched):
            left, right = self._mark_failed(sides, kept, now)
        for held, side, of_side in zip(self._held, (left, right), kept, strict=True):
            held.put(keys, side, of_side)
        return Step(*found[:4], *left_out, *released, np.sort(found.left_unmatched), np.sort(found.right_unmatched))

    def _mark_failed(self, sides: tuple[Side, Side], kept: list[Ints], now: Ints) -> tuple[Side, Side]:
        """The same without the records that can wait; ``kept`` is changed to it."""
        stay = []
        for own, other in _BOTH_WAYS:
            side, kept[own] = self._waiting[own].put(sides[own], kept[own], sides[other], now[own], now[other])
            stay.append(side)
        return stay[_LEFT], stay[_RIGHT]


_NOTHING: Final = np.empty(0, dtype=np.int64)
_BOTH_WAYS: Final = ((_LEFT, _RIGHT), (_RIGHT, _LEFT))
_ANY_DISTANCE: Final = np.uint64(2**64 - 1)

compile_declared()
