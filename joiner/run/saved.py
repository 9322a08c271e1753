"""The form of a unit's snapshot: what its buffers hold, and the rows beside them, as columns.

Of a row, all but three texts are numbers: its quantity is one of a few; its time as it was given follows from the time
in ns, unless it was no plain number of the configured unit; its id is written as it is.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np

from broker.times import UNIT_NS
from broker.wire import Side
from joiner.core import snapshot
from joiner.core.errors import NewerSnapshotError, SnapshotError
from joiner.run.payloads import Rows, sizes

VERSION: Final = 3
"""2 had no free numbers among its things, and is read as it is."""

_OLDEST: Final = 2


class SavedRows(msgspec.Struct):
    """n rows. ``times``: each one's time as JSON, or nothing where all of them follow from those in ns."""

    columns: bytes
    quantities: list[str]
    ids: list[str]
    times: bytes


class Saved(msgspec.Struct):
    """A unit at the vector ``offsets``. ``rows`` by join and side name: what the buffers hold."""

    version: int
    offsets: dict[str, int]
    things: list[str]
    counts: dict[str, int]
    buffers: dict[str, bytes]
    rows: dict[str, SavedRows]


class _Version(msgspec.Struct):
    """What every release can read of a snapshot, whatever else a newer one may hold."""

    version: int


def encode(saved: Saved) -> bytes:
    """The bytes of a snapshot."""
    return msgspec.msgpack.encode(saved)


def decode(data: bytes) -> Saved:
    """Inverse of `encode`. Raises `SnapshotError`, msgspec.DecodeError or UnicodeDecodeError."""
    version = msgspec.msgpack.decode(data, type=_Version).version
    if version > VERSION:
        message = f"format {version}, this one reads up to {VERSION}"
        raise NewerSnapshotError(message)
    if version < _OLDEST:
        message = f"format {version}, this one reads from {_OLDEST} on"
        raise SnapshotError(message)
    return msgspec.msgpack.decode(data, type=Saved)


def save_rows(rows: Rows, time_unit: str) -> SavedRows:
    """Rows as they are kept."""
    shown: list[Side] = rows.shown.tolist()
    quantities = [one.quantity for one in shown]
    number = {quantity: at for at, quantity in enumerate(dict.fromkeys(quantities))}
    times: list[Any] = [one.phenomenonTime for one in shown]
    # A bool would equal 0 or 1; what is read as a time never is one.
    plain = times == (rows.ts_ns // UNIT_NS[time_unit]).tolist()
    columns = {
        "seq": rows.seq,
        "key": rows.key,
        "ts_ns": rows.ts_ns,
        "result": rows.result.view(np.int64),
        "quantity": np.fromiter(map(number.__getitem__, quantities), dtype=np.int64, count=len(quantities)),
    }
    packed = snapshot.pack({}, columns)
    return SavedRows(packed, list(number), [one.id for one in shown], b"" if plain else msgspec.json.encode(times))


def restore_rows(saved: SavedRows, time_unit: str) -> Rows:
    """Inverse of `save_rows`. Raises `SnapshotError` or msgspec.DecodeError."""
    _, columns = snapshot.unpack(saved.columns)
    result = columns["result"].view(np.float64)
    times = _times_of(saved.times) if saved.times else (columns["ts_ns"] // UNIT_NS[time_unit]).tolist()
    quantities = np.array(saved.quantities, dtype=object).take(columns["quantity"])
    shown = map(Side, quantities.tolist(), times, result.tolist(), saved.ids)
    numbers = columns["seq"], columns["key"], columns["ts_ns"]
    return Rows(*numbers, result, np.fromiter(shown, object, len(result)), sizes(saved.ids))


def _times_of(data: bytes) -> list[Any]:
    """Times as they were given: whole numbers and texts, and of other numbers the text that tells them exactly."""
    given = msgspec.json.decode(data, type=list[msgspec.Raw])
    return [_time_of(bytes(one)) for one in given]


def _time_of(given: bytes) -> int | str | msgspec.Raw:
    try:
        return msgspec.json.decode(given, type=int | str)
    except msgspec.ValidationError:
        return msgspec.Raw(given)
