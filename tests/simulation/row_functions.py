"""The function of an align in simulated applications."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joiner.functions import AlignedColumns


def root(rows: AlignedColumns) -> NDArray[np.float64]:
    """Return the square root of the sum of the columns, and none if a value is missing or the sum is negative."""
    found: NDArray[np.float64] = np.sqrt(np.sum(list(rows.values.values()), axis=0))
    return found
