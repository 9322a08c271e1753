"""Event times and durations as callers pass them, converted to int64 nanoseconds."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from joiner.core.arguments import TIME_MAX_NS, TIME_MIN_NS
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
    return Times(values.astype(np.int64), INTEGERS)


def _in_ns(name: str, values: Array) -> Ints:
    low, high = (np.datetime64(bound, "ns").astype("datetime64[D]") for bound in (TIME_MIN_NS, TIME_MAX_NS))
    days = values.astype("datetime64[D]")
    outside = np.flatnonzero((days < low) | (days > high))
    if len(outside):
        raise ArgumentError(f"{name} = {values[outside[0]]} in row {outside[0]} is outside the years 1678 to 2261")
    return values.astype("datetime64[ns]").view(np.int64)


def tolerance_of(value: Any, what: str) -> int | None:
    """Return a tolerance in ns, or in the unit of integer times. ``what``: `INTEGERS`, `AWARE` or `NAIVE`."""
    if value is None or what == INTEGERS:
        # The buffer checks that the tolerance is an integer.
        return value  # type: ignore[no-any-return] # see above
    if isinstance(value, str):
        try:
            return duration_ns(value)
        except ValueError as error:
            raise ArgumentError(f"tolerance = {value!r}: {error}") from error
    if hasattr(value, "to_timedelta64"):
        value = value.to_timedelta64()
    if not isinstance(value, timedelta | np.timedelta64):
        raise ArgumentError(
            f"tolerance must be a duration if times are datetimes, such as '10 seconds' or "
            f"datetime.timedelta(seconds=10), not {value!r}"
        )
    return int(np.timedelta64(value).astype("timedelta64[ns]").astype(np.int64))
