"""Reads the rows of a table: CSV, Parquet, or JSON lines.

Every cell is returned as JSON text, so that numbers keep their digits. Where the next row begins after one that cannot
be read, it has a fault instead of cells, so that a single row does not make a long recording unusable.
"""

from __future__ import annotations

import csv
import itertools
import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgspec

from broker.commandline import describe_missing
from broker.times import TIME_MAX_NS, TIME_MIN_NS, UNIT_NS, iso_text
from broker.wire.records import JSON_NUMBER
from simulator.files import short_lines
from simulator.recording import count_members

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

CSV_ENDINGS: Final = (".csv", ".tsv", ".txt")
PARQUET_ENDINGS: Final = (".parquet", ".pq")

LINE_LENGTH_MAX: Final = 1 << 20
"""The maximum length of a line in a CSV or JSON-lines file, including its end."""

_BATCH_ROWS: Final = 10_000
_BOM: Final = "\ufeff".encode()

_encode = msgspec.json.encode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class TableError(ValueError):
    """Raised if a table cannot be read. The message says where and why."""


class Row(NamedTuple):
    """A row of a table. ``cells``: JSON texts by column; empty cells are left out. ``fault``: why it is not usable."""

    number: int
    """Its position in the table, from 1."""
    cells: Mapping[str, bytes]
    fault: str = ""


class Table(Protocol):
    """An open table."""

    @property
    def columns(self) -> Sequence[str] | None:
        """The names of the columns, or None if each row has its own, as in JSON lines."""
        ...

    def rows(self, wanted: Sequence[str]) -> Iterator[Row]:
        """Yield the rows with the cells of the ``wanted`` columns. Raises TableError and OSError."""
        ...


def open_table(path: Path, separator: str) -> Table:
    """Open a table. The file name's ending says what it is: CSV, Parquet, or (any other) JSON lines.

    ``separator``: what stands between the cells of a row in CSV. Raises TableError and OSError.
    """
    ending = path.suffix.lower()
    if ending in CSV_ENDINGS:
        return _Csv(path, separator)
    return _Parquet(path) if ending in PARQUET_ENDINGS else _JsonLines(path)


class _Csv:
    """A CSV file in UTF-8 whose first row contains the names of the columns."""

    def __init__(self, path: Path, separator: str) -> None:
        self._path, self._separator = path, separator
        header = next(self._lines(), None)
        if header is None:
            message = f"{path} is empty: its first row must contain the names of the columns"
            raise TableError(message)
        self.columns = header

    def rows(self, wanted: Sequence[str]) -> Iterator[Row]:
        """See `Table`."""
        places = [(name, self.columns.index(name)) for name in wanted]
        width = len(self.columns)
        for number, texts in enumerate(itertools.islice(self._lines(), 1, None), 1):
            if len(texts) == width:
                yield Row(number, {name: _json_of(texts[place]) for name, place in places if texts[place]})
            else:
                yield Row(number, {}, f"it has {len(texts)} cells, and the header has {width}")

    def _lines(self) -> Iterator[list[str]]:
        with self._path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(short_lines(file, LINE_LENGTH_MAX), delimiter=self._separator, strict=True)
            try:
                yield from (texts for texts in reader if any(texts))
            except (csv.Error, UnicodeDecodeError) as error:
                message = f"{self._path}, after line {reader.line_num}: {error}"
                raise TableError(message) from error


class _JsonLines:
    """A file with a JSON object in each line."""

    columns = None

    def __init__(self, path: Path) -> None:
        self._path = path

    def rows(self, wanted: Sequence[str]) -> Iterator[Row]:
        """See `Table`."""
        with self._path.open("rb") as file:
            lines = (line.removeprefix(_BOM) for line in short_lines(file, LINE_LENGTH_MAX))
            for number, line in enumerate((line for line in lines if line.strip()), 1):
                try:
                    fields = _fields_of(line)
                except (ValueError, RecursionError) as error:
                    yield Row(number, {}, f"it is not a JSON object: {error}")
                    continue
                cells = {name: bytes(fields[name]) for name in wanted if name in fields}
                yield Row(number, {name: cell for name, cell in cells.items() if cell != b"null"})


class _Parquet:
    """A Parquet file. Timestamps become ISO-8601 text; without a time zone, they have no offset."""

    def __init__(self, path: Path) -> None:
        try:
            import pyarrow  # noqa: ICN001, PLC0415 - only in the extra `arrow`
            from pyarrow import parquet  # noqa: PLC0415 - see above
        except ModuleNotFoundError:
            raise TableError(describe_missing("pyarrow", "arrow")) from None
        self._path, self._arrow = path, pyarrow
        try:
            self._file = parquet.ParquetFile(path)
        except pyarrow.ArrowException as error:
            message = f"{path} is not a Parquet file: {error}"
            raise TableError(message) from error
        self.columns = self._file.schema_arrow.names

    def rows(self, wanted: Sequence[str]) -> Iterator[Row]:
        """See `Table`."""
        number = itertools.count(1)
        try:
            for batch in self._file.iter_batches(_BATCH_ROWS, columns=list(wanted)):
                columns = [self._texts(batch.column(name)) for name in wanted]
                for texts in zip(*columns, strict=True):
                    yield Row(next(number), {name: text for name, text in zip(wanted, texts, strict=True) if text})
        except (self._arrow.ArrowException, OSError, OverflowError, ValueError) as error:
            message = f"{self._path} cannot be read: {error}"
            raise TableError(message) from error

    def _texts(self, column: Any) -> list[bytes]:
        types = self._arrow.types
        if types.is_float16(column.type) or types.is_float32(column.type):
            # The shortest text that identifies the value in its own precision
            column = column.cast(self._arrow.float32()).cast(self._arrow.string())
            return [b"" if text is None else _json_of(text) for text in column.to_pylist()]
        if not types.is_timestamp(column.type):
            return [_json_of_value(value) for value in column.to_pylist()]
        unit_ns, end = UNIT_NS[column.type.unit], "" if column.type.tz is None else "Z"
        counts = column.cast(self._arrow.int64()).to_pylist()
        return [b"" if count is None else _encode(_moment(count * unit_ns, end)) for count in counts]


def _moment(time_ns: int, end: str) -> str:
    """Return a time as ISO-8601 text that ends in ``end`` instead of an offset. If it is out of range, as a number."""
    return iso_text(time_ns)[:-1] + end if TIME_MIN_NS <= time_ns <= TIME_MAX_NS else f"{time_ns} ns"


def _json_of(text: str) -> bytes:
    """Return a cell of a CSV file as JSON: numbers as they are, and everything else as a string."""
    return text.encode() if JSON_NUMBER.fullmatch(text) else _encode(text)


def _json_of_value(value: Any) -> bytes:
    """Return a value from a Parquet file as JSON, or nothing if it is missing."""
    if value is None:
        return b""
    if isinstance(value, bytes):
        return _encode(value.decode(errors="backslashreplace"))
    if isinstance(value, str | bool | int | list | dict) or (isinstance(value, float) and math.isfinite(value)):
        return _encode(value)
    return _json_of(str(value))  # decimals are numbers


def _fields_of(line: bytes) -> dict[str, msgspec.Raw]:
    """Return the members of a JSON object. Raises ValueError if it is none, or if a name is repeated."""
    fields = _decode_fields(line)
    # The decoder keeps the last of several members with the same name. Each member has a colon.
    if line.count(b":") != len(fields) and count_members(line) != len(fields):
        message = "a name is repeated"
        raise ValueError(message)
    return fields
