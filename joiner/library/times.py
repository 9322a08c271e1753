"""Event times and durations as callers pass them, converted to int64 nanoseconds."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from joiner.core.arguments import DURATION_MAX_NS, TIME_MAX_NS, TIME_MIN_NS
from joiner.core.errors import ArgumentError
from joiner.library.durations import duration_ns

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Array = NDArray[Any]

INTEGERS: Final = "integers"
AWARE: Final = "datetimes with a time zone"
NAIVE: Final = "datetimes without a time zone"


@dataclass(frozen=True)
class Times:
    """Event times in ns, or in the unit of integer times; shape (n,). ``what``: `INTEGERS`, `AWARE` or `NAIVE`."""

    ns: Ints
    what: str


def times_of(name: str, values: Array, *, has_zone: bool) -> Times:
    """Convert a column of integers or of datetimes in UTC, shape (n,). ``name``: the column, for messages.

    Raises `ArgumentError` for other types, and for a datetime outside the years 1678 to 2261.
    """
    if values.dtype.kind == "M":
        return Times(_in_ns(name, values), AWARE if has_zone else NAIVE)
    if values.dtype.kind not in "iu" or values.dtype == np.uint64:
        raise ArgumentError(
            f"{name} must contain integers that fit int64, or datetimes, not {values.dtype}; convert the column"
        )
    return Times(values.astype(np.int64, copy=False), INTEGERS)


def _in_ns(name: str, values: Array) -> Ints:
    outside = _find_outside(values)
    if len(outside):
        raise ArgumentError(f"{name} = {values[outside[0]]} in row {outside[0]} is outside the years 1678 to 2261")
    return values.astype("datetime64[ns]", copy=False).view(np.int64)


def _find_outside(values: Array) -> Ints:
    """Return the indices of the datetimes, of any unit, that may not fit int64 in ns."""
    low, high = (np.datetime64(bound, "ns").astype("datetime64[D]") for bound in (TIME_MIN_NS, TIME_MAX_NS))
    if len(values) and low <= values.min().astype(low.dtype) <= values.max().astype(low.dtype) <= high:
        return np.empty(0, dtype=np.int64)
    days = values.astype("datetime64[D]")
    return np.flatnonzero((days < low) | (days > high))


def time_of(name: str, value: Any) -> tuple[int, str]:
    """Return a single event time in ns or, if it is an integer, as it is, and `INTEGERS`, `AWARE` or `NAIVE`.

    Raises `ArgumentError` unless it is an integer, `datetime.datetime`, `pandas.Timestamp` or `numpy.datetime64`, in
    the years 1678 to 2261. ``name``: what has this value, for messages.
    """
    # A pandas.Timestamp is a datetime with nanoseconds.
    of_numpy = value.to_datetime64() if hasattr(value, "to_datetime64") else value
    if isinstance(of_numpy, np.datetime64) and np.isnat(of_numpy):
        raise ArgumentError(f"{name} = NaT; a record without a time cannot have neighbours")
    what = INTEGERS
    if isinstance(value, datetime | np.datetime64):
        what = NAIVE if isinstance(value, np.datetime64) or value.utcoffset() is None else AWARE
    if isinstance(of_numpy, np.datetime64):
        is_outside = len(_find_outside(np.array([of_numpy])))
        ns = TIME_MAX_NS + 1 if is_outside else int(of_numpy.astype("datetime64[ns]").astype(np.int64))
    elif isinstance(value, datetime):
        ns = (value - (_EPOCH if what == AWARE else _EPOCH.replace(tzinfo=None))) // timedelta(microseconds=1) * 1000
    elif isinstance(value, int | np.integer) and not isinstance(value, bool):
        ns = int(value)
    else:
        raise ArgumentError(f"{name} = {value!r} must be an integer or a datetime")
    if not TIME_MIN_NS <= ns <= TIME_MAX_NS:
        raise ArgumentError(f"{name} = {value!r} is outside the years 1678 to 2261, in ns since 1970 if an integer")
    return ns, what


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def duration_of(name: str, value: Any, what: str) -> int:
    """Return a duration in ns or, if times are `INTEGERS`, in their unit. ``what``: `INTEGERS`, `AWARE` or `NAIVE`.

    Raises `ArgumentError` naming the argument ``name``, unless the value is an integer for integer times, and otherwise
    text, `datetime.timedelta`, `numpy.timedelta64` or `pandas.Timedelta`.
    """
    if what == INTEGERS:
        found = _integer_of(name, value)
    elif is_duration(value):
        found = _ns_of(name, value)
    else:
        raise ArgumentError(
            f"{name} must be a duration if times are datetimes, such as '10 seconds' or "
            f"datetime.timedelta(seconds=10), not {value!r}"
        )
    if not 0 <= found <= DURATION_MAX_NS:
        raise ArgumentError(f"{name} = {value!r} is outside 0 .. 2**63 - 1" + " ns" * (what != INTEGERS))
    return found


def is_duration(value: object) -> bool:
    """Return whether a value is a duration by its type, as opposed to an integer."""
    # A `pandas.Timedelta` is a `datetime.timedelta`.
    return isinstance(value, str | timedelta | np.timedelta64)


def _integer_of(name: str, value: Any) -> int:
    if is_duration(value):
        raise ArgumentError(
            f"{name} = {value!r} is a duration, but times are integers, whose unit is unknown: pass an integer in that "
            "unit, or convert the times to datetimes"
        )
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise ArgumentError(f"{name} must be an integer in the unit of the times, not {value!r}")
    return int(value)


def _ns_of(name: str, value: Any) -> int:
    """Convert a duration to ns, in Python integers, which do not overflow."""
    if isinstance(value, str):
        try:
            return duration_ns(value)
        except ValueError as error:
            raise ArgumentError(f"{name} = {value!r}: {error}") from error
    if hasattr(value, "to_timedelta64"):
        value = value.to_timedelta64()
    if isinstance(value, timedelta):
        return value // timedelta(microseconds=1) * 1000
    unit, units = np.datetime_data(value.dtype)
    if np.isnat(value) or unit not in _NS_PER:
        raise ArgumentError(f"{name} = {value!r} is not a number of {', '.join(_NS_PER)}; convert it to one of these")
    return int(value.astype(np.int64)) * units * _NS_PER[unit]


_NS_PER: Final = {
    "ns": 1,
    "us": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
    "D": 86_400 * 10**9,
    "W": 7 * 86_400 * 10**9,
}
"""The lengths of numpy's units in ns, without months and years, which differ in length."""
