"""Turns the rows of a table into events, and counts what cannot be turned into an event.

An event that is made here is one that the connector accepts; docs/formats.md describes what it accepts.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from broker.times import iso_text, parse_time, with_offset
from broker.wire.records import BRACKETS_MAX, COPIES_MAX, NAME_LENGTH_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from simulator.convert.tables import Row

RESERVED: Final = frozenset({"Thing", "Timestamp", "id"})
"""The fields of an event that are not quantities."""

EVENT_BYTES_MAX: Final = 262_144
"""The maximum size of an event, as by default in the connector (`events.event_bytes_max`)."""

_SHOWN_MAX: Final = 60
_UNIT: Final = "ms"
"""The unit of numeric times in an events file, unless the services are configured otherwise."""

_DECIMAL = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>\d*)\.?(?P<fraction>(?<=\.)\d*|)(?P<exponent>(?:[eE][+-]?\d+)?)", re.ASCII
)

_encode = msgspec.json.encode
_decode_text = msgspec.json.Decoder(str).decode


class InvalidRowError(ValueError):
    """Raised if a row cannot become an event. The message says why."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a table, by what they contain.

    Each of `quantities` contains the values of one quantity. Alternatively, `value` contains all values, and `quantity`
    says of which quantity each one is. `thing` may be None if all rows belong to `thing_name`. Without a column `id`,
    an event's id consists of `table` and the number of its row. Times as text may lack an offset from UTC if
    `utc_offset` gives it; times that are numbers are in `time_unit`.
    """

    time: str
    table: str
    thing: str | None = None
    thing_name: str = ""
    id: str | None = None
    quantities: tuple[str, ...] = ()
    quantity: str | None = None
    value: str | None = None
    time_unit: str = "ms"
    utc_offset: str = ""

    def names(self) -> list[str]:
        """Return the name of each column once."""
        named = (self.time, self.thing, self.id, self.quantity, self.value, *self.quantities)
        return list(dict.fromkeys(name for name in named if name is not None))


class Conversion:
    """Turns rows into events, and counts them. `first_row`, `first_value`: the first ones left out, with the reason.

    Every row is an event, has no usable value, or is invalid. `times_ns`: the earliest and the latest event time, or
    None if there are no events.
    """

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self.rows = self.events = self.without_values = self.invalid_rows = self.invalid_values = 0
        self.first_row = self.first_value = ""
        self.times_ns: tuple[int, int] | None = None

    def event(self, row: Row) -> bytes | None:
        """Return the event of a row as JSON, or None if there is none."""
        self.rows += 1
        try:
            event = self._event(row)
        except InvalidRowError as why:
            self.invalid_rows += 1
            self.first_row = self.first_row or f"row {row.number:,}: {why}"
            return None
        if event is None:
            self.without_values += 1
        else:
            self.events += 1
        return event

    def _event(self, row: Row) -> bytes | None:
        if row.fault:
            raise InvalidRowError(row.fault)
        values = self._values(row.cells)
        if not values:
            return None
        columns, cells = self._columns, row.cells
        thing = _encode(columns.thing_name if columns.thing is None else _name(cells, columns.thing))
        event_id = _encode(f"{columns.table}-{row.number}" if columns.id is None else _name(cells, columns.id))
        timestamp, time_ns = self._time(cells)
        usable = [_encode(name) + b": " + value for name, value in self._usable(row.number, values)]
        if not usable:
            return None
        event = b'{"Thing": %b, "Timestamp": %b, %b, "id": %b}' % (thing, timestamp, b", ".join(usable), event_id)
        _check_size(event, len(usable) * (2 * len(thing) + len(event_id)))
        earliest_ns, latest_ns = self.times_ns or (time_ns, time_ns)
        self.times_ns = min(earliest_ns, time_ns), max(latest_ns, time_ns)
        return event

    def _time(self, cells: Mapping[str, bytes]) -> tuple[bytes, int]:
        """Return the time as JSON and in ns."""
        cell, unit = _cell(cells, self._columns.time), self._columns.time_unit
        try:
            if cell[:1] != b'"':
                time_ns = parse_time(cell, unit)
                return (cell if unit == _UNIT else _encode(iso_text(time_ns))), time_ns
            text = with_offset(_decode_text(cell), self._columns.utc_offset)
            time_ns = parse_time(text, unit)
        except ValueError as error:
            raise InvalidRowError(str(error)) from error
        return _encode(text), time_ns

    def _values(self, cells: Mapping[str, bytes]) -> dict[str, bytes]:
        columns = self._columns
        if columns.quantity is None or columns.value is None:
            return {name: cells[name] for name in columns.quantities if name in cells}
        if columns.value not in cells:
            return {}
        quantity = _name(cells, columns.quantity)
        if quantity in RESERVED:
            message = f"a quantity cannot be called {quantity!r}"
            raise InvalidRowError(message)
        return {quantity: cells[columns.value]}

    def _usable(self, number: int, values: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
        for name, value in values.items():
            if (number_text := _number(value)) is not None:
                yield name, number_text
                continue
            self.invalid_values += 1
            shown = value.decode(errors="replace")[:_SHOWN_MAX]
            self.first_value = self.first_value or f"row {number:,}, {name!r}: {shown} is not a finite number"


def _check_size(event: bytes, copied: int) -> None:
    """Raise InvalidRowError if the connector would refuse an event.

    `copied` is the total size of the copies of its thing and its id in its records, in bytes.
    """
    brackets = event.count(b"[") + event.count(b"{")
    if len(event) > EVENT_BYTES_MAX:
        message = f"its event would have {len(event):,} bytes, more than {EVENT_BYTES_MAX:,}"
    elif brackets > BRACKETS_MAX:
        message = f"its event would have {brackets} brackets, most of them in names, more than {BRACKETS_MAX}"
    elif copied > COPIES_MAX * len(event):
        message = "its thing and its id are too long for so many quantities"
    else:
        return
    raise InvalidRowError(message)


def _cell(cells: Mapping[str, bytes], column: str) -> bytes:
    if column not in cells:
        message = f"{column!r} is missing"
        raise InvalidRowError(message)
    return cells[column]


def _number(value: bytes) -> bytes | None:
    """Return a value as a JSON number with the same digits, or None if it is not a finite number.

    A string may contain a number in a form that JSON does not have, such as ``+1``, ``007`` or ``.5``.
    """
    if value[:1] == b'"':
        try:
            found = _DECIMAL.fullmatch(_decode_text(value).strip())
        except ValueError:
            return None
        if found is None or not (found["whole"] or found["fraction"]):
            return None
        sign, whole = "-" if found["sign"] == "-" else "", found["whole"].lstrip("0") or "0"
        value = f"{sign}{whole}{found['fraction'] and '.' + found['fraction']}{found['exponent']}".encode()
    return value if value[:1] in b"-0123456789" and math.isfinite(float(value)) else None


def _name(cells: Mapping[str, bytes], column: str) -> str:
    """Return a cell as a name. Numbers are names as well. Raises InvalidRowError."""
    cell = _cell(cells, column)
    try:
        name = _decode_text(cell) if cell[:1] == b'"' else cell.decode()
    except ValueError as error:
        message = f"{column!r} is not text: {error}"
        raise InvalidRowError(message) from error
    if cell[:1] in b"{[" or not 1 <= len(name) <= NAME_LENGTH_MAX:
        message = f"{column!r} must be text of 1 to {NAME_LENGTH_MAX} characters, not {name[:_SHOWN_MAX]!r}"
        raise InvalidRowError(message)
    return name
