"""Serializes int64 columns. Snapshots of buffers, and of columns stored alongside a buffer, use this format.

Layout: magic, format version (uint16), header length (uint32), header (JSON: the options, and the encoding of each
column), the columns, CRC-32 of all preceding bytes. Other format versions and damaged bytes are rejected.

A column is delta-encoded: the differences between consecutive entries are divided by their greatest common divisor,
stored in the smallest integer type that holds them, and compressed with zlib. Times and positions increase in similar
steps, so they compress well. A column whose differences need eight bytes, such as a column of hashes, is stored
unchanged, because compressing it would be slow and save little.
"""

from __future__ import annotations

import json
import struct
import zlib
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from joiner.core.errors import NewerSnapshotError, SnapshotError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

VERSION: Final = 3
_MAGIC: Final = b"LSBJOIN\n"
_PREFIX: Final = struct.Struct("<8sHI")
_CHECKSUM: Final = struct.Struct("<I")
_COMPRESSION: Final = 1
"""zlib's fastest level."""
_WIDTHS: Final = (1, 2, 4, 8)


def pack(options: dict[str, Any], columns: Mapping[str, Ints]) -> bytes:
    """Serialize ``options``, which must be JSON values, and int64 ``columns`` of shape (n,) each."""
    packed = {name: _pack_column(np.ascontiguousarray(column, dtype="<i8")) for name, column in columns.items()}
    forms = {name: form for name, (form, _) in packed.items()}
    header = json.dumps({"options": options, "columns": forms}).encode("ascii")
    parts = [_PREFIX.pack(_MAGIC, VERSION, len(header)), header, *(data for _, data in packed.values())]
    body = b"".join(parts)
    return body + _CHECKSUM.pack(zlib.crc32(body))


def unpack(data: bytes, kind: str = "LocalStreamBuffer") -> tuple[dict[str, Any], dict[str, Ints]]:
    """Return the options and columns that `pack` serialized.

    ``kind``: the expected value of the option ``"kind"``, which snapshots of a `LocalStreamBuffer` and of columns
    stored alongside a buffer do not have. Raises `NewerSnapshotError` for a newer format version, and `SnapshotError`
    for any other invalid bytes.
    """
    if not data.startswith(_MAGIC):
        message = f"the bytes are not a snapshot as returned by {kind}.snapshot()"
        raise SnapshotError(message)
    if len(data) < _PREFIX.size + _CHECKSUM.size:
        message = f"the snapshot is damaged: it ends after {len(data)} bytes"
        raise SnapshotError(message)
    _, version, header_length = _PREFIX.unpack_from(data)
    if version > VERSION:
        message = f"the snapshot has format version {version}; this release reads only {VERSION}; use a newer release"
        raise NewerSnapshotError(message)
    if version < VERSION:
        message = f"the snapshot has format version {version}; this release reads only {VERSION}"
        raise SnapshotError(message)
    body = memoryview(data)[: -_CHECKSUM.size]
    if zlib.crc32(body) != _CHECKSUM.unpack(data[-_CHECKSUM.size :])[0]:
        message = "the snapshot is damaged: its checksum does not match"
        raise SnapshotError(message)
    at = _PREFIX.size + header_length
    header = json.loads(bytes(body[_PREFIX.size : at]))
    if (found := header["options"].get("kind", "LocalStreamBuffer")) != kind:
        message = f"the snapshot was taken from a different kind of buffer: {found}, not {kind}"
        raise SnapshotError(message)
    columns = {}
    for name, form in header["columns"].items():
        columns[name] = _unpack_column(form, body[at : at + form["bytes"]])
        at += form["bytes"]
    return header["options"], columns


def _pack_column(column: Ints) -> tuple[dict[str, int], bytes]:
    # A difference that overflows int64 wraps around, and so does the sum that restores the entry.
    steps = np.diff(column, prepend=column.dtype.type(0))
    first = int(steps[0]) if len(steps) else 0
    steps[:1] = 0
    divisor = max(int(np.gcd.reduce(steps)), 1) if len(steps) else 1
    width = _width_of(steps) if divisor == 1 else _width_of(steps := steps // divisor)
    if width == _WIDTHS[-1]:
        # Store the entries themselves: differences between hashes are no smaller than the hashes.
        data, divisor = column.tobytes(), 0
    else:
        data = zlib.compress(steps.astype(f"<i{width}").tobytes(), _COMPRESSION)
    form = {"count": len(column), "first": first, "divisor": divisor, "width": width, "bytes": len(data)}
    return form, data


def _width_of(values: Ints) -> int:
    """Return the width in bytes of the smallest integer type that holds every value."""
    low, high = int(values.min(initial=0)), int(values.max(initial=0))
    return next(width for width in _WIDTHS if -(1 << (8 * width - 1)) <= low and high < 1 << (8 * width - 1))


def _unpack_column(form: dict[str, int], data: memoryview) -> Ints:
    if not form["divisor"]:
        return np.frombuffer(data, dtype="<i8").astype(np.int64)
    steps = np.frombuffer(zlib.decompress(data), dtype=f"<i{form['width']}").astype(np.int64)
    steps *= form["divisor"]
    steps[:1] = form["first"]
    column: Ints = steps.cumsum()
    return column
