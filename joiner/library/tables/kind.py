"""`Kind`: the operations that `join` needs on a kind of table. What only some kinds need has a default here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Array = NDArray[Any]

NO_ROW: Final = -1
"""The index that stands for the missing partner of an unmatched row."""

ANYTHING: Final = "objects"
"""The type of a column that may contain values of any type."""


class Kind(Protocol):
    """The operations that `join` needs on a kind of table."""

    def names(self, table: Any) -> list[str]:
        """Return the names of the columns."""
        ...

    def column(self, table: Any, name: str) -> tuple[Array, bool]:
        """Return a column as an array, shape (n,), and whether it has a time zone. Datetimes are converted to UTC."""
        ...

    def lacks(self, table: Any, name: str) -> Array:
        """Return which rows lack a value in a column, bool of shape (n,). NaN and NaT are no values."""
        ...

    def key_type(self, table: Any, name: str) -> str:
        """Return the type of a key column, which must be the same on both sides."""
        ...

    def select(self, table: Any, names: list[str], new: list[str]) -> Any:
        """Return the columns ``names`` as a table, under the names ``new``."""
        ...

    def codes(self, left: Any, right: Any) -> Ints:
        """Number the rows of two tables from 0, equal rows alike: those of ``left``, then of ``right``; shape (n,)."""
        ...

    def take(self, table: Any, names: list[str], rows: Ints, *, may_lack: bool) -> Any:
        """Return the columns ``names`` at ``rows``. With ``may_lack``, `NO_ROW` yields a missing value."""
        ...

    def stacked(self, left: Any, right: Any) -> Any:
        """Return the rows of ``left`` and, below them, those of ``right``, which has the same column names."""
        ...

    def nullable(self, table: Any) -> Any:
        """Convert the columns that cannot hold missing values to types that can and that keep all values."""
        return table

    def beside(self, parts: list[tuple[Any, list[str]]]) -> Any:
        """Combine tables of equal length side by side. Each is given with new names for its columns."""
        ...

    def of_floats(self, name: str, values: Array, is_missing: Array) -> Any:
        """Return a table of one column, float64 of shape (n,), without a value where ``is_missing``."""
        ...

    def with_labels(self, joined: Any, _table: Any, _rows: Ints) -> Any:
        """Give the rows of a result the labels that the rows of ``table`` at ``rows`` have. Only pandas has labels."""
        return joined
