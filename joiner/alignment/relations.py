"""Finds each driver record's neighbour in a column's stream, as soon as the neighbour is certain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from joiner.alignment.position_table import SEQ, PositionTable
from joiner.core.engine import LocalStreamBuffer, Step

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joiner.core.arguments import Records, Watermarks

    Ints = NDArray[np.int64]

HELD_COLUMNS: Final = 3
"""The number of columns that describe a held record: position, time in ns, and value."""

TS, VALUE = 1, 2
"""The time and value columns."""


class Input(NamedTuple):
    """The validated records and watermarks that one stream contributes to a step."""

    records: Records
    watermarks: Watermarks


class Answers(NamedTuple):
    """The driver records whose neighbour became certain in a step.

    ``seq``: the driver records that have a neighbour. ``ts``, ``value``: the neighbour's time in ns and value (the bits
    of a float64). ``missing_seq``: the driver records that have none. All are int64 arrays: the first three of shape
    (n,), ``missing_seq`` of shape (m,).
    """

    seq: Ints
    ts: Ints
    value: Ints
    missing_seq: Ints


class RelationBuffer:
    """Finds one neighbour for each driver record.

    Every accepted driver record is reported exactly once, either with its neighbour or as having none.
    """

    def __init__(self, buffer: LocalStreamBuffer, held: Ints | None = None) -> None:
        """``buffer``: see `relation_of`. ``held``: the column's records in the buffer, as returned by `save`."""
        self._buffer = buffer
        self._held = PositionTable(HELD_COLUMNS)
        if held is not None:
            self._held.append(held)

    def push(self, driver: Input, column: Input, values: Ints, *, ends: bool) -> tuple[Answers, Step]:
        """Consume the next records and watermarks. ``values``: the values of the column's records, shape (n,).

        ``ends``: whether both streams end with this input. Returns the answers, and the step of the buffer.
        """
        if len(values):
            self._held.append(np.stack([column.records.seq, column.records.ts, values]))
        step = self._buffer.step((driver.records, column.records), (driver.watermarks, column.watermarks), ends=ends)
        _, ts, value = self._held.take(self._held.find(step.right_seq))
        gone = np.concatenate((step.right_late_seq, step.right_duplicate_seq, step.right_released_seq))
        self._held.remove(self._held.find(gone))
        return Answers(step.left_seq, ts, value, step.left_unmatched_seq), step

    def held(self) -> int:
        """Return the number of the column's records currently held."""
        return len(self._held)

    def held_by_both(self, other: RelationBuffer) -> int:
        """Return the number of the column's records that another relation of the same column also holds."""
        return self._held.count_common(other._held)

    def held_of_driver(self) -> int:
        """Return the number of driver records held, including those already answered."""
        return len(self._buffer) - len(self._held)

    def held_ts(self) -> tuple[Ints, Ints]:
        """Return the positions of the column's held records, ascending, and their times in ns, shape (n,) each."""
        return self._held.column(SEQ), self._held.column(TS)

    def held_values(self) -> Ints:
        """Return the values of the column's held records, shape (n,)."""
        return self._held.column(VALUE)

    def held_records(self) -> tuple[Ints, Ints]:
        """Return the held records of the driver and the column; see `LocalStreamBuffer.held_records`."""
        return self._buffer.held_records()

    def known_keys(self) -> Ints:
        """See `LocalStreamBuffer.known_keys`."""
        return self._buffer.known_keys()

    def frontier_ns(self, keys: Ints) -> tuple[Ints, Ints]:
        """Return the frontiers of the driver and the column; see `LocalStreamBuffer.frontier_ns`."""
        return self._buffer.frontier_ns(keys)

    def driver_frontier_of_unused_ns(self) -> int:
        """Return the driver's frontier for all unused keys, in ns."""
        return self._buffer.left_frontier_of_unused_ns()

    def save(self) -> tuple[bytes, Ints]:
        """Return a snapshot of the buffer, and the column's records in it, shape (3, n)."""
        return self._buffer.snapshot(), self._held.rows()


def relation_of(
    direction: str, tolerance_ns: int | None, lateness_ns: tuple[int, int], watermark_scope: str
) -> RelationBuffer:
    """Return an empty buffer that finds the neighbour in one direction.

    ``direction``: as in `LocalStreamBuffer`, except "both". ``lateness_ns``: the lateness of the driver and the column.
    """
    buffer = LocalStreamBuffer(
        tolerance_ns=tolerance_ns,
        lateness_ns=lateness_ns,
        direction=direction,
        driver="left",
        watermark_scope=watermark_scope,
        emit_unmatched="left",
    )
    return RelationBuffer(buffer)
