"""Decodes one Avro datum into a document, on which paths and conditions work as on JSON.

Records and maps are objects, arrays are arrays, and a union is the value of its branch. Integers are numbers, and so
are decimals (exactly) and finite doubles: as the shortest decimal number that identifies the double. A float is the
double that equals it. Strings and enums are strings. A timestamp is a number that knows its unit (`Instant`). Bytes,
fixed, and numbers that are not finite are values that equal only themselves.

Whatever the data contain, decoding them takes time and memory in proportion to their size.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

from broker.wire.records import Unreadable
from joiner.mapping.avro.schema import AvroType
from joiner.mapping.documents import DEPTH_MAX

DECIMAL_BYTES_MAX: Final = 166
"""The maximum size of a decimal in bytes. Such a number has 400 digits, as many as a number in JSON can have."""

_INT_BITS: Final = 32
_LONG_BITS: Final = 64


class Instant(int):
    """A timestamp as a number. ``unit``: a key of `broker.times.UNIT_NS`."""

    unit = "ms"


class _Microseconds(Instant):
    unit = "us"


class _Nanoseconds(Instant):
    unit = "ns"


_INSTANTS: Final = {"ms": Instant, "us": _Microseconds, "ns": _Nanoseconds}


class _Cursor:
    """A position in the data. ``items``: how many items arrays and maps can still contain."""

    __slots__ = ("at", "data", "depth", "items")

    def __init__(self, data: bytes) -> None:
        self.data, self.at, self.depth, self.items = data, 0, 0, len(data)

    def take(self, size: int) -> bytes:
        begin, self.at = self.at, self.at + size
        if size < 0 or self.at > len(self.data):
            raise Unreadable(f"{size} bytes should follow byte {begin}, but there are {len(self.data) - begin}")
        return self.data[begin : self.at]

    def enter(self) -> None:
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise Unreadable(f"the value is nested more than {DEPTH_MAX} levels deep")


_Read = Callable[[_Cursor], Any]


def decode_datum(schema: AvroType, data: bytes) -> Any:
    """Decode a datum. Raises `Unreadable`, with the reason, if the data are not exactly one of this schema."""
    cursor = _Cursor(data)
    try:
        found = _reader_of(schema)(cursor)
    except IndexError:
        raise Unreadable("the data end too early") from None
    except UnicodeDecodeError as error:
        raise Unreadable(f"a string is not UTF-8: {error}") from error
    if cursor.at < len(data):
        raise Unreadable(f"{len(data) - cursor.at} bytes follow the data")
    return found


@lru_cache(maxsize=128)
def _reader_of(schema: AvroType) -> _Read:
    return _Readers().make(schema)


class _Readers:
    """Makes the function that reads a type, and those of the types in it."""

    def __init__(self) -> None:
        self._records: dict[AvroType, list[tuple[str, _Read]]] = {}

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
                return _instant(_INSTANTS[given.time_unit])
        return _PRIMITIVES[given.kind]

    def _record(self, given: AvroType) -> _Read:
        fields = self._records.get(given)
        if fields is None:
            # A record that contains itself finds this list while it is being filled.
            fields = self._records[given] = []
            fields += [(name, self.make(one)) for name, one in given.fields]

        def read(cursor: _Cursor) -> dict[str, Any]:
            cursor.enter()
            found = {name: read_field(cursor) for name, read_field in fields}
            cursor.depth -= 1
            return found

        return read


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
        cursor.items -= count
        if cursor.items < 0:
            raise Unreadable("arrays and maps have more items than the data have bytes")
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
