"""Reads results from Arrow messages for the check, without using the joiner's own encoder or decoder.

This module is imported only if a message is not JSON, because pyarrow is an optional dependency.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa

from broker.times import UNIT_NS
from broker.wire.arrow.limits import check_limits, with_plain_types
from broker.wire.arrow.names import check_names
from broker.wire.records import Unreadable
from joiner.check.verify.pairs import FoundJoined


def results_of(value: bytes, time_unit: str) -> list[FoundJoined]:
    """Return the results in a message, without their records. Raises `Unreadable` if the message cannot be read."""
    check_limits(value)
    try:
        with pa.ipc.open_stream(with_plain_types(value)) as stream:
            table = stream.read_all()
        table.validate(full=True)
        check_names(table)
        unit = table.schema.metadata[b"unit"].decode()
        at = table.schema.get_field_index("phenomenonTime")
        if table.schema.field(at).type != pa.timestamp("ns", "UTC"):
            raise Unreadable("phenomenonTime is not a UTC timestamp in nanoseconds")
        table = table.set_column(at, "phenomenonTime", table.column(at).cast(pa.int64()))
        return [_result(cells, unit, time_unit) for cells in table.to_pylist()]
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        raise error if isinstance(error, Unreadable) else Unreadable(str(error)) from error


def _result(cells: dict[str, Any], unit: str, time_unit: str) -> FoundJoined:
    sides = [
        f"{cells[f'{side}_offset']}.{cells[f'{side}_row']}" if f"{side}_row" in cells else f"{cells[f'{side}_offset']}"
        for side in ("left", "right")
    ]
    ties = f"{cells.get('left_tie', 0)}-{cells.get('right_tie', 0)}"
    value = cells["result"] if "result" in cells else {"left": cells["left"], "right": cells["right"]}
    twice = 2 * cells["phenomenonTime"] + cells["half"]
    time = Decimal(twice * 5).scaleb(-len(str(UNIT_NS[time_unit])))
    return FoundJoined(
        cells["thing"],
        cells["quantity"],
        msgspec.Raw(format(time, "f").encode()),
        value,
        f"{cells['join']}:{unit}:{sides[0]}:{sides[1]}",
        None,
        None,
        tie="" if ties == "0-0" else ties,
    )
