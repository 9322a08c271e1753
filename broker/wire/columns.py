"""Stores many short strings in one array, as Arrow does, without a Python object for each string.

The joiner stores everything that it reads from or writes to Kafka this way: hundreds of thousands of strings a second.
The loops over the bytes of the strings are compiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import numpy as np
from numba import types

from broker.wire.compiled import BYTES, BYTES_OUT, COLUMNS_OUT, INTS, INTS_OUT, compiled, copy_bytes, word_at

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Ints = NDArray[np.int64]

_TABLE_MIN: Final = 64
"""The number of slots in the smallest hash table."""


@dataclass(frozen=True, slots=True)
class StringColumn:
    """A column of n strings. String i is ``data[start[i]:end[i]]``.

    ``data`` is uint8, and may also contain bytes that belong to none of the strings. ``start`` and ``end`` are int64,
    of shape (n,).
    """

    data: Bytes
    start: Ints
    end: Ints

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, at: int) -> bytes:
        """Return one string."""
        return self.data[self.start[at] : self.end[at]].tobytes()

    def lengths(self) -> Ints:
        """Return the length of each string in bytes."""
        return self.end - self.start

    def take(self, which: Ints) -> StringColumn:
        """Return a column with the strings at the given indices, without copying their bytes."""
        return StringColumn(self.data, self.start.take(which), self.end.take(which))

    def where(self, chosen: NDArray[np.bool_]) -> StringColumn:
        """Return the column with empty strings in the rows where ``chosen`` is false."""
        return StringColumn(self.data, self.start, np.where(chosen, self.end, self.start))

    def packed(self) -> StringColumn:
        """Return a column with the same strings, whose ``data`` contains nothing else. May return the column itself."""
        is_packed = (
            len(self) > 0
            and self.start[0] == 0
            and self.end[-1] == len(self.data)
            and bool((self.start[1:] == self.end[:-1]).all())
        )
        return self if is_packed else glue(self)

    def joined(self) -> bytes:
        """Return all strings, concatenated."""
        return self.packed().data.tobytes()

    def each(self) -> list[bytes]:
        """Return a list of all strings."""
        texts = self.packed()
        whole = texts.data.tobytes()
        return [whole[start:end] for start, end in zip(texts.start.tolist(), texts.end.tolist(), strict=True)]

    @classmethod
    def of(cls, texts: Sequence[bytes]) -> Self:
        """Return a column that contains the given strings."""
        return cls.of_lengths(b"".join(texts), np.fromiter(map(len, texts), dtype=np.int64, count=len(texts)))

    @classmethod
    def of_lengths(cls, data: bytes, lengths: Ints) -> Self:
        """Split ``data`` into strings of the given lengths.

        Raises ValueError if a length is negative, or if the lengths do not add up to the size of ``data``.
        """
        end = lengths.cumsum()
        fault = ""
        if (lengths < 0).any():
            fault = f"the length {lengths.min()} is negative"
        elif (int(end[-1]) if len(end) else 0) != len(data):
            fault = f"the {len(lengths)} lengths do not add up to that size"
        if fault:
            message = f"cannot split {len(data)} bytes: {fault}"
            raise ValueError(message)
        return cls(np.frombuffer(data, dtype=np.uint8), end - lengths, end)

    @classmethod
    def of_lines(cls, lines: bytes) -> Self:
        """Split ``lines`` into strings without newlines. Every line, including the last, must end with a newline."""
        data = np.frombuffer(lines, dtype=np.uint8)
        breaks = np.flatnonzero(data == _LINE_BREAK)
        start = np.empty_like(breaks)
        start[:1], start[1:] = 0, breaks[:-1] + 1
        return cls(data, start, breaks)

    @classmethod
    def concat(cls, parts: Sequence[StringColumn]) -> Self:
        """Return a column with the strings of all parts, in order. Requires at least one part."""
        packed = [part.packed() for part in parts]
        sizes = np.array([0, *(len(part.data) for part in packed)]).cumsum()
        return cls(
            np.concatenate([part.data for part in packed]),
            np.concatenate([part.start + at for part, at in zip(packed, sizes, strict=False)]),
            np.concatenate([part.end + at for part, at in zip(packed, sizes, strict=False)]),
        )

    @classmethod
    def repeated(cls, text: bytes, count: int) -> Self:
        """Return a column of ``count`` strings, all equal to ``text``."""
        ends = np.full(count, len(text))
        return cls(np.frombuffer(text, dtype=np.uint8), np.zeros_like(ends), ends)

    def hashes(self) -> Ints:
        """Return a 64-bit hash of each string. A string has the same hash in every process."""
        found = np.empty(len(self), dtype=np.int64)
        _hash_all(self.data, self.start, self.end, found)
        return found

    def distinct(self) -> tuple[Ints, Ints]:
        """Number the distinct strings from 0, in order of first occurrence.

        Return the number of the string in each row (int64, shape (n,)), and for each number the row where it first
        occurs.
        """
        number = np.empty(len(self), dtype=np.int64)
        table = np.zeros(max(_TABLE_MIN, 1 << (2 * len(self)).bit_length()), dtype=np.int64)
        first = np.empty(len(self), dtype=np.int64)
        count = _number(self.data, self.start, self.end, self.hashes(), table, number, first)
        return number, first[:count]

    def integers(self) -> Ints | None:
        """Parse the strings as integers. Return None if any string is not an integer.

        An integer can have at most 18 digits, without leading zeros, and may begin with a minus sign.
        """
        found = np.empty(len(self), dtype=np.int64)
        return found if _read_integers(self.data, self.start, self.end, found) else None


_LINE_BREAK: Final = 0x0A
_ZERO, _NINE, _MINUS = b"09-"
_INTEGER_DIGITS_MAX = 18


def glue(*columns: StringColumn | bytes | Ints) -> StringColumn:
    """Concatenate columns row by row. Return a column with one string per row.

    A ``bytes`` argument is repeated in every row, and integers are written as decimal digits. Raises ValueError if the
    columns have different numbers of rows, or if all arguments are ``bytes``.
    """
    counts = {len(column) for column in columns if not isinstance(column, bytes)}
    if len(counts) != 1:
        fault = f"columns have different numbers of rows: {sorted(counts)}"
        message = fault if counts else "the number of rows is unknown, because all arguments are bytes"
        raise ValueError(message)
    (count,) = counts
    pieces = np.empty((len(columns), 4), dtype=np.int64)
    # These own the memory at the addresses in `pieces`, so they must outlive the call to `_glue`.
    owners = [_constant(column) if isinstance(column, bytes) else _contiguous(column) for column in columns]
    size = 0
    for place, column in enumerate(owners):
        if isinstance(column, _Constant):
            pieces[place] = column.piece
            size += len(column.text) * count
        elif isinstance(column, StringColumn):
            size += _describe_strings(column.data, column.start, column.end, pieces, place)
        else:
            _describe_integers(column, pieces, place)
            size += _DIGITS_MAX * count
    data = np.empty(size, dtype=np.uint8)
    start, end = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    used = _glue(pieces, data, start, end)
    return StringColumn(data[:used], start, end)


_CONSTANT, _STRINGS, _INTEGERS = range(3)
"""The kinds of pieces."""

_DIGITS_MAX: Final = 20
"""The maximum number of characters in a decimal int64."""

_WORD: Final = 8

_PAIRS_OF_DIGITS: Final = np.frombuffer(b"".join(b"%02d" % number for number in range(100)), dtype=np.uint8)


class _Constant(NamedTuple):
    """A string and its row in the table of pieces for `_glue`, which contains the address of the string's bytes."""

    text: Bytes
    piece: Ints


@lru_cache(maxsize=4096)
def _constant(text: bytes) -> _Constant:
    data = np.frombuffer(text, dtype=np.uint8)
    return _Constant(data, np.array((_CONSTANT, data.__array_interface__["data"][0], len(data), 0), dtype=np.int64))


def _contiguous(column: StringColumn | Ints) -> StringColumn | Ints:
    if isinstance(column, StringColumn):
        if column.start.flags.c_contiguous and column.end.flags.c_contiguous:
            return column
        return StringColumn(column.data, np.ascontiguousarray(column.start), np.ascontiguousarray(column.end))
    return np.ascontiguousarray(column)


def decimals(values: Ints) -> StringColumn:
    """Return integers as strings of plain digits."""
    return glue(values)


@compiled()
def _write_integer(value: int, digits: Bytes) -> int:
    """Write ``value`` in decimal digits at the end of the array ``digits``. Return its start position."""
    # Compute with negative numbers, because the smallest int64 has no positive counterpart.
    left = value if value < 0 else -value
    place = _DIGITS_MAX
    while left <= -10:  # noqa: PLR2004 - digits
        hundreds = (left + 99) // 100
        two = 2 * (hundreds * 100 - left)
        place -= 2
        digits[place], digits[place + 1] = _PAIRS_OF_DIGITS[two], _PAIRS_OF_DIGITS[two + 1]
        left = hundreds
    if left or place == _DIGITS_MAX:
        place -= 1
        digits[place] = _ZERO - left
    if value < 0:
        place -= 1
        digits[place] = _MINUS
    return place


@compiled(types.int64, BYTES, INTS, INTS, COLUMNS_OUT, types.int64)
def _describe_strings(data: Bytes, start: Ints, end: Ints, pieces: Ints, place: int) -> int:
    """Write a string column's row to the table of pieces. Return the total size of its strings in bytes."""
    pieces[place, 0], pieces[place, 1] = _STRINGS, data.ctypes.data
    pieces[place, 2], pieces[place, 3] = start.ctypes.data, end.ctypes.data
    size = 0
    for row in range(len(start)):
        size += end[row] - start[row]
    return size


@compiled(types.void, INTS, COLUMNS_OUT, types.int64)
def _describe_integers(values: Ints, pieces: Ints, place: int) -> None:
    """Write an integer column's row to the table of pieces."""
    pieces[place, 0], pieces[place, 1] = _INTEGERS, values.ctypes.data


@compiled(types.int64, COLUMNS_OUT, BYTES_OUT, INTS_OUT, INTS_OUT)
def _glue(pieces: Ints, data: Bytes, start: Ints, end: Ints) -> int:
    """Concatenate the columns row by row. Write the strings to ``data`` and their positions to ``start`` and ``end``.

    Return the number of bytes written. ``pieces`` contains one row per column, which starts with the column's kind. For
    a constant, the address and length of its bytes follow; for strings, the addresses of the bytes and of the arrays of
    start and end positions; for integers, the address of the values.
    """
    target = data.ctypes.data
    digits = np.empty(_DIGITS_MAX, dtype=np.uint8)
    at = 0
    for row in range(len(start)):
        start[row] = at
        for piece in range(len(pieces)):
            kind, address = pieces[piece, 0], pieces[piece, 1]
            if kind == _STRINGS:
                begin = word_at(pieces[piece, 2] + row * _WORD)
                length = word_at(pieces[piece, 3] + row * _WORD) - begin
                address += begin
            elif kind == _CONSTANT:
                length = pieces[piece, 2]
            else:
                begin = _write_integer(word_at(address + row * _WORD), digits)
                address, length = digits.ctypes.data + begin, _DIGITS_MAX - begin
            copy_bytes(target + at, address, length)
            at += length
        end[row] = at
    return at


@compiled(types.boolean, BYTES, INTS, INTS, INTS_OUT)
def _read_integers(data: Bytes, start: Ints, end: Ints, found: Ints) -> bool:
    for row in range(len(start)):
        at, stop = start[row], end[row]
        negative = at < stop and data[at] == _MINUS
        if negative:
            at += 1
        digits = stop - at
        # Leading zeros and -0 are not plain digits.
        if digits < 1 or digits > _INTEGER_DIGITS_MAX or (data[at] == _ZERO and (digits > 1 or negative)):
            return False
        value = 0
        for place in range(at, stop):
            if data[place] < _ZERO or data[place] > _NINE:
                return False
            value = value * 10 + (data[place] - _ZERO)
        found[row] = -value if negative else value
    return True


@compiled(types.void, BYTES, INTS, INTS, INTS_OUT)
def _hash_all(data: Bytes, start: Ints, end: Ints, found: Ints) -> None:
    """Hash each string, using its length and its bytes, which are read as little-endian eight-byte words."""
    mix, finish = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)
    for row in range(len(start)):
        state = np.uint64(end[row] - start[row]) * mix
        for word_start in range(start[row], end[row], 8):
            word = np.uint64(0)
            for byte in range(min(8, end[row] - word_start)):
                word |= np.uint64(data[word_start + byte]) << np.uint64(8 * byte)
            state = (state ^ word) * mix
            state ^= state >> np.uint64(32)
        state *= finish
        state ^= state >> np.uint64(29)
        found[row] = np.int64(state)


@compiled(types.int64, BYTES, INTS, INTS, INTS, INTS_OUT, INTS_OUT, INTS_OUT)
def _number(data: Bytes, start: Ints, end: Ints, hashes: Ints, table: Ints, number: Ints, first: Ints) -> int:
    """Number the distinct strings (see `StringColumn.distinct`). Return how many there are.

    ``table`` is an open-addressing hash table, at most half full. A slot contains a string's number plus 1, or
    0 if it is empty.
    """
    count = 0
    for row in range(len(start)):
        length = end[row] - start[row]
        place = hashes[row] & (len(table) - 1)
        while True:
            known = table[place] - 1
            if known < 0:
                table[place] = count + 1
                number[row], first[count] = count, row
                count += 1
                break
            other = first[known]
            same = hashes[other] == hashes[row] and end[other] - start[other] == length
            byte = 0
            while same and byte < length:
                same = data[start[other] + byte] == data[start[row] + byte]
                byte += 1
            if same:
                number[row] = known
                break
            place = (place + 1) & (len(table) - 1)
    return count
