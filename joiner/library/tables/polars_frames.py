"""The table operations that `join` and `align` need, for polars DataFrames.

polars is imported only when a caller passes one.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import numpy as np

from joiner.library.tables.kind import NO_ROW, Kind
from joiner.library.tables.numbering import dense

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Array = NDArray[Any]


class PolarsFrames(Kind):
    """polars DataFrames."""

    def __init__(self) -> None:
        self._polars: Any = importlib.import_module("polars")

    def from_arrow(self, table: Any) -> Any:
        """Convert an Arrow table."""
        return self._polars.from_arrow(table)

    def names(self, table: Any) -> list[str]:
        return list(table.columns)

    def column(self, table: Any, name: str) -> tuple[Array, bool]:
        values = table[name]
        if getattr(values.dtype, "time_zone", None) is not None:
            return values.dt.convert_time_zone("UTC").dt.replace_time_zone(None).to_numpy(), True
        return values.to_numpy(), False

    def lacks(self, table: Any, name: str) -> Array:
        values = table[name]
        found = values.is_null()
        if values.dtype.is_float():
            found |= values.is_nan().fill_null(value=False)
        lacks: Array = found.to_numpy()
        return lacks

    def key_type(self, table: Any, name: str) -> str:
        dtype = table[name].dtype
        if dtype.is_integer():
            return "integers"
        return "strings" if self._is_text(dtype) else str(dtype)

    def select(self, table: Any, names: list[str], new: list[str]) -> Any:
        return table.select(self._polars.col(name).alias(to) for name, to in zip(names, new, strict=True))

    def codes(self, left: Any, right: Any) -> Ints:
        both = self.stacked(left, right)
        first = both[both.columns[0]]
        # numpy has no 128-bit integers.
        if both.width == 1 and first.dtype.is_integer() and first.dtype != self._polars.Int128:
            found = dense(first.to_numpy())
            if found is not None:
                return found
        keys = both.unique(maintain_order=True).with_row_index("__number")
        numbered = both.join(keys, on=both.columns, how="left", maintain_order="left")
        codes: Ints = numbered["__number"].to_numpy().astype(np.int64)
        return codes

    def take(self, table: Any, names: list[str], rows: Ints, *, may_lack: bool) -> Any:
        index = self._polars.Series(rows)
        if may_lack:
            index = index.set(index == NO_ROW, None)
        return table.select(self._polars.col(name).gather(index) for name in names)

    def stacked(self, left: Any, right: Any) -> Any:
        names = left.columns
        wide = {name: self._polars.Int128 for name in names if self._is_mixed(left[name].dtype, right[name].dtype)}
        wide |= {
            name: self._polars.String for name in names if self._is_other_text(left[name].dtype, right[name].dtype)
        }
        return self._polars.concat([left.cast(wide), right.cast(wide)], how="vertical_relaxed")

    def of_floats(self, name: str, values: Array, is_missing: Array) -> Any:
        column = self._polars.Series(name, values)
        return column.set(self._polars.Series(is_missing), None).to_frame()

    def of_times(self, name: str, times: Ints, like: Any, column: str) -> Any:
        found, dtype = self._polars.Series(name, times), like[column].dtype
        if dtype.is_temporal():
            found = found.cast(self._polars.Datetime("ns", getattr(dtype, "time_zone", None))).cast(dtype)
        return found.to_frame()

    def _is_text(self, dtype: Any) -> bool:
        return isinstance(dtype, self._polars.String | self._polars.Categorical | self._polars.Enum)

    def _is_other_text(self, one: Any, other: Any) -> bool:
        return one != other and self._is_text(one) and self._is_text(other)

    def _is_mixed(self, one: Any, other: Any) -> bool:
        """Return whether one type is UInt64 and the other a signed integer: no 64-bit integer type holds both."""
        widest = self._polars.UInt64
        return any(a == widest and b.is_signed_integer() for a, b in ((one, other), (other, one)))

    def beside(self, parts: list[tuple[Any, list[str]]]) -> Any:
        renamed = [part.rename(dict(zip(part.columns, names, strict=True))) for part, names in parts if part.columns]
        return self._polars.concat(renamed, how="horizontal")
