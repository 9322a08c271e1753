"""Reads data records and writes results in batches, as columns of bytes instead of objects.

**Reading** handles *plain* records: exactly the five fields, each once, in any order, with optional white space;
strings of printable ASCII without escapes, brackets or braces; an event time in digits. The connector and most other
producers write such records. Other records are not necessarily invalid: `records` reads them, and only `records`
decides what is valid. For plain records, both modules return the same.

**Writing** produces the same bytes as `broker.wire.records.encode`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numba import types

from broker.wire.columns import StringColumn, glue
from broker.wire.compiled import BYTES, COLUMNS_OUT, INTS, compare_bytes, compiled
from broker.wire.numbers import Numbers, read_numbers
from broker.wire.records import NAME_LENGTH_MAX, ROW_BITS, encode, encode_lines

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Ints = NDArray[np.int64]

_FIELDS: Final = (b"thing", b"quantity", b"id", b"phenomenonTime", b"result")
_TEXTS = 3
"""Number of string fields. They come first."""

_NAMES = np.frombuffer(b"".join(_FIELDS), dtype=np.uint8)
_NAME_END = np.cumsum([len(name) for name in _FIELDS])
_THING_BIT = 1
_ALL_BITS = (1 << len(_FIELDS)) - 1

_QUOTE, _COLON, _COMMA, _OPEN, _CLOSE = b'":,{}'
_BLANK, _TAB, _LINE_BREAK, _RETURN = b" \t\n\r"
_DELETE = 0x7F
_IS_TEXT = np.array([_BLANK <= byte < _DELETE and byte not in b'"\\{[' for byte in range(256)])
"""Which bytes may occur in plain strings."""

_ZERO, _NINE, _PLUS, _MINUS, _POINT, _EXPONENT, _EXPONENT_TOO = b"09+-.eE"
_NUMBER_LENGTH_MAX = 32
_RECORD_LENGTH_MAX = 4096
_MISSING = -1


class Fields(NamedTuple):
    """The fields of n plain records as strings without quotes. The sides of a result have no thing."""

    thing: StringColumn
    quantity: StringColumn
    id: StringColumn
    time: StringColumn
    result: StringColumn


class PlainRecords(NamedTuple):
    """n records: their strings, times in the given unit (int64) and as digits, and values."""

    thing: StringColumn
    quantity: StringColumn
    id: StringColumn
    time: Ints
    time_digits: StringColumn
    result: Numbers


def read_plain(values: StringColumn) -> PlainRecords | None:
    """Parse many values as plain records. Return None if any of them is not plain."""
    fields = find_fields(values)
    times = None if fields is None else fields.time.integers()
    if fields is None or times is None:
        return None
    results = read_numbers(fields.result)
    if results is None:
        return None
    return PlainRecords(fields.thing, fields.quantity, fields.id, times, fields.time, results)


def find_fields(values: StringColumn, *, with_thing: bool = True) -> Fields | None:
    """Return the fields of plain records, or of sides of results. Return None if any is not plain.

    Of times and results, this only checks that they consist of characters that can occur in numbers.
    """
    spans = np.empty((2 * len(_FIELDS), len(values)), dtype=np.int64)
    wanted = _ALL_BITS if with_thing else _ALL_BITS - _THING_BIT
    if not _find_fields(values.data, values.start, values.end, wanted, spans):
        return None
    return Fields._make(
        StringColumn(values.data, start, end) for start, end in zip(spans[::2], spans[1::2], strict=True)
    )


def encode_sides(
    quantity: StringColumn, time: StringColumn, result: StringColumn, identity: StringColumn
) -> StringColumn:
    """Return the `records.Side` of n records as JSON. Times and results are given as JSON, strings without quotes."""
    return glue(
        b'{"quantity":"', quantity, b'","phenomenonTime":', time, b',"result":', result, b',"id":"', identity, b'"}'
    )


Pieces = list["StringColumn | bytes | Ints"]
"""Columns that are concatenated row by row, see `glue`."""


class JoinedColumns(NamedTuple):
    """n results (see `records.Joined`): their members as JSON, and the ordinals (int64) of both sides.

    ``time``, ``left_position``, ``right_position``: columns to be concatenated (see `glue`). ``sides``: the left and
    the right records, or None for compact results.
    """

    thing: StringColumn
    time: Pieces
    result: StringColumn
    left_position: Pieces
    right_position: Pieces
    sides: tuple[StringColumn, StringColumn] | None
    left_ordinal: Ints
    right_ordinal: Ints


def encode_joined(columns: JoinedColumns, quantity: str, join: str, unit: int) -> StringColumn:
    """Return the message values of n results of one join in one unit."""
    pieces: Pieces = [
        b'{"thing":',
        columns.thing,
        b',"quantity":' + encode(quantity) + b',"phenomenonTime":',
        *columns.time,
        b',"result":',
        columns.result,
        b',"id":' + encode(f"{join}:{unit}:")[:-1],
        *columns.left_position,
        b":",
        *columns.right_position,
    ]
    if columns.sides is None:
        pieces.append(b'"')
    else:
        left, right = columns.sides
        pieces += [b'","left":', left, b',"right":', right]
    tied = (columns.left_ordinal != 0) | (columns.right_ordinal != 0)
    if tied.any():
        # It distinguishes pairs with equal times.
        pieces.append(glue(b',"tie":"', columns.left_ordinal, b"-", columns.right_ordinal, b'"').where(tied))
    return glue(*pieces, b"}")


class RowColumns(NamedTuple):
    """n aligned rows (see `records.AlignedRow`): their members as JSON, and the ordinals (int64).

    ``time``, ``position``: columns to be concatenated (see `glue`). ``values``: by column.
    """

    thing: StringColumn
    time: Pieces
    result: StringColumn
    position: Pieces
    values: dict[str, StringColumn]
    ordinal: Ints


def encode_rows(columns: RowColumns, align: str, unit: int) -> StringColumn:
    """Return the message values of n rows of one align in one unit."""
    pieces: Pieces = [
        b'{"thing":',
        columns.thing,
        b',"quantity":' + encode(align) + b',"phenomenonTime":',
        *columns.time,
        b',"result":',
        columns.result,
        b',"id":' + encode(f"{align}:{unit}:")[:-1],
        *columns.position,
        b'","values":{',
    ]
    for number, (name, values) in enumerate(columns.values.items()):
        pieces += [(b"," if number else b"") + encode(name) + b":", values]
    pieces.append(b"}")
    if columns.ordinal.any():
        # It distinguishes rows with equal times.
        pieces.append(glue(b',"tie":"', columns.ordinal, b'"').where(columns.ordinal != 0))
    return glue(*pieces, b"}")


def position_pieces(seq: Ints, *, has_rows: bool) -> Pieces:
    """Return `records.position_text` of n positions, as columns to be concatenated."""
    return [seq >> ROW_BITS, b".", seq & (1 << ROW_BITS) - 1] if has_rows else [seq]


def escape(texts: StringColumn) -> StringColumn:
    """Return UTF-8 strings as JSON, without their quotes."""
    if _IS_TEXT[texts.packed().data].all():
        return texts
    whole = StringColumn.of_lines(encode_lines([text.decode() for text in texts.each()]))
    return StringColumn(whole.data, whole.start + 1, whole.end - 1)


@compiled()
def _after_blanks(data: Bytes, at: int, stop: int) -> int:
    while at < stop and (data[at] == _BLANK or data[at] == _LINE_BREAK or data[at] == _TAB or data[at] == _RETURN):
        at += 1
    return at


@compiled()
def _text_end(data: Bytes, at: int, stop: int) -> int:
    """Return the position of the closing quote of the plain string that starts at ``at``."""
    if at >= stop or data[at] != _QUOTE:
        return _MISSING
    for place in range(at + 1, stop):
        byte = data[place]
        if byte == _QUOTE:
            return place
        if not _IS_TEXT[byte]:
            return _MISSING
    return _MISSING


@compiled()
def _number_end(data: Bytes, at: int, stop: int) -> int:
    """Return the end of the run of number characters at ``at``. Whether they form a number is checked later."""
    while at < stop and (_ZERO <= data[at] <= _NINE or data[at] in (_POINT, _MINUS, _PLUS, _EXPONENT, _EXPONENT_TOO)):
        at += 1
    return at


@compiled()
def _field(data: Bytes, begin: int, end: int) -> int:
    """Return the index of the field with this name, or `_MISSING` if there is none."""
    first = 0
    for field in range(len(_NAME_END)):
        length = _NAME_END[field] - first
        same = end - begin == length
        byte = 0
        while same and byte < length:
            same = data[begin + byte] == _NAMES[first + byte]
            byte += 1
        if same:
            return field
        first = _NAME_END[field]
    return _MISSING


@compiled()
def _read_field(data: Bytes, at: int, stop: int, row: int, spans: Ints) -> tuple[int, int]:
    """Store the span of the value of the field at ``at``. Return the index of the field and where to continue."""
    name = _after_blanks(data, at, stop)
    name_end = _text_end(data, name, stop)
    colon = _after_blanks(data, name_end + 1, stop)
    if name_end == _MISSING or colon >= stop or data[colon] != _COLON:
        return _MISSING, stop
    field = _field(data, name + 1, name_end)
    at = _after_blanks(data, colon + 1, stop)
    if field < _TEXTS:
        begin, end, length_max = at + 1, _text_end(data, at, stop), NAME_LENGTH_MAX
        behind = end + 1
    else:
        begin, end, length_max = at, _number_end(data, at, stop), _NUMBER_LENGTH_MAX
        behind = end
    if field == _MISSING or not 1 <= end - begin <= length_max:
        return _MISSING, stop
    spans[2 * field, row], spans[2 * field + 1, row] = begin, end
    return field, behind


@compiled()
def _read_record(data: Bytes, at: int, stop: int, row: int, spans: Ints) -> int:
    """Store the spans of a record's fields. Return the set of its fields as bits, or 0 if the record is not plain."""
    at = _after_blanks(data, at, stop)
    if at == stop or stop - at > _RECORD_LENGTH_MAX or data[at] != _OPEN:
        return 0
    found = 0
    while at < stop and (not found or data[at] == _COMMA):
        field, at = _read_field(data, at + 1, stop, row, spans)
        if field == _MISSING or found & (1 << field):
            return 0
        found |= 1 << field
        at = _after_blanks(data, at, stop)
    ends_here = at < stop and data[at] == _CLOSE and _after_blanks(data, at + 1, stop) == stop
    return found if ends_here else 0


@compiled()
def _learn_layout(begin: int, stop: int, spans: Ints, layout: Ints) -> None:
    """Store how the fields of a record are laid out: a row for each field in their order, and one for the end.

    Each row has the field (`_MISSING` for the end), and where the bytes before its value begin and end. The record lies
    between ``begin`` and ``stop``. ``spans``: where each field's value begins and ends, 0 for a field that is absent.
    """
    at, count = begin, 0
    while True:
        following = _MISSING
        for field in range(len(_NAME_END)):
            value = spans[2 * field]
            if value >= at and value > begin and (following == _MISSING or value < spans[2 * following]):
                following = field
        layout[count, 0], layout[count, 1] = following, at
        if following == _MISSING:
            layout[count, 2] = stop
            return
        layout[count, 2] = spans[2 * following]
        at = spans[2 * following + 1]
        count += 1


@compiled()
def _read_alike(data: Bytes, at: int, stop: int, row: int, layout: Ints, spans: Ints) -> bool:
    """Store the spans of a record's fields if the record has this layout. Otherwise return False."""
    if stop - at > _RECORD_LENGTH_MAX:
        return False
    address, count = data.ctypes.data, 0
    while True:
        field, known = layout[count, 0], layout[count, 1]
        length = layout[count, 2] - known
        if length > stop - at or compare_bytes(address + at, address + known, length) != 0:
            return False
        at += length
        if field == _MISSING:
            return at == stop
        if field < _TEXTS:
            end, length_max = at, NAME_LENGTH_MAX
            while end < stop and _IS_TEXT[data[end]]:
                end += 1
        else:
            end, length_max = _number_end(data, at, stop), _NUMBER_LENGTH_MAX
        if not 1 <= end - at <= length_max:
            return False
        spans[2 * field, row], spans[2 * field + 1, row] = at, end
        at = end
        count += 1


@compiled(types.boolean, BYTES, INTS, INTS, types.int64, COLUMNS_OUT)
def _find_fields(data: Bytes, start: Ints, end: Ints, wanted: int, spans: Ints) -> bool:
    """Store where each field's value begins and ends, one row per record. Quotes of strings are excluded.

    Returns False if a record is not plain, or does not have exactly the ``wanted`` fields (bits).
    """
    spans[:2] = 0
    layout = np.empty((len(_NAME_END) + 1, 3), dtype=np.int64)
    for row in range(len(start)):
        # Records of one program have the same bytes between their values, and these are compared faster than parsed.
        if row and _read_alike(data, start[row], end[row], row, layout, spans):
            continue
        if _read_record(data, start[row], end[row], row, spans) != wanted:
            return False
        _learn_layout(start[row], end[row], spans[:, row], layout)
    return True
