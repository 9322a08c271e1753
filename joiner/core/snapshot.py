"""A buffer as bytes, and back: options, frontiers and held records.

Layout: magic, format version (uint16), length of the header (uint32), header (JSON: options, and name, length of
each column), the columns as little-endian int64 compressed by zlib, CRC-32 of everything before it. A newer
version is refused, damage is noticed.
"""

from __future__ import annotations

import json
import struct
import zlib
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from joiner.core.errors import NewerSnapshotError, SnapshotError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

VERSION: Final = 3
_MAGIC: Final = b"LSBJOIN\n"
_PREFIX: Final = struct.Struct("<8sHI")
_CHECKSUM: Final = struct.Struct("<I")
_COMPRESSION: Final = 1
"""zlib's quickest level: times and positions that rise compress well at any."""


def pack(options: dict[str, Any], columns: dict[str, Ints]) -> bytes:
    """The bytes of JSON-able ``options`` and int64 ``columns``."""
    header = json.dumps({"options": options, "columns": {name: len(column) for name, column in columns.items()}})
    raw = b"".join(np.ascontiguousarray(column, dtype="<i8").tobytes() for column in columns.values())
    body = _PREFIX.pack(_MAGIC, VERSION, len(header)) + header.encode("ascii") + zlib.compress(raw, _COMPRESSION)
    return body + _CHECKSUM.pack(zlib.crc32(body))


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, Ints]]:
    """Inverse of `pack`. Raises `SnapshotError`."""
    if len(data) < _PREFIX.size + _CHECKSUM.size or not data.startswith(_MAGIC):
        message = "these bytes are no snapshot of a LocalStreamBuffer"
        raise SnapshotError(message)
    _, version, header_length = _PREFIX.unpack_from(data)
    if version > VERSION:
        message = f"the snapshot has format version {version}; this release reads up to {VERSION}: use a newer one"
        raise NewerSnapshotError(message)
    if version < VERSION:
        message = f"the snapshot has format version {version}; this release reads {VERSION} alone"
        raise SnapshotError(message)
    body = memoryview(data)[: -_CHECKSUM.size]
    if zlib.crc32(body) != _CHECKSUM.unpack(data[-_CHECKSUM.size :])[0]:
        message = "the snapshot is damaged: its checksum does not match"
        raise SnapshotError(message)
    header = json.loads(bytes(body[_PREFIX.size : _PREFIX.size + header_length]))
    raw = np.frombuffer(zlib.decompress(body[_PREFIX.size + header_length :]), dtype="<i8")
    ends = np.cumsum(list(header["columns"].values()))
    parts = np.split(raw.astype(np.int64), ends[:-1])
    return header["options"], dict(zip(header["columns"], parts, strict=True))
