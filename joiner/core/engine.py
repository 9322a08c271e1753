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
    Marks,
    Records,
    check_duration,
    check_marks,
    check_records,
    check_rising,
)
from joiner.core.errors import ArgumentError
from joiner.core.frontier import NEVER, Frontier, grown
from joiner.core.held import Held, Merged, Rows, merge
from joiner.core.match import DIRECTIONS, DRIVERS, Known, Relations, new_pairs, relate, wants_of
from joiner.core.order import Segments, distinct
from joiner.core.release import find_kept, within
from joiner.core.unmatched import may_match

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

__all__ = ["ALL_KEYS", "LocalStreamBuffer", "Step"]

_LEFT, _RIGHT = 0, 1
_NAMES: Final = ("left", "right")
PROGRESS: Final = ("key", "partition")
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
        progress: how far a stream is, by ``"key"``, or by ``"partition"``: the largest time of the whole stream counts
            for all keys, for inputs that are in the order of time across keys.
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
        progress: str = "key",
        emit_unmatched: str = "none",
    ) -> None:
        for name, value, known in (
            ("direction", direction, DIRECTIONS),
            ("driver", driver, DRIVERS),
            ("progress", progress, PROGRESS),
            ("emit_unmatched", emit_unmatched, UNMATCHED),
        ):
            if value not in known:
                message = f"{name} = {value!r} is not known; it is one of {', '.join(map(repr, known))}"
                raise ArgumentError(message)
        self._direction, self._driver, self._progress = direction, driver, progress
        self._emit_unmatched = emit_unmatched
        self._wants = wants_of(direction, driver)
        self._tolerance_ns = None if tolerance_ns is None else check_duration("tolerance_ns", tolerance_ns)
        sides = lateness_ns if isinstance(lateness_ns, (tuple, list)) else (lateness_ns, lateness_ns)
        if len(sides) != len(_NAMES):
            message = f"lateness_ns must be one value or (left, right), not {len(sides)} values"
            raise ArgumentError(message)
        self._frontier = [
            Frontier(check_duration(f"lateness_ns ({name})", value), by_partition=progress == "partition")
            for name, value in zip(_NAMES, sides, strict=True)
        ]
        self._held = Held()
        # By side and key, the largest time that was released.
        self._gone = [np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)]
        self._last_seq: list[int | None] = [None, None]
        self._identified: list[bool | None] = [None, None]
        self._closed = False

    def push(
        self,
        *,
        left: Sequence[object] | None = None,
        right: Sequence[object] | None = None,
        left_marks: Sequence[object] | None = None,
        right_marks: Sequence[object] | None = None,
    ) -> Step:
        """Take the next records and marks of either side; returns what became certain by them.

        Args:
            left: ``(keys, ts_ns, seq)``, int64 arrays of shape (n,): join keys from 0 on, event times in
                ns since the epoch, log positions. A fourth array of identities makes a record with the key, time
                and identity of an earlier one of its side a duplicate, which is left out and reported.
            right: the same of the other side.
            left_marks: ``(keys, ts_ns, seq)``: from its position on, the side promises to send
                nothing below the mark's time for its key, or for all keys (`ALL_KEYS`).
            right_marks: the same of the other side.

        Positions rise strictly on each side, over records and marks together.

        Raises:
            ArgumentError: naming the argument and the index; the buffer is then as it was before.

        """
        self._check_open("push")
        records = [check_records("left", left), check_records("right", right)]
        marks = [check_marks("left_marks", left_marks), check_marks("right_marks", right_marks)]
        return self._take(records, marks)

    def close(self, *, left: Sequence[object] | None = None, right: Sequence[object] | None = None) -> Step:
        """Both streams have ended, with these last records: everything becomes certain, and the buffer is empty.

        Once only. Arguments and errors are those of `push`.
        """
        self._check_open("close")
        records = [check_records("left", left), check_records("right", right)]
        step = self._take(records, [check_marks("left_marks", None)] * 2, ends=True)
        self._closed = True
        return step

    def __len__(self) -> int:
        """Records held, of both sides."""
        return len(self._held)

    def held_seq(self) -> tuple[Ints, Ints]:
        """The positions of the records held on the left and on the right, ascending."""
        return _seq_by_side(self._held.rows(self._held.keys()))

    def held_by_key(self) -> tuple[Ints, Ints]:
        """The keys of which records are held, ascending, and how many of each, of both sides together."""
        keys = self._held.keys()
        return keys, self._held.count(keys)

    def frontier_ns(self, keys: Sequence[int] | Ints) -> tuple[Ints, Ints]:
        """The frontiers of the left and right stream for ``keys``, in ns; the least int64 where nothing is known."""
        asked = np.asarray(keys, dtype=np.int64)
        if len(asked):
            self._grow(int(asked.max()) + 1)
        return self._frontier[_LEFT].at(asked), self._frontier[_RIGHT].at(asked)

    def snapshot(self) -> bytes:
        """The whole state, options included, as bytes for `restore`."""
        options: dict[str, Any] = {
            "tolerance_ns": self._tolerance_ns,
            "direction": self._direction,
            "driver": self._driver,
            "progress": self._progress,
            "emit_unmatched": self._emit_unmatched,
            "lateness_ns": [frontier.lateness_ns for frontier in self._frontier],
            "of_all": [frontier.of_all for frontier in self._frontier],
            "last_seq": self._last_seq,
            "identified": self._identified,
            "closed": self._closed,
        }
        columns = {}
        for name, frontier, gone in zip(_NAMES, self._frontier, self._gone, strict=True):
            columns[f"{name}.frontier"], columns[f"{name}.gone"] = frontier.by_key, gone
        for name, column in self._held.rows(self._held.keys())._asdict().items():
            columns[name] = column.astype(np.int64)
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
            progress=options["progress"],
            emit_unmatched=options["emit_unmatched"],
        )
        for side, name in enumerate(_NAMES):
            buffer._frontier[side].of_all = options["of_all"][side]
            buffer._frontier[side].by_key = columns[f"{name}.frontier"]
            buffer._gone[side] = columns[f"{name}.gone"]
        empty = Rows.room(0)
        buffer._held = Held(Rows(*(columns[n].astype(c.dtype) for n, c in empty._asdict().items())))
        buffer._held.grow(len(buffer._gone[_LEFT]))
        buffer._last_seq, buffer._identified = options["last_seq"], options["identified"]
        buffer._closed = options["closed"]
        return buffer

    def _check_open(self, call: str) -> None:
        if self._closed:
            message = f"{call} after close: both streams have ended"
            raise ArgumentError(message)

    def _take(self, records: list[Records], marks: list[Marks], *, ends: bool = False) -> Step:
        """Take the records and marks of both sides; ``ends``: nothing comes behind them."""
        last_seq = [
            check_rising(_NAMES[side], records[side], marks[side], self._last_seq[side]) for side in (_LEFT, _RIGHT)
        ]
        self._identified = self._check_identities(records)
        self._last_seq = last_seq
        keys = self._touched_keys(records, marks, all_held=ends)
        before = self._frontiers(keys)
        late = [np.flatnonzero(self._frontier[side].advance(records[side], marks[side])) for side in (_LEFT, _RIGHT)]
        if ends:
            for frontier in self._frontier:
                frontier.end()
        new = (
            _accepted(records[_LEFT], late[_LEFT], is_right=False),
            _accepted(records[_RIGHT], late[_RIGHT], is_right=True),
        )
        late_seq = records[_LEFT].seq[late[_LEFT]], records[_RIGHT].seq[late[_RIGHT]]
        return self._step(keys, before, new, late_seq, ends=ends)

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

    def _touched_keys(self, records: list[Records], marks: list[Marks], *, all_held: bool) -> Ints:
        """The keys, ascending, for which a batch can change anything; with ``all_held``, those of all held records."""
        keys = [batch.key for batch in records] + [batch.key[batch.key != ALL_KEYS] for batch in marks]
        if all_held or any(map(Frontier.concerns_all, self._frontier, records, marks)):
            keys.append(self._held.keys())
        touched = distinct(keys)
        self._grow(int(touched[-1]) + 1 if len(touched) else 0)
        return touched

    def _frontiers(self, keys: Ints) -> Ints:
        """The frontiers of both streams for ``keys``, shape (2, k)."""
        return np.array([frontier.at(keys) for frontier in self._frontier])

    def _grow(self, keys: int) -> None:
        for frontier in self._frontier:
            frontier.grow(keys)
        self._gone = [grown(gone, keys) for gone in self._gone]
        self._held.grow(keys)

    def _step(
        self, keys: Ints, before: Ints, new: tuple[Rows, Rows], late_seq: tuple[Ints, Ints], *, ends: bool
    ) -> Step:
        """Take accepted records in; ``before``: the frontiers of the touched ``keys`` before the batch, (2, k)."""
        merged, duplicates = merge(self._held.rows(keys), new, identified=any(self._identified))
        known = self._known(merged, keys, before)
        relations = relate(merged, known, self._wants)
        left, right = new_pairs(merged, relations)
        if self._tolerance_ns is not None:
            near = np.flatnonzero(within(merged.ts[left], merged.ts[right], self._tolerance_ns))
            left, right = left[near], right[near]
        unmatched = self._find_unmatched(merged, known, relations, left, right)
        if ends:
            kept = np.zeros(len(merged.key), dtype=bool)
        else:
            kept = find_kept(merged, known, relations, self._wants, self._tolerance_ns)
        released = ~kept
        if not ends:
            self._let_go(merged, known, released)
        self._held.put(keys, merged.of(np.flatnonzero(kept)))
        left, right = merged.order[left], merged.order[right]
        seq, ordinal = merged.rows.seq, merged.rows.ordinal
        has_ordinals = ordinal.any()
        return Step(
            seq[left],
            seq[right],
            ordinal[left] if has_ordinals else np.zeros_like(left),
            ordinal[right] if has_ordinals else np.zeros_like(right),
            *late_seq,
            *_seq_by_side(duplicates),
            *merged.seq_by_side(released),
            *unmatched,
        )

    def _find_unmatched(
        self, merged: Merged, known: Known, relations: Relations, left: Ints, right: Ints
    ) -> tuple[Ints, Ints]:
        """The positions of those found to be unmatched in this step, in which the given ones are paired."""
        if self._emit_unmatched == "none":
            return _NOTHING, _NOTHING
        told = merged.rows.told[merged.order]
        told[left] = told[right] = True
        unmatched = ~told & ~may_match(merged, known, relations, self._wants, self._tolerance_ns)
        if self._emit_unmatched != "both":
            unmatched &= merged.is_right == (self._emit_unmatched == "right")
        merged.rows.told[merged.order] = told | unmatched
        return _seq_by_side(merged.of(np.flatnonzero(unmatched)))

    def _let_go(self, merged: Merged, known: Known, released: NDArray[np.bool_]) -> None:
        """Note the largest time that is released of each side and key."""
        if not len(known.first):
            return
        keys = merged.key[known.first]
        for gone, of_side in zip(self._gone, (~merged.is_right, merged.is_right), strict=True):
            largest = np.maximum.reduceat(np.where(released & of_side, merged.ts, NEVER), known.first)
            gone[keys] = np.maximum(gone[keys], largest)

    def _known(self, merged: Merged, touched: Ints, before: Ints) -> Known:
        """What is known of the streams, for the keys of which there are records."""
        of_key = Segments.of(merged.new_key)
        keys = merged.key[of_key.start]
        number, now = np.arange(len(keys)), self._frontiers(keys)
        place = np.where(merged.is_right, of_key.spread(number + len(keys)), of_key.spread(number))
        return Known(
            before[:, np.searchsorted(touched, keys)],
            now,
            np.array([gone[keys] for gone in self._gone]),
            of_key.start,
            place,
            now[::-1].ravel()[place],
        )


_NOTHING: Final = np.empty(0, dtype=np.int64)


def _accepted(records: Records, late: Ints, *, is_right: bool) -> Rows:
    """The records that are not late."""
    if len(late):
        fine = np.ones(len(records.key), dtype=bool)
        fine[late] = False
        records = records.take(np.flatnonzero(fine))
    return Rows.new(records.key, records.ts, records.seq, records.identity, is_right=is_right)


def _seq_by_side(rows: Rows) -> tuple[Ints, Ints]:
    """The positions of the left and of the right ones, ascending."""
    if not len(rows.key):
        return _NOTHING, _NOTHING
    seq = [rows.seq[np.flatnonzero(rows.is_right == side)] for side in (_LEFT, _RIGHT)]
    return np.sort(seq[_LEFT]), np.sort(seq[_RIGHT])
