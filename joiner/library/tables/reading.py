"""Detects which kind of table a caller has passed, and converts other tables to the kind of the first one."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from joiner.core.errors import ArgumentError
from joiner.library.tables.arrays import Arrays
from joiner.library.tables.arrow_tables import ArrowTables
from joiner.library.tables.kind import Kind
from joiner.library.tables.pandas_frames import PandasFrames
from joiner.library.tables.polars_frames import PolarsFrames


def read_tables(left: Any, right: Any) -> tuple[Kind, Any, Any]:
    """Return the kind of the left table, and both tables converted to it. Raises as `read_table` and `read_like` do."""
    kind, first = read_table("left", left)
    # A stream can be read only once.
    return kind, first, first if right is left else read_like("left", left, "right", right)


def read_table(name: str, table: Any) -> tuple[Kind, Any]:
    """Return the kind of a table, and the table, read in full. ``name``: the argument name, for error messages.

    Raises `ArgumentError` if ``table`` is not a supported table.
    """
    kind = _kind_of(name, table)()
    return kind, _read(kind, name, table)


def read_like(first_name: str, first: Any, name: str, table: Any) -> Any:
    """Convert ``table`` to the kind of ``first``. ``first_name``, ``name``: their argument names, for error messages.

    Raises `ArgumentError` if ``table`` is not a supported table, or if only one of the two is a mapping of arrays.
    """
    kinds = [_kind_of(first_name, first), _kind_of(name, table)]
    if kinds[0] != kinds[1] and Arrays in kinds:
        raise ArgumentError(f"{first_name} is {_shown(first)}, but {name} is {_shown(table)}; convert one of them")
    return _read(kinds[0](), name, table)


def _kind_of(name: str, table: Any) -> type[Arrays | ArrowTables | PandasFrames | PolarsFrames]:
    if isinstance(table, Mapping):
        return Arrays
    if _is_of(table, "pandas", "DataFrame"):
        return PandasFrames
    if _is_of(table, "polars", "DataFrame", "LazyFrame"):
        return PolarsFrames
    if hasattr(table, "__arrow_c_stream__") and not _is_of(table, "pandas", "Series"):
        return ArrowTables
    raise ArgumentError(
        f"{name} must be a pandas or polars DataFrame, an Arrow table, another object that has __arrow_c_stream__, or "
        f"a mapping of column names to arrays, not {_shown(table)}"
    )


def _is_of(table: Any, module: str, *names: str) -> bool:
    """Return whether a table is an instance of one of these classes, without importing their module."""
    return isinstance(table, tuple(getattr(sys.modules.get(module), name, ()) for name in names))


def _read(kind: Kind, name: str, table: Any) -> Any:
    """Read a table in full and convert it to ``kind``. ``name``: the argument name, for error messages."""
    if isinstance(kind, Arrays):
        return table
    if _is_of(table, "polars", "LazyFrame"):
        table = table.collect()
    if isinstance(kind, PolarsFrames):
        return table if _is_of(table, "polars", "DataFrame") else kind.from_arrow(_as_arrow(name, table))
    if isinstance(kind, PandasFrames):
        return table if _is_of(table, "pandas", "DataFrame") else kind.from_arrow(_as_arrow(name, table))
    return _as_arrow(name, table)


def _as_arrow(name: str, table: Any) -> Any:
    arrow = ArrowTables()
    if _is_of(table, "pandas", "DataFrame"):
        check_distinct(name, list(table.columns))
        return arrow.from_pandas(table)
    found = table.to_arrow() if _is_of(table, "polars", "DataFrame") else arrow.from_stream(name, table)
    check_distinct(name, found.column_names)
    return found


def check_distinct(name: str, columns: list[str]) -> None:
    """Raise `ArgumentError` if two columns of the table passed as argument ``name`` have the same name."""
    if len(set(columns)) < len(columns):
        twice = next(column for column in columns if columns.count(column) > 1)
        raise ArgumentError(f"{name} has two columns named {twice!r}; rename one of them")


def _shown(table: Any) -> str:
    return f"{type(table).__module__.partition('.')[0]}.{type(table).__qualname__}"
