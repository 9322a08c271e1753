"""Recognizes the kind of the tables that a caller passes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from joiner.core.errors import ArgumentError
from joiner.library.tables.arrays import Arrays
from joiner.library.tables.kind import Kind
from joiner.library.tables.pandas_frames import PandasFrames
from joiner.library.tables.polars_frames import PolarsFrames


def kind_of(left: Any, right: Any) -> Kind:
    """Return the kind of both tables. Raises `ArgumentError` if their kinds differ or are not supported."""
    kinds = {_module(table) for table in (left, right)}
    if len(kinds) > 1:
        raise ArgumentError(f"left is {_shown(left)} and right is {_shown(right)}; convert one of them")
    (module,) = kinds
    if module == "pandas" and hasattr(left, "columns"):
        return PandasFrames()
    if module == "polars" and hasattr(left, "get_columns"):
        return PolarsFrames()
    if module == "arrays":
        return Arrays()
    raise ArgumentError(
        f"left is {_shown(left)}; pass a pandas or polars DataFrame, or a mapping of column names to arrays"
    )


def _module(table: Any) -> str:
    return "arrays" if isinstance(table, Mapping) else type(table).__module__.partition(".")[0]


def _shown(table: Any) -> str:
    return f"{type(table).__module__.partition('.')[0]}.{type(table).__qualname__}"
