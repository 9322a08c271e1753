"""Checks the event times and durations that callers pass, and converts them to int64 nanoseconds."""

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
    """Event times, shape (n,), of the type ``what``: `INTEGERS`, `AWARE` or `NAIVE`.

    ``ns``: datetimes as ns since 1970, or integers exactly as the caller passed them, in any unit.
    """

    ns: Ints
    what: str


def times_of(name: str, values: Array, *, has_zone: bool) -> Times:
    """Convert a time column, shape (n,), of integers or datetimes. ``name``: what error messages call the column.

    ``has_zone``: whether the datetimes have a time zone. If so, they must be in UTC. Raises `ArgumentError` if the
    column has another type or contains a datetime outside the years 1678 to 2261.
    """
    if values.dtype.kind == "M":
        return Times(_in_ns(name, values), AWARE if has_zone else NAIVE)
    if values.dtype.kind not in "iu" or values.dtype == np.uint64:
        raise ArgumentError(
            f"{name} must contain datetimes, or integers that fit in int64, not {values.dtype}; convert the column"
        )
    return Times(values.astype(np.int64, copy=False), INTEGERS)


def _in_ns(name: str, values: Array) -> Ints:
    outside = _find_outside(values)
    if len(outside):
        raise ArgumentError(f"{name} = {values[outside[0]]} in row {outside[0]} is outside the years 1678 to 2261")
    return values.astype("datetime64[ns]", copy=False).view(np.int64)


def _find_outside(values: Array) -> Ints:
    """Return the indices of the datetimes, in any unit, that are outside the years 1678 to 2261."""
    low, high = (np.datetime64(bound, "ns").astype("datetime64[D]") for bound in (TIME_MIN_NS, TIME_MAX_NS))
    if len(values) and low <= values.min().astype(low.dtype) <= values.max().astype(low.dtype) <= high:
        return np.empty(0, dtype=np.int64)
    days = values.astype("datetime64[D]")
    return np.flatnonzero((days < low) | (days > high))


def unit_ns(name: str, values: Array) -> int:
    """Return the unit of datetimes in ns. ``name``: what the error message calls the column.

    Raises `ArgumentError` unless the unit is one of `_NS_PER`.
    """
    unit, units = np.datetime_data(values.dtype)
    if unit not in _NS_PER:
        raise ArgumentError(
            f"{name} must be in one of the units {', '.join(_NS_PER)}, not {values.dtype}; convert the column"
        )
    return units * _NS_PER[unit]


def time_of(name: str, value: Any) -> tuple[int, str]:
    """Return an event time and its type: `INTEGERS`, `AWARE` or `NAIVE`. Datetimes are converted to ns since 1970.

    Raises `ArgumentError` unless ``value`` is an integer, `datetime.datetime`, `pandas.Timestamp` or
    `numpy.datetime64` in the years 1678 to 2261. ``name``: what error messages call the value.
    """
    # `pandas.Timestamp` is a subclass of datetime that also holds nanoseconds.
    of_numpy = value.to_datetime64() if hasattr(value, "to_datetime64") else value
    if isinstance(of_numpy, np.datetime64) and np.isnat(of_numpy):
        raise ArgumentError(f"{name} = NaT is not a time")
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
        raise ArgumentError(
            f"{name} = {value!r} is outside the years 1678 to 2261 (an integer counts nanoseconds since 1970)"
        )
    return ns, what


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def duration_of(name: str, value: Any, what: str) -> int:
    """Return a duration in ns or, if times are integers, in their unit. ``what``: the type of the times.

    If times are `INTEGERS`, the value must be an integer. If they are `AWARE` or `NAIVE` datetimes, it must be a
    string, `datetime.timedelta`, `numpy.timedelta64` or `pandas.Timedelta`. If the value has another type, cannot be
    parsed, or is out of range, raises an `ArgumentError` that names the argument ``name``.
    """
    if what == INTEGERS:
        found = _integer_of(name, value)
    elif is_duration(value):
        found = _ns_of(name, value)
    else:
        raise ArgumentError(
            f"{name} must be a duration such as '10 seconds' or datetime.timedelta(seconds=10), not {value!r}, because "
            "the times are datetimes"
        )
    if not 0 <= found <= DURATION_MAX_NS:
        unit = "" if what == INTEGERS else " nanoseconds"
        raise ArgumentError(f"{name} = {value!r} is outside the range from 0 to 2**63 - 1{unit}")
    return found


def is_duration(value: object) -> bool:
    """Return whether a value's type represents a duration, as opposed to a plain integer."""
    # This includes `pandas.Timedelta`, which is a subclass of `datetime.timedelta`.
    return isinstance(value, str | timedelta | np.timedelta64)


def _integer_of(name: str, value: Any) -> int:
    if is_duration(value):
        raise ArgumentError(
            f"{name} = {value!r} is a duration, but the times are integers in an unknown unit: pass an integer in the "
            "same unit, or convert the times to datetimes"
        )
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise ArgumentError(f"{name} must be an integer in the unit of the times, not {value!r}")
    return int(value)


def _ns_of(name: str, value: Any) -> int:
    """Convert a duration to ns. Raises `ArgumentError` if it cannot be converted.

    Uses Python integers, which cannot overflow.
    """
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
    if np.isnat(value):
        raise ArgumentError(f"{name} = NaT is not a duration")
    if unit not in _NS_PER:
        raise ArgumentError(f"{name} must be in one of the units {', '.join(_NS_PER)}, not {value!r}; convert it first")
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
"""The length in ns of each numpy time unit, except units below 1 ns, and months and years, whose length varies."""
