"""Defines `align`, which adds values from other tables to each row of a table, taken at the row's time.

docs/alignment.md defines the result. For streams, `AlignBuffer` produces the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from joiner.alignment.rules import ColumnRule
from joiner.alignment.tables import distances, in_time_order, interpolated, nearest_of, next_of, order_of, previous_of
from joiner.core.compiled import compile_declared
from joiner.core.errors import ArgumentError
from joiner.library.grid import TableGrid, rows_of_grid
from joiner.library.sides import Side, column_names, keys_of
from joiner.library.tables.kind import NO_ROW, Kind
from joiner.library.tables.reading import read_like, read_table
from joiner.library.times import Times, duration_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]
    Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class TableColumn:
    """A column of the result: the table that provides its values, and the rule for finding them. See `column`."""

    table: Any
    value: str | None
    rule: ColumnRule
    tolerance: object
    time: str | None
    by: list[str] | None


def column(
    table: Any,
    value: str | None = None,
    *,
    rule: str = "previous",
    tolerance: object = None,
    period: float | None = None,
    on_missing: str = "null",
    time: str | None = None,
    by: str | Sequence[str] | None = None,
) -> TableColumn:
    """Describe a column of the result of `align`.

    Args:
        table: the table to take the values from, of any kind that `join` accepts.
        value: the name of the column in ``table`` that contains the values. By default, this is the column with the
            same name as the new column or, if there is none, the only column besides the time and the keys.
        rule: ``"previous"``, ``"next"``, ``"nearest"`` or ``"linear"``, as in `ColumnRule`.
        tolerance: how far the row in ``table`` may be from the driver's row in time or, with ``"linear"``, how far the
            two rows in ``table`` may be from each other. An integer if the times are integers, otherwise a duration
            such as ``"20ms"`` or a `timedelta`. None means no limit.
        period: with ``"linear"``, the period of cyclic values, such as 360 for angles in degrees.
        on_missing: whether a row without a value gets a null in this column (``"null"``) or is left out (``"drop"``).
        time: the time column of ``table``, if its name differs from the driver's.
        by: the key columns of ``table``, if their names differ from the driver's. ``()`` means that the table has no
            keys: its rows apply to every key of the driver.

    Raises:
        ArgumentError: if ``by`` or an option of the rule is invalid. The message names the option and says why. `align`
            checks the other arguments.

    """
    names = None if by is None else column_names("by", by)
    checked = ColumnRule(rule=rule, period=period, on_missing=on_missing)
    return TableColumn(table, value, checked, tolerance, time, names)


def align(driver: Any, columns: Mapping[str, TableColumn], *, time: str, by: str | Sequence[str] = ()) -> Any:
    """Return the rows of ``driver``, each with the values of other tables at its time.

    The driver is a table or regular times (see `grid`).

    Rows may be in any order. If rows of a table have equal times, those further down are treated as later.

    Args:
        driver: a table of any kind that `join` accepts, or a `grid`. With a table, the result is of the same kind and
            keeps its columns, the order of its rows and, in pandas, its index. With a grid, the result is of the same
            kind as the first column's table. It has the columns ``by`` and ``time``, then the added ones, and one row
            for each key and tick. Keys are in order of first appearance, ticks in time order.
        columns: the columns to add, by name; see `column`.
        time: the name of the time column. The column contains datetimes, or integers in any unit.
        by: the key columns. By default all rows have the same key.

    Integers and booleans keep their type; in pandas, their columns become nullable (``Int64``, ``boolean``). Columns
    with rule ``"linear"`` contain float64.

    Raises:
        ArgumentError: if an argument is invalid. The message names the argument and, where it matters, the column and
            the row.
        ImportError: if a table needs pyarrow and it is not installed. The message names the extra to install.

    >>> import numpy as np
    >>> torque = {"at": np.array([10, 20]), "nm": np.array([4.0, 5.0])}
    >>> speed = {"at": np.array([5, 15, 25]), "rpm": np.array([100.0, 200.0, 400.0])}
    >>> rows = align(torque, {"speed": column(speed, rule="linear")}, time="at")
    >>> list(zip(rows["at"].tolist(), rows["nm"].tolist(), rows["speed"].tolist()))
    [(10, 4.0, 150.0), (20, 5.0, 300.0)]

    """
    keys = column_names("by", by)
    _check_columns(columns)
    compile_declared("joiner.alignment")
    kind, table, sides = _read(driver, columns, time, keys)
    side = Side("driver", table, time, keys)
    side.check_columns(kind)
    names = kind.names(table)
    if taken := sorted(columns.keys() & set(names)):
        raise ArgumentError(f"columns: the driver already has a column {taken[0]!r}; choose another name")
    stamps = side.times(kind)
    order = order_of(stamps.ns)
    is_kept = np.ones(len(stamps.ns), dtype=bool)
    parts = []
    for name, one in columns.items():
        found = _found(kind, side, stamps, order, sides[name], name, one)
        parts.append((found.at, [name]))
        if one.rule.on_missing == "drop":
            is_kept &= ~found.is_missing
    rows = is_kept.nonzero()[0]
    added = [(values_at(rows), new) for values_at, new in parts]
    rows_of_driver = kind.take(table, names, rows, may_lack=False), names
    return kind.with_labels(kind.beside([rows_of_driver, *added]), table, rows)


def _check_columns(columns: object) -> None:
    if not isinstance(columns, Mapping):
        raise ArgumentError(
            "columns must be a mapping of new names to columns, such as {'speed': column(...)}, not "
            f"{type(columns).__qualname__}"
        )
    if not columns:
        raise ArgumentError("columns must contain at least one column")
    for name, one in columns.items():
        if not isinstance(one, TableColumn):
            raise ArgumentError(f"columns[{name!r}] must be a column(...), not {type(one).__qualname__}")


def _read(
    driver: Any, columns: Mapping[str, TableColumn], time: str, keys: list[str]
) -> tuple[Kind, Any, dict[str, Side]]:
    """Read all tables, converting them to the kind of the driver or, if that is a grid, of the first column's table.

    Returns this kind, the driver's table, and the side for each column.
    """
    where, first = "driver", driver
    if isinstance(driver, TableGrid):
        name, one = next(iter(columns.items()))
        where, first = f"columns[{name!r}]", one.table
    kind, table = read_table(where, first)
    # Read each table once: it may be a stream, which cannot be read again, and several columns may share it.
    read, sides = {id(first): table}, {}
    for name, one in columns.items():
        if id(one.table) not in read:
            read[id(one.table)] = read_like(where, first, f"columns[{name!r}]", one.table)
        by = keys if one.by is None else one.by
        sides[name] = side = Side(f"columns[{name!r}]", read[id(one.table)], one.time or time, by)
        if len(by) not in {0, len(keys)}:
            raise ArgumentError(
                f"{side.name}: by = {by!r} must be empty, or have as many columns as by = {keys!r} of the driver"
            )
    if not isinstance(driver, TableGrid):
        return kind, table, sides
    with_keys = [side for side in sides.values() if len(side.by) == len(keys)]
    if not with_keys:
        raise ArgumentError(f"columns: with a grid, at least one table must have key columns, to match by = {keys!r}")
    for side in with_keys:
        side.check_columns(kind)
    return kind, rows_of_grid(kind, driver, with_keys, time, keys), sides


class _Found(NamedTuple):
    """A column's values. ``at``: returns them for given driver rows, as a table. ``is_missing``: one flag per row."""

    at: Callable[[Ints], Any]
    is_missing: Flags


def _found(
    kind: Kind, driver: Side, stamps: Times, order: Ints | None, side: Side, name: str, one: TableColumn
) -> _Found:
    """Find the values of the column ``name`` at the driver's rows. ``order``: from `order_of`, for the driver."""
    side.check_columns(kind)
    value = _value_column(kind.names(side.table), side, name, one.value)
    others = side.times(kind)
    if stamps.what != others.what:
        raise ArgumentError(
            f"time: driver contains {stamps.what}, but {side.name} contains {others.what}; convert one of them"
        )
    tolerance = None
    if one.tolerance is not None:
        tolerance = np.uint64(duration_of(f"{side.name}: tolerance", one.tolerance, stamps.what))
    # The rows of a table without keys apply to every key.
    of_driver = driver if side.by else replace(driver, by=[])
    keys = keys_of(kind, [of_driver, side], [len(stamps.ns), len(others.ns)])
    times = stamps.ns, others.ns
    orders = in_time_order(keys[0], times[0], order), in_time_order(keys[1], times[1], order_of(times[1]))
    if one.rule.rule == "linear":
        values = interpolated(*orders, _numbers(kind, side, value), tolerance, one.rule.period)
        # A neighbouring row without a value also results in NaN.
        is_missing = np.isnan(values)
        return _Found(lambda rows: kind.of_floats(name, values[rows], is_missing[rows]), is_missing)
    if one.rule.rule == "nearest":
        at = nearest_of(*orders, *times)
    else:
        at = previous_of(*orders) if one.rule.rule == "previous" else next_of(*orders)
    if tolerance is not None:
        at = np.where(distances(stamps.ns, at, others.ns) <= tolerance, at, NO_ROW)
    # If the neighbouring row has no value, the result is missing. The last element of `has_value` stands for `NO_ROW`.
    has_value = np.append(~kind.lacks(side.table, value), False)
    at = np.where(has_value[at], at, NO_ROW)
    of_table = kind.nullable(kind.select(side.table, [value], [value]))
    return _Found(lambda rows: kind.take(of_table, [value], at[rows], may_lack=True), at == NO_ROW)


def _value_column(names: list[str], side: Side, name: str, given: str | None) -> str:
    """Return the name of the table column that contains the values. Raises `ArgumentError` if absent or ambiguous."""
    others = [known for known in names if known not in {side.time, *side.by}]
    if given is not None and given not in names:
        raise ArgumentError(f"{side.name} has no column {given!r}; it has {', '.join(map(repr, names))}")
    if given is not None or name in others:
        return given or name
    if len(others) == 1:
        return others[0]
    raise ArgumentError(
        f"{side.name}: specify the column of values, as in column(table, {others[0] if others else 'value'!r}); the "
        f"table has {', '.join(map(repr, names))}"
    )


def _numbers(kind: Kind, side: Side, value: str) -> Floats:
    """Return a column as a float64 array of shape (n,), with NaN for missing values.

    Raises `ArgumentError` if it contains anything other than numbers.
    """
    values, _ = kind.column(side.table, value)
    there = ~kind.lacks(side.table, value)
    known = values[there]
    others = None if values.dtype.kind in "iuf" else str(values.dtype)
    if values.dtype == object:
        # The dtype does not determine the type of the values, so check each value.
        others = next((type(one).__qualname__ for one in known if not _is_number(one)), None)
    if others is not None:
        raise ArgumentError(
            f"{side.name}[{value!r}] must contain numbers for rule 'linear', not {others}; "
            "convert the column to float64"
        )
    numbers = np.full(len(values), np.nan)
    numbers[there] = known.astype(np.float64)
    return numbers


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
