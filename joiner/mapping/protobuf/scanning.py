"""Applies the tables of a `program` to many messages. A line of a table says what follows a tag."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numba import types

from broker.wire.compiled import BYTES as BYTES_IN
from broker.wire.compiled import BYTES_OUT, COLUMNS_OUT, INTS, INTS_OUT, byte_at, compiled
from broker.wire.texts import is_plain, is_utf8
from joiner.mapping.documents import DEPTH_MAX
from joiner.mapping.protobuf.reading import ABSENT_MAX, VALUES_PER_BYTE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Ints = NDArray[np.int64]

VARINT, FIXED, NOT_NEGATIVE, NANOS, REFUSED, BYTES, TEXT, MESSAGE, VARINTS, FIXEDS = range(10)
"""What follows a tag. From `BYTES` on, it begins with its length."""

COLUMNS: Final = 7
"""The number of columns of a table: the tag, what follows it (the kind), the size of a value or the number of the
message's table, the number of the wanted scalar or a negative one, the number of the part or a negative one, the value
that this part then has, and whether it may not occur again."""

_TAG, _KIND, _OPERAND, _SLOT, _PART, _MEMBER, _IS_ONCE = range(COLUMNS)
_FIRST, _ABSENT = range(2)

_MISSING: Final = -1
_SHORT_BYTES_MAX, _VARINT_BYTES_MAX = 5, 10
_CONTINUES, _SEVEN_BITS = 0x80, 0x7F
_TAG_MIN, _TAG_MAX = 1 << 3, 2**32 - 1
_NANOS_MAX: Final = 10**9 - 1
_FIXED64, _DELIMITED, _FIXED32 = 1, 2, 5
_ABSENT_MAX, _VALUES_PER_BYTE = ABSENT_MAX, VALUES_PER_BYTE

# The helpers below take the address of the data, and positions after it.


@compiled()
def _number_end(data: int, at: int, stop: int) -> int:
    """Return the position after the integer at ``at``, or `_MISSING` if it is invalid."""
    stop = min(stop, at + _VARINT_BYTES_MAX)
    while at < stop:
        if byte_at(data + at) < _CONTINUES:
            return at + 1
        at += 1
    return _MISSING


@compiled()
def _number_at(data: int, at: int) -> Any:
    """Return the valid integer at ``at``, as unsigned."""
    found, shift = np.uint64(0), 0
    while True:
        byte = byte_at(data + at)
        found |= np.uint64(byte & _SEVEN_BITS) << np.uint64(shift)
        if byte < _CONTINUES:
            return found
        at, shift = at + 1, shift + 7


@compiled()
def _short_at(data: int, at: int, stop: int) -> Any:
    """Return the tag or length at ``at``, or `_MISSING` if it is invalid."""
    end = _number_end(data, at, min(stop, at + _SHORT_BYTES_MAX))
    return np.int64(_MISSING) if end < 0 else np.int64(_number_at(data, at))


@compiled()
def _line_of(lines: Ints, first: int, last: int, tag: int) -> int:
    """Return the line of a table with a tag, or `_MISSING`. The lines from ``first`` to ``last`` are in order."""
    end = last
    while first < end:
        middle = (first + end) // 2
        if lines[middle, _TAG] < tag:
            first = middle + 1
        else:
            end = middle
    return first if first < last and lines[first, _TAG] == tag else _MISSING


@compiled()
def _is_right(data: int, at: int, stop: int, kind: int, size: int, is_wanted: bool) -> bool:  # noqa: FBT001 - compiled
    """Return whether what has a length is understood. Messages are checked later."""
    if kind == TEXT:
        return bool(is_plain(data, at, stop) or (not is_wanted and is_utf8(data, at, stop)))
    if kind == FIXEDS:
        return (stop - at) % size == 0
    if kind == VARINTS:
        while 0 <= at < stop:
            at = _number_end(data, at, stop)
        return at == stop
    return True


@compiled()
def _value_end(data: int, at: int, stop: int, kind: int, size: int) -> int:
    """Return the position after what has no length, or `_MISSING` if it is not understood."""
    if kind == REFUSED:
        return _MISSING
    if kind == FIXED:
        return at + size if size <= stop - at else _MISSING
    end = _number_end(data, at, stop)
    if end >= 0 and kind == NOT_NEGATIVE and np.int64(_number_at(data, at)) < 0:
        return _MISSING
    if end >= 0 and kind == NANOS and _number_at(data, at) > np.uint64(_NANOS_MAX):
        return _MISSING
    return end


@compiled()
def _unknown_end(data: int, at: int, stop: int, wire: int) -> int:
    """Return the position after an unknown field, or `_MISSING` if it is not understood."""
    if wire == 0:
        return int(_number_end(data, at, stop))
    if wire in (_FIXED64, _FIXED32):
        size = 8 if wire == _FIXED64 else 4
        return at + size if size <= stop - at else _MISSING
    if wire == _DELIMITED:
        length = _short_at(data, at, stop)
        begin = _number_end(data, at, stop)
        return int(begin + length) if 0 <= length <= stop - begin else _MISSING
    return _MISSING


@compiled()
def _note_part(branches: Ints, row: int, lines: Ints, line: int) -> bool:
    """Note that a part is there. Return whether that is understood."""
    part, member = lines[line, _PART], lines[line, _MEMBER]
    if part < 0:
        return True
    before = branches[part, row]
    branches[part, row] = member
    return bool(before == 0 or (before == member and lines[line, _IS_ONCE] == 0))


@compiled()
def _is_understood(  # noqa: C901, PLR0912 - a loop without calls for each field
    data: int, at: int, last: int, row: int, lines: Ints, tables: Ints, spans: Ints, branches: Ints
) -> bool:
    ends, known = np.empty(DEPTH_MAX + 1, dtype=np.int64), np.empty(DEPTH_MAX + 1, dtype=np.int64)
    ends[0], known[0], depth = last, 0, 0
    # As in `reading`, except that messages count again if they are merged.
    left: Any = _ABSENT_MAX + _VALUES_PER_BYTE * (last - at) - tables[0, _ABSENT]
    while left >= 0:
        stop: Any = ends[depth]
        if at == stop:
            if depth == 0:
                return True
            depth -= 1
            continue
        tag: Any = _short_at(data, at, stop)
        if tag < _TAG_MIN or tag > _TAG_MAX:
            return False
        at = _number_end(data, at, stop)
        table = known[depth]
        line = _line_of(lines, tables[table, _FIRST], tables[table + 1, _FIRST], tag)
        if line < 0:
            at = _unknown_end(data, at, stop, tag & 7)
            if at < 0:
                return False
            continue
        kind, operand, slot = lines[line, _KIND], lines[line, _OPERAND], lines[line, _SLOT]
        begin = at
        end: Any = np.int64(_MISSING)
        if kind < BYTES:
            end = _value_end(data, at, stop, kind, operand)
        else:
            length: Any = _short_at(data, at, stop)
            begin = _number_end(data, at, stop)
            if 0 <= length <= stop - begin and _is_right(data, begin, begin + length, kind, operand, slot >= 0):
                end = begin + length
        if end < 0 or not _note_part(branches, row, lines, line):
            return False
        if slot >= 0:
            spans[2 * slot, row], spans[2 * slot + 1, row] = begin, end
        at = end
        if kind == MESSAGE:
            at, depth, left = begin, depth + 1, left - tables[operand, _ABSENT]
            if depth > DEPTH_MAX:
                return False
            ends[depth], known[depth] = end, operand
    return False


@compiled(types.void, BYTES_IN, INTS, INTS, COLUMNS_OUT, COLUMNS_OUT, COLUMNS_OUT, COLUMNS_OUT, BYTES_OUT)
def scan(
    data: Bytes, start: Ints, end: Ints, lines: Ints, tables: Ints, spans: Ints, branches: Ints, is_read: Bytes
) -> None:
    """Apply tables to messages. Store whether each was understood in ``is_read``; see `layouts.Found` for the rest.

    ``lines``: those of all tables, by their tags, with `COLUMNS` columns. ``tables``: the number of the first line of
    each table, and how many values its message has that need not be in the data; one more follows the last table. The
    first table is that of the messages.
    """
    address = data.ctypes.data
    for row in range(len(start)):
        is_read[row] = _is_understood(address, start[row], end[row], row, lines, tables, spans, branches)


@compiled(types.void, BYTES_IN, INTS, INTS, types.int64, INTS_OUT)
def read_words(data: Bytes, start: Ints, end: Ints, size: int, found: Ints) -> None:
    """Read words of ``size`` bytes or, if that is 0, valid integers of a variable length. One that is empty is 0."""
    address = data.ctypes.data
    for row in range(len(start)):
        word = np.uint64(0)
        if start[row] < end[row]:
            if size == 0:
                word = _number_at(address, start[row])
            for byte in range(size):
                word |= np.uint64(data[start[row] + byte]) << np.uint64(8 * byte)
        found[row] = np.int64(word)
