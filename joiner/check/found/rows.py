"""Reads records from Arrow messages for the check, row by row, without using the joiner's own decoder.

Only the size limits are shared with the joiner (`broker.wire.arrow.limits`), because they determine which messages
become dead letters. This module is imported only if a message is not JSON, because pyarrow is an optional dependency.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from broker.times import TIME_MAX_NS, TIME_MIN_NS, UNIT_NS
from broker.wire.arrow.limits import EXPANDED_BYTES_MAX, check_limits, with_plain_types
from broker.wire.records import NAME_LENGTH_MAX, Record, Unreadable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_NEEDED: Final = {"thing", "quantity", "phenomenonTime", "result"}
_UNITS: Final = ("s", "ms", "us", "ns")


class Row(NamedTuple):
    """A row in a message: the record (None if it is invalid), its time in ns, and its representation in a dead letter.

    ``has_id``: whether the record has an id. A record without an id is never a duplicate.
    """

    record: Record | None
    time_ns: int
    has_id: bool
    shown: bytes


def rows_of(value: bytes, offset: int, time_unit: str) -> list[Row]:
    """Return the rows in a message. Raises `Unreadable` if the message cannot be read."""
    check_limits(value)
    try:
        with pa.ipc.open_stream(with_plain_types(value)) as stream:
            _check_columns(stream.schema)
            found: list[Row] = []
            sizes: Counter[str] = Counter()
            for batch in stream:
                known = batch.select([name for name in batch.schema.names if name in {*_NEEDED, "id"}])
                known.validate(full=True)
                cells_of = enumerate(_cells(known, sizes), len(found))
                found += [_row(cells, offset, row, time_unit) for row, cells in cells_of]
    except (pa.ArrowException, OSError, ValueError) as error:
        raise error if isinstance(error, Unreadable) else Unreadable(str(error)) from error
    return found


def _check_columns(schema: Any) -> None:
    names = [name for name in schema.names if name in {*_NEEDED, "id"}]
    if len(names) != len(set(names)) or not set(names) >= _NEEDED:
        raise Unreadable("columns are missing or duplicated")
    texts = {pa.string(), pa.large_string()}
    allowed: dict[str, Callable[[Any], bool]] = {
        "phenomenonTime": lambda kind: kind == pa.int64() or _timestamp_unit(kind) is not None,
        "result": lambda kind: bool(kind == pa.float64()),
    }
    for name in names:
        kind = schema.field(name).type
        is_text = (kind.value_type if pa.types.is_dictionary(kind) else kind) in texts
        if not (allowed[name](kind) if name in allowed else is_text):
            message = f"the column {name} has the wrong type"
            raise Unreadable(message)


def _timestamp_unit(kind: Any) -> str | None:
    """Return the unit of an Arrow timestamp type that has a time zone."""
    return next((unit for unit in _UNITS if pa.types.is_timestamp(kind) and kind.tz and kind.unit == unit), None)


def _cells(batch: Any, sizes: Counter[str]) -> Iterator[dict[str, Any]]:
    """Yield each row as a dict from column name to value.

    A time is a tuple of an integer and its unit, which is None for a column of plain integers. A null time is None.
    ``sizes``: for each column of names, the number of bytes read so far from this message; updated in place. Raises
    `Unreadable` if any of these numbers exceeds the limit.
    """
    columns: dict[str, list[Any]] = {}
    for name in batch.schema.names:
        column = batch.column(name)
        if name == "phenomenonTime":
            unit = _timestamp_unit(column.type)
            times = column.cast(pa.int64()).to_pylist()
            columns[name] = [None if time is None else (time, unit) for time in times]
            continue
        columns[name] = _texts(column) if pa.types.is_dictionary(column.type) else column.to_pylist()
        if name == "result":
            continue
        bytes_of = {text: len((text or "").encode()) for text in set(columns[name])}
        sizes[name] += sum(bytes_of[text] for text in columns[name])
        if sizes[name] > EXPANDED_BYTES_MAX:
            raise Unreadable("its names are too long")
    for at in range(len(batch)):
        yield {name: cells[at] for name, cells in columns.items()}


def _texts(column: Any) -> list[str | None]:
    """Return the cells of a dictionary column. Equal cells share one object, because they may be long."""
    names = column.dictionary.to_pylist()
    return [None if at is None else names[at] for at in column.indices.to_pylist()]


def _row(cells: dict[str, Any], offset: int, row: int, time_unit: str) -> Row:
    time_ns, text = 0, None
    if cells["phenomenonTime"] is not None:
        number, unit = cells["phenomenonTime"]
        time_ns = number * UNIT_NS[unit or time_unit]
        text = _number_text(time_ns, time_unit)
    result, identity = cells["result"], cells.get("id")
    names = [cells["thing"], cells["quantity"], *([] if identity is None else [identity])]
    is_valid = (
        all(name is not None and 0 < len(name) <= NAME_LENGTH_MAX for name in names)
        and "\0" not in (cells["quantity"] or "")
        and text is not None
        and TIME_MIN_NS <= time_ns <= TIME_MAX_NS
        and result is not None
        and math.isfinite(result)
    )
    record = None
    if is_valid:
        time: Any = msgspec.Raw((text or "").encode())
        record = Record(cells["thing"], cells["quantity"], time, result, identity or f"{offset}.{row}")
    return Row(record, time_ns, identity is not None, _shown(cells, text))


def _shown(cells: dict[str, Any], time: str | None) -> bytes:
    """Return the JSON that the row's dead letter contains."""
    result = cells["result"]
    if result is not None and not math.isfinite(result):
        result = "NaN" if math.isnan(result) else "Infinity" if result > 0 else "-Infinity"
    parts = {
        "thing": json.dumps(cells["thing"], ensure_ascii=False),
        "quantity": json.dumps(cells["quantity"], ensure_ascii=False),
        "phenomenonTime": time or "null",
        "result": msgspec.json.encode(result).decode(),
    }
    if "id" in cells:
        parts["id"] = json.dumps(cells["id"], ensure_ascii=False)
    return ("{" + ",".join(f'"{name}":{part}' for name, part in parts.items()) + "}").encode()


def _number_text(time_ns: int, time_unit: str) -> str:
    """Return a time as the shortest exact decimal in ``time_unit``."""
    whole = Fraction(time_ns, UNIT_NS[time_unit])
    if whole.denominator == 1:
        return str(whole.numerator)
    # A time in ns has at most 19 digits, so Decimal's default precision of 28 is enough.
    return format(Decimal(time_ns).scaleb(-len(str(UNIT_NS[time_unit])) + 1).normalize(), "f")
