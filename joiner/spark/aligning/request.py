"""Validates the arguments of `align` against its DataFrames, before the query starts.

Every error is a Spark `AnalysisException`. The message names the argument and, where relevant, the DataFrame, and says
what is wrong or how to correct it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import types as spark

from joiner.library.align import TableColumn
from joiner.library.grid import TableGrid
from joiner.spark.aligning.reordered_align import OPERATOR
from joiner.spark.aligning.rules import AlignedColumn, AlignRules
from joiner.spark.frame_columns import (
    Frame,
    Unit,
    arrow_schema,
    bucket_count,
    check_times,
    column_names,
    key_types,
    nullable,
    order_places,
)
from joiner.spark.stream_checks import check_certainty, check_state_store, watermarks

if TYPE_CHECKING:
    from joiner.spark.rows import Side

_DRIVER: Final = "driver"
_NUMBERS: Final = (
    *(spark.ByteType, spark.ShortType, spark.IntegerType, spark.LongType),
    *(spark.FloatType, spark.DoubleType),
)


@dataclass(frozen=True)
class AlignOptions:
    """The arguments of `align` besides its frames, as the caller passed them, not yet validated."""

    time: str
    by: str | Sequence[str]
    order: str | Sequence[str] | None
    lateness: object
    buckets: int | None


@dataclass(frozen=True)
class AlignRequest:
    """The validated arguments. ``frames``: the driver, then each column's table once, in the order of ``rules.sides``.

    ``key_types``: the types in which keys are compared.
    """

    rules: AlignRules
    frames: list[DataFrame]
    key_types: list[spark.DataType]
    result: spark.StructType
    is_streaming: bool

    @classmethod
    def of(cls, driver: DataFrame, columns: Mapping[str, TableColumn], options: AlignOptions) -> AlignRequest:
        """Validate the arguments. Raises `AnalysisException` if one of them is invalid."""
        _check_frame(_DRIVER, driver)
        _check_columns(columns)
        _check_streaming(driver, columns)
        tables, side_of = _tables(driver, columns, options)
        _check_key_counts(tables)
        frames = [table.frame for table in tables]
        unit = check_times(frames, [table.time for table in tables])
        kinds = key_types(frames, [table.by for table in tables])
        of_columns = order_places(options.order, frames[1:], "no table of a column")
        orders = [tuple(range(len(frames[0].fields))), *of_columns]
        sides = tuple(table.side(places) for table, places in zip(tables, orders, strict=True))
        found = [_column(name, one, side_of[name], tables[side_of[name]], unit) for name, one in columns.items()]
        result = _result(tables[0].frame, [field for _, field in found])
        lateness, has_watermark = _frontiers(tables, unit, options.lateness)
        rules = AlignRules(
            sides,
            arrow_schema(kinds),
            tuple(one for one, _ in found),
            bucket_count(options.buckets, driver.sparkSession) if tables[0].by else 1,
            arrow_schema([field.dataType for field in result.fields]),
            lateness,
            has_watermark,
        )
        return cls(rules, [table.data for table in tables], kinds, result, driver.isStreaming)


@dataclass(frozen=True)
class _Table:
    """The driver, or a table that provides columns: its columns, its data, and the positions of its time and keys."""

    frame: Frame
    data: DataFrame
    time: int
    by: list[int]

    @classmethod
    def of(cls, frame: Frame, data: DataFrame, time: str, by: list[str]) -> _Table:
        return cls(frame, data, frame.place(time, "time"), [frame.place(name, "by") for name in by])

    def side(self, order: tuple[int, ...]) -> Side:
        return self.frame.side(tuple(self.by), self.time, order)


def _tables(
    driver: DataFrame, columns: Mapping[str, TableColumn], options: AlignOptions
) -> tuple[list[_Table], dict[str, int]]:
    """Return the driver and each column's table once, and, by column name, the index of the column's table."""
    names = column_names(options.by)
    tables = [_Table.of(Frame.of(_DRIVER, driver), driver, options.time, names)]
    places: dict[tuple[Any, ...], int] = {}
    side_of = {}
    for name, one in columns.items():
        of_column = one.time or options.time, tuple(names if one.by is None else one.by)
        # Columns with the same frame share it, so that its rows are sent to the workers only once.
        side_of[name] = places.setdefault((id(one.table), *of_column), len(tables))
        if side_of[name] == len(tables):
            where = f"columns[{name!r}]"
            tables.append(_Table.of(Frame.of(where, one.table), one.table, of_column[0], list(of_column[1])))
    return tables, side_of


def _frontiers(tables: list[_Table], unit: Unit, given: object) -> tuple[tuple[int | None, ...], tuple[bool, ...]]:
    """Check the requirements for streams. Return the lateness of each table, and whether each has a watermark."""
    lateness = (None if given is None else unit.duration("lateness", given),) * len(tables)
    if not tables[0].data.isStreaming:
        return lateness, (False,) * len(tables)
    frames = [table.frame for table in tables]
    has_watermark = watermarks(frames, [table.time for table in tables])
    check_state_store(tables[0].data.sparkSession, OPERATOR)
    check_certainty(frames, has_watermark, lateness, "row")
    return lateness, has_watermark


def _check_frame(name: str, frame: object) -> None:
    if isinstance(frame, TableGrid):
        raise AnalysisException(f"{name} is a grid, which align of DataFrames does not support; pass a Spark DataFrame")
    if not isinstance(frame, DataFrame):
        raise AnalysisException(
            f"{name} must be a Spark DataFrame, not {type(frame).__qualname__}; for other tables, use joiner.align"
        )


def _check_streaming(driver: DataFrame, columns: Mapping[str, TableColumn]) -> None:
    for name, one in columns.items():
        if one.table.isStreaming != driver.isStreaming:
            kinds = ("stream", "table") if driver.isStreaming else ("table", "stream")
            raise AnalysisException(
                f"driver is a {kinds[0]} and columns[{name!r}] is a {kinds[1]}: Spark cannot union a stream with a "
                "table. Read both as streams, or use foreachBatch to align each micro-batch with tables"
            )


def _check_columns(columns: object) -> None:
    if not isinstance(columns, Mapping) or not columns:
        raise AnalysisException(
            "columns must be a non-empty mapping from new names to columns, such as {'speed': column(…)}, not "
            f"{columns!r}"
        )
    for name, one in columns.items():
        if not isinstance(name, str):
            raise AnalysisException(f"columns: the name {name!r} must be a str")
        if not isinstance(one, TableColumn):
            raise AnalysisException(f"columns[{name!r}] must be a joiner.column(…), not {type(one).__qualname__}")
        _check_frame(f"columns[{name!r}]", one.table)


def _check_key_counts(tables: list[_Table]) -> None:
    for table in tables[1:]:
        if len(table.by) != len(tables[0].by):
            given = [table.frame.fields[place].name for place in table.by]
            raise AnalysisException(
                f"{table.frame.name}: by must name {len(tables[0].by)} columns, as for the driver, not {given!r}"
            )


def _column(
    name: str, one: TableColumn, side: int, table: _Table, unit: Unit
) -> tuple[AlignedColumn, spark.StructField]:
    """Return a column of the result in two forms: for the workers, and as a field of the Spark schema."""
    where = f"columns[{name!r}]"
    frame = replace(table.frame, name=where)
    place = _value_place(frame, table, name, one.value)
    field = nullable(frame.fields[place], name)
    if one.rule.rule == "linear":
        if not isinstance(field.dataType, _NUMBERS):
            raise AnalysisException(
                f"{where}: {frame.fields[place].name!r} must contain integers or floats for rule 'linear', not "
                f"{field.dataType.simpleString()}; cast it to double"
            )
        field = spark.StructField(name, spark.DoubleType(), nullable=True, metadata=field.metadata)
    tolerance = None if one.tolerance is None else unit.duration(f"{where}: tolerance", one.tolerance)
    return AlignedColumn(name, side, place, replace(one.rule, tolerance_ns=tolerance)), field


def _value_place(frame: Frame, table: _Table, name: str, given: str | None) -> int:
    """Return the position of the column that contains the values, chosen by the same rule as in `joiner.align`."""
    if given is not None:
        return frame.place(given, "value")
    others = [place for place in range(len(frame.fields)) if place not in {table.time, *table.by}]
    if any(place in others for place in frame.places(name)):
        return frame.place(name, "value")
    if len(others) == 1:
        return others[0]
    shown = frame.fields[others[0]].name if others else "value"
    has = ", ".join(repr(field.name) for field in frame.fields)
    raise AnalysisException(
        f"{frame.name}: specify the column of values, as in column(table, {shown!r}); the table has {has}"
    )


def _result(driver: Frame, added: list[spark.StructField]) -> spark.StructType:
    """Return the schema of the result: the columns of the driver, then the new ones."""
    known: set[str] = set()
    for field in driver.fields:
        driver.place(field.name, "result")
        known.add(driver.folded(field.name))
    for field in added:
        if driver.folded(field.name) in known:
            raise AnalysisException(
                f"columns: the result would have two columns named {field.name!r}; choose another name"
            )
        known.add(driver.folded(field.name))
    return spark.StructType([*(nullable(field, field.name) for field in driver.fields), *added])
