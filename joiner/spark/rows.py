"""Operations on rows in Arrow tables, shared by both operators. They are stateless and do not depend on Spark.

Columns are addressed by position; only the schema of the result has the users' column names. Arrow is used because,
unlike pandas, it represents every Spark type exactly: integers with nulls, nested columns, and the full range of
timestamps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from joiner.core.arguments import TIME_MAX_NS, TIME_MIN_NS
from joiner.core.errors import ArgumentError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]

NO_ROW: Final = -1
"""Takes the place of a row's index where there is no row, for example because a row is unmatched."""


@dataclass(frozen=True)
class Side:
    """The positions of one side's columns.

    ``by``: the key columns. ``time``: the event time. ``order``: all columns, in the sequence in which they order rows
    with equal key and time. ``others``: all columns except the key, for the result. ``schema``: the types; see
    `in_utc`.
    """

    name: str
    by: tuple[int, ...]
    time: int
    order: tuple[int, ...]
    others: tuple[int, ...]
    schema: pa.Schema


def in_utc(schema: pa.Schema) -> pa.Schema:
    """Return the schema with timestamps in UTC, not the session's time zone, and columns named ``c0``, ``c1``, …"""
    return pa.schema([pa.field(f"c{place}", _in_utc(kind)) for place, kind in enumerate(schema.types)])


def _in_utc(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_in_utc(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_in_utc(kind.key_type), kind.item_field.with_type(_in_utc(kind.item_type)))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_in_utc(kind.value_type)))
    return kind


def to_bytes(table: pa.Table) -> bytes:
    """Serialize a table as one Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def from_bytes(data: bytes) -> pa.Table:
    """Return the table that `to_bytes` serialized."""
    return pa.ipc.open_stream(data).read_all()


def as_declared(table: pa.Table, side: Side) -> pa.Table:
    """Rename and cast the columns to match the schema of ``side``. Raises `ArgumentError` if they cannot be cast."""
    try:
        return table.rename_columns(side.schema.names).cast(side.schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        raise ArgumentError(
            f"{side.name}: rows have the types {table.schema.types}, but {side.schema.types} were declared ({error}). "
            "The columns of a query must not change: start with a new checkpoint folder"
        ) from error


def complete(table: pa.Table, side: Side) -> Bools:
    """Return which rows have a time and no nulls in their key, shape (n,). Other rows cannot have neighbours."""
    found: Bools = np.ones(table.num_rows, dtype=bool)
    for place in (*side.by, side.time):
        if table.column(place).null_count:
            found &= table.column(place).is_valid().to_numpy()
    return found


def times(table: pa.Table, side: Side) -> Ints:
    """Return the rows' event times as an int64 array of shape (n,).

    Dates and timestamps are converted to microseconds since the epoch (UTC); integers are left as they are. Raises
    `ArgumentError` if an integer is outside the range that the buffer supports. Dates and timestamps from Spark are
    always within that range.
    """
    column = table.column(side.time)
    if pa.types.is_date(column.type):
        column = column.cast(pa.timestamp("us"))
    values: Ints = column.cast(pa.int64()).to_numpy().astype(np.int64, copy=False)
    outside = (values < TIME_MIN_NS) | (values > TIME_MAX_NS)
    if outside.any():
        raise ArgumentError(
            f"{side.name}: the time {values[outside.argmax()]} is outside the range from {TIME_MIN_NS} to "
            f"{TIME_MAX_NS}; filter such rows out"
        )
    return values


def keys_of(table: pa.Table, side: Side) -> pa.Table:
    """Return the key columns of a table, with the same column names for all sides."""
    return table.select(list(side.by)).rename_columns(_names(len(side.by)))


def codes(keys: pa.Table) -> Ints:
    """Number the distinct keys from 0 in order of first occurrence. Return the number of each row's key, shape (n,).

    As in Spark's own joins, all NaNs are equal, and 0.0 equals -0.0.
    """
    found = np.zeros(keys.num_rows, dtype=np.int64)
    for place, column in enumerate(keys.columns):
        values = _plain(column.to_numpy()) if pa.types.is_floating(column.type) else column.combine_chunks()
        of_one = values.dictionary_encode().indices.to_numpy().astype(np.int64)
        found = _in_first_order(found * (of_one.max(initial=0) + 1) + of_one) if place else of_one
    return found


def _plain(floats: NDArray[np.floating[Any]]) -> pa.Array:
    """Return the values with all NaNs replaced by the same NaN, and -0.0 by 0.0."""
    floats = floats + 0.0
    floats[np.isnan(floats)] = np.nan
    return pa.array(floats)


def _in_first_order(values: Ints) -> Ints:
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    place = np.empty(len(first), dtype=np.int64)
    place[np.argsort(first)] = np.arange(len(first))
    of_each: Ints = place[inverse]
    return of_each


def ordered(table: pa.Table, key: Ints, time: Ints, side: Side) -> Ints:
    """Return the indices that sort the rows by time and, if key and time are equal, by the columns in ``side.order``.

    Nulls come first. Arrow cannot compare nested values, so these are ordered by their repr: an arbitrary but
    deterministic order. Rows that are equal in all columns are interchangeable.
    """
    found: Ints = np.lexsort((key, time))
    same = (np.diff(time[found]) == 0) & (np.diff(key[found]) == 0)
    if not same.any():
        return found
    tied = np.zeros(len(found), dtype=bool)
    tied[1:] |= same
    tied[:-1] |= same
    places = tied.nonzero()[0]
    rows = found[places]
    group = np.cumsum(np.concatenate(([True], ~same)))[places]
    at = np.arange(len(rows))
    for place in side.order:
        rank = _ranks(table.column(place).take(rows[at]))
        by_rank = np.lexsort((rank, group))
        at, rank, group = at[by_rank], rank[by_rank], group[by_rank]
        starts = (np.diff(group) != 0) | (np.diff(rank) != 0)
        if starts.all():
            break
        group = np.cumsum(np.concatenate(([True], starts)))
    found[places] = rows[at]
    return found


def _ranks(column: pa.ChunkedArray) -> Ints:
    """Return the rank of each value. Equal values have equal ranks, and null has the lowest."""
    if pa.types.is_nested(column.type) or pa.types.is_null(column.type):
        column = pa.chunked_array([[repr(value) for value in column.to_pylist()]], pa.string())
    ranks: Ints = pc.rank(column, sort_keys="ascending", tiebreaker="dense").to_numpy().astype(np.int64)
    ranks[column.is_null().to_numpy()] = NO_ROW
    return ranks


def beside(tables: tuple[pa.Table, pa.Table], sides: tuple[Side, Side], left: Ints, right: Ints) -> pa.Table:
    """Combine rows of two tables into wider rows: the key, then the left row's other columns, then the right row's.

    ``left`` and ``right``: the indices of the rows to combine, shape (n,). `NO_ROW` yields nulls instead of a row. The
    key is taken from the left row if there is one, otherwise from the right row.
    """
    columns: list[Any] = []
    if sides[0].by:
        keys = pa.concat_tables(keys_of(table, side) for table, side in zip(tables, sides, strict=True))
        columns = keys.take(np.where(left != NO_ROW, left, tables[0].num_rows + right)).columns
    for table, side, rows in zip(tables, sides, (left, right), strict=True):
        columns += table.select(list(side.others)).take(pa.array(rows, mask=rows == NO_ROW)).columns
    return pa.table(columns, names=_names(len(columns)))


def _names(count: int) -> list[str]:
    return [f"c{place}" for place in range(count)]
