"""`ReorderedAlign`: aligned rows of streams whose rows arrive in micro-batches and in no particular order.

The rows of the columns' frames are passed on to an `AlignBuffer` once they are final (`joiner.spark.reordering` states
the rule and proves it correct). The driver's rows are passed on at once, because their order does not matter. A row is
therefore emitted as soon as the final rows and the frontiers of its columns make its values certain.

The values in an `AlignBuffer` are floats, while a DataFrame's may be of any type. The buffer is therefore given the
position of each row as its value, except for interpolated columns. The rows at the positions that the buffer may still
return are held here. This module does not depend on Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from joiner.alignment.buffer import AlignBuffer, AlignedRows
from joiner.alignment.driver_rows import DRIVER
from joiner.alignment.rules import ColumnRule
from joiner.core.arguments import DURATION_MAX_NS
from joiner.core.frontier import FOREVER, NEVER
from joiner.spark.reordering import NOT_PASSED_ON, Outcome, Passed, Reordering
from joiner.spark.rows import NO_ROW

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joiner.spark.aligning.rules import AlignedColumn, AlignRules

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]
    Bools = NDArray[np.bool_]

OPERATOR: Final = "align"


class ReorderedAlign:
    """The aligned rows for all keys of a bucket."""

    def __init__(self, rules: AlignRules) -> None:
        self._rules = rules
        self._rows = Reordering(rules.of_sides())
        # The driver's rows are passed on in no particular order, so only watermarks may make them late in the buffer.
        columns = {
            _stream(number): ColumnRule(rule=one.rule.rule, tolerance_ns=one.rule.tolerance_ns, period=one.rule.period)
            for number, one in enumerate(rules.columns)
        }
        self._buffer = AlignBuffer(columns, lateness_ns=DURATION_MAX_NS)
        # Columns that share a side have the same frontiers.
        self._stream_of_side = {one.side: _stream(number) for number, one in enumerate(rules.columns)} | {0: DRIVER}

    def step(self, *tables: pa.Table | None, watermark: int = NEVER) -> Outcome:
        """Process the rows of a micro-batch, then the watermark.

        ``tables``: one for each side of the rules. Rows below the frontiers of the previous step are late. Rows of the
        same micro-batch cannot make each other late, because they have no order. Raises `ArgumentError` if rows do not
        have the declared columns, or have invalid times.
        """
        passed, late = self._rows.add(tables, watermark, self._frontiers)
        columns = list(enumerate(self._rules.columns))
        found = self._buffer.push(
            driver=passed[0].records,
            columns={
                _stream(number): (passed[one.side].records, self._values(one, passed[one.side]))
                for number, one in columns
            },
            driver_watermarks=passed[0].watermarks,
            column_watermarks={_stream(number): passed[one.side].watermarks for number, one in columns},
        )
        results = [self._aligned(found), self._rules.without_values(passed[0].incomplete)]
        self._evict(found)
        return Outcome(pa.concat_tables(results), late)

    def wakes_at(self) -> int | None:
        """Return the lowest watermark that could produce output without new rows, or None if none could."""
        driver, *others = self._rows.held
        if not len(driver.time):
            return None
        # A value is certain only once the watermark has passed the row, and perhaps only once it has also passed the
        # column's next row, or the end of the tolerance.
        passed = max(self._rows.watermark, int(driver.time.min()))
        times = [driver.time, *(held.time[held.seq == NOT_PASSED_ON] for held in others)]
        for number, one in enumerate(self._rules.columns):
            tolerance = one.rule.tolerance_ns
            if one.rule.rule != "previous" and tolerance is not None:
                times.append(driver.time[driver.time <= FOREVER - tolerance] + tolerance)
            if one.rule.rule == "nearest":
                # It may be enough that the watermark is as far after the row as the column's previous row is before it.
                latest = int(driver.time.max())
                earliest = min(self._buffer.driver_rows.held_ts(_stream(number)).tolist(), default=latest)
                if latest + (latest - earliest) >= passed:
                    return passed + 1
        ahead = [int(time[time >= passed].min()) for time in times if (time >= passed).any()]
        return min(ahead) + 1 if ahead else None

    def _frontiers(self, keys: Ints) -> Sequence[Ints]:
        by_stream = self._buffer.driver_rows.frontier_ns(keys)
        return [by_stream[self._stream_of_side[side]] for side in range(len(self._rules.sides))]

    def _values(self, one: AlignedColumn, passed: Passed) -> Floats:
        """Return the values that the buffer gets for the rows passed on, shape (n,)."""
        if one.rule.rule != "linear":
            return passed.records[2].astype(np.float64)
        values = self._rows.held[one.side].table.column(one.value).take(passed.rows)
        numbers: Floats = pc.cast(values, pa.float64(), safe=False).fill_null(np.nan).to_numpy()
        return numbers

    def _aligned(self, found: AlignedRows) -> pa.Table:
        """Return the driver's rows in ``found`` with their values, except those to be dropped."""
        driver = self._rows.held[0]
        columns = driver.table.take(driver.rows_of(found.seq)).columns
        is_kept = np.ones(len(found), dtype=bool)
        for number, one in enumerate(self._rules.columns):
            stream = _stream(number)
            column, is_missing = self._column(one, found.values[stream], found.is_missing[stream])
            columns.append(column)
            if one.rule.on_missing == "drop":
                is_kept &= ~is_missing
        return pa.table(columns, schema=self._rules.result).filter(is_kept)

    def _column(self, one: AlignedColumn, values: Floats, is_missing: Bools) -> tuple[Any, Bools]:
        """Return a column of the result, and whether each of its values is missing."""
        if one.rule.rule == "linear":
            # A neighbouring row without a value also results in NaN.
            lacks = is_missing | np.isnan(values)
            return pa.array(values, mask=lacks), lacks
        held = self._rows.held[one.side]
        of_table = held.table.column(one.value)
        rows = np.full(len(values), NO_ROW)
        rows[~is_missing] = held.rows_of(values[~is_missing].astype(np.int64))
        # If the neighbouring row has no value, the result is missing. The last element stands for `NO_ROW`.
        lacks = np.append(of_table.is_null(nan_is_null=True).to_numpy(), True)[rows]
        return of_table.take(pa.array(rows, mask=lacks)), lacks

    def _evict(self, found: AlignedRows) -> None:
        """Remove rows that have been emitted, rows whose values are no longer needed, and keys without rows."""
        held, of_buffer = self._rows.held, self._buffer.driver_rows
        held[0] = held[0].only(~np.isin(held[0].seq, found.seq))
        for side in range(1, len(held)):
            needed = [
                of_buffer.held_values(_stream(number)).astype(np.int64)
                for number, one in enumerate(self._rules.columns)
                if one.side == side and one.rule.rule != "linear"
            ]
            seq = held[side].seq
            held[side] = held[side].only(np.isin(seq, np.concatenate([[NOT_PASSED_ON], *needed])))
        self._rows.forget(of_buffer.known_keys())

    def snapshot(self) -> bytes:
        """Serialize the whole state. `restore` needs the same rules to load it."""
        return self._rows.save(self._rules.fingerprint(), self._buffer.snapshot())

    @classmethod
    def restore(cls, rules: AlignRules, data: bytes) -> Self:
        """Create an align from a snapshot. Raises `ArgumentError` if the snapshot was taken with different rules."""
        restored = cls(rules)
        restored._buffer = AlignBuffer.restore(restored._rows.load(data, OPERATOR, rules.fingerprint()))
        return restored


def _stream(number: int) -> str:
    """Return the name by which the buffer knows a column."""
    return str(number)
