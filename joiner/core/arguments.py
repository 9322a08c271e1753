"""What may enter the buffer: columns are checked here, all of them, before anything changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from joiner.core.compiled import COUNT, GIVEN, compiled
from joiner.core.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

ALL_KEYS: Final = -1
"""The key of a watermark that covers every key."""

KEY_MAX: Final = 2**24 - 1
"""Largest key: the state of a key lies in dense arrays, so keys are to be numbered from 0 without holes."""

TIME_MIN_NS: Final = -9_214_560_000_000_000_000
"""1678-01-01T00:00:00Z in ns since the epoch; NaT (the least int64) lies below."""

TIME_MAX_NS: Final = 9_214_646_399_999_999_999
"""The last nanosecond of 2261."""

DURATION_MAX_NS: Final = 2**63 - 1


class Records(NamedTuple):
    """Records of one stream in log order: n keys, event times in ns, log positions, and identities.

    Two records of one stream, key and time with equal identities are the same event delivered twice.
    ``identity`` is None where no such thing is known: then no record is a duplicate.
    """

    key: Ints
    ts: Ints
    seq: Ints
    identity: Ints | None

    def but(self, late: Ints) -> Records:
        """All but those of an index."""
        if not len(late):
            return self
        fine = np.ones(len(self.key), dtype=bool)
        fine[late] = False
        identity = None if self.identity is None else self.identity[fine]
        return Records(self.key[fine], self.ts[fine], self.seq[fine], identity)


class Watermarks(NamedTuple):
    """Watermarks of one stream in log order: n keys (or `ALL_KEYS`), times in ns, log positions."""

    key: Ints
    ts: Ints
    seq: Ints


def check_records(name: str, columns: Sequence[object] | None) -> Records:
    """``(keys, ts_ns, seq)`` or ``(keys, ts_ns, seq, identity)``, each int64 of shape (n,); None: no records."""
    if columns is None:
        return _NO_RECORDS
    with_identity = 4
    key, ts, seq, *identity = _columns(name, columns, (with_identity - 1, with_identity))
    _check_range(f"{name} keys", key, 0, KEY_MAX, "keys are small integers from 0 on; number them densely")
    _check_range(f"{name} ts_ns", ts, TIME_MIN_NS, TIME_MAX_NS, _TIMES)
    return Records(key, ts, seq, identity[0] if identity else None)


def check_watermarks(name: str, columns: Sequence[object] | None) -> Watermarks:
    """``(keys, ts_ns, seq)``, each int64 of shape (n,); a key may be `ALL_KEYS`; None: no watermarks."""
    if columns is None:
        return _NO_WATERMARKS
    key, ts, seq = _columns(name, columns, (3,))
    _check_range(f"{name} keys", key, ALL_KEYS, KEY_MAX, "a watermark's key is ALL_KEYS (-1) or a record's key")
    _check_range(f"{name} ts_ns", ts, TIME_MIN_NS, TIME_MAX_NS, _TIMES)
    return Watermarks(key, ts, seq)


def check_rising(name: str, records: Records, watermarks: Watermarks, last_seq: int | None) -> int | None:
    """The last log position of a side after these entries; positions must rise strictly, from ``last_seq`` on."""
    for what, seq in ((f"{name} seq", records.seq), (f"{name}_watermarks seq", watermarks.seq)):
        if not len(seq):
            continue
        if last_seq is not None and seq[0] <= last_seq:
            message = f"{what}[0] = {seq[0]} does not rise: the last of this side was {last_seq}"
            raise ArgumentError(message)
        _check_rising_within(what, seq)
    if len(records.seq) and len(watermarks.seq):
        at = np.searchsorted(records.seq, watermarks.seq)
        shared = np.flatnonzero(records.seq[np.minimum(at, len(records.seq) - 1)] == watermarks.seq)
        if len(shared):
            message = (
                f"{name}_watermarks seq[{shared[0]}] = {watermarks.seq[shared[0]]} is also the seq of a record: "
                "seq rises over records and watermarks together"
            )
            raise ArgumentError(message)
    lasts = [int(seq[-1]) for seq in (records.seq, watermarks.seq) if len(seq)]
    return max(lasts) if lasts else last_seq


def check_duration(name: str, value: object) -> int:
    """A duration in ns, an integer from 0 to 2**63 - 1."""
    if isinstance(value, (bool, float)) or not isinstance(value, (int, np.integer)):
        message = f"{name} must be an integer number of nanoseconds, not {value!r}"
        raise ArgumentError(message)
    if not 0 <= value <= DURATION_MAX_NS:
        message = f"{name} = {value} is outside 0 .. 2**63 - 1 nanoseconds"
        raise ArgumentError(message)
    return int(value)


_NONE: Final = np.empty(0, dtype=np.int64)
_NO_RECORDS: Final = Records(_NONE, _NONE, _NONE, None)
_NO_WATERMARKS: Final = Watermarks(_NONE, _NONE, _NONE)


def _columns(name: str, columns: Sequence[object], counts: tuple[int, ...]) -> list[Ints]:
    if len(columns) not in counts:
        wanted = "(keys, ts_ns, seq)" + (" or (keys, ts_ns, seq, identity)" if len(counts) > 1 else "")
        message = f"{name} must be {wanted}, not {len(columns)} columns"
        raise ArgumentError(message)
    names = ("keys", "ts_ns", "seq", "identity")
    arrays = [_int64(f"{name} {names[i]}", column) for i, column in enumerate(columns)]
    for i, array in enumerate(arrays):
        if len(array) != len(arrays[0]):
            message = f"{name} {names[i]} has {len(array)} values and {name} keys has {len(arrays[0])}"
            raise ArgumentError(message)
    return arrays


def _int64(name: str, column: object) -> Ints:
    array = np.asarray(column)
    if array.ndim != 1:
        message = f"{name} must have one dimension, not {array.ndim}"
        raise ArgumentError(message)
    if not len(array):
        return _NONE
    if array.dtype != np.int64:
        message = f"{name} must have dtype int64, not {array.dtype} (first value: {array[0]!r} at index 0)"
        raise ArgumentError(message)
    return np.ascontiguousarray(array)


_TIMES: Final = "times are ns since the epoch, 1678 to 2261; NaT is no time"


def _check_range(name: str, values: Ints, low: int, high: int, hint: str) -> None:
    at = _find_outside(values, low, high)
    if at < len(values):
        message = f"{name}[{at}] = {values[at]} is out of range: {hint}"
        raise ArgumentError(message)


@compiled(COUNT, GIVEN, COUNT, COUNT)
def _find_outside(values: Ints, low: int, high: int) -> int:
    """The first index of a value outside a range; the length where there is none."""
    for at in range(len(values)):
        if not low <= values[at] <= high:
            return at
    return len(values)


def _check_rising_within(name: str, seq: Ints) -> None:
    at = _find_fall(seq)
    if at < len(seq):
        message = f"{name}[{at}] = {seq[at]} does not rise: the one before is {seq[at - 1]}"
        raise ArgumentError(message)


@compiled(COUNT, GIVEN)
def _find_fall(values: Ints) -> int:
    """The first index of a value that is not above the one before; the length where there is none."""
    for at in range(1, len(values)):
        if values[at] <= values[at - 1]:
            return at
    return len(values)
