"""The table operations that `join` and `align` need, for mappings of column names to numpy arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from joiner.core.errors import ArgumentError
from joiner.library.tables.kind import NO_ROW, Kind
from joiner.library.tables.numbering import numbered_rows, of_one_type

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Array = NDArray[Any]


class Arrays(Kind):
    """Mappings of column names to arrays of shape (n,)."""

    def names(self, table: Mapping[str, Any]) -> list[str]:
        lengths = {name: np.shape(column) for name, column in table.items()}
        if any(len(shape) != 1 for shape in lengths.values()) or len(set(lengths.values())) > 1:
            raise ArgumentError(
                f"the columns of a mapping must be one-dimensional and of equal length, but their shapes are {lengths}"
            )
        return list(table)

    def column(self, table: Mapping[str, Any], name: str) -> tuple[Array, bool]:
        return np.asarray(table[name]), False

    def lacks(self, table: Mapping[str, Any], name: str) -> Array:
        column = table[name]
        values = np.asarray(column)
        found: Array = np.zeros(len(values), dtype=bool)
        if values.dtype.kind in "fcmM":
            found = np.isnat(values) if values.dtype.kind in "mM" else np.isnan(values)
        return found | np.ma.getmaskarray(column) if isinstance(column, np.ma.MaskedArray) else found

    def key_type(self, table: Mapping[str, Any], name: str) -> str:
        kinds = {"i": "integers", "u": "integers", "U": "strings", "S": "bytes", "f": "floats", "b": "booleans"}
        dtype = np.asarray(table[name]).dtype
        return kinds.get(dtype.kind, str(dtype))

    def select(self, table: Mapping[str, Any], names: list[str], new: list[str]) -> dict[str, Any]:
        return {to: _array(table[name]) for name, to in zip(names, new, strict=True)}

    def codes(self, left: Mapping[str, Any], right: Mapping[str, Any]) -> Ints:
        return numbered_rows(self.stacked(left, right).values())

    def take(self, table: Mapping[str, Any], names: list[str], rows: Ints, *, may_lack: bool) -> dict[str, Any]:
        columns = {name: _array(table[name]) for name in names}
        if not may_lack:
            return {name: column[rows] for name, column in columns.items()}
        return {name: _masked(column, rows) for name, column in columns.items()}

    def stacked(self, left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, Any]:
        return {name: np.concatenate(of_one_type(*map(np.asarray, (left[name], right[name])))) for name in left}

    def beside(self, parts: list[tuple[Any, list[str]]]) -> dict[str, Any]:
        return {name: column for part, names in parts for name, column in zip(names, part.values(), strict=True)}

    def of_floats(self, name: str, values: Array, is_missing: Array) -> dict[str, Any]:
        return {name: np.ma.masked_array(values, mask=is_missing)}

    def of_times(self, name: str, times: Ints, like: Mapping[str, Any], column: str) -> dict[str, Any]:
        dtype = np.asarray(like[column]).dtype
        return {name: times.view("datetime64[ns]").astype(dtype) if dtype.kind == "M" else times}


def _array(column: Any) -> Any:
    """Convert a column to an array. A masked array is returned unchanged, so that it keeps its mask."""
    return column if isinstance(column, np.ma.MaskedArray) else np.asarray(column)


def _masked(column: Array, rows: Ints) -> Any:
    """Take ``rows`` from a column, masking `NO_ROW`. If the column is empty, all ``rows`` must be `NO_ROW`."""
    values = column[rows] if len(column) else np.zeros(len(rows), dtype=column.dtype)
    return np.ma.masked_array(values, mask=rows == NO_ROW)
