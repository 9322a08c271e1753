"""`RecordJoin`: joins records one at a time with a Python function, for small jobs.

Each call runs one step of the underlying buffer, which limits throughput to about ten thousand records per second. For
higher rates, pass arrays to `LocalStreamBuffer`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeAlias, TypeVar

import numpy as np

from joiner.core.engine import ALL_KEYS, LocalStreamBuffer, Step
from joiner.core.errors import ArgumentError, NewerSnapshotError, SnapshotError
from joiner.library.times import INTEGERS, NAIVE, duration_of, is_duration, time_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

Left = TypeVar("Left")
Right = TypeVar("Right")
Result = TypeVar("Result")
Time: TypeAlias = int | datetime | np.datetime64

_LEFT: Final = "left"
_RIGHT: Final = "right"
_KEYS_MIN: Final = 64
"""With this many keys or fewer, it is not worth searching for unused keys."""
_ADVICE: Final = {
    True: "expected a datetime, because tolerance or lateness is a duration; for integer times, pass integers",
    False: "expected an integer, because tolerance or lateness is an integer; for datetimes, pass durations",
}
"""Error messages for a time that does not match tolerance or lateness, keyed by whether those are durations."""
_VERSION: Final = 1
"""The snapshot format version."""


class _Keys(Enum):
    EVERY = "every key"


class RecordJoin(Generic[Left, Right, Result]):
    """Joins records of any type, one at a time, with their previous and next neighbours in the other stream.

    Args:
        join_function: called with the left and right record of each pair, once the pair is certain. If it raises, the
            exception reaches the caller and the results of this call are lost, but the join remains usable. The same
            applies to ``on_late`` and ``on_unmatched``.
        time: returns the event time of a record: an integer in any unit, or a datetime (`datetime.datetime`,
            `pandas.Timestamp`, `numpy.datetime64`). It must return the same type for all records of both sides:
            integers, datetimes with a time zone, or datetimes without one. Datetimes with a time zone are compared as
            points in time. Those without are compared as is; the machine's own time zone is never applied.
        key: returns the key of a record, which can be any hashable value. Only records with equal keys are neighbours.
            By default all records have the same key.
        on_late: called with each late record (one older than the frontier of its stream). Late records are not joined.
        on_unmatched: called with each record that is in no pair and can no longer be paired, for the sides selected by
            ``emit_unmatched``.
        tolerance: how far apart in time the records of a pair may be; None means no limit. It must be an integer if
            times are integers, otherwise a duration (``"20ms"``, ``"1.5 seconds"``, `datetime.timedelta`,
            `numpy.timedelta64`, `pandas.Timedelta`).
        lateness: how far a record's time may be behind the newest record of the same stream and key (with
            ``watermark_scope="partition"``, of the same stream) before the record is late. It has the same type as
            ``tolerance``. Pass one value for both sides, or (left, right). The default is 0.
        options: other options of `LocalStreamBuffer`. ``tolerance_ns`` and ``lateness_ns`` may be passed instead of
            ``tolerance`` and ``lateness``: integers in ns or, if times are integers, in the unit of the times.

    Raises:
        ArgumentError: if an option is invalid. The message names the option and says why.

    By default the state of a key is kept forever, because its frontier decides which of its records are late. If keys
    come and go, set ``watermark_scope="partition"`` and a tolerance: the state of a key can then be dropped once the
    buffer no longer holds any of its records.

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
        time: Callable[[Any], Time],
        key: Callable[[Any], Hashable] = lambda _record: None,
        on_late: Callable[[Any], None] = lambda _record: None,
        on_unmatched: Callable[[Any], None] | None = None,
        tolerance: Any = None,
        lateness: Any = None,
        **options: Any,
    ) -> None:
        self._join_function = join_function
        self._time, self._key, self._on_late = time, key, on_late
        self._has_durations = _add_durations(options, tolerance, lateness)
        self._times: str | None = None
        self._options = options
        self._buffer = LocalStreamBuffer(**options)
        asked = options.get("emit_unmatched", "none")
        if asked != "none" and on_unmatched is None:
            message = f"emit_unmatched = {asked!r} requires on_unmatched, a function to call with each unmatched record"
            raise ArgumentError(message)
        self._on_unmatched = on_unmatched
        self._keys: dict[Hashable, int] = {}
        self._free: list[int] = []
        self._keys_swept_above = _KEYS_MIN
        self._held: dict[str, dict[int, Any]] = {_LEFT: {}, _RIGHT: {}}
        self._count = 0

    def left(self, record: Left) -> list[Result]:
        """Add a record of the left stream. Return the results of the pairs that became certain.

        Raises `ArgumentError` if the record's time is invalid or has a different type from earlier times, or if the
        join is closed. Exceptions raised by the functions ``time`` and ``key`` propagate. In all these cases the record
        is not added.
        """
        return self._push(_LEFT, record)

    def right(self, record: Right) -> list[Result]:
        """Add a record of the right stream. See `left`."""
        return self._push(_RIGHT, record)

    def left_watermark(self, time: Time, key: Hashable = _Keys.EVERY) -> list[Result]:
        """Promise that no more left records older than ``time`` will follow, for one key or, by default, for all keys.

        Return the results of the pairs that became certain. A record that breaks the promise is treated as late. Raises
        `ArgumentError` if ``time`` is invalid, or if the join is closed.
        """
        return self._advance(_LEFT, time, key)

    def right_watermark(self, time: Time, key: Hashable = _Keys.EVERY) -> list[Result]:
        """Promise that no more right records older than ``time`` will follow. See `left_watermark`."""
        return self._advance(_RIGHT, time, key)

    def close(self) -> list[Result]:
        """End both streams. Return the results of the remaining pairs. Any later call raises `ArgumentError`."""
        return self._results(self._buffer.close())

    def __len__(self) -> int:
        """Return the total number of records held on both sides."""
        return len(self._buffer)

    def snapshot(self) -> dict[str, Any]:
        """Return a snapshot for `restore`: the options and the whole state, including the held records and keys.

        Apart from records and keys, the snapshot contains only values of built-in types. The records are not copied:
        serialize the snapshot before any record is modified, with a serializer that supports their type, for example
        `pickle`.
        """
        return {
            "version": _VERSION,
            "options": dict(self._options),
            "has_durations": self._has_durations,
            "times": self._times,
            "buffer": self._buffer.snapshot(),
            "keys": list(self._keys.items()),
            "numbers": len(self._keys) + len(self._free),
            "count": self._count,
            **{side: list(held.items()) for side, held in self._held.items()},
        }

    @classmethod
    def restore(
        cls,
        snapshot: Any,
        join_function: Callable[[Left, Right], Result],
        *,
        time: Callable[[Any], Time],
        key: Callable[[Any], Hashable] = lambda _record: None,
        on_late: Callable[[Any], None] = lambda _record: None,
        on_unmatched: Callable[[Any], None] | None = None,
    ) -> Self:
        """Create a join that continues from a snapshot. Pass the functions that the original join was created with.

        Raises `SnapshotError` if the snapshot is invalid (`NewerSnapshotError` if a newer release created it), and
        `ArgumentError` if the original join emits unmatched records and ``on_unmatched`` is not passed.
        """
        if not isinstance(snapshot, dict) or not isinstance(snapshot.get("version"), int):
            raise SnapshotError("expected a snapshot as returned by RecordJoin.snapshot()")
        if snapshot["version"] > _VERSION:
            raise NewerSnapshotError(f"the snapshot was created by a newer release (version {snapshot['version']})")
        try:
            join = cls(
                join_function, time=time, key=key, on_late=on_late, on_unmatched=on_unmatched, **snapshot["options"]
            )
            join._load(snapshot)
        except KeyError as error:
            raise SnapshotError(f"the snapshot of a RecordJoin lacks {error}") from error
        return join

    def _load(self, snapshot: dict[str, Any]) -> None:
        self._buffer = LocalStreamBuffer.restore(snapshot["buffer"])
        self._has_durations, self._times = snapshot["has_durations"], snapshot["times"]
        self._held = {side: dict(snapshot[side]) for side in (_LEFT, _RIGHT)}
        if [sorted(self._held[side]) for side in (_LEFT, _RIGHT)] != [seq.tolist() for seq in self._buffer.held_seq()]:
            raise SnapshotError("the snapshot is damaged: its records do not match those held by its buffer")
        self._keys = dict(snapshot["keys"])
        self._free = sorted(set(range(snapshot["numbers"])) - set(self._keys.values()))
        self._count = snapshot["count"]

    def _push(self, side: str, record: Any) -> list[Result]:
        key, time = self._key(record), self._time(record)
        columns = self._columns(key, f"{side}: time(record)", time)
        step = self._buffer.push(**{side: columns})
        self._held[side][self._count] = record
        self._count += 1
        return self._results(step)

    def _advance(self, side: str, time: Time, key: Hashable) -> list[Result]:
        columns = self._columns(key, f"{side}_watermark: time", time)
        step = self._buffer.push(**{f"{side}_watermarks": columns})
        self._count += 1
        return self._results(step)

    def _columns(self, key: Hashable, name: str, time: Time) -> tuple[Ints, Ints, Ints]:
        """Return the next record or watermark as arrays for the buffer. ``name``: what error messages call the time."""
        number = ALL_KEYS if key is _Keys.EVERY else self._number(key)
        return np.array([number]), np.array([self._ts(name, time)]), np.array([self._count])

    def _ts(self, name: str, time: Time) -> int:
        """Convert a datetime to ns; return an integer time unchanged. Raises `ArgumentError` if the type is wrong."""
        ts, what = time_of(name, time)
        if self._has_durations is not None and self._has_durations != (what != INTEGERS):
            raise ArgumentError(f"{name} = {time!r}: {_ADVICE[self._has_durations]}")
        if self._times not in {None, what}:
            raise ArgumentError(f"{name} = {time!r}: expected {self._times}, as in earlier calls, but got {what}")
        self._times = what
        return ts

    def _number(self, key: Hashable) -> int:
        """Return the integer that represents a key in the buffer. Assign one if the key is new."""
        number = self._keys.get(key)
        if number is None:
            if len(self._keys) > self._keys_swept_above:
                self._forget_idle_keys()
            # If there is no number to reuse, exactly the numbers 0 to len - 1 are in use.
            number = self._keys[key] = self._free.pop() if self._free else len(self._keys)
        return number

    def _forget_idle_keys(self) -> None:
        """Remove the keys for which the buffer no longer has any state, so that their numbers can be reused."""
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


def _add_durations(options: dict[str, Any], tolerance: Any, lateness: Any) -> bool | None:
    """Add ``tolerance_ns`` and ``lateness_ns`` to the options.

    Return whether the arguments are durations (True) or integers (False), or None if neither is set.

    Raises `ArgumentError` if ``options`` already contains either option, if durations and integers are mixed, or if a
    value is invalid.
    """
    by_side = lateness if isinstance(lateness, tuple | list) else (lateness,)
    given = {"tolerance": (tolerance,), "lateness": tuple(by_side)}
    given = {name: values for name, values in given.items() if values != (None,)}
    found = {is_duration(value) for values in given.values() for value in values}
    if len(found) > 1:
        raise ArgumentError(
            "tolerance and lateness must all be durations or all be integers, not "
            f"tolerance = {tolerance!r} and lateness = {lateness!r}"
        )
    for name, values in given.items():
        if f"{name}_ns" in options:
            raise ArgumentError(f"{name} and {name}_ns are the same option; pass one of them")
        checked = tuple(duration_of(name, value, NAIVE if True in found else INTEGERS) for value in values)
        options[f"{name}_ns"] = checked[0] if len(checked) == 1 else checked
    return next(iter(found), None)
