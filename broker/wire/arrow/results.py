"""Encodes and decodes results as Arrow IPC streams. A message holds many results of one join in one unit.

    thing             dictionary of utf8
    quantity          dictionary of utf8: the join's output
    phenomenonTime    timestamp in ns, UTC: the mean time of the pair, rounded down
    half              bool: whether half a nanosecond was cut off
    result            float64; replaced by left and right, both float64, if the join keeps both values
    join              dictionary of utf8
    left_offset       dictionary of int64: the offset of the message that contains the left record
    right_offset      the same for the right record
    left_row          uint16: the left record's row in its message
    right_row         the same for the right record; both are absent if each input message holds one record
    left_tie          int32: the left record's ordinal among records of its stream and key with the same time
    right_tie         the same for the right record; both are absent if they are 0 in all results of the message

The schema's metadata contains the unit, whose number is also the message's partition.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numba import types

from broker.wire.arrow.limits import check_limits, with_plain_types
from broker.wire.arrow.names import check_names
from broker.wire.compiled import INTS, INTS_OUT, compiled
from broker.wire.records import ROW_BITS, Unreadable, pair_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

MESSAGE_BYTES_MAX: Final = 512 * 1024
"""The approximate maximum size of a results message: half the message size that Kafka accepts by default."""

_ROW_BYTES: Final = 40
"""The approximate size of a row in bytes, not counting its names, which are in dictionaries."""

_ROWS_MAX: Final = 12_000
"""The maximum number of rows in a message. It ensures that indices into the message's dictionaries fit into int16."""

_NAMES_BYTES: Final = 32 * 1024
"""If the names of all things total at most this many bytes, each message in a batch contains all of them. Otherwise,
each message contains only the names that it uses."""

_SPAN_MAX: Final = 256
"""If the offsets span a range no longer than this, the dictionary contains every offset in the range, even those that
do not occur."""

_UNIT: Final = b"unit"
_NAMES: Final = pa.dictionary(pa.int16(), pa.string())
_OFFSETS: Final = pa.dictionary(pa.int16(), pa.int64())
_NAME: Final = pa.dictionary(pa.int8(), pa.string())


class ResultColumns(NamedTuple):
    """The columns of n results. Times are in ns.

    ``value`` is float64, of shape (n,), or (n, 2) if the join keeps both values. All other columns are int64 of shape
    (n,).
    """

    thing: Ints
    value: NDArray[np.float64]
    left_seq: Ints
    right_seq: Ints
    left_ns: Ints
    right_ns: Ints
    left_ordinal: Ints
    right_ordinal: Ints

    def part(self, begin: int, end: int) -> ResultColumns:
        """Return the results from index ``begin`` up to, but not including, ``end``."""
        return ResultColumns._make(column[begin:end] for column in self)


def encode_results(
    things: Sequence[str], columns: ResultColumns, join: str, quantity: str, unit: int, *, has_rows: bool
) -> list[bytes]:
    """Encode the results of one join of a unit. Return them as one or more messages.

    ``things`` are the names that ``columns.thing`` refers to. ``has_rows`` says whether the positions of records
    include rows (see `broker.wire.records.ROW_BITS`).
    """
    lengths = np.array([len(thing.encode()) for thing in things], dtype=np.int64)
    both, messages = columns.value.ndim > 1, []
    for begin, end in _parts(columns.thing, lengths, 0, len(columns.thing)):
        part, names = columns.part(begin, end), things
        if int(lengths.sum()) > _NAMES_BYTES:
            used, number = np.unique(part.thing, return_inverse=True)
            part, names = part._replace(thing=number), [things[at] for at in used.tolist()]
        has_ties = bool(part.left_ordinal.any() or part.right_ordinal.any())
        arrays = _arrays(names, part, join, quantity, has_rows=has_rows)
        if has_ties:
            arrays += [pa.array(column.astype(np.int32)) for column in (part.left_ordinal, part.right_ordinal)]
        messages.append(_encode(_schema(unit, both=both, has_rows=has_rows, has_ties=has_ties), arrays))
    return messages


def _parts(thing: Ints, lengths: Ints, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Divide the results from ``begin`` up to ``end`` into ranges, each of which fits into a message.

    Yields each range as (begin, end).
    """
    names = int(lengths.sum())
    if names > _NAMES_BYTES:
        names = int(lengths.take(np.unique(thing[begin:end])).sum())
    count = end - begin
    if count > _ROWS_MAX or (count > 1 and names + count * _ROW_BYTES > MESSAGE_BYTES_MAX):
        middle = (begin + end) // 2
        yield from _parts(thing, lengths, begin, middle)
        yield from _parts(thing, lengths, middle, end)
    elif end > begin:
        yield begin, end


@functools.cache
def _schema(unit: int, *, both: bool, has_rows: bool, has_ties: bool) -> Any:
    rows = [("left_row", pa.uint16()), ("right_row", pa.uint16())] if has_rows else []
    ties = [("left_tie", pa.int32()), ("right_tie", pa.int32())] if has_ties else []
    values = [("left", pa.float64()), ("right", pa.float64())] if both else [("result", pa.float64())]
    fields = [
        ("thing", _NAMES),
        ("quantity", _NAME),
        ("phenomenonTime", pa.timestamp("ns", tz="UTC")),
        ("half", pa.bool_()),
        *values,
        ("join", _NAME),
        ("left_offset", _OFFSETS),
        ("right_offset", _OFFSETS),
        *rows,
        *ties,
    ]
    return pa.schema(fields, metadata={_UNIT: str(unit).encode()})


def _arrays(things: Sequence[str], columns: ResultColumns, join: str, quantity: str, *, has_rows: bool) -> list[Any]:
    count = len(columns.thing)
    mean, half = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.bool_)
    _find_means(columns.left_ns, columns.right_ns, mean, half)
    values = [columns.value] if columns.value.ndim == 1 else [*columns.value.T.copy()]
    same = np.zeros(count, dtype=np.int8)
    (left_offset, left_row), (right_offset, right_row) = (
        _places(seq, has_rows=has_rows) for seq in (columns.left_seq, columns.right_seq)
    )
    return [
        _labels(columns.thing.astype(np.int16), pa.array(things, pa.string())),
        _labels(same, pa.array([quantity], pa.string())),
        pa.array(mean).view(pa.timestamp("ns", tz="UTC")),
        pa.array(half),
        *map(pa.array, values),
        _labels(same, pa.array([join], pa.string())),
        left_offset,
        right_offset,
        *([left_row, right_row] if has_rows else []),
    ]


def _labels(number: Any, distinct: Any) -> Any:
    return pa.DictionaryArray.from_arrays(pa.array(number), distinct, safe=False)


def _places(seq: Ints, *, has_rows: bool) -> tuple[Any, Any]:
    """Split the positions of records into the offsets of their messages and their rows. Return both as Arrow columns.

    The offsets are dictionary-encoded, because the records of a batch usually come from only a few messages.
    """
    bits = ROW_BITS if has_rows else 0
    low, high = int(seq.min()) >> bits, int(seq.max()) >> bits
    number, row = np.empty(len(seq), dtype=np.int16), np.empty(len(seq), dtype=np.uint16)
    _split(seq, bits, low, number, row)
    distinct = np.arange(low, high + 1) if high - low < _SPAN_MAX else None
    if distinct is None:
        distinct, which = np.unique(seq >> bits, return_inverse=True)
        number = which.astype(np.int16)
    return _labels(number, pa.array(distinct)), pa.array(row)


_SHORTS_OUT: Final = types.Array(types.int16, 1, "C")
_ROWS_OUT: Final = types.Array(types.uint16, 1, "C")
_BOOLS_OUT: Final = types.Array(types.boolean, 1, "C")


@compiled(types.void, INTS, INTS, INTS_OUT, _BOOLS_OUT)
def _find_means(left: Ints, right: Ints, mean: Ints, half: NDArray[np.bool_]) -> None:
    """For each pair, store the mean of its two times, rounded down, and whether half a nanosecond was cut off."""
    for at in range(len(left)):
        differing = left[at] ^ right[at]
        # Compute the mean without adding the two times, because their sum may overflow an int64.
        mean[at] = (left[at] & right[at]) + (differing >> 1)
        half[at] = differing & 1


@compiled(types.void, INTS, types.int64, types.int64, _SHORTS_OUT, _ROWS_OUT)
def _split(seq: Ints, bits: int, low: int, number: NDArray[np.int16], row: NDArray[np.uint16]) -> None:
    """Split each position into offset and row. Store the offset minus ``low`` in ``number``, and the row in ``row``."""
    for at in range(len(seq)):
        number[at] = (seq[at] >> bits) - low
        row[at] = seq[at] & 0xFFFF


def _encode(schema: Any, arrays: list[Any]) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
    encoded: bytes = sink.getvalue().to_pybytes()
    return encoded


class Results(NamedTuple):
    """The n results in a message, with one list per field.

    ``time_ns`` is rounded down to whole nanoseconds, and ``half`` says whether half a nanosecond was cut off.
    ``value`` holds numbers, or pairs of numbers if the join keeps both values. ``left`` and ``right`` are the positions
    of the records, written as in ids. ``tie`` is defined in `broker.wire.records.Joined`.
    """

    thing: list[str]
    quantity: list[str]
    time_ns: list[int]
    half: list[bool]
    value: list[float] | list[tuple[float, float]]
    join: list[str]
    left: list[str]
    right: list[str]
    tie: list[str]
    unit: int

    def ids(self) -> list[str]:
        """Return the id of each result."""
        places = zip(self.join, self.left, self.right, strict=True)
        return [pair_id(join, self.unit, left, right) for join, left, right in places]


def decode_results(value: bytes, count: int | None = None) -> Results:
    """Decode the results in a message, or only the first ``count`` of them. Raises `Unreadable` with the reason."""
    check_limits(value)
    try:
        with pa.ipc.open_stream(pa.py_buffer(with_plain_types(value))) as reader:
            table = reader.read_all()
        table.validate(full=True)
        check_names(table)
        table = table.slice(0, count)
        names = table.schema.names
        is_both = "result" not in names
        # Compare with the schema of an arbitrary unit: `equals` ignores the metadata, which holds the unit. `_schema`
        # caches its results, and using the message's unit would let messages fill the cache with any number of units.
        wanted = _schema(0, both=is_both, has_rows="left_row" in names, has_ties="left_tie" in names)
        if not table.schema.equals(wanted):
            raise Unreadable("the message does not have the columns of results")
        metadata = table.schema.metadata or {}
        if _UNIT not in metadata:
            raise Unreadable("the metadata of the message's schema does not contain the unit")
        unit = int(metadata[_UNIT])
        columns = {name: table.column(name) for name in table.schema.names}
        columns["phenomenonTime"] = columns["phenomenonTime"].cast(pa.int64())
        lists = {name: column.to_pylist() for name, column in columns.items()}
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        reason = str(error).partition("\n")[0]
        message = reason if isinstance(error, Unreadable) else f"not a results message: {reason}"
        raise Unreadable(message) from error
    if any(None in column for column in lists.values()):
        raise Unreadable("a field of a result is null")
    nothing = [0] * len(lists["join"])
    ties = zip(lists.get("left_tie", nothing), lists.get("right_tie", nothing), strict=True)
    values = [*zip(lists["left"], lists["right"], strict=True)] if is_both else lists["result"]
    return Results(
        lists["thing"],
        lists["quantity"],
        lists["phenomenonTime"],
        lists["half"],
        values,
        lists["join"],
        _positions(lists["left_offset"], lists.get("left_row")),
        _positions(lists["right_offset"], lists.get("right_row")),
        [f"{one}-{other}" if one or other else "" for one, other in ties],
        unit,
    )


def _positions(offsets: list[int], rows: list[int] | None) -> list[str]:
    if rows is None:
        return list(map(str, offsets))
    return [f"{offset}.{row}" for offset, row in zip(offsets, rows, strict=True)]


def select_results(value: bytes, rows: Sequence[int]) -> bytes:
    """Return a copy of a results message that contains only the given rows."""
    with pa.ipc.open_stream(pa.py_buffer(value)) as reader:
        batch = reader.read_next_batch().take(pa.array(rows, pa.int64()))
    return _encode(batch.schema, batch.columns)
