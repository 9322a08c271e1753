"""Writes results to a Delta Lake table: Parquet files, and a log of transactions that says which of them count.

Each write is one transaction, which also records the position up to which each partition of the result topic has been
written (an *application transaction* of the Delta protocol). Rows before that position are left out, so a result that
is read again is not stored again, whatever the batches were. If two processes write the same partition, the second
transaction fails, and is repeated without the rows of the first.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import msgspec
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from broker.times import microsecond_of
from broker.wire.records import join_of
from db_connector.sinks.sink import (
    MisconfiguredError,
    UnavailableError,
    columns_of,
    reason_of,
    time_of,
    values_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from db_connector.settings import DeltaSettings
    from db_connector.sinks.sink import Place, Result

SCHEMA: Final = pa.schema(
    [
        pa.field("date", pa.date32(), nullable=False),
        pa.field("hour", pa.int8(), nullable=False),
        pa.field("time", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        pa.field("join_name", pa.string(), nullable=False),
        pa.field("thing", pa.string(), nullable=False),
        pa.field("quantity", pa.string(), nullable=False),
        pa.field("tie", pa.string(), nullable=False),
        pa.field("time_ns", pa.int64(), nullable=False),
        pa.field("half", pa.bool_(), nullable=False),
        pa.field("result", pa.float64()),
        pa.field("left_value", pa.float64()),
        pa.field("right_value", pa.float64()),
        pa.field("row_values", pa.map_(pa.string(), pa.float64())),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("position", pa.int64(), nullable=False),
    ]
)
"""The columns of the table. ``date`` and ``hour`` are those of ``time``, and name the folders."""

_FOLDERS: Final = ["date", "hour"]
_ATTEMPTS_MAX: Final = 10
"""How often a transaction is tried at once if others are faster. After that, it is tried again after a wait."""

_encoder: Final = msgspec.json.Encoder()


class _Row(msgspec.Struct, frozen=True, gc=False):
    """A result as a line."""

    id: str
    thing: str
    quantity: str
    tie: str
    time_ns: int
    half: bool
    values: dict[str, float]
    row_values: dict[str, float | None] | None
    partition: int
    position: int


_rows: Final = msgspec.json.Decoder(list[_Row])


class DeltaSink:
    """A Delta Lake table in a folder, or at another location that the library supports."""

    name = "Delta Lake"

    def __init__(self, delta: DeltaSettings, time_unit: str) -> None:
        """``time_unit``: the unit of the results' times. The table is created if it does not exist."""
        self._path, self._time_unit = delta.path, time_unit
        self._topic_id = ""
        self._table: DeltaTable | None = None
        self._was_open = False

    @property
    def place(self) -> str:
        """See `Sink.place`."""
        return f"the Delta Lake table at {self._path}"

    @property
    def target(self) -> str:
        """See `Sink.target`."""
        return f"table at {self._path}, rows of form 1"

    def begin(self, topic_id: str) -> None:
        """See `Sink.begin`. Positions in a topic that is created again are other positions."""
        self._topic_id = topic_id

    def encode(self, result: Result, place: Place) -> bytes:
        """Return the row of a result as a JSON object."""
        time_ns, half = time_of(result, self._time_unit)
        row = _Row(
            result.id,
            result.thing,
            result.quantity,
            result.tie,
            time_ns,
            half,
            values_of(result),
            columns_of(result),
            place.partition,
            place.position,
        )
        return _encoder.encode(row)

    def probe(self) -> None:
        """See `Sink.probe`."""
        self._open()

    def write(self, lines: Sequence[bytes]) -> None:
        """See `Sink.write`."""
        rows = _rows.decode(b"[" + b",".join(lines) + b"]")
        table = self._open()
        try:
            for attempt in range(1, _ATTEMPTS_MAX + 1):
                try:
                    self._append(table, rows)
                except CommitFailedError:
                    if attempt == _ATTEMPTS_MAX:
                        raise
                    table.update_incremental()
                else:
                    return
        except (DeltaError, OSError) as error:
            self.close()
            raise self._unavailable(error) from error

    def close(self) -> None:
        """Forget the state of the table."""
        self._table = None

    def _append(self, table: DeltaTable, rows: Sequence[_Row]) -> None:
        """Write the rows that the table does not have yet. Raises CommitFailedError if another process was faster."""
        ends = {number: table.transaction_version(self._key(number)) for number in {row.partition for row in rows}}
        more = [row for row in rows if row.position >= (ends[row.partition] or 0)]
        if not more:
            return
        new_ends = {row.partition: row.position + 1 for row in sorted(more, key=lambda row: row.position)}
        transactions = [Transaction(self._key(number), end) for number, end in new_ends.items()]
        properties = CommitProperties(app_transactions=transactions)
        write_deltalake(table, _to_arrow(more), mode="append", commit_properties=properties)
        self._sync(table)

    def _key(self, partition: int) -> str:
        """Return the name under which the table keeps the position of a partition."""
        return f"localstreambuffer/{self._topic_id}/{partition}"

    def _open(self) -> DeltaTable:
        """Return the table, and create it if it does not exist. Raises `WriteError`."""
        if self._table is None:
            try:
                if self._was_open and not DeltaTable.is_deltatable(self._path):
                    raise MisconfiguredError(
                        f"{self.place} has disappeared: restore it, or start db_connector again to create a new one"
                        " without the results so far"
                    )
                table = DeltaTable.create(self._path, schema=SCHEMA, partition_by=_FOLDERS, mode="ignore")
                # The process that wrote the newest transaction may have died before it was on the disk.
                self._sync(table)
            except (DeltaError, OSError) as error:
                raise self._unavailable(error) from error
            found = pa.schema(table.schema().to_arrow())
            if wrong := [field.name for field in SCHEMA if field not in list(found)]:
                raise MisconfiguredError(
                    f"{self.place} does not have the columns {', '.join(wrong)} as this release writes them: choose"
                    " another path with delta.path, and the table is created"
                )
            self._table, self._was_open = table, True
        return self._table

    def _sync(self, table: DeltaTable) -> None:
        """Make the newest transaction durable, which the library does not do for local files."""
        if "://" not in self._path:
            _sync(Path(self._path), table.version())

    def _unavailable(self, error: Exception) -> UnavailableError:
        return UnavailableError(f"{self.place}: {reason_of(error)}")


def _sync(table: Path, version: int) -> None:
    """Write the files of a transaction to the disk, and the folders that name them."""
    log = table / "_delta_log" / f"{version:020}.json"
    if not log.exists():  # a checkpoint has replaced it long ago
        return
    actions = [json.loads(line) for line in log.read_bytes().splitlines()]
    files = [table / unquote(action["add"]["path"]) for action in actions if "add" in action]
    folders = {parent for file in (*files, log) for parent in file.parents if parent.is_relative_to(table)}
    for path in (*files, log, *sorted(folders, reverse=True)):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _to_arrow(rows: Iterable[_Row]) -> pa.Table:
    columns: dict[str, list[Any]] = {name: [] for name in SCHEMA.names}
    for row in rows:
        time = microsecond_of(row.time_ns)
        of_row = {
            "date": time.date(),
            "hour": time.hour,
            "time": time,
            "id": row.id,
            "join_name": join_of(row.id),
            "thing": row.thing,
            "quantity": row.quantity,
            "tie": row.tie,
            "time_ns": row.time_ns,
            "half": row.half,
            "result": row.values.get("result"),
            "left_value": row.values.get("left"),
            "right_value": row.values.get("right"),
            "row_values": None if row.row_values is None else list(row.row_values.items()),
            "partition": row.partition,
            "position": row.position,
        }
        for name, value in of_row.items():
            columns[name].append(value)
    return pa.table(columns, schema=SCHEMA)
