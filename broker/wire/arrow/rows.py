"""Reads records from Arrow IPC streams as columns, and writes such streams.

A message that is not an Arrow IPC stream, or that lacks a column, is rejected as a whole. A row that is not a valid
record is only marked as invalid, so that the other rows of the message can be used; `ArrowRows.reason` says what is
wrong with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from broker.times import TIME_MAX_NS, TIME_MIN_NS, UNIT_NS, mean_text
from broker.wire.arrow.limits import check_limits, with_plain_types
from broker.wire.arrow.names import NameSizes, bytes_of, indices_of
from broker.wire.columns import StringColumn
from broker.wire.records import NAME_LENGTH_MAX, Record, Unreadable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]

_REQUIRED: Final = ("thing", "quantity", "phenomenonTime", "result")
_COLUMNS: Final = (*_REQUIRED, "id")

_ROW_NAME_BYTES: Final = 256
"""If a dictionary is larger than this many bytes per row of a batch, only the names that occur in the batch are
read."""

_NOT_FINITE: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


class Labels(NamedTuple):
    """A column of n strings: a dictionary, and each row's index into it.

    ``names`` is the dictionary, which may contain None. ``number`` (int64, shape (n,)) has the indices; the index of a
    null is -1.
    """

    names: list[str | None]
    number: Ints

    def valid(self) -> Bools:
        """Return which rows hold a valid name."""
        named = np.array([name is not None and 1 <= len(name) <= NAME_LENGTH_MAX for name in self.names] + [False])
        return named.take(self.number)


class ArrowRows(NamedTuple):
    """n consecutive rows of a message, as columns of shape (n,). ``first`` is the number of the first row.

    ``ts_ns`` contains the times (int64 nanoseconds), with 0 for each invalid time. ``result`` is float64. ``id`` is
    None if no row has an id; otherwise, it contains an empty string for each row without one. ``valid`` says which rows
    are valid records. ``batch`` contains the same rows as an Arrow record batch.
    """

    first: int
    thing: Labels
    quantity: Labels
    ts_ns: Ints
    result: NDArray[np.float64]
    id: StringColumn | None
    valid: Bools
    batch: Any

    def __len__(self) -> int:
        return len(self.ts_ns)

    def fields(self, row: int) -> dict[str, Any]:
        """Return the fields of a row by name, as Python objects. The time is an integer in the column's unit."""
        cells = {name: self.batch.column(name)[row] for name in self.batch.schema.names}
        # Do not convert the time to a datetime, which cannot represent nanoseconds.
        time = cells.pop("phenomenonTime")
        shown = {name: cell.as_py() for name, cell in cells.items()}
        return shown | {"phenomenonTime": _time_number(time) if time.is_valid else None}

    def as_json(self, row: int, time_unit: str) -> bytes:
        """Return a row as a JSON record for a dead letter. Numbers that JSON does not allow are written as strings."""
        shown = self.fields(row)
        raw = self.batch.column("phenomenonTime")[row]
        if raw.is_valid:
            shown["phenomenonTime"] = _time_text(raw, time_unit)
        if shown["result"] is not None and not math.isfinite(shown["result"]):
            shown["result"] = _NOT_FINITE[str(shown["result"])]
        return msgspec.json.encode({name: shown[name] for name in _COLUMNS if name in shown})

    def reason(self, row: int) -> str:
        """Explain why an invalid row is not a valid record, as text for a dead letter."""
        shown = self.fields(row)
        for name in _REQUIRED:
            if shown[name] is None:
                return f"{name} is null"
        for name in ("thing", "quantity", "id"):
            text = shown.get(name)
            if text is not None and not 1 <= len(text) <= NAME_LENGTH_MAX:
                return f"{name} is {len(text)} characters long, but must have between 1 and {NAME_LENGTH_MAX}"
        if "\0" in shown["quantity"]:
            return "quantity contains a NUL character"
        if not math.isfinite(shown["result"]):
            return f"result is {_NOT_FINITE[str(shown['result'])]}, not a finite number"
        return "phenomenonTime is outside the years 1678-2261"


def read_rows(value: bytes, time_unit: str) -> Iterator[ArrowRows]:
    """Yield the rows of a message, one `ArrowRows` per record batch.

    Raises `Unreadable` with the reason if the message as a whole cannot be read. ``time_unit`` is the unit of times
    given as plain integers.
    """
    check_limits(value)
    found: list[ArrowRows] = []
    sizes = {name: NameSizes() for name in ("thing", "quantity", "id")}
    try:
        with pa.ipc.open_stream(pa.py_buffer(with_plain_types(value))) as reader:
            names = _check_schema(reader.schema)
            for batch in reader:
                chosen = batch.select(names)
                chosen.validate(full=True)
                found.append(_read_batch(chosen, sum(map(len, found)), time_unit, sizes))
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, Unreadable):
            raise
        text = str(error).partition("\n")[0]
        reason = f"not a valid Arrow IPC stream: {text}"
        raise Unreadable(reason) from error
    yield from found


def _check_schema(schema: Any) -> list[str]:
    """Return the names of the columns to read.

    Raises `Unreadable` if a required column is missing, or if a column occurs more than once or has the wrong type.
    """
    names: list[str] = schema.names
    for name in _COLUMNS:
        count = names.count(name)
        if count > 1 or (not count and name in _REQUIRED):
            reason = f"the column {name} is {'missing' if not count else 'present more than once'}"
            raise Unreadable(reason)
    for name in (name for name in _COLUMNS if name in names):
        kind = schema.field(name).type
        if name == "phenomenonTime":
            if pa.types.is_timestamp(kind) and kind.tz is None:
                raise Unreadable("the column phenomenonTime has no time zone; use timestamps with one, such as UTC")
            right, wanted = pa.types.is_int64(kind) or pa.types.is_timestamp(kind), "int64 or timestamp with a zone"
        elif name == "result":
            right, wanted = pa.types.is_float64(kind), "float64"
        else:
            text = kind.value_type if pa.types.is_dictionary(kind) else kind
            right, wanted = pa.types.is_string(text) or pa.types.is_large_string(text), "utf8 or a dictionary of utf8"
        if not right:
            reason = f"the column {name} has the type {kind}; expected {wanted}"
            raise Unreadable(reason[:500])
    return [name for name in _COLUMNS if name in names]


def _read_batch(batch: Any, first: int, time_unit: str, sizes: dict[str, NameSizes]) -> ArrowRows:
    thing, quantity = (_labels(batch.column(name), sizes[name]) for name in ("thing", "quantity"))
    ts_ns, timed = _times(batch.column("phenomenonTime"), time_unit)
    result, results = _numbers(batch.column("result"), np.dtype(np.float64))
    valid = thing.valid() & quantity.valid() & timed & np.isfinite(result)
    if results is not None:
        valid &= results
    if any(name is not None and "\0" in name for name in quantity.names):
        valid &= np.array(["\0" not in (name or "") for name in quantity.names] + [False]).take(quantity.number)
    ids = None
    if "id" in batch.schema.names:
        column = batch.column("id")
        if column.null_count < len(column):
            ids, fine = _texts(column, sizes["id"])
            valid &= fine
    return ArrowRows(first, thing, quantity, ts_ns, result, ids, valid, batch)


def _labels(column: Any, sizes: NameSizes) -> Labels:
    """Convert a string column to `Labels`.

    Raises `Unreadable` if the strings, with a separate copy for each row, would take too much memory.
    """
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    number, dictionary = indices_of(column), column.dictionary
    sizes.add(dictionary, number)
    if len(dictionary) > len(number) or bytes_of(dictionary) > _ROW_NAME_BYTES * len(number):
        # Keep only the values that occur in this batch, because all batches of a message may share a large dictionary.
        used, number = np.unique(number, return_inverse=True)
        nulls = int(np.count_nonzero(used < 0))
        dictionary, number = dictionary.take(pa.array(used[nulls:])), number - nulls
    return Labels(dictionary.to_pylist(), number)


def _numbers(column: Any, kind: Any) -> tuple[Any, Bools | None]:
    """Return the values of a numeric column, with 0 for nulls, and a mask of the non-null ones (None if all are)."""
    _, data = column.buffers()
    if data is None or not len(column):
        values = np.zeros(len(column), dtype=kind)
    else:
        values = np.frombuffer(data, dtype=kind, count=len(column), offset=column.offset * kind.itemsize)
    if not column.null_count:
        return values, None
    valid: Bools = column.is_valid().to_numpy(zero_copy_only=False)
    return np.where(valid, values, 0), valid


def _times(column: Any, time_unit: str) -> tuple[Ints, Bools]:
    """Convert a column of times to nanoseconds. Return the times, with 0 if invalid, and a mask of the valid ones."""
    values, valid = _numbers(column, np.dtype(np.int64))
    unit_ns = UNIT_NS[column.type.unit if pa.types.is_timestamp(column.type) else time_unit]
    low, high = -(-TIME_MIN_NS // unit_ns), TIME_MAX_NS // unit_ns
    if valid is None and len(values) and values.min() >= low and values.max() <= high:
        return values * unit_ns, np.ones(len(values), dtype=np.bool_)
    fine = (values >= low) & (values <= high)
    if valid is not None:
        fine &= valid
    return np.where(fine, values, 0) * unit_ns, fine


def _texts(column: Any, sizes: NameSizes) -> tuple[StringColumn, Bools]:
    """Return the strings of the id column, with empty strings for nulls, and a mask of the valid rows.

    A null is valid, because a record need not have an id. Raises `Unreadable` if the strings, with a separate copy for
    each row, would take too much memory.
    """
    if pa.types.is_dictionary(column.type):
        sizes.add(column.dictionary, indices_of(column))
        column = column.cast(column.type.value_type)
    _, ends, data = column.buffers()
    kind = np.dtype(np.int64 if pa.types.is_large_string(column.type) else np.int32)
    bounds = np.frombuffer(ends, dtype=kind, count=len(column) + 1, offset=column.offset * kind.itemsize)
    bounds = bounds.astype(np.int64)
    whole = np.empty(0, dtype=np.uint8) if data is None else np.frombuffer(data, dtype=np.uint8)
    start, end = bounds[:-1], bounds[1:]
    fine = end > start
    if column.null_count:
        null = column.is_null().to_numpy(zero_copy_only=False)
        end, fine = np.where(null, start, end), fine | null
    if len(fine) and int((end - start).max()) > NAME_LENGTH_MAX:
        lengths = pc.fill_null(pc.utf8_length(column), 0).to_numpy(zero_copy_only=False)
        fine = fine & (lengths <= NAME_LENGTH_MAX)
    return StringColumn(whole, start, end), fine


def _time_text(value: Any, time_unit: str) -> msgspec.Raw:
    """Return a row's time as a JSON number in ``time_unit``, even if the time is out of range."""
    number = _time_number(value)
    if not pa.types.is_timestamp(value.type):
        return msgspec.Raw(str(number).encode())
    time_ns = number * UNIT_NS[value.type.unit]
    return msgspec.Raw(mean_text(time_ns, time_ns, time_unit).encode())


def _time_number(value: Any) -> int:
    number: int = value.value if pa.types.is_timestamp(value.type) else value.as_py()
    return number


def encode_records(records: Sequence[Record], times_ns: Sequence[int], time_unit: str) -> bytes:
    """Encode records as one message. ``times_ns`` contains their times in ns.

    The message contains the times as integers in ``time_unit``, or as timestamps in ns if a time is not a whole number
    of ``time_unit``.
    """
    times, unit_ns = np.array(times_ns, dtype=np.int64), UNIT_NS[time_unit]
    whole, rest = np.divmod(times, unit_ns)
    return encode_columns(
        [record.thing for record in records],
        [record.quantity for record in records],
        pa.array(times).view(pa.timestamp("ns", tz="UTC")) if rest.any() else whole,
        [record.result for record in records],
        [record.id for record in records],
    )


def encode_columns(thing: Any, quantity: Any, time: Any, result: Any, ids: Any = None) -> bytes:
    """Encode n records as one message. The columns may be of any type that pyarrow can convert to an array.

    Things and quantities are dictionary-encoded, so that a reader has to look up each distinct name only once. Ids,
    which are rarely equal, are not.
    """
    columns = [_encoded_labels(thing), _encoded_labels(quantity), pa.array(time), pa.array(result, pa.float64())]
    names = [*_REQUIRED]
    if ids is not None:
        columns.append(pa.array(ids, pa.string()))
        names.append("id")
    batch, sink = pa.record_batch(columns, names=names), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    encoded: bytes = sink.getvalue().to_pybytes()
    return encoded


def _encoded_labels(names: Any) -> Any:
    column = pa.array(names)
    return column if pa.types.is_dictionary(column.type) else column.cast(pa.string()).dictionary_encode()
