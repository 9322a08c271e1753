"""A joining function for the chaos tests, which fails for some pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joiner.functions import Columns


def power_or_failure(left: Columns, right: Columns) -> NDArray[np.float64]:
    """Return speed times torque, or NaN for about a sixth of the pairs, so that each unit writes dead letters."""
    power = left.result * right.result
    return np.where(left.time_ns // 1_000_000 % 6 == 0, np.nan, power)
