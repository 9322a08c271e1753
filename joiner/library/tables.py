"""The kinds of tables that `join` accepts: pandas and polars DataFrames, and mappings of column names to arrays."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from joiner.core.errors import ArgumentError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Array = NDArray[Any]

NO_ROW: Final = -1
"""The index that stands for the missing partner of an unmatched row."""


class Kind(Protocol):
    """The operations that `join` needs on a kind of table."""

    def names(self, table: Any) -> list[str]:
        """Return the names of the columns."""
        ...

    def column(self, table: Any, name: str) -> tuple[Array, bool]:
        """Return a column as an array, shape (n,), and whether it has a time zone. Datetimes are converted to UTC."""
        ...

    def lacks(self, table: Any, name: str) -> Array:
        """Return which rows lack a value in a column, bool of shape (n,)."""
        ...

    def key_type(self, table: Any, name: str) -> str:
        """Return the type of a key column, which must be the same on both sides."""
        ...

    def codes(self, left: Any, right: Any, names: list[str]) -> Ints:
        """Number the keys from 0. Return the numbers of the left rows, then those of the right rows, shape (n,)."""
        ...

    def take(self, table: Any, names: list[str], rows: Ints, *, may_lack: bool) -> Any:
        """Return the columns ``names`` at ``rows``. With ``may_lack``, `NO_ROW` yields a missing value."""
        ...

    def stacked(self, left: Any, right: Any, names: list[str]) -> Any:
        """Return the columns ``names`` of both tables, the right rows below the left ones."""
        ...

    def beside(self, parts: list[tuple[Any, list[str]]]) -> Any:
        """Combine tables of equal length side by side. Each is given with new names for its columns."""
        ...


def kind_of(left: Any, right: Any) -> Kind:
    """Return the kind of both tables. Raises `ArgumentError` if their kinds differ or are not supported."""
    kinds = {_module(table) for table in (left, right)}
    if len(kinds) > 1:
        raise ArgumentError(f"left is {_shown(left)} and right is {_shown(right)}; convert one of them")
    (module,) = kinds
    if module == "pandas" and hasattr(left, "columns"):
        return _Pandas()
    if module == "polars" and hasattr(left, "get_columns"):
        return _Polars()
    if module == "arrays":
        return _Arrays()
    raise ArgumentError(
        f"left is {_shown(left)}; pass a pandas or polars DataFrame, or a mapping of column names to arrays"
    )


def _module(table: Any) -> str:
    return "arrays" if isinstance(table, Mapping) else type(table).__module__.partition(".")[0]


def _shown(table: Any) -> str:
    return f"{type(table).__module__.partition('.')[0]}.{type(table).__qualname__}"


class _Arrays:
    """Mappings of column names to arrays of shape (n,)."""

    def names(self, table: Mapping[str, Any]) -> list[str]:
        lengths = {name: np.shape(column) for name, column in table.items()}
        if any(len(shape) != 1 for shape in lengths.values()) or len(set(lengths.values())) > 1:
            raise ArgumentError(f"columns must have one dimension and equal lengths, not {lengths}")
        return list(table)

    def column(self, table: Mapping[str, Any], name: str) -> tuple[Array, bool]:
        return np.asarray(table[name]), False

    def lacks(self, table: Mapping[str, Any], name: str) -> Array:
        values = np.asarray(table[name])
        found: Array = np.zeros(len(values), dtype=bool)
        if values.dtype.kind in "fcmM":
            found = np.isnat(values) if values.dtype.kind in "mM" else np.isnan(values)
        return found

    def key_type(self, table: Mapping[str, Any], name: str) -> str:
        kinds = {"i": "integers", "u": "integers", "U": "strings", "S": "bytes", "f": "floats", "b": "booleans"}
        dtype = np.asarray(table[name]).dtype
        return kinds.get(dtype.kind, str(dtype))

    def codes(self, left: Mapping[str, Any], right: Mapping[str, Any], names: list[str]) -> Ints:
        codes = np.zeros(0, dtype=np.int64)
        for of_both in self.stacked(left, right, names).values():
            of_one = _numbered(of_both)
            codes = _numbered(codes * (of_one.max(initial=0) + 1) + of_one) if len(codes) else of_one
        return codes

    def take(self, table: Mapping[str, Any], names: list[str], rows: Ints, *, may_lack: bool) -> dict[str, Any]:
        columns = {name: np.asarray(table[name]) for name in names}
        if not may_lack:
            return {name: column[rows] for name, column in columns.items()}
        return {name: _masked(column, rows) for name, column in columns.items()}

    def stacked(self, left: Mapping[str, Any], right: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
        return {name: np.concatenate(_of_one_type(np.asarray(left[name]), np.asarray(right[name]))) for name in names}

    def beside(self, parts: list[tuple[Any, list[str]]]) -> dict[str, Any]:
        return {name: column for part, names in parts for name, column in zip(names, part.values(), strict=True)}


ANYTHING: Final = "objects"
"""The type of a column that may contain values of any type."""

_INFERRED: Final = {"string": "strings", "integer": "integers"}
"""Types inferred by pandas that more than one dtype can represent."""

_WIDEST_BYTES: Final = 8
"""The width of the widest integer types of numpy."""


def _of_one_type(left: Any, right: Any) -> list[Any]:
    """Convert two columns to Python integers if one is signed and the other uint64. Return others unchanged.

    numpy and pandas would convert such columns to float64, which can make different integers equal.
    """
    types = {column.dtype.kind: column.dtype for column in (left, right)}
    if types.keys() == {"i", "u"} and types["u"].itemsize == _WIDEST_BYTES:
        return [left.astype(object), right.astype(object)]
    return [left, right]


def _numbered(values: Array) -> Ints:
    """Map values to integers from 0, equal for equal values; shape (n,)."""
    dense = _dense(values)
    return np.unique(values, return_inverse=True)[1].astype(np.int64) if dense is None else dense


def _dense(values: Array) -> Ints | None:
    """Do the same as `_numbered`, without sorting, for integers in a small range. Return None for any other values."""
    if values.dtype.kind not in "iu" or not len(values):
        return None
    low, high = int(values.min()), int(values.max())
    if high - low >= 2 * len(values):
        return None
    # In a small signed type, the difference could overflow.
    wide = values if values.dtype.kind == "u" else values.astype(np.int64)
    return (wide - low).astype(np.int64)


def _masked(column: Array, rows: Ints) -> Any:
    """Return a column at ``rows``, with `NO_ROW` masked. If the column is empty, all rows are `NO_ROW`."""
    values = column[rows] if len(column) else np.zeros(len(rows), dtype=column.dtype)
    return np.ma.masked_array(values, mask=rows == NO_ROW)


class _Pandas:
    """pandas DataFrames."""

    def __init__(self) -> None:
        self._pandas: Any = importlib.import_module("pandas")

    def names(self, table: Any) -> list[str]:
        return list(table.columns)

    def column(self, table: Any, name: str) -> tuple[Array, bool]:
        values = table[name]
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

    def codes(self, left: Any, right: Any, names: list[str]) -> Ints:
        both = self.stacked(left, right, names)
        if len(names) > 1:
            codes: Ints = both.groupby(names, sort=False, observed=True).ngroup().to_numpy().astype(np.int64)
            return codes
        column = both[names[0]]
        dense = _dense(column.to_numpy())
        return self._pandas.factorize(column)[0].astype(np.int64) if dense is None else dense

    def take(self, table: Any, names: list[str], rows: Ints, *, may_lack: bool) -> Any:
        if may_lack:
            return table[names].reset_index(drop=True).reindex(rows).reset_index(drop=True)
        # Taking rows column by column avoids the extra copies that `DataFrame.take` makes.
        columns = {name: table[name].array.take(rows) for name in names}
        return self._pandas.DataFrame(columns, index=range(len(rows)), copy=False)

    def stacked(self, left: Any, right: Any, names: list[str]) -> Any:
        columns = {
            name: self._pandas.concat(_of_one_type(left[name], right[name]), ignore_index=True) for name in names
        }
        return self._pandas.DataFrame(columns, copy=False)

    def beside(self, parts: list[tuple[Any, list[str]]]) -> Any:
        columns = {
            new: part[name].array for part, names in parts for name, new in zip(part.columns, names, strict=True)
        }
        return self._pandas.DataFrame(columns, index=parts[0][0].index, copy=False)


class _Polars:
    """polars DataFrames."""

    def __init__(self) -> None:
        self._polars: Any = importlib.import_module("polars")

    def names(self, table: Any) -> list[str]:
        return list(table.columns)

    def column(self, table: Any, name: str) -> tuple[Array, bool]:
        values = table[name]
        if getattr(values.dtype, "time_zone", None) is not None:
            return values.dt.convert_time_zone("UTC").dt.replace_time_zone(None).to_numpy(), True
        return values.to_numpy(), False

    def lacks(self, table: Any, name: str) -> Array:
        found: Array = table[name].is_null().to_numpy()
        return found

    def key_type(self, table: Any, name: str) -> str:
        dtype = table[name].dtype
        if dtype.is_integer():
            return "integers"
        return "strings" if self._is_text(dtype) else str(dtype)

    def codes(self, left: Any, right: Any, names: list[str]) -> Ints:
        both = self.stacked(left, right, names)
        dtype = both[names[0]].dtype
        # numpy has no 128-bit integers.
        if len(names) == 1 and dtype.is_integer() and dtype != self._polars.Int128:
            dense = _dense(both[names[0]].to_numpy())
            if dense is not None:
                return dense
        keys = both.unique(maintain_order=True).with_row_index("__number")
        numbered = both.join(keys, on=names, how="left", maintain_order="left")
        codes: Ints = numbered["__number"].to_numpy().astype(np.int64)
        return codes

    def take(self, table: Any, names: list[str], rows: Ints, *, may_lack: bool) -> Any:
        index = self._polars.Series(rows)
        if may_lack:
            index = index.set(index == NO_ROW, None)
        return table.select(self._polars.col(name).gather(index) for name in names)

    def stacked(self, left: Any, right: Any, names: list[str]) -> Any:
        wide = {name: self._polars.Int128 for name in names if self._is_mixed(left[name].dtype, right[name].dtype)}
        wide |= {
            name: self._polars.String for name in names if self._is_other_text(left[name].dtype, right[name].dtype)
        }
        parts = [table.select(names).cast(wide) for table in (left, right)]
        return self._polars.concat(parts, how="vertical_relaxed")

    def _is_text(self, dtype: Any) -> bool:
        return isinstance(dtype, self._polars.String | self._polars.Categorical | self._polars.Enum)

    def _is_other_text(self, one: Any, other: Any) -> bool:
        return one != other and self._is_text(one) and self._is_text(other)

    def _is_mixed(self, one: Any, other: Any) -> bool:
        """Return whether no 64-bit type can hold the values of both types."""
        widest = self._polars.UInt64
        return any(a == widest and b.is_signed_integer() for a, b in ((one, other), (other, one)))

    def beside(self, parts: list[tuple[Any, list[str]]]) -> Any:
        renamed = [part.rename(dict(zip(part.columns, names, strict=True))) for part, names in parts if part.columns]
        return self._polars.concat(renamed, how="horizontal")
