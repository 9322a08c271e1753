"""The table operations that `join` and `align` need, for Arrow tables, and conversions of other tables to Arrow.

Requires pyarrow, which the ``arrow`` extra installs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import numpy as np

from joiner.core.errors import ArgumentError
from joiner.library.tables.kind import NO_ROW, Kind
from joiner.library.tables.numbering import numbered, numbered_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Array = NDArray[Any]


def pyarrow() -> Any:
    """Return the pyarrow module. If it is not installed, raises an ImportError that names the extra to install."""
    try:
        return importlib.import_module("pyarrow")
    except ModuleNotFoundError as error:
        if error.name != "pyarrow":
            raise
        raise ImportError("pyarrow is not installed: pip install 'localstreambuffer[arrow]'") from error


class ArrowTables(Kind):
    """`pyarrow.Table`."""

    def __init__(self) -> None:
        self._arrow = pyarrow()

    def from_stream(self, name: str, table: Any) -> Any:
        """Read an object that has ``__arrow_c_stream__`` into a table. ``name``: the argument name, for messages.

        Raises `ArgumentError` if the object is not a table.
        """
        try:
            reader = self._arrow.RecordBatchReader.from_stream(table)
        except self._arrow.ArrowInvalid as error:
            raise ArgumentError(f"{name} is {type(table).__qualname__}, which is not a table: {error}") from error
        return self._without_views(reader.read_all())

    def from_pandas(self, frame: Any) -> Any:
        """Convert a pandas DataFrame to an Arrow table, dropping its index."""
        return self._arrow.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata()

    def names(self, table: Any) -> list[str]:
        return list(table.column_names)

    def column(self, table: Any, name: str) -> tuple[Array, bool]:
        values = table[name]
        return values.to_numpy(), getattr(values.type, "tz", None) is not None

    def lacks(self, table: Any, name: str) -> Array:
        found: Array = table[name].is_null(nan_is_null=True).to_numpy()
        return found

    def key_type(self, table: Any, name: str) -> str:
        kind = table[name].type
        if self._arrow.types.is_integer(kind):
            return "integers"
        return "strings" if self._is_text(kind) else str(kind)

    def select(self, table: Any, names: list[str], new: list[str]) -> Any:
        return table.select(names).rename_columns(new)

    def codes(self, left: Any, right: Any) -> Ints:
        return numbered_rows(map(self._numbered, self.stacked(left, right).columns))

    def take(self, table: Any, names: list[str], rows: Ints, *, may_lack: bool) -> Any:
        index = self._arrow.array(rows, mask=rows == NO_ROW if may_lack else None)
        return table.select(names).combine_chunks().take(index)

    def stacked(self, left: Any, right: Any) -> Any:
        columns = {
            name: [of_one for column in self._of_one_type(left[name], right[name]) for of_one in column.chunks]
            for name in left.column_names
        }
        return self._arrow.table(
            {
                name: self._arrow.chunked_array(chunks, None if chunks else left[name].type)
                for name, chunks in columns.items()
            }
        )

    def beside(self, parts: list[tuple[Any, list[str]]]) -> Any:
        columns = {
            name: column for part, names in parts for name, column in zip(names, part.itercolumns(), strict=True)
        }
        return self._arrow.table(columns)

    def of_floats(self, name: str, values: Array, is_missing: Array) -> Any:
        return self._arrow.table({name: self._arrow.array(values, mask=is_missing)})

    def of_times(self, name: str, times: Ints, like: Any, column: str) -> Any:
        found, kind = self._arrow.array(times), like[column].type
        if self._arrow.types.is_temporal(kind):
            found = found.cast(self._arrow.timestamp("ns", getattr(kind, "tz", None))).cast(kind)
        return self._arrow.table({name: found})

    def _without_views(self, table: Any) -> Any:
        """Convert string and binary view columns to plain ones, because pyarrow cannot take rows from views."""
        for place, field in enumerate(table.schema):
            column = table.column(place)
            if self._arrow.types.is_dictionary(field.type):
                chunks = [
                    self._arrow.DictionaryArray.from_arrays(chunk.indices, self._without_view(chunk.dictionary))
                    for chunk in column.chunks
                ]
                plain = self._arrow.chunked_array(chunks) if chunks else column
            else:
                plain = self._without_view(column)
            if plain.type != field.type:
                table = table.set_column(place, field.name, plain)
        return table

    def _without_view(self, values: Any) -> Any:
        plain = {
            self._arrow.string_view(): self._arrow.large_string(),
            self._arrow.binary_view(): self._arrow.large_binary(),
        }
        return values.cast(plain[values.type]) if values.type in plain else values

    def _numbered(self, column: Any) -> Ints:
        """Number a column's values from 0, shape (n,). Equal values get the same number."""
        types = self._arrow.types
        if types.is_integer(column.type) or types.is_floating(column.type):
            return numbered(column.to_numpy())
        if types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        try:
            encoded = column.dictionary_encode().unify_dictionaries()
        except self._arrow.ArrowNotImplementedError as error:
            raise ArgumentError(f"by: values of type {column.type} cannot be compared; cast the column") from error
        parts = [chunk.indices.to_numpy() for chunk in encoded.chunks]
        return np.concatenate([np.empty(0, dtype=np.int64), *parts]).astype(np.int64)

    def _is_text(self, kind: Any) -> bool:
        types = self._arrow.types
        if types.is_dictionary(kind):
            kind = kind.value_type
        return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))

    def _of_one_type(self, left: Any, right: Any) -> list[Any]:
        """Convert two key columns to a type that can hold the values of both."""
        one, other = left.type, right.type
        if one == other:
            return [left, right]
        if self._is_text(one) and self._is_text(other):
            return [self._as_text(left), self._as_text(right)]
        # Both are integer types, because `check_key_types` has rejected every other mismatch.
        wide = np.promote_types(one.to_pandas_dtype(), other.to_pandas_dtype())
        # No Arrow integer type can hold both int64 and uint64.
        common = self._arrow.from_numpy_dtype(wide) if wide.kind in "iu" else self._arrow.decimal128(20)
        return [left.cast(common), right.cast(common)]

    def _as_text(self, column: Any) -> Any:
        if self._arrow.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        return column.cast(self._arrow.large_string())
