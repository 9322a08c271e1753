"""`ReorderedJoin`: the neighbour join of rows that arrive in micro-batches and in no particular order.

Rows are passed on to a `LocalStreamBuffer` once they are final (`joiner.spark.reordering` states the rule and proves
it correct). This module does not depend on Spark.

The price is latency. A pair is emitted only once *both* of its rows are final, whereas the join of Kafka records emits
it as soon as it is certain that one record is a neighbour of the other.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import pyarrow as pa

from joiner.core.engine import LocalStreamBuffer, Step
from joiner.core.frontier import NEVER
from joiner.spark import rows as arrow
from joiner.spark.reordering import Outcome, Reordering, SideRules
from joiner.spark.rows import NO_ROW, Side

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

OPERATOR: Final = "neighbour_join"

_OPTIONS: Final = ("tolerance", "lateness", "has_watermark", "direction", "driver", "emit_unmatched", "buckets")


@dataclass(frozen=True)
class Rules:
    """The options of a join. Durations are in microseconds, or in the unit of the times if these are integers.

    Two options are given for each side. ``lateness``: None if only the watermark advances the side's frontier.
    ``has_watermark``: whether the watermark advances the side's frontier. ``buckets`` is stored with the state, so that
    a change of the number is detected.
    """

    sides: tuple[Side, Side]
    tolerance: int | None
    lateness: tuple[int | None, int | None]
    has_watermark: tuple[bool, bool]
    direction: str
    driver: str
    emit_unmatched: str

    buckets: int

    def buffer(self) -> LocalStreamBuffer:
        """Create an empty buffer for these options. Its input must be in order, with the frontiers as watermarks."""
        return LocalStreamBuffer(
            tolerance_ns=self.tolerance,
            direction=self.direction,
            driver=self.driver,
            emit_unmatched=self.emit_unmatched,
        )

    def emits_unmatched(self, side: int) -> bool:
        """Return whether unmatched rows from one side (0 left, 1 right) are emitted."""
        return self.emit_unmatched in {"both", self.sides[side].name}

    def fingerprint(self) -> dict[str, Any]:
        """Return the options that must not change while a stored state is in use, as JSON values by name.

        Columns are identified by their positions.
        """
        named = {field: getattr(self, field) for field in _OPTIONS}
        for side in self.sides:
            named |= {f"{side.name} {what}": getattr(side, what) for what in ("by", "time", "order", "others")}
        plain: dict[str, Any] = json.loads(json.dumps(named))
        return plain

    def of_sides(self) -> SideRules:
        """Return how the rows of each side become final."""
        # The keys of both sides have the same types.
        keys = arrow.keys_of(self.sides[0].schema.empty_table(), self.sides[0]).schema
        return SideRules(self.sides, keys, self.lateness, self.has_watermark, keeps_order=(True, True))


class ReorderedJoin:
    """The neighbour join for all keys of a bucket."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._buffer = rules.buffer()
        self._rows = Reordering(rules.of_sides())

    def step(self, *tables: pa.Table | None, watermark: int = NEVER, ends: bool = False) -> Outcome:
        """Process the rows of a micro-batch, then the watermark. ``ends``: whether both streams have ended.

        ``tables``: left and right. Rows below the frontiers of the previous step are late. Rows of the same micro-batch
        cannot make each other late, because they have no order. Raises `ArgumentError` if rows do not have the declared
        columns, or have invalid times.
        """
        (left, right), late = self._rows.add(tables, watermark, self._buffer.frontier_ns, ends=ends)
        records: dict[str, Any] = {"left": left.records, "right": right.records}
        if ends:
            step = self._buffer.close(**records)
        else:
            step = self._buffer.push(**records, left_watermarks=left.watermarks, right_watermarks=right.watermarks)
        results = [self._joined(step), self._incomplete([left.incomplete, right.incomplete])]
        self._evict(step)
        return Outcome(pa.concat_tables(results), late)

    def wakes_at(self) -> int | None:
        """Return the lowest watermark that could produce output without new rows, or None if none could."""
        rules = self._rules
        time = np.concatenate([held.time for held in self._rows.held])
        if not len(time):
            return None
        if rules.direction == "nearest" or (rules.tolerance is not None and rules.emit_unmatched != "none"):
            # Output may also be due when the watermark is between the times of two rows, or beyond the last one.
            reach = (rules.tolerance or 0) + (int(time.max() - time.min()) if rules.direction == "nearest" else 0)
            return self._rows.watermark + 1 if int(time.max()) + reach >= self._rows.watermark else None
        ahead = time[time >= self._rows.watermark]
        if not len(ahead):
            return None
        if rules.emit_unmatched != "none":
            # A row becomes unmatched once the other side has reached the next row on the unmatched row's side. That row
            # is then the neighbour instead.
            return max(int(ahead.min()), self._rows.watermark + 1)
        return int(ahead.min()) + 1

    def _joined(self, step: Step) -> pa.Table:
        left, right = self._rows.held
        of_left, of_right = left.rows_of(step.left_unmatched_seq), right.rows_of(step.right_unmatched_seq)
        return arrow.beside(
            (left.table, right.table),
            self._rules.sides,
            np.concatenate([left.rows_of(step.left_seq), of_left, np.full_like(of_right, NO_ROW)]),
            np.concatenate([right.rows_of(step.right_seq), np.full_like(of_left, NO_ROW), of_right]),
        )

    def _incomplete(self, tables: list[pa.Table]) -> pa.Table:
        """Return the rows without a key or a time, for each side whose unmatched rows are emitted."""
        left, right = (
            np.arange(table.num_rows if self._rules.emits_unmatched(at) else 0) for at, table in enumerate(tables)
        )
        no_rows = np.full_like(left, NO_ROW), np.full_like(right, NO_ROW)
        rows = np.concatenate([left, no_rows[1]]), np.concatenate([no_rows[0], right])
        return arrow.beside((tables[0], tables[1]), self._rules.sides, *rows)

    def _evict(self, step: Step) -> None:
        """Remove rows that the buffer has released, and keys no longer used by the buffer or a held row."""
        held = self._rows.held
        for at, released in enumerate((step.left_released_seq, step.right_released_seq)):
            if len(released):
                held[at] = held[at].only(~np.isin(held[at].seq, released))
        self._rows.forget(self._buffer.known_keys())

    def snapshot(self) -> bytes:
        """Serialize the whole state. `restore` needs the same rules to load it."""
        return self._rows.save(self._rules.fingerprint(), self._buffer.snapshot())

    @classmethod
    def restore(cls, rules: Rules, data: bytes) -> Self:
        """Create a join from a snapshot. Raises `ArgumentError` if the snapshot was taken with different rules."""
        join = cls(rules)
        join._buffer = LocalStreamBuffer.restore(join._rows.load(data, OPERATOR, rules.fingerprint()))
        return join


def join_whole(rules: Rules, left: pa.Table, right: pa.Table) -> pa.Table:
    """Join two complete tables. The columns of the result are named by position (``c0``, ``c1``, …).

    Raises `ArgumentError` as `ReorderedJoin.step` does.
    """
    return ReorderedJoin(rules).step(left, right, ends=True).table
