"""`RecordJoin`: the join record by record, with a function of two records. A thin layer for small jobs.

Every call is a step of the buffer of its own, some ten thousand of them in a second. Whoever has more gives arrays to
`LocalStreamBuffer`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Final, Generic, TypeVar

import numpy as np

from joiner.core.engine import LocalStreamBuffer, Step
from joiner.core.errors import ArgumentError

Left = TypeVar("Left")
Right = TypeVar("Right")
Result = TypeVar("Result")

_LEFT: Final = "left"
_RIGHT: Final = "right"
_KEYS_MIN: Final = 64
"""Fewer keys are not looked through for idle ones."""


class RecordJoin(Generic[Left, Right, Result]):
    """Joins records of any kind as they come, each with its previous and next neighbours of the other side.

    Args:
        join_function: called for each pair, once, as soon as the pair is certain. What it raises goes to the caller,
            whose call is then without results; the join can go on.
        time: the event time of a record of either side, as an integer: ns, unless all your times have another unit.
        key: only records with equal keys are neighbours; any hashable value, by default the same for all.
        on_late: called with each record that came below its stream's frontier and is not joined.
        on_unmatched: called with each record that is in no pair and cannot get into one any more, of the sides that
            ``emit_unmatched`` names.
        options: those of `LocalStreamBuffer`, such as ``tolerance_ns`` and ``lateness_ns``, in the unit of the times.

    Raises:
        ArgumentError: naming the option and what it may be.

    A key is remembered for good, with how far its streams are, which decides what is late. Where keys come and go, have
    ``watermark_scope="partition"`` and a tolerance: a key of which no record is held is then forgotten.

    >>> join = RecordJoin(
    ...     lambda speed, torque: speed["rpm"] * torque["nm"],
    ...     time=lambda record: record["at"],
    ...     key=lambda record: record["machine"],
    ... )
    >>> join.left({"machine": "mill", "at": 10, "rpm": 900})
    []
    >>> join.right({"machine": "mill", "at": 20, "nm": 4.0})
    [3600.0]
    >>> join.left({"machine": "mill", "at": 30, "rpm": 950})
    [3800.0]
    >>> join.close()
    []

    """

    def __init__(
        self,
        join_function: Callable[[Left, Right], Result],
        *,
        time: Callable[[Any], int],
        key: Callable[[Any], Hashable] = lambda _record: None,
        on_late: Callable[[Any], None] = lambda _record: None,
        on_unmatched: Callable[[Any], None] | None = None,
        **options: Any,
    ) -> None:
        self._join_function = join_function
        self._time, self._key, self._on_late = time, key, on_late
        self._buffer = LocalStreamBuffer(**options)
        asked = options.get("emit_unmatched", "none")
        if asked != "none" and on_unmatched is None:
            message = f"emit_unmatched = {asked!r} needs on_unmatched, which is called with these records"
            raise ArgumentError(message)
        self._on_unmatched = on_unmatched
        self._keys: dict[Hashable, int] = {}
        self._free: list[int] = []
        self._keys_swept_above = _KEYS_MIN
        self._held: dict[str, dict[int, Any]] = {_LEFT: {}, _RIGHT: {}}
        self._count = 0

    def left(self, record: Left) -> list[Result]:
        """Take a record of the left stream; returns what the function made of the pairs that became certain.

        Raises `ArgumentError` where its time is none, and whatever ``time`` or ``key`` raises; nothing is taken then.
        """
        return self._take(_LEFT, record)

    def right(self, record: Right) -> list[Result]:
        """Take a record of the right stream; see `left`."""
        return self._take(_RIGHT, record)

    def close(self) -> list[Result]:
        """Both streams have ended: returns what is left. Once only."""
        return self._results(self._buffer.close())

    def __len__(self) -> int:
        """Records held, of both sides."""
        return len(self._buffer)

    def _take(self, side: str, record: Any) -> list[Result]:
        key, ts = self._key(record), np.array([self._time(record)])
        number = self._number(key)
        columns = np.array([number]), ts, np.array([self._count])
        step = self._buffer.push(left=columns) if side == _LEFT else self._buffer.push(right=columns)
        self._held[side][self._count] = record
        self._count += 1
        return self._results(step)

    def _number(self, key: Hashable) -> int:
        """The number of a key, a new one's among them."""
        number = self._keys.get(key)
        if number is None:
            if len(self._keys) > self._keys_swept_above:
                self._forget_idle_keys()
            # Where none is free, those in use are the numbers from 0 on.
            number = self._keys[key] = self._free.pop() if self._free else len(self._keys)
        return number

    def _forget_idle_keys(self) -> None:
        """Give back the numbers of keys of which the buffer knows nothing."""
        known = set(self._buffer.known_keys().tolist())
        for key in [key for key, number in self._keys.items() if number not in known]:
            self._free.append(self._keys.pop(key))
        # So seldom that it costs little for each new key.
        self._keys_swept_above = max(_KEYS_MIN, 2 * len(self._keys))

    def _results(self, step: Step) -> list[Result]:
        left, right = self._held[_LEFT], self._held[_RIGHT]
        found = zip(step.left_seq.tolist(), step.right_seq.tolist(), strict=True)
        pairs = [(left[one], right[other]) for one, other in found]
        late = [left.pop(seq) for seq in step.left_late_seq.tolist()]
        late += [right.pop(seq) for seq in step.right_late_seq.tolist()]
        alone = [left[seq] for seq in step.left_unmatched_seq.tolist()]
        alone += [right[seq] for seq in step.right_unmatched_seq.tolist()]
        for held, released in ((left, step.left_released_seq), (right, step.right_released_seq)):
            for seq in released.tolist():
                del held[seq]
        # Last, because these are not ours and may raise.
        for record in late:
            self._on_late(record)
        if self._on_unmatched is not None:
            for record in alone:
                self._on_unmatched(record)
        return [self._join_function(one, other) for one, other in pairs]
