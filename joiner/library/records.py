"""`RecordJoin`: joins records one at a time with a Python function, for small jobs.

Each call is one step of the buffer, which limits the rate to about ten thousand records a second. For higher rates,
pass arrays to `LocalStreamBuffer`.
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
"""As long as there are at most this many keys, idle ones are not searched for."""


class RecordJoin(Generic[Left, Right, Result]):
    """Joins records of any type, one at a time, with their previous and next neighbours in the other stream.

    Args:
        join_function: called with the left and right record of each pair, once the pair is certain. If it raises, the
            exception reaches the caller and the results of this call are lost, but the join remains usable.
        time: returns the event time of a record as an integer, in ns or in any other unit, the same for both sides.
        key: returns the key of a record, which can be any hashable value. Only records with equal keys are neighbours.
            By default all records have the same key.
        on_late: called with each late record. A late record is below the frontier of its stream and is not joined.
        on_unmatched: called with each record that is in no pair and can no longer be paired, for the sides in
            ``emit_unmatched``.
        options: those of `LocalStreamBuffer`, such as ``tolerance_ns`` and ``lateness_ns``, in the unit of the times.

    Raises:
        ArgumentError: naming the option and its permitted values.

    By default a key's state is kept forever, because its frontier decides which of its records are late. If keys come
    and go, set ``watermark_scope="partition"`` and a tolerance: a key's state can then be dropped once none of its
    records is held.

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
            message = f"emit_unmatched = {asked!r} needs on_unmatched, which is called with each unmatched record"
            raise ArgumentError(message)
        self._on_unmatched = on_unmatched
        self._keys: dict[Hashable, int] = {}
        self._free: list[int] = []
        self._keys_swept_above = _KEYS_MIN
        self._held: dict[str, dict[int, Any]] = {_LEFT: {}, _RIGHT: {}}
        self._count = 0

    def left(self, record: Left) -> list[Result]:
        """Add a record of the left stream. Return the results of the pairs that became certain.

        Raises `ArgumentError` for an invalid time, and passes on any exception of ``time`` or ``key``. In both cases,
        the join is unchanged.
        """
        return self._push(_LEFT, record)

    def right(self, record: Right) -> list[Result]:
        """Add a record of the right stream. See `left`."""
        return self._push(_RIGHT, record)

    def close(self) -> list[Result]:
        """End both streams. Return the results of the remaining pairs. A second call raises `ArgumentError`."""
        return self._results(self._buffer.close())

    def __len__(self) -> int:
        """Return the total number of records held on both sides."""
        return len(self._buffer)

    def _push(self, side: str, record: Any) -> list[Result]:
        key, ts = self._key(record), np.array([self._time(record)])
        number = self._number(key)
        columns = np.array([number]), ts, np.array([self._count])
        step = self._buffer.push(left=columns) if side == _LEFT else self._buffer.push(right=columns)
        self._held[side][self._count] = record
        self._count += 1
        return self._results(step)

    def _number(self, key: Hashable) -> int:
        """Return the number of a key. Assign one if the key is new."""
        number = self._keys.get(key)
        if number is None:
            if len(self._keys) > self._keys_swept_above:
                self._forget_idle_keys()
            # If no number is free, exactly the numbers 0 to len - 1 are in use.
            number = self._keys[key] = self._free.pop() if self._free else len(self._keys)
        return number

    def _forget_idle_keys(self) -> None:
        """Free the numbers of the keys for which the buffer has no state."""
        known = set(self._buffer.known_keys().tolist())
        for key in [key for key, number in self._keys.items() if number not in known]:
            self._free.append(self._keys.pop(key))
        # Doubling the threshold makes the amortized cost per new key constant.
        self._keys_swept_above = max(_KEYS_MIN, 2 * len(self._keys))

    def _results(self, step: Step) -> list[Result]:
        left, right = self._held[_LEFT], self._held[_RIGHT]
        positions = zip(step.left_seq.tolist(), step.right_seq.tolist(), strict=True)
        pairs = [(left[one], right[other]) for one, other in positions]
        late = [left.pop(seq) for seq in step.left_late_seq.tolist()]
        late += [right.pop(seq) for seq in step.right_late_seq.tolist()]
        unmatched = [left[seq] for seq in step.left_unmatched_seq.tolist()]
        unmatched += [right[seq] for seq in step.right_unmatched_seq.tolist()]
        for held, released in ((left, step.left_released_seq), (right, step.right_released_seq)):
            for seq in released.tolist():
                del held[seq]
        # Call the caller's functions last, because they may raise.
        for record in late:
            self._on_late(record)
        if self._on_unmatched is not None:
            for record in unmatched:
                self._on_unmatched(record)
        return [self._join_function(one, other) for one, other in pairs]
