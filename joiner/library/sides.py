"""`Side`: a table to join or align, with its time and key columns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from joiner.core.errors import ArgumentError
from joiner.library.tables.kind import ANYTHING, Kind
from joiner.library.tables.reading import check_distinct
from joiner.library.times import Times, times_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Side:
    """A table to join or align, with its time and key columns. ``name``: the argument name, for error messages."""

    name: str
    table: Any
    time: str
    by: list[str]

    def check_columns(self, kind: Kind) -> None:
        """Raise `ArgumentError` if the time or a key column is absent or has missing values, or if a name repeats."""
        columns = kind.names(self.table)
        check_distinct(self.name, columns)
        for column in (self.time, *self.by):
            if column not in columns:
                raise ArgumentError(f"{self.name} has no column {column!r}; it has {', '.join(map(repr, columns))}")
            missing = np.flatnonzero(kind.lacks(self.table, column))
            if len(missing):
                raise ArgumentError(
                    f"{self.name}[{column!r}] has no value in row {missing[0]} ({len(missing)} missing in total); "
                    "drop these rows, because they cannot have neighbours"
                )

    def times(self, kind: Kind) -> Times:
        """Return the event times. Raises `ArgumentError` as `times_of` does."""
        values, has_zone = kind.column(self.table, self.time)
        return times_of(f"{self.name}[{self.time!r}]", values, has_zone=has_zone)

    def others(self, kind: Kind) -> list[str]:
        """Return the names of all columns except the key columns."""
        return [name for name in kind.names(self.table) if name not in self.by]


def column_names(option: str, names: Any) -> list[str]:
    """Return the column names in an option's value, which may be one name or a list of names.

    Raises `ArgumentError` for any other value.
    """
    if isinstance(names, str):
        return [names]
    if not isinstance(names, Iterable):
        raise ArgumentError(f"{option} must be a column name or a list of column names, not {names!r}")
    return list(names)


def keys_of(kind: Kind, sides: list[Side], counts: list[int]) -> tuple[Ints, Ints]:
    """Map the keys of the left and right rows to small integers. ``counts``: the number of rows in each table.

    Raises `ArgumentError` as `check_key_types` does.
    """
    check_key_types(kind, sides)
    codes = kind.codes(*key_tables(kind, sides)) if sides[0].by else np.zeros(sum(counts), dtype=np.int64)
    return codes[: counts[0]], codes[counts[0] :]


def check_key_types(kind: Kind, sides: list[Side]) -> None:
    """Raise `ArgumentError` if the key columns of the left and right tables differ in type."""
    left, right = sides
    for names in zip(left.by, right.by, strict=True):
        types = [kind.key_type(side.table, name) for side, name in zip(sides, names, strict=True)]
        if types[0] != types[1] and ANYTHING not in types:
            raise ArgumentError(
                f"by: {left.name}[{names[0]!r}] contains {types[0]}, but {right.name}[{names[1]!r}] contains "
                f"{types[1]}; cast one of them"
            )


def key_tables(kind: Kind, sides: list[Side]) -> tuple[Any, Any]:
    """Return each side's key columns as a table. Both tables use the left side's column names."""
    left, right = (kind.select(side.table, side.by, sides[0].by) for side in sides)
    return left, right
