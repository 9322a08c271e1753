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
from joiner.core.frontier import Frontier, grown
from joiner.core.held import Held, find_released, merge, within
from joiner.core.match import Side, new_pairs, relate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

__all__ = ["ALL_KEYS", "LocalStreamBuffer", "Step"]

_LEFT, _RIGHT = 0, 1
_NAMES: Final = ("left", "right")


@dataclass(frozen=True)
class Step:
    """What one step brought forth. All int64, shape (n,); n differs between the groups.

    ``left_seq``/``right_seq`` are the two records of each pair that became certain, in the order of (key, left
    time and position, right time and position); ``left_ordinal``/``right_ordinal`` their places among the records
    of their stream with the same key and time, which are 0 without such ties. ``*_late_seq``: records that came
    after their stream's frontier; ``*_duplicate_seq``: records that came before with the same identity;
    ``*_released_seq``: records that left the buffer, so that nobody will ask for their payload again. Each of
    these in ascending order.
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


class LocalStreamBuffer:
    """The neighbour join of two streams, incrementally.

    Emits all pairs of records of one key in which one is the previous or the next neighbour of the other (the
    last with a time at or before, the first with a time at or after, in the order of time and log position), each
    pair once, as soon as no continuation of the streams could take it away.

    Args:
        tolerance_ns: pairs whose times are farther apart are left out; None: no limit.
        lateness_ns: how far a record may lag behind the largest time of its stream and key; one value for both
            sides or (left, right).
        direction: ``"both"``; others are refused for now.
        driver: ``"both"``; others are refused for now.

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
    ) -> None:
        for name, value in (("direction", direction), ("driver", driver)):
            if value != "both":
                message = f"{name} = {value!r} is not there yet; only 'both' is"
                raise ArgumentError(message)
        self._tolerance_ns = None if tolerance_ns is None else check_duration("tolerance_ns", tolerance_ns)
        sides = lateness_ns if isinstance(lateness_ns, (tuple, list)) else (lateness_ns, lateness_ns)
        if len(sides) != len(_NAMES):
            message = f"lateness_ns must be one value or (left, right), not {len(sides)} values"
            raise ArgumentError(message)
        self._frontier = [
            Frontier(check_duration(f"lateness_ns ({name})", value)) for name, value in zip(_NAMES, sides, strict=True)
        ]
        self._held = [Held.nothing(), Held.nothing()]
        # By key, the largest time that the side has released.
        self._gone: list[Ints] = [np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)]
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
        if self._closed:
            message = "push after close: both streams have ended"
            raise ArgumentError(message)
        records = [check_records("left", left), check_records("right", right)]
        marks = [check_marks("left_marks", left_marks), check_marks("right_marks", right_marks)]
        last_seq = [
            check_rising(_NAMES[side], records[side], marks[side], self._last_seq[side]) for side in (_LEFT, _RIGHT)
        ]
        self._identified = self._check_identities(records)
        self._last_seq = last_seq
        self._make_room(records, marks)
        before = [frontier.copy() for frontier in self._frontier]
        late = [self._frontier[side].advance(records[side], marks[side]) for side in (_LEFT, _RIGHT)]
        new = [_accepted(records[side], late[side]) for side in (_LEFT, _RIGHT)]
        late_seq = [records[side].seq[late[side]] for side in (_LEFT, _RIGHT)]
        return self._step(before, new, late_seq)

    def close(self) -> Step:
        """Both streams have ended: everything left becomes certain, and the buffer is empty. Once only."""
        if self._closed:
            message = "close after close: both streams have ended already"
            raise ArgumentError(message)
        before = [frontier.copy() for frontier in self._frontier]
        for frontier in self._frontier:
            frontier.end()
        step = self._step(before, [Held.nothing(), Held.nothing()], [_NOTHING, _NOTHING])
        self._closed = True
        return step

    def __len__(self) -> int:
        """Records held, of both sides."""
        return sum(len(held.key) for held in self._held)

    def held_seq(self) -> tuple[Ints, Ints]:
        """The positions of the records held on the left and on the right, ascending."""
        return np.sort(self._held[_LEFT].seq), np.sort(self._held[_RIGHT].seq)

    def held_by_key(self) -> tuple[Ints, Ints]:
        """The keys of which records are held, ascending, and how many of each, of both sides together."""
        key, count = np.unique(np.concatenate([held.key for held in self._held]), return_counts=True)
        return key, count

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
            "lateness_ns": [frontier.lateness_ns for frontier in self._frontier],
            "of_all": [frontier.of_all for frontier in self._frontier],
            "last_seq": self._last_seq,
            "identified": self._identified,
            "closed": self._closed,
        }
        columns = {}
        for side, name in enumerate(_NAMES):
            columns[f"{name}.frontier"] = self._frontier[side].by_key
            columns[f"{name}.gone"] = self._gone[side]
            columns |= {f"{name}.{field}": column for field, column in self._held[side]._asdict().items()}
        return snapshot.pack(options, columns)

    @classmethod
    def restore(cls, data: bytes) -> Self:
        """The buffer of a snapshot. Raises `SnapshotError` where the bytes are none, damaged, or too new."""
        options, columns = snapshot.unpack(data)
        buffer = cls(tolerance_ns=options["tolerance_ns"], lateness_ns=tuple(options["lateness_ns"]))
        for side, name in enumerate(_NAMES):
            buffer._frontier[side].of_all = options["of_all"][side]
            buffer._frontier[side].by_key = columns[f"{name}.frontier"]
            buffer._gone[side] = columns[f"{name}.gone"]
            buffer._held[side] = Held(*(columns[f"{name}.{field}"] for field in Held._fields))
        buffer._last_seq, buffer._identified = options["last_seq"], options["identified"]
        buffer._closed = options["closed"]
        return buffer

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

    def _make_room(self, records: list[Records], marks: list[Marks]) -> None:
        keys = [batch.key for batch in records] + [batch.key for batch in marks]
        self._grow(max((int(key.max()) for key in keys if len(key)), default=-1) + 1)

    def _grow(self, keys: int) -> None:
        for frontier in self._frontier:
            frontier.grow(keys)
        self._gone = [grown(gone, keys) for gone in self._gone]

    def _step(self, before: list[Frontier], new: list[Held], late_seq: list[Ints]) -> Step:
        aside, records, sides, duplicate_seq = [], [], [], []
        touched = self._touched(before, new)
        for side in (_LEFT, _RIGHT):
            here = touched[self._held[side].key]
            aside.append(self._held[side].take(~here))
            merged, old, duplicates = merge(
                self._held[side].take(here), new[side], identified=bool(self._identified[side])
            )
            records.append(merged)
            duplicate_seq.append(np.sort(duplicates))
            other, key = 1 - side, merged.key
            sides.append(
                Side(
                    key,
                    merged.ts,
                    old,
                    before[other].at(key),
                    self._frontier[other].at(key),
                    self._gone[other][key],
                )
            )
        relations = relate(sides[_LEFT], sides[_RIGHT])
        left_at, right_at = new_pairs(*relations)
        near = within(records[_LEFT].ts[left_at], records[_RIGHT].ts[right_at], self._tolerance_ns)
        left_at, right_at = left_at[near], right_at[near]
        released = []
        for side in (_LEFT, _RIGHT):
            other = 1 - side
            gone = find_released(
                sides[side],
                self._frontier[side].at(sides[side].key),
                relations[side],
                sides[other],
                relations[other],
                self._tolerance_ns,
            )
            released.append(self._release(side, records[side], gone))
            self._held[side] = aside[side].plus(records[side].take(~gone))
        return Step(
            records[_LEFT].seq[left_at],
            records[_RIGHT].seq[right_at],
            records[_LEFT].ordinal[left_at],
            records[_RIGHT].ordinal[right_at],
            *late_seq,
            *duplicate_seq,
            *released,
        )

    def _touched(self, before: list[Frontier], new: list[Held]) -> NDArray[np.bool_]:
        """By key: whether this step can change anything for it, by a new record or by a frontier."""
        touched = np.zeros(len(self._gone[_LEFT]), dtype=bool)
        for side in (_LEFT, _RIGHT):
            touched[new[side].key] = True
            if self._frontier[side].of_all != before[side].of_all:
                touched[:] = True
            touched |= self._frontier[side].by_key != before[side].by_key
        return touched

    def _release(self, side: int, records: Held, gone: NDArray[np.bool_]) -> Ints:
        key, ts = records.key[gone], records.ts[gone]
        # In the order of time within each key: what is assigned last is the largest.
        self._gone[side][key] = ts
        return np.sort(records.seq[gone])


_NOTHING: Final = np.empty(0, dtype=np.int64)


def _accepted(records: Records, late: NDArray[np.bool_]) -> Held:
    """The records that are not late, as held ones without an ordinal yet."""
    fine = ~late
    key, ts, seq = records.key[fine], records.ts[fine], records.seq[fine]
    identity = np.zeros(len(key), dtype=np.int64) if records.identity is None else records.identity[fine]
    return Held(key, ts, seq, identity, np.zeros(len(key), dtype=np.int64))
