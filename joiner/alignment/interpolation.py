"""Computes interpolated values.

Between the records (t0, v0) and (t1, v1), with t0 < t < t1, the weight w is (t - t0) / (t1 - t0). Both differences are
computed exactly, as integers. Each is then rounded once, when it is converted to a float; differences of up to 104 days
are not rounded at all. The value is v0 + w * (v1 - v0), clamped to the range between v0 and v1, which rounding could
exceed in the last digit. Where v1 - v0 overflows, the value is (1 - w) * v0 + w * v1. At t = t0 the value is v0, and at
t = t1 it is v1.

With a period p, v0 and v1 are first reduced modulo p to the range from 0 up to but excluding p. Interpolation then
takes the shorter way round from v0 to v1 (forwards if both ways are equally long), and the result is reduced again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numba import types

from joiner.core.compiled import GIVEN, compiled, gap

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

FLOATS: Final = types.Array(types.float64, 1, "C")
GIVEN_FLOATS: Final = types.Array(types.float64, 1, "C", readonly=True)


@compiled(FLOATS, GIVEN, GIVEN, GIVEN_FLOATS, GIVEN, GIVEN_FLOATS, types.float64)
def interpolate(at_ns: Ints, prev_ns: Ints, prev: Floats, next_ns: Ints, following: Floats, period: float) -> Floats:
    """Return the values at ``at_ns`` between the records (``prev_ns``, ``prev``) and (``next_ns``, ``following``).

    All arrays have shape (n,), and ``prev_ns <= at_ns <= next_ns``. ``period``: 0 means none.
    """
    found = np.empty(len(at_ns), dtype=np.float64)
    for row in range(len(at_ns)):
        ts, t0, t1, v0, v1 = at_ns[row], prev_ns[row], next_ns[row], prev[row], following[row]
        if ts in (t0, t1):
            found[row] = value_at(v0 if ts == t0 else v1, period)
        else:
            found[row] = value_between(ts, t0, v0, t1, v1, period)
    return found


@compiled()
def value_at(value: float, period: float) -> float:
    """Return the value of a record, reduced modulo ``period`` unless that is 0."""
    return _reduced(value, period) if period else value


@compiled()
def value_between(ts: int, t0: int, v0: float, t1: int, v1: float, period: float) -> float:
    """Return the value at ``ts`` between the records (``t0``, ``v0``) and (``t1``, ``v1``), with t0 < ts < t1."""
    weight = np.float64(gap(ts, t0)) / np.float64(gap(t1, t0))
    return _between_angles(v0, v1, weight, period) if period else _between(v0, v1, weight)


@compiled()
def _between(v0: float, v1: float, weight: float) -> float:
    way = v1 - v0
    value = v0 + weight * way if np.isfinite(way) else (1.0 - weight) * v0 + weight * v1
    low, high = min(v0, v1), max(v0, v1)
    if value < low:
        return low
    return high if value > high else value  # noqa: FURB136 - NaN must stay NaN, which `min` does not promise


@compiled()
def _between_angles(v0: float, v1: float, weight: float, period: float) -> float:
    begin = _reduced(v0, period)
    way = _reduced(v1, period) - begin
    if way > period / 2:
        way -= period
    elif way <= -period / 2:
        way += period
    value = begin + weight * way
    # If the sum overflows, subtract the period before adding.
    return _reduced(value if np.isfinite(value) else begin - (period - weight * way), period)


@compiled()
def _reduced(value: float, period: float) -> float:
    rest = value % period
    # For a tiny negative value, rounding may yield the period itself.
    return 0.0 if rest >= period else rest
