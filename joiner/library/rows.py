"""`Rows`: the rows of a result as indices into the left and the right table, and their order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Self

import numpy as np

from joiner.library.tables.kind import NO_ROW

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

ORDERS: Final = ("key", "left", "time")


@dataclass(frozen=True)
class Rows:
    """For each row of the result, the index of its left and of its right row, or `NO_ROW`; shape (n,) each.

    ``lefts``: how many rows the left table has. ``emit_unmatched``: the option of the join.
    """

    left: Ints
    right: Ints
    lefts: int
    emit_unmatched: str

    @property
    def may_lack_left(self) -> bool:
        """Whether rows of the result may have no left row."""
        return self.emit_unmatched in {"right", "both"}

    @property
    def may_lack_right(self) -> bool:
        """Whether rows of the result may have no right row."""
        return self.emit_unmatched in {"left", "both"}

    def ordered(self, order: str, times: tuple[Ints, Ints]) -> Self:
        """Return the rows in another order, one of `ORDERS`. ``times``: of the left and of the right table."""
        if order == "key":
            return self
        if order == "left":
            # The order of the pairs of a left row stays, which is that of the right rows in time.
            places = np.where(self.left == NO_ROW, self.lefts, self.left).argsort(kind="stable")
        else:
            left, right = (_at(ts, rows) for ts, rows in zip(times, (self.left, self.right), strict=True))
            first = np.where(self.left == NO_ROW, right, left)
            second = np.where(self.right == NO_ROW, left, right)
            places = np.lexsort((self.right, self.left, second, first))
        return replace(self, left=self.left[places], right=self.right[places])


def _at(times: Ints, rows: Ints) -> Ints:
    """Return the times of rows, and 0 for `NO_ROW`."""
    found = np.zeros(len(rows), dtype=np.int64)
    there = rows != NO_ROW
    found[there] = times[rows[there]]
    return found
