"""Reads the encoding of Protocol Buffers: tags, and the values of each wire type."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from broker.wire.records import Unreadable
from joiner.mapping.documents import DEPTH_MAX

VARINT, FIXED64, DELIMITED, START_GROUP, END_GROUP, FIXED32 = range(6)
"""The wire types."""

TAG_BITS: Final = 3
"""A tag consists of the number of a field and, in so many bits, its wire type."""

SIZES: Final = {FIXED64: 8, FIXED32: 4}
"""The size of a value in bytes, by its wire type."""

_VARINT_BYTES_MAX: Final = 10
_SHORT_BYTES_MAX: Final = 5
_CONTINUES: Final = 0x80
_MASK_32, _MASK_64 = 2**32 - 1, 2**64 - 1
_SIGN_32, _SIGN_64 = 2**31, 2**63


class Cursor:
    """A position in a message.

    ``at`` and ``end``: the position, and the end of the message, or of the message or value in it that is being read.
    ``values``: how many values can still be added to the document that are not in the data. ``chosen``: the member of
    each oneof that has been read last. ``special``: what has to be converted at the end; see `wellknown`.
    """

    __slots__ = ("at", "chosen", "data", "depth", "end", "special", "values")

    def __init__(self, data: bytes, values: int) -> None:
        self.data, self.at, self.end = data, 0, len(data)
        self.depth, self.values = 0, values
        self.chosen: dict[tuple[int, int], tuple[dict[str, Any], str]] = {}
        self.special: list[Any] = []

    def varint(self) -> int:
        """Read an unsigned integer of a variable length. Bits after the first 64 are ignored."""
        data, begin, end = self.data, self.at, self.end
        if begin < end and data[begin] < _CONTINUES:
            self.at = begin + 1
            return data[begin]
        found = shift = 0
        for at in range(begin, min(end, begin + _VARINT_BYTES_MAX)):
            byte = data[at]
            found |= (byte & 0x7F) << shift
            if byte < _CONTINUES:
                self.at = at + 1
                return found & _MASK_64
            shift += 7
        if end - begin >= _VARINT_BYTES_MAX:
            raise Unreadable(f"the number at byte {begin} has more than {_VARINT_BYTES_MAX} bytes")
        raise Unreadable("the data end too early")

    def tag(self) -> int:
        """Read the number of a field and its wire type, as one number."""
        begin = self.at
        found = self.varint()
        if self.at - begin > _SHORT_BYTES_MAX or found > _MASK_32 or not found >> TAG_BITS:
            raise Unreadable(f"the field at byte {begin} has no valid number")
        return found

    def size(self) -> int:
        """Read a length. So many bytes follow."""
        begin = self.at
        found = self.varint()
        if self.at - begin > _SHORT_BYTES_MAX or found > self.end - self.at:
            raise Unreadable(f"{found} bytes should follow byte {self.at}, but there are {self.end - self.at}")
        return found

    def take(self, size: int) -> bytes:
        """Read bytes."""
        begin = self.at
        if size > self.end - begin:
            raise Unreadable("the data end too early")
        self.at = begin + size
        return self.data[begin : self.at]

    def enter(self) -> None:
        """Begin a message or group in the current one. ``depth`` has to be decreased at its end."""
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise Unreadable(f"the message is nested more than {DEPTH_MAX} levels deep")

    def add(self, values: int) -> None:
        """Count values that are added to the document without being in the data."""
        self.values -= values
        if self.values < 0:
            raise Unreadable("it has too many messages in it whose fields are absent")

    def skip(self, tag: int) -> None:
        """Skip an unknown field whose tag has been read."""
        groups: list[int] = []
        while True:
            match tag & 7:
                case 0:
                    self.varint()
                case 1 | 5 as kind:
                    self.take(SIZES[kind])
                case 2:
                    size = self.size()
                    self.at += size
                case 3:
                    self.enter()
                    groups.append(tag >> TAG_BITS)
                case 4:
                    if not groups or groups.pop() != tag >> TAG_BITS:
                        raise Unreadable(f"a group ends before byte {self.at} that has not begun")
                    self.depth -= 1
                case kind:
                    raise Unreadable(f"a field has the wire type {kind}, which does not exist")
            if not groups:
                return
            tag = self.tag()


def tag_of(field: Any, wire: int) -> int:
    """Return the tag of a field whose values have a wire type."""
    return int(field.number) << TAG_BITS | wire


def names_of(enum: Any) -> dict[int, str]:
    """Return the names of an enum by their numbers. Of several for a number, the first counts."""
    names: dict[int, str] = {}
    for value in enum.values:
        names.setdefault(value.number, value.name)
    return names


Read = Callable[[Cursor], Any]


def _int32(cursor: Cursor) -> int:
    return ((cursor.varint() & _MASK_32) ^ _SIGN_32) - _SIGN_32


def _int64(cursor: Cursor) -> int:
    return (cursor.varint() ^ _SIGN_64) - _SIGN_64


def _uint32(cursor: Cursor) -> int:
    return cursor.varint() & _MASK_32


def _sint32(cursor: Cursor) -> int:
    found = cursor.varint() & _MASK_32
    return (found >> 1) ^ -(found & 1)


def _sint64(cursor: Cursor) -> int:
    found = cursor.varint()
    return (found >> 1) ^ -(found & 1)


def _bool(cursor: Cursor) -> bool:
    return cursor.varint() != 0


def _fixed(form: str) -> Read:
    packed = struct.Struct(form)
    return lambda cursor: packed.unpack(cursor.take(packed.size))[0]


def _number(form: str) -> Read:
    read = _fixed(form)

    def read_number(cursor: Cursor) -> Decimal | float:
        found: float = read(cursor)
        return Decimal(repr(found)) if math.isfinite(found) else found

    return read_number


def _bytes(cursor: Cursor) -> bytes:
    return cursor.take(cursor.size())


def _string(cursor: Cursor) -> str:
    try:
        return cursor.take(cursor.size()).decode()
    except UnicodeDecodeError as error:
        raise Unreadable(f"a string is not UTF-8: {error}") from error


SCALARS: Final[dict[str, tuple[int, Read, Any]]] = {
    "int32": (VARINT, _int32, 0),
    "int64": (VARINT, _int64, 0),
    "uint32": (VARINT, _uint32, 0),
    "uint64": (VARINT, Cursor.varint, 0),
    "sint32": (VARINT, _sint32, 0),
    "sint64": (VARINT, _sint64, 0),
    "bool": (VARINT, _bool, False),
    "fixed32": (FIXED32, _fixed("<I"), 0),
    "fixed64": (FIXED64, _fixed("<Q"), 0),
    "sfixed32": (FIXED32, _fixed("<i"), 0),
    "sfixed64": (FIXED64, _fixed("<q"), 0),
    "float": (FIXED32, _number("<f"), Decimal("0.0")),
    "double": (FIXED64, _number("<d"), Decimal("0.0")),
    "bytes": (DELIMITED, _bytes, b""),
    "string": (DELIMITED, _string, ""),
}
"""By the name of a scalar type: its wire type, what reads a value, and the default."""
