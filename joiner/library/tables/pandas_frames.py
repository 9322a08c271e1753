"""The table operations that `join` and `align` need, for pandas DataFrames.

pandas is imported only when a caller passes one.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from joiner.library.tables.kind import ANYTHING, Kind
from joiner.library.tables.numbering import dense, of_one_type

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Array = NDArray[Any]

_INFERRED: Final = {"string": "strings", "integer": "integers"}
"""Maps the type that pandas infers for a column to a key type. Lists only types that more than one dtype can store."""

_NULLABLE: Final = {"b": "boolean", "i": "Int{}", "u": "UInt{}"}
"""The pandas dtypes that can hold missing values, by numpy dtype kind. ``{}`` stands for the width in bits."""


class PandasFrames(Kind):
    """pandas DataFrames."""

    def __init__(self) -> None:
        self._pandas: Any = importlib.import_module("pandas")

    def from_arrow(self, table: Any) -> Any:
        """Convert an Arrow table. Integer and boolean columns with nulls get nullable dtypes, which stay exact."""
        exact = {
            name: column.to_pandas(date_as_object=False, types_mapper=self._exact if column.null_count else None)
            for name, column in zip(table.column_names, table.columns, strict=True)
        }
        return self._pandas.DataFrame(exact, copy=False)

    def _exact(self, kind: Any) -> Any:
        """Return the nullable pandas dtype for an Arrow integer or boolean type, and None for any other type."""
        dtype = np.dtype(kind.to_pandas_dtype())
        return self._pandas.api.types.pandas_dtype(_nullable(dtype)) if dtype.kind in _NULLABLE else None

    def names(self, table: Any) -> list[str]:
        return list(table.columns)

    def column(self, table: Any, name: str) -> tuple[Array, bool]:
        values = table[name]
        if isinstance(values.dtype, self._pandas.ArrowDtype):
            # pandas would convert datetimes to objects.
            in_arrow = values.array.__arrow_array__()
            return in_arrow.to_numpy(), getattr(in_arrow.type, "tz", None) is not None
        if getattr(values.dtype, "tz", None) is not None:
            return values.dt.tz_convert("UTC").dt.tz_localize(None).to_numpy(), True
        return values.to_numpy(), False

    def lacks(self, table: Any, name: str) -> Array:
        found: Array = table[name].isna().to_numpy()
        return found

    def key_type(self, table: Any, name: str) -> str:
        values = table[name]
        if isinstance(values.dtype, self._pandas.CategoricalDtype):
            values = values.cat.categories
        if values.dtype.kind in "iu":
            return "integers"
        # An object or string dtype does not say what type the values have.
        kind = self._pandas.api.types.infer_dtype(values, skipna=True)
        return _INFERRED.get(kind, ANYTHING if values.dtype == object else str(values.dtype))

    def select(self, table: Any, names: list[str], new: list[str]) -> Any:
        columns = {to: table[name] for name, to in zip(names, new, strict=True)}
        return self._pandas.DataFrame(columns, index=table.index, copy=False)

    def codes(self, left: Any, right: Any) -> Ints:
        both = self.stacked(left, right)
        if both.shape[1] > 1:
            codes: Ints = both.groupby(list(both), sort=False, observed=True).ngroup().to_numpy().astype(np.int64)
            return codes
        column = both.iloc[:, 0]
        found = dense(column.to_numpy())
        return self._pandas.factorize(column)[0].astype(np.int64) if found is None else found

    def take(self, table: Any, names: list[str], rows: Ints, *, may_lack: bool) -> Any:
        # Taking rows column by column avoids the extra copies that `DataFrame.take` makes.
        columns = {name: table[name].array.take(rows, allow_fill=may_lack) for name in names}
        return self._pandas.DataFrame(columns, index=range(len(rows)), copy=False)

    def stacked(self, left: Any, right: Any) -> Any:
        columns = {name: self._pandas.concat(of_one_type(left[name], right[name]), ignore_index=True) for name in left}
        return self._pandas.DataFrame(columns, copy=False)

    def nullable(self, table: Any) -> Any:
        dtypes = table.dtypes.to_dict()
        plain = {
            name: dtype for name, dtype in dtypes.items() if isinstance(dtype, np.dtype) and dtype.kind in _NULLABLE
        }
        return table.astype({name: _nullable(dtype) for name, dtype in plain.items()})

    def beside(self, parts: list[tuple[Any, list[str]]]) -> Any:
        columns = {
            new: part[name].array for part, names in parts for name, new in zip(part.columns, names, strict=True)
        }
        return self._pandas.DataFrame(columns, index=parts[0][0].index, copy=False)

    def of_floats(self, name: str, values: Array, is_missing: Array) -> Any:
        return self._pandas.DataFrame({name: np.where(is_missing, np.nan, values)}, copy=False)

    def of_times(self, name: str, times: Ints, like: Any, column: str) -> Any:
        values, has_zone = self.column(like, column)
        if values.dtype.kind != "M":
            return self._pandas.DataFrame({name: times}, copy=False)
        found = self._pandas.Series(times.view("datetime64[ns]"))
        found = found.dt.tz_localize("UTC") if has_zone else found
        return self._pandas.DataFrame({name: found.astype(like[column].dtype)}, copy=False)

    def with_labels(self, joined: Any, table: Any, rows: Ints) -> Any:
        joined.index = table.index.take(rows)
        return joined


def _nullable(dtype: np.dtype[Any]) -> str:
    return _NULLABLE[dtype.kind].format(8 * dtype.itemsize)
