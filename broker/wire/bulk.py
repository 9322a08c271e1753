"""Reads data records and writes results in batches, as columns of bytes instead of one object per record.

**Reading** handles only *plain* records. A plain record contains each of the five fields exactly once and no others, in
any order and with optional white space. Its strings are printable ASCII without escapes, opening brackets or opening
braces, its event time is an integer, and it has at most 4,096 bytes. The connector and most other producers write such
records. Other records are not necessarily invalid: `records` reads them, and it alone decides what is valid. For plain
records, both modules return the same values.

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
    """The fields of n plain records, or of the sides of n results, as strings without quotes.

    Sides have no thing, so their ``thing`` column contains empty strings.
    """

    thing: StringColumn
    quantity: StringColumn
    id: StringColumn
    time: StringColumn
    result: StringColumn


class PlainRecords(NamedTuple):
    """n plain records, as columns.

    ``time`` contains the event times in the configured unit, and ``time_digits`` the digits they were parsed
    from.
    """

    thing: StringColumn
    quantity: StringColumn
    id: StringColumn
    time: Ints
    time_digits: StringColumn
    result: Numbers


def read_plain(values: StringColumn) -> PlainRecords | None:
    """Parse message values as plain records. Return None if any value is not a plain record."""
    fields = find_fields(values)
    times = None if fields is None else fields.time.integers()
    if fields is None or times is None:
        return None
    results = read_numbers(fields.result)
    if results is None:
        return None
    return PlainRecords(fields.thing, fields.quantity, fields.id, times, fields.time, results)


def find_fields(values: StringColumn, *, with_thing: bool = True) -> Fields | None:
    """Find the fields of plain records or, if not ``with_thing``, of sides of results.

    Return None if any record is not plain. This function does not parse times and results; it only checks that they
    consist of characters that can occur in numbers.
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
    """Encode each of n records as a `records.Side` in JSON.

    ``time`` and ``result`` hold JSON numbers; ``quantity`` and ``identity`` hold escaped strings without quotes.
    """
    return glue(
        b'{"quantity":"', quantity, b'","phenomenonTime":', time, b',"result":', result, b',"id":"', identity, b'"}'
    )


Pieces = list["StringColumn | bytes | Ints"]
"""Columns, byte strings and integers that `glue` will concatenate row by row."""


class JoinedColumns(NamedTuple):
    """The fields of n results (see `records.Joined`) as JSON.

    ``time``, ``left_position`` and ``right_position`` are columns still to be concatenated (see `glue`).
    ``sides`` contains the left and the right records, or is None for compact results. The ties in the
    results are derived from the ordinals (int64).
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
    """Encode the results of one join of a unit. Return a column with one message value per result."""
    identity = [encode(f"{join}:{unit}:")[:-1], *columns.left_position, b":", *columns.right_position]
    pieces = _pieces_of_record(columns, quantity, identity)
    if columns.sides is None:
        pieces.append(b'"')
    else:
        left, right = columns.sides
        pieces += [b'","left":', left, b',"right":', right]
    tied = (columns.left_ordinal != 0) | (columns.right_ordinal != 0)
    if tied.any():
        # The tie distinguishes pairs with equal times.
        pieces.append(glue(b',"tie":"', columns.left_ordinal, b"-", columns.right_ordinal, b'"').where(tied))
    return glue(*pieces, b"}")


class RowColumns(NamedTuple):
    """n aligned rows (see `records.AlignedRow`): their members as JSON, and the ordinals (int64).

    ``time``, ``position``: columns to be concatenated (see `glue`). ``values``: the values of each column, by its name.
    """

    thing: StringColumn
    time: Pieces
    result: StringColumn
    position: Pieces
    values: dict[str, StringColumn]
    ordinal: Ints


def encode_rows(columns: RowColumns, align: str, unit: int) -> StringColumn:
    """Return the message values of n rows of one align in one unit."""
    pieces = _pieces_of_record(columns, align, [encode(f"{align}:{unit}:")[:-1], *columns.position])
    pieces.append(b'","values":{')
    for number, (name, values) in enumerate(columns.values.items()):
        pieces += [(b"," if number else b"") + encode(name) + b":", values]
    pieces.append(b"}")
    if columns.ordinal.any():
        # The tie distinguishes rows with equal times.
        pieces.append(glue(b',"tie":"', columns.ordinal, b'"').where(columns.ordinal != 0))
    return glue(*pieces, b"}")


def _pieces_of_record(columns: JoinedColumns | RowColumns, quantity: str, identity: Pieces) -> Pieces:
    """Return the first pieces of n results or aligned rows, up to and including the id without its closing quote."""
    return [
        b'{"thing":',
        columns.thing,
        b',"quantity":' + encode(quantity) + b',"phenomenonTime":',
        *columns.time,
        b',"result":',
        columns.result,
        b',"id":',
        *identity,
    ]


def position_pieces(seq: Ints, *, has_rows: bool) -> Pieces:
    """Return the columns that `glue` concatenates into the `records.position_text` of n positions."""
    return [seq >> ROW_BITS, b".", seq & (1 << ROW_BITS) - 1] if has_rows else [seq]


def escape(texts: StringColumn) -> StringColumn:
    """Escape UTF-8 strings for JSON. Return them without quotes."""
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
    """Return the position of the closing quote of the string whose opening quote is at ``at``.

    Return `_MISSING` if there is no plain string.
    """
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
    """Return the position after the characters at ``at`` that can occur in numbers. The number is parsed later."""
    while at < stop and (_ZERO <= data[at] <= _NINE or data[at] in (_POINT, _MINUS, _PLUS, _EXPONENT, _EXPONENT_TOO)):
        at += 1
    return at


@compiled()
def _field(data: Bytes, begin: int, end: int) -> int:
    """Return the index of the field whose name is ``data[begin:end]``, or `_MISSING` if there is no such field."""
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
    """Read the name and value of the field at ``at``, and store where its value begins and ends in ``spans``.

    Return the index of the field (`_MISSING` if it is not plain) and the position after the field.
    """
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
    """Read a record, and store where each field's value begins and ends in ``spans``.

    Return the set of its fields as bits, or 0 if the record is not plain.
    """
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
    """Store the layout of the record between ``begin`` and ``stop``, so that `_read_alike` can recognise similar ones.

    The layout has one row for each field, in the order in which they occur, and one row for the end of the record. A
    row consists of the index of the field (`_MISSING` for the end) and the positions where the bytes before the field's
    value begin and end. ``spans`` contains the positions where each field's value begins and ends, or 0 for absent
    fields.
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
    """Return whether a record has the given layout. If it does, store where each field's value begins and ends."""
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
    """For each record, store in ``spans`` where the value of each field begins and ends, without a string's quotes.

    Return False if a record is not plain, or does not have exactly the ``wanted`` fields (a set of bits).
    """
    spans[:2] = 0
    layout = np.empty((len(_NAME_END) + 1, 3), dtype=np.int64)
    for row in range(len(start)):
        # Records written by the same program usually have the same bytes between their values. Comparing these bytes is
        # faster than parsing them.
        if row and _read_alike(data, start[row], end[row], row, layout, spans):
            continue
        if _read_record(data, start[row], end[row], row, spans) != wanted:
            return False
        _learn_layout(start[row], end[row], spans[:, row], layout)
    return True
