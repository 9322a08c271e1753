"""Checks the limits of an Arrow IPC stream before any part of the stream is decoded.

A small compressed message could expand to gigabytes. Its expanded size can be computed without decoding it: the
metadata contains the number of rows and the size of each buffer, and a compressed buffer begins with its uncompressed
size. This module reads only the few metadata fields (flatbuffers) that it needs. pyarrow verifies the rest when it
decodes the stream.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from broker.wire.records import ROW_BITS, Unreadable

ROWS_MAX: Final = 1 << ROW_BITS
"""The maximum number of rows in a message, and the maximum number of values in each of its dictionaries."""

EXPANDED_BYTES_MAX: Final = 16 * 1024 * 1024
"""The maximum total size in bytes of a message's buffers after decompression."""

_MESSAGES_MAX: Final = 1_000
"""The maximum number of Arrow messages (schema, dictionaries and record batches) in one stream."""

_BUFFERS_MAX: Final = 4_096
"""The maximum number of buffers in one dictionary or record batch."""

_EXTENSION, _NO_EXTENSION = b"ARROW:extension:name", b"ARROW_extension_name"
"""The metadata key that gives a field's extension type, and a key of the same length with no meaning in Arrow."""

_CONTINUATION: Final = 0xFFFFFFFF
_DICTIONARY, _BATCH = 2, 3
_VERSION_5: Final = 4
"""The current metadata version, V5. In earlier versions, a message's custom metadata could also declare compression."""

_IS_PLAIN: Final = -1
"""Stored as the uncompressed size of a buffer that is not compressed although its batch is."""

_HEADER_BYTES: Final = 8
_PAIR_BYTES: Final = 16


class _Metadata:
    """Reads fields of tables in a flatbuffer. Raises `Unreadable` if a position is outside the flatbuffer."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self.root = self.number("<I", 0)

    def number(self, form: str, at: int) -> int:
        """Return the number at a position in the flatbuffer. ``form`` is its `struct` format."""
        if not 0 <= at <= len(self._data) - struct.calcsize(form):
            raise Unreadable(_BROKEN)
        (found,) = struct.unpack_from(form, self._data, at)
        return int(found)

    def member(self, table: int, index: int) -> int:
        """Return the position of a table's field with the given index, or 0 if the table does not have the field."""
        members = table - self.number("<i", table)
        place = 4 + 2 * index
        if place + 2 > self.number("<H", members):
            return 0
        offset = self.number("<H", members + place)
        return table + offset if offset else 0

    def long(self, table: int, index: int) -> int:
        """Return the value of a table's int64 field, or 0 if the table does not have the field."""
        at = self.member(table, index)
        return self.number("<q", at) if at else 0

    def pairs(self, at: int, count: int) -> Iterator[tuple[int, int]]:
        """Return an iterator over ``count`` pairs of int64 numbers, which begin at position ``at``."""
        end = at + _PAIR_BYTES * count
        if not 0 <= at <= end <= len(self._data):
            raise Unreadable(_BROKEN)
        return struct.iter_unpack("<qq", self._data[at:end])

    def target(self, table: int, index: int) -> int:
        """Return the position of the table or vector that a table's field refers to, or 0 if there is no such field."""
        at = self.member(table, index)
        return at + self.number("<I", at) if at else 0


_BROKEN: Final = "not an Arrow IPC stream: its metadata is corrupt"


def check_limits(value: bytes | memoryview) -> int:
    """Return the number of rows in an Arrow IPC stream.

    Raises `Unreadable` if ``value`` is not an Arrow IPC stream or exceeds any of this module's limits.
    """
    whole, at, rows, size = memoryview(value), 0, 0, 0
    for _ in range(_MESSAGES_MAX + 1):
        if len(whole) - at < _HEADER_BYTES:
            # The end-of-stream marker is optional.
            if at == 0 or at != len(whole):
                raise Unreadable("not an Arrow IPC stream: it is truncated")
            return rows
        mark, length = struct.unpack_from("<Ii", whole, at)
        if mark != _CONTINUATION:
            raise Unreadable("not an Arrow IPC stream")
        at += _HEADER_BYTES
        if length == 0:
            return rows
        if not 0 < length <= len(whole) - at:
            raise Unreadable("not an Arrow IPC stream: it is truncated or corrupt")
        metadata = _Metadata(whole[at : at + length])
        at += length
        body_length = metadata.long(metadata.root, 3)
        if not 0 <= body_length <= len(whole) - at:
            raise Unreadable("not an Arrow IPC stream: it is truncated or corrupt")
        more_rows, more_size = _described(metadata, whole[at : at + body_length])
        at, rows, size = at + body_length, rows + more_rows, size + more_size
        if rows > ROWS_MAX:
            reason = f"the message has more than {ROWS_MAX} rows"
            raise Unreadable(reason)
        if size > EXPANDED_BYTES_MAX:
            reason = f"the message is larger than {EXPANDED_BYTES_MAX} bytes when decompressed"
            raise Unreadable(reason)
    reason = f"the stream contains more than {_MESSAGES_MAX} Arrow messages (schema, dictionaries and record batches)"
    raise Unreadable(reason)


def with_plain_types(value: bytes) -> bytes:
    """Replace each extension type in an Arrow IPC stream with its storage type. Return the resulting stream.

    The stream must have passed `check_limits`. Which extension types exist depends on the version of pyarrow and on
    what else the process has imported. Without the replacement, an extension type's code would run even for
    a column that nobody needs, and could raise any exception.
    """
    (length,) = struct.unpack_from("<i", value, 4)
    schema = value[: _HEADER_BYTES + length]
    return schema.replace(_EXTENSION, _NO_EXTENSION) + value[len(schema) :] if _EXTENSION in schema else value


def _described(metadata: _Metadata, body: memoryview) -> tuple[int, int]:
    """Return the number of rows in an Arrow message (0 for a dictionary) and its decompressed size in bytes."""
    at = metadata.member(metadata.root, 1)
    kind, batch = metadata.number("<B", at) if at else 0, metadata.target(metadata.root, 2)
    if kind not in {_DICTIONARY, _BATCH}:
        return 0, 0
    at = metadata.member(metadata.root, 0)
    if metadata.member(metadata.root, 4) and (not at or metadata.number("<h", at) < _VERSION_5):
        raise Unreadable("the message may use a form of compression that Arrow no longer writes")
    if kind == _DICTIONARY:
        if (at := metadata.member(batch, 2)) and metadata.number("<B", at):
            raise Unreadable("the message contains a delta dictionary; write each dictionary in full")
        batch = metadata.target(batch, 1)
    rows = metadata.long(batch, 0)
    if rows < 0:
        raise Unreadable(_BROKEN)
    if rows > ROWS_MAX:
        what = "values in a dictionary" if kind == _DICTIONARY else "rows"
        reason = f"the message has more than {ROWS_MAX} {what}"
        raise Unreadable(reason)
    if not metadata.member(batch, 3):
        # Not compressed.
        return (rows if kind == _BATCH else 0), len(body)
    buffers = metadata.target(batch, 2)
    count = metadata.number("<I", buffers) if buffers else 0
    if count > _BUFFERS_MAX:
        reason = f"a batch has more than {_BUFFERS_MAX} buffers"
        raise Unreadable(reason)
    places = metadata.pairs(buffers + 4, count) if count else ()
    size = sum(_expanded(body, offset, length) for offset, length in places)
    return (rows if kind == _BATCH else 0), size


def _expanded(body: memoryview, offset: int, length: int) -> int:
    """Return the decompressed size, in bytes, of a buffer in a compressed batch."""
    if not 0 <= length <= len(body) or not 0 <= offset <= len(body) - length:
        raise Unreadable(_BROKEN)
    if not length:
        return 0
    if length < _HEADER_BYTES:
        raise Unreadable(_BROKEN)
    (size,) = struct.unpack_from("<q", body, offset)
    if size == _IS_PLAIN:
        return length - _HEADER_BYTES
    if size < 0:
        raise Unreadable(_BROKEN)
    return int(size)
