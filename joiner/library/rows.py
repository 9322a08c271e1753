"""`Rows`: describes the rows of a join result by indices into the left and right tables, and sorts them."""

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
    """The rows of a join result, as indices into the two tables.

    ``left``, ``right``: for each row of the result, the index of its left and right row, or `NO_ROW`, shape (n,).
    ``lefts``: the number of rows in the left table. ``emit_unmatched``: the option passed to `join`.
    """

    left: Ints
    right: Ints
    lefts: int
    emit_unmatched: str

    @property
    def may_lack_left(self) -> bool:
        """Whether the result may contain rows without a left row."""
        return self.emit_unmatched in {"right", "both"}

    @property
    def may_lack_right(self) -> bool:
        """Whether the result may contain rows without a right row."""
        return self.emit_unmatched in {"left", "both"}

    def ordered(self, order: str, times: tuple[Ints, Ints]) -> Self:
        """Return the rows sorted by ``order``, one of `ORDERS`. ``times``: the event times of the two input tables."""
        if order == "key":
            return self
        if order == "left":
            # The sort is stable, so the pairs of each left row stay sorted by right time.
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
