"""`Kind`: the operations that every kind of table provides. Operations that few kinds need have defaults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Array = NDArray[Any]

NO_ROW: Final = -1
"""The index of a nonexistent row, such as the partner of an unmatched row."""

ANYTHING: Final = "objects"
"""The key type of a column that may contain values of any type."""


class Kind(Protocol):
    """The interface through which `join` and `align` handle one kind of table, such as pandas DataFrames."""

    def names(self, table: Any) -> list[str]:
        """Return the names of the columns."""
        ...

    def column(self, table: Any, name: str) -> tuple[Array, bool]:
        """Return a column as an array, shape (n,), and whether it has a time zone. Datetimes are converted to UTC."""
        ...

    def lacks(self, table: Any, name: str) -> Array:
        """Return, for each row, whether a column's value is missing, NaN or NaT, as a bool array of shape (n,)."""
        ...

    def key_type(self, table: Any, name: str) -> str:
        """Return the type of a key column, which must be the same on both sides."""
        ...

    def select(self, table: Any, names: list[str], new: list[str]) -> Any:
        """Return a table with only the columns ``names``, renamed to ``new``."""
        ...

    def codes(self, left: Any, right: Any) -> Ints:
        """Return a number for each row of ``left``, then of ``right``, shape (n,). Equal rows get equal numbers."""
        ...

    def take(self, table: Any, names: list[str], rows: Ints, *, may_lack: bool) -> Any:
        """Return the given rows of the columns ``names``. With ``may_lack``, `NO_ROW` yields missing values."""
        ...

    def stacked(self, left: Any, right: Any) -> Any:
        """Append the rows of ``right`` to the rows of ``left``. Both tables have the same column names."""
        ...

    def nullable(self, table: Any) -> Any:
        """Convert columns that cannot hold missing values to types that can, without changing any value."""
        return table

    def beside(self, parts: list[tuple[Any, list[str]]]) -> Any:
        """Put the columns of equally long tables side by side. ``parts``: each table, with new column names."""
        ...

    def of_floats(self, name: str, values: Array, is_missing: Array) -> Any:
        """Return a table with one float64 column, shape (n,). Values are missing where ``is_missing`` is true."""
        ...

    def of_times(self, name: str, times: Ints, like: Any, column: str) -> Any:
        """Return a table with one column: times in ns (UTC), shape (n,), converted to the type of a column of ``like``.

        If that column contains integers, the times are integers in the same unit, and stay int64.
        """
        ...

    def with_labels(self, joined: Any, _table: Any, _rows: Ints) -> Any:
        """Label the rows of the result ``joined`` like the given rows of a table. Only pandas has row labels."""
        return joined
