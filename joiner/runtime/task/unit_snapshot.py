"""The format of a unit's snapshot: its buffers, and the payload rows as columns.

A row consists of numbers and three strings: its quantity, which has few distinct values; its original time, which can
be derived from the time in ns if it was a plain number in the configured unit; and its id, as JSON.
"""

from __future__ import annotations

from typing import Final, cast

import msgspec
import numpy as np

from broker.times import UNIT_NS
from broker.wire.bulk import encode_sides, find_fields
from broker.wire.columns import StringColumn, decimals, glue
from broker.wire.records import encode_lines
from joiner.core import snapshot
from joiner.core.errors import NewerSnapshotError, SnapshotError
from joiner.runtime.task.emit import sides_of
from joiner.runtime.task.payloads import Rows, split_short

VERSION: Final = 5
"""The newest version of the format. Version 2 had no free key numbers, versions 2 and 3 stored ids as a list, and
version 4 had no aligns. All of them can still be read."""

_WITHOUT_ALIGNS: Final = 4
"""The version that units without aligns write, so that the previous release can read their snapshots."""

_OLDEST: Final = 2


class SavedRows(msgspec.Struct):
    """n rows. ``times``: the times as JSON, empty if all of them can be derived from those in ns.

    ``ids`` are concatenated, as JSON without quotes; their lengths are a column. ``is_short``: the rows are in short
    form, so the ids are plain text and the times can be derived from those in ns.
    """

    columns: bytes
    quantities: list[str]
    ids: bytes | list[str]
    times: bytes
    is_short: bool = False


class SavedAlign(msgspec.Struct):
    """An align's state: its buffer, and the other fields that it holds for driver records (empty with a grid)."""

    buffer: bytes
    driver: bytes


class UnitSnapshot(msgspec.Struct, omit_defaults=True):
    """A unit at ``offsets``. ``rows``: the payloads of the records held by joins, by join and side name."""

    version: int
    offsets: dict[str, int]
    things: list[str]
    counts: dict[str, int]
    buffers: dict[str, bytes]
    rows: dict[str, SavedRows]
    aligns: dict[str, SavedAlign] = {}


class _Version(msgspec.Struct):
    """The part of a snapshot that every release can read."""

    version: int


# msgspec inspects a type on first use. If two threads cause this at the same time, the process may crash. So every
# decoded type is inspected on import.
_version = msgspec.msgpack.Decoder(_Version)
_snapshot = msgspec.msgpack.Decoder(UnitSnapshot)
_times = msgspec.json.Decoder(list[msgspec.Raw])


def encode(saved: UnitSnapshot) -> bytes:
    """Return the bytes of a snapshot, with its version."""
    saved.version = VERSION if saved.aligns else _WITHOUT_ALIGNS
    return msgspec.msgpack.encode(saved)


def decode(data: bytes) -> UnitSnapshot:
    """Decode a whole snapshot. Raises `SnapshotError`, msgspec.DecodeError or UnicodeDecodeError if that fails."""
    version = _version.decode(data).version
    if version > VERSION:
        message = f"format {version}, this one reads up to {VERSION}"
        raise NewerSnapshotError(message)
    if version < _OLDEST:
        message = f"it has format {version}, but this release reads only formats {_OLDEST} to {VERSION}"
        raise SnapshotError(message)
    return _snapshot.decode(data)


def save_rows(rows: Rows, time_unit: str) -> SavedRows:
    """Encode rows."""
    fields, times = find_fields(rows.shown, with_thing=False), b""
    if fields is not None and fields.time.integers() is not None:
        number, first = fields.quantity.distinct()
        quantities, ids = [one.decode() for one in fields.quantity.take(first).each()], fields.id
    else:
        sides = sides_of(rows)
        given = [bytes(cast("msgspec.Raw", side.phenomenonTime)) for side in sides]
        if given != decimals(rows.ts_ns // UNIT_NS[time_unit]).each():
            times = b"[" + b",".join(given) + b"]"
        number, first = StringColumn.of([side.quantity.encode() for side in sides]).distinct()
        quantities = [sides[at].quantity for at in first.tolist()]
        ids = _escaped([side.id for side in sides])
    columns = {
        "seq": rows.seq,
        "key": rows.key,
        "ts_ns": rows.ts_ns,
        "result": rows.result.view(np.int64),
        "quantity": number,
        "id_length": ids.lengths(),
    }
    return SavedRows(snapshot.pack({}, columns), quantities, ids.joined(), times)


def restore_rows(saved: SavedRows, time_unit: str) -> Rows:
    """Decode the output of `save_rows`. Raises `SnapshotError`, KeyError or msgspec.DecodeError if that fails."""
    _, columns = snapshot.unpack(saved.columns)
    seq, key, ts_ns, result = columns["seq"], columns["key"], columns["ts_ns"], columns["result"].view(np.float64)
    if saved.times:
        times = StringColumn.of([bytes(one) for one in _times.decode(saved.times)])
    else:
        times = decimals(ts_ns // UNIT_NS[time_unit])
    try:
        ids = (
            _escaped(saved.ids)
            if isinstance(saved.ids, list)
            else StringColumn.of_lengths(saved.ids, columns["id_length"])
        )
        results = StringColumn.of_lines(encode_lines(result.tolist()))
        shown = encode_sides(_escaped(saved.quantities).take(columns["quantity"]), times, results, ids)
    except (ValueError, KeyError, IndexError) as error:
        message = f"its rows are inconsistent: {error}"
        raise SnapshotError(message) from error
    return Rows(seq, key, ts_ns, result, shown)


def save_short(rows: Rows, quantity: str | None) -> SavedRows:
    """Encode rows in short form (see `joiner.runtime.task.payloads`). ``quantity``: see `with_json` there."""
    quantities, ids = split_short(rows.shown, quantity)
    number, first = quantities.distinct()
    columns = {
        "seq": rows.seq,
        "key": rows.key,
        "ts_ns": rows.ts_ns,
        "result": rows.result.view(np.int64),
        "quantity": number,
        "id_length": ids.lengths(),
    }
    names = [one.decode() for one in quantities.take(first).each()]
    return SavedRows(snapshot.pack({}, columns), names, ids.joined(), b"", is_short=True)


def restore_short(saved: SavedRows, quantity: str | None) -> Rows:
    """Decode the output of `save_short`. Raises `SnapshotError` or KeyError if that fails."""
    if not saved.is_short or isinstance(saved.ids, list):
        message = "its rows are not in short form"
        raise SnapshotError(message)
    _, columns = snapshot.unpack(saved.columns)
    try:
        # Copy the columns, because the columns of held records are modified in place.
        shown = glue(StringColumn.of_lengths(saved.ids, columns["id_length"]))
        if quantity is None and len(shown):
            names = StringColumn.of([name.encode() for name in saved.quantities])
            shown = glue(names.take(columns["quantity"]), b"\0", shown)
    except (ValueError, KeyError, IndexError) as error:
        message = f"its rows are inconsistent: {error}"
        raise SnapshotError(message) from error
    seq, key, ts_ns, result = columns["seq"], columns["key"], columns["ts_ns"], columns["result"].view(np.float64)
    return Rows(seq, key, ts_ns, result, shown)


def _escaped(texts: list[str]) -> StringColumn:
    """Return the strings as JSON, without their quotes."""
    whole = StringColumn.of_lines(encode_lines(texts))
    return StringColumn(whole.data, whole.start + 1, whole.end - 1)
