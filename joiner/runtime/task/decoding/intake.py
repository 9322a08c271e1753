"""What messages are decoded into: columns for each stream of each operator, dead letters, and counts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from broker.wire.columns import StringColumn
from broker.wire.records import Record, Rejected, Side, encode_lines
from joiner.runtime.task.decoding.messages import int64
from joiner.runtime.task.payloads import Rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

LEFT: Final = 0
RIGHT: Final = 1

_NO_ROWS: Final = Rows.room(0)


class Records(NamedTuple):
    """n records of one topic: offsets, times in ns, things, quantities, ids, values, and the JSON for results."""

    seq: Ints
    ts_ns: Ints
    thing: StringColumn
    quantity: StringColumn
    id: StringColumn
    result: NDArray[np.float64]
    shown: StringColumn

    def take(self, which: Ints) -> Records:
        """Return the records at these indices."""
        return Records._make(column.take(which) for column in self)


@dataclass
class SideInput:
    """A batch for one side, in log order: the records with hashes of their ids, and the watermarks.

    ``mixed``: whether the side selects any quantity, so that an event may yield several records with the same id.
    """

    mixed: bool = False
    parts: list[Rows] = field(default_factory=list)
    identities: list[Ints] = field(default_factory=list)
    watermark_key: list[int] = field(default_factory=list)
    watermark_ts_ns: list[int] = field(default_factory=list)
    watermark_seq: list[int] = field(default_factory=list)

    def rows(self) -> Rows:
        """Return all records."""
        if not self.parts:
            return _NO_ROWS
        if len(self.parts) > 1:
            self.parts = [Rows.concat(self.parts)]
        return self.parts[0]

    def columns(self) -> tuple[Ints, Ints, Ints, Ints] | None:
        """Return the records' keys, times, positions and identities for the engine, or None if there are none."""
        if not self.parts:
            return None
        rows = self.rows()
        return rows.key, rows.ts_ns, rows.seq, np.concatenate(self.identities)

    def watermarks(self) -> tuple[Ints, Ints, Ints] | None:
        """Return the keys, times and positions of the watermarks, or None if there are none."""
        if not self.watermark_key:
            return None
        return int64(self.watermark_key), int64(self.watermark_ts_ns), int64(self.watermark_seq)


@dataclass
class Intake:
    """A decoded batch: the input for each stream (by operator number and stream number), dead letters, and counts.

    ``records``: the number of records, watermarks and unreadable messages.
    """

    sides: dict[tuple[int, int], SideInput] = field(default_factory=dict)
    rejected: list[Rejected] = field(default_factory=list)
    records: int = 0
    not_selected: int = 0
    watermarks: int = 0


def records_of(seq: Ints, ts_ns: Ints, records: Sequence[Record]) -> Records:
    """Convert records that were decoded as objects to columns."""
    sides = [Side(one.quantity, one.phenomenonTime, one.result, one.id) for one in records]
    things, quantities, ids = (
        StringColumn.of([text.encode() for text in texts])
        for texts in zip(*((one.thing, one.quantity, one.id) for one in records), strict=True)
    )
    result = np.array([one.result for one in records], dtype=np.float64)
    return Records(seq, ts_ns, things, quantities, ids, result, StringColumn.of_lines(encode_lines(sides)))
