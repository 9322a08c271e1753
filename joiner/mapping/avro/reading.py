"""Decodes one Avro datum into a document, on which paths and conditions work as on JSON.

Records and maps are objects, arrays are arrays, and a union is the value of its branch. Integers are numbers, and so
are decimals (exactly) and finite doubles: as the shortest decimal number that identifies the double. A float is the
double that equals it. Strings and enums are strings. A timestamp is a number that knows its unit (`Instant`). Bytes,
fixed, and numbers that are not finite are values that equal only themselves.

Whatever the data contain, decoding them takes time and memory in proportion to their size and that of their schema.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from broker.wire.records import Unreadable
from joiner.mapping.avro.schema import AvroType
from joiner.mapping.documents import DEPTH_MAX, INSTANTS, Instant

DECIMAL_BYTES_MAX: Final = 166
"""The maximum size of a decimal in bytes. Such a number has 400 digits, as many as a number in JSON can have."""

VALUES_PER_BYTE: Final = 4
"""How many values data can contain for each of their bytes, besides one for each type of the schema."""

_INT_BITS: Final = 32
_LONG_BITS: Final = 64


class _Cursor:
    """A position in the data. ``values``: how many values can still follow, in records, arrays and maps."""

    __slots__ = ("at", "data", "depth", "values")

    def __init__(self, data: bytes, values: int) -> None:
        self.data, self.at, self.depth, self.values = data, 0, 0, values

    def take(self, size: int) -> bytes:
        begin, self.at = self.at, self.at + size
        if size < 0 or self.at > len(self.data):
            raise Unreadable(f"{size} bytes should follow byte {begin}, but there are {len(self.data) - begin}")
        return self.data[begin : self.at]

    def enter(self) -> None:
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise Unreadable(f"the value is nested more than {DEPTH_MAX} levels deep")

    def count(self, values: int) -> None:
        self.values -= values
        if self.values < 0:
            raise Unreadable(f"there are more than {VALUES_PER_BYTE} values for each byte of the data")


_Read = Callable[[_Cursor], Any]


def decode_datum(schema: AvroType, data: bytes) -> Any:
    """Decode a datum. Raises `Unreadable`, with the reason, if the data are not exactly one of this schema."""
    cursor = _Cursor(data, schema.count + VALUES_PER_BYTE * len(data))
    try:
        found = (schema.read or _make_reader(schema))(cursor)
    except IndexError:
        raise Unreadable("the data end too early") from None
    except UnicodeDecodeError as error:
        raise Unreadable(f"a string is not UTF-8: {error}") from error
    if cursor.at < len(data):
        raise Unreadable(f"{len(data) - cursor.at} bytes follow the data")
    return found


def _make_reader(schema: AvroType) -> _Read:
    readers = _Readers()
    read = readers.make(schema)
    readers.finish()
    # Only now, because other threads use it, too.
    schema.read = read
    return read


class _Readers:
    """Makes the function that reads a type, and those of the types in it."""

    def __init__(self) -> None:
        self._records: dict[AvroType, list[tuple[str, _Read]]] = {}
        self._unfinished: list[AvroType] = []

    def make(self, given: AvroType) -> _Read:  # noqa: PLR0911 - one for each kind
        match given.kind:
            case "record":
                return self._record(given)
            case "union":
                return _union([self.make(one) for one in given.branches])
            case "array" | "map" if given.items is not None:
                return _blocks(self.make(given.items), is_map=given.kind == "map")
            case "enum":
                return _enum(given.symbols)
            case "bytes" | "fixed":
                read = _bytes if given.kind == "bytes" else _fixed(given.size)
                return read if given.scale is None else _decimal(read, given.scale)
            case "long" if given.time_unit:
                return _instant(INSTANTS[given.time_unit])
        return _PRIMITIVES[given.kind]

    def _record(self, given: AvroType) -> _Read:
        fields = self._records.get(given)
        if fields is None:
            # It is filled later, because a record can contain itself, or others to any depth.
            fields = self._records[given] = []
            self._unfinished.append(given)

        def read(cursor: _Cursor) -> dict[str, Any]:
            cursor.enter()
            cursor.count(len(fields))
            found = {name: read_field(cursor) for name, read_field in fields}
            cursor.depth -= 1
            return found

        return read

    def finish(self) -> None:
        """Make the functions that read the fields of all records."""
        while self._unfinished:
            record = self._unfinished.pop()
            self._records[record] += [(name, self.make(one)) for name, one in record.fields]


def _varint(cursor: _Cursor) -> int:
    """Read an unsigned integer in the encoding with a variable length."""
    data, at = cursor.data, cursor.at
    byte = data[at]
    found, shift = byte & 0x7F, 0
    while byte > 0x7F:  # noqa: PLR2004 - the highest bit says that another byte follows
        at += 1
        shift += 7
        if shift >= _LONG_BITS:
            raise Unreadable(f"the number before byte {at} has more than 64 bits")
        byte = data[at]
        found |= (byte & 0x7F) << shift
    cursor.at = at + 1
    if found >> _LONG_BITS:
        raise Unreadable(f"the number before byte {at} has more than 64 bits")
    return found


def _long(cursor: _Cursor) -> int:
    found = _varint(cursor)
    return (found >> 1) ^ -(found & 1)


def _int(cursor: _Cursor) -> int:
    found = _varint(cursor)
    if found >> _INT_BITS:
        raise Unreadable(f"the number before byte {cursor.at} has more than 32 bits")
    return (found >> 1) ^ -(found & 1)


def _instant(kind: type[Instant]) -> _Read:
    return lambda cursor: kind(_long(cursor))


def _null(_cursor: _Cursor) -> None:
    return None


def _boolean(cursor: _Cursor) -> bool:
    (byte,) = cursor.take(1)
    if byte > 1:
        raise Unreadable(f"the byte {byte} is neither true nor false")
    return byte == 1


def _float(cursor: _Cursor) -> Decimal | float:
    (found,) = struct.unpack("<f", cursor.take(4))
    return Decimal(repr(found)) if math.isfinite(found) else found


def _double(cursor: _Cursor) -> Decimal | float:
    (found,) = struct.unpack("<d", cursor.take(8))
    return Decimal(repr(found)) if math.isfinite(found) else found


def _bytes(cursor: _Cursor) -> bytes:
    return cursor.take(_long(cursor))


def _string(cursor: _Cursor) -> str:
    return cursor.take(_long(cursor)).decode()


_PRIMITIVES: Final[dict[str, _Read]] = {
    "null": _null,
    "boolean": _boolean,
    "int": _int,
    "long": _long,
    "float": _float,
    "double": _double,
    "bytes": _bytes,
    "string": _string,
}


def _fixed(size: int) -> _Read:
    return lambda cursor: cursor.take(size)


def _decimal(read: _Read, scale: int) -> _Read:
    def read_decimal(cursor: _Cursor) -> Decimal:
        unscaled = read(cursor)
        if len(unscaled) > DECIMAL_BYTES_MAX:
            raise Unreadable(f"a decimal has {len(unscaled)} bytes, more than {DECIMAL_BYTES_MAX}")
        return Decimal(f"{int.from_bytes(unscaled, 'big', signed=True)}E-{scale}")

    return read_decimal


def _enum(symbols: tuple[str, ...]) -> _Read:
    def read(cursor: _Cursor) -> str:
        index = _int(cursor)
        if not 0 <= index < len(symbols):
            raise Unreadable(f"an enum with {len(symbols)} symbols has the value {index}")
        return symbols[index]

    return read


def _union(branches: list[_Read]) -> _Read:
    def read(cursor: _Cursor) -> Any:
        index = _int(cursor)
        if not 0 <= index < len(branches):
            raise Unreadable(f"a union with {len(branches)} branches has the branch {index}")
        return branches[index](cursor)

    return read


def _blocks(read_item: _Read, *, is_map: bool) -> _Read:
    def each(cursor: _Cursor) -> int:
        """Return how many items follow, or 0 at the end."""
        count = _long(cursor)
        if count < 0:  # the size of the block in bytes follows
            count = -count
            _long(cursor)
        cursor.count(count)
        return count

    def read_array(cursor: _Cursor) -> list[Any]:
        cursor.enter()
        found: list[Any] = []
        while count := each(cursor):
            found += [read_item(cursor) for _ in range(count)]
        cursor.depth -= 1
        return found

    def read_map(cursor: _Cursor) -> dict[str, Any]:
        cursor.enter()
        found: dict[str, Any] = {}
        while count := each(cursor):
            for _ in range(count):
                name = _string(cursor)
                found[name] = read_item(cursor)
        cursor.depth -= 1
        return found

    return read_map if is_map else read_array
