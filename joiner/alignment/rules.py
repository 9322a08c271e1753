"""Defines the rules for the columns of aligned rows: where a value comes from, and when it is missing."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from numbers import Real
from typing import Final

from joiner.core.arguments import check_choice, check_duration
from joiner.core.errors import ArgumentError

RULES: Final = ("previous", "next", "nearest", "linear")
PREVIOUS, NEXT, NEAREST, LINEAR = range(4)
"""The index of each rule, for compiled loops."""

ON_MISSING: Final = ("null", "drop")

_DIRECTIONS: Final = {
    "previous": ("backward",),
    "next": ("forward",),
    "nearest": ("nearest",),
    "linear": ("backward", "forward"),
}


@dataclass(frozen=True, kw_only=True)
class ColumnRule:
    """Defines how to find a column's value at a row's time.

    Args:
        rule: ``"previous"`` (the last value at or before the row's time), ``"next"`` (the first one at or after it),
            ``"nearest"`` (the nearer of the two, and the previous one if the distances are equal), or ``"linear"``
            (interpolated between the two).
        tolerance_ns: how far the record may be from the row in time. With ``"linear"``, how far the two records may be
            from each other. Beyond this limit, the value is missing. None means no limit.
        period: with ``"linear"``, the period of cyclic values, such as 360 for angles in degrees. Interpolation takes
            the shorter way round, and the result is at least 0 and less than the period.
        on_missing: whether a row without a value for this column gets a null there (``"null"``) or is left out
            (``"drop"``).
        lateness_ns: the lateness of this column's stream, as in `LocalStreamBuffer`.

    Raises:
        ArgumentError: if an option is invalid. The message names the option and says why.

    """

    rule: str = "previous"
    tolerance_ns: int | None = None
    period: float | None = None
    on_missing: str = "null"
    lateness_ns: int = 0

    def __post_init__(self) -> None:
        for name, known in (("rule", RULES), ("on_missing", ON_MISSING)):
            check_choice(name, getattr(self, name), known)
        for name in ("tolerance_ns", "lateness_ns"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, check_duration(name, value))
        if self.period is None:
            return
        if self.rule != "linear":
            message = f'period is an option of rule "linear", not of {self.rule!r}'
            raise ArgumentError(message)
        object.__setattr__(self, "period", _check_period(self.period))

    @property
    def directions(self) -> tuple[str, ...]:
        """The neighbours that the rule needs, each as a direction of `LocalStreamBuffer`."""
        return _DIRECTIONS[self.rule]


def _check_period(period: object) -> float:
    """Return ``period`` as a float. Raises `ArgumentError` unless it is a positive finite number."""
    if not isinstance(period, bool) and isinstance(period, Real):
        with contextlib.suppress(OverflowError):  # an integer or a fraction above the largest float
            if 0 < (found := float(period)) < math.inf:
                return found
    message = f"period must be a positive finite number, not {period!r}"
    raise ArgumentError(message)
