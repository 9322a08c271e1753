"""Computes the expected rows of one align in one unit, and compares the rows in the output with them.

Values in linear columns may differ by up to 1e-12 times the larger neighbour's value or the period, whichever is
larger. Where a period wraps around, values at either end are accepted. Function results may have a relative error of up
to 1e-12. All other values must match exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from broker.times import mean_text
from broker.wire.records import row_id
from joiner.check.model.aligned import Column, Grid
from joiner.check.model.expected_rows import Cell, ExpectedRow, RowKey, Rows, certain_grid_rows, certain_rows
from joiner.check.verify.pairs import is_same_time
from joiner.functions import NUMBER_KINDS, AlignedColumns, load_row_function

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from broker.wire.records import Record
    from joiner.check.found.evidence import Message
    from joiner.check.found.findings import Findings
    from joiner.check.verify.judgement import SideJudgement, UnitJudgement
    from joiner.operators import AlignSettings

ROWS: Final = "aligned rows"

_DRIVER: Final = "driver"
"""The name of the driver's side, which has a row for each of its records. All other sides are columns."""

_RELATIVE_ERROR: Final = 1e-12


class FoundRow(msgspec.Struct, frozen=True):
    """An aligned row found in the topic ``out``."""

    thing: str
    quantity: str
    phenomenonTime: msgspec.Raw  # noqa: N815 - the wire's own name
    result: float
    id: str
    values: dict[str, float | None]
    tie: str = ""


_row = msgspec.json.Decoder(FoundRow)


@dataclass(frozen=True)
class ExpectedRows:
    """An align's permitted rows in a unit (certain at C'), and which of them are required (certain at C).

    ``due``: the required rows. ``ids``: the rows, by id. ``things``: the thing of each row. ``driver``: the driver's
    records, by seq; empty with a grid. ``failed``: the rows for which the function fails.
    """

    align: AlignSettings
    rows: Rows[RowKey]
    due: frozenset[RowKey]
    ids: dict[str, RowKey]
    things: dict[RowKey, str]
    driver: Mapping[RowKey, Record]
    failed: frozenset[RowKey] = frozenset()

    def left_out(self, side: str) -> set[int]:
        """Return the positions of the side's records whose rows were left out."""
        return self.rows.left_out if side == _DRIVER else set()

    def used(self, side: str) -> set[int]:
        """Return the positions of the side's records that are in a row."""
        if side == _DRIVER:
            return {seq for seq in self.rows.rows if isinstance(seq, int)}
        return self.rows.used[list(self.align.columns).index(side)]

    def altered_result(self, row: RowKey, found: float | None, values: Mapping[str, float | None]) -> list[str]:
        """Return the difference between a row's result and the expected one, as a list that is empty if they match.

        ``values``: the values found in the row. If there is a function, it is applied to these, because interpolated
        values may differ from the expected ones by rounding, which a function may amplify.
        """
        if self.align.function is not None:
            (result,) = _apply(self, [row], [[values.get(name) for name in self.align.columns]])
            is_close = found is not None and math.isclose(found, result, rel_tol=_RELATIVE_ERROR)
            return [] if is_close else [f"result: {found!r}, expected {result!r}"]
        cells = dict(zip(self.align.columns, self.rows.rows[row].cells, strict=True))
        if self.align.result is not None:
            cell = cells[self.align.result]
            is_same, wanted = _is_same(found, cell, self.align.columns[self.align.result].period), cell.value
        else:
            is_grid = self.align.grid is not None
            wanted = sum(cell.value is not None for cell in cells.values()) if is_grid else self.driver[row].result
            is_same = found == wanted
        return [] if is_same else [f"result: {found!r}, expected {wanted!r}"]


def expect_rows(
    judgement: UnitJudgement,
    align: AlignSettings,
    sides: Sequence[SideJudgement],
    due: Rows[RowKey] | None,
    before: Rows[RowKey] | None = None,
) -> ExpectedRows:
    """Return an align's expected rows, given the records read so far.

    ``due``: the rows at C, or None if C' = C. ``before``: rows that are not expected, because they were certain when
    the unit of a replica was founded.
    """
    rows, known = rows_now(judgement, align, sides), judgement.things
    if before is not None:
        expected = {row: one for row, one in rows.rows.items() if row not in before.rows}
        rows = rows._replace(rows=expected, left_out=rows.left_out - before.left_out)
    records = {} if align.driver is None else judgement.records_of(sides[0])
    ids: dict[str, RowKey] = {}
    things: dict[RowKey, str] = {}
    for row in rows.rows:
        things[row] = records[row].thing if isinstance(row, int) else known[row[0]]
        place = judgement.position(row) if isinstance(row, int) else f"{things[row]}:{row[1]}"
        ids[row_id(align.name, judgement.unit, place)] = row
    wanted = ExpectedRows(align, rows, frozenset((due or rows).rows), ids, things, dict(records.items()))
    return wanted if align.function is None else replace(wanted, failed=_failed(wanted))


def rows_now(judgement: UnitJudgement, align: AlignSettings, sides: Sequence[SideJudgement]) -> Rows[RowKey]:
    """Return an align's certain rows, given the records read so far."""
    columns = []
    of_columns = [side for side in sides if side.side != _DRIVER]
    for side, column in zip(of_columns, align.columns.values(), strict=True):
        records = judgement.records_of(side)
        values = {seq: records[seq].result for seq in side.accepted}
        rule = Column([], values, column.rule, column.tolerance, column.period, column.on_missing, column.lateness)
        columns.append((side.judge.stream(), rule))
    found: Rows[int] | Rows[tuple[int, int]]
    if (grid := align.grid) is not None:
        found = certain_grid_rows(Grid(grid.every, grid.origin, grid.max_gap_ns), columns)
    else:
        found = certain_rows(sides[0].judge.stream(), columns)
    return Rows(dict[RowKey, ExpectedRow](found.rows.items()), found.left_out, found.used)


class RowComparison:
    """Compares the rows of one align in one unit, message by message."""

    def __init__(self, want: ExpectedRows, judgement: UnitJudgement, time_unit: str, findings: Findings) -> None:
        self._want, self._judgement, self._time_unit, self._findings = want, judgement, time_unit, findings
        self._seen: dict[RowKey, str] = {}

    def add(self, message: Message, identity: str) -> None:
        """Compare one message, whose id names the align."""
        name, seq = self._want.align.name, self._want.ids.get(identity)
        if seq is None:
            self._findings.differ("unexpected", ROWS, name, f"row {identity} at {message.place}: it is not expected")
            return
        if seq in self._want.failed:
            text = f"row {identity} at {message.place}: its function fails, so a dead letter is expected"
            self._findings.differ("unexpected", ROWS, name, text)
            return
        if seq in self._seen:
            text = f"row {identity}: at {self._seen[seq]} and again at {message.place}"
            self._findings.differ("doubled", ROWS, name, text)
        self._seen.setdefault(seq, message.place)
        if wrong := self._altered(message, seq):
            text = f"row {identity} at {message.place}: {'; '.join(wrong)}"
            self._findings.differ("altered", ROWS, name, text)

    def conclude(self) -> None:
        """Count the rows, and report any that are missing."""
        name = self._want.align.name
        tally = self._findings.tally(ROWS, name)
        for identity, seq in self._want.ids.items():
            if seq in self._want.failed:
                continue
            if seq not in self._want.due:
                tally.after += seq in self._seen
                continue
            tally.expected += 1
            if seq in self._seen:
                tally.found += 1
            else:
                place = f"driver offset {self._judgement.position(seq)}" if isinstance(seq, int) else f"tick {seq[1]}"
                self._findings.differ("missing", ROWS, name, f"row {identity} of {self._want.things[seq]}: {place}")

    def _altered(self, message: Message, seq: RowKey) -> list[str]:
        try:
            found = _row.decode(message.value or b"")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return [f"not a valid row: {error}"]
        row, thing, align = self._want.rows.rows[seq], self._want.things[seq], self._want.align
        time = mean_text(row.ts, row.ts, self._time_unit)
        wrong = [
            f"{name}: {have!r}, expected {wanted!r}"
            for name, have, wanted in (
                ("thing", found.thing, thing),
                ("Kafka key", message.key, thing.encode()),
                ("quantity", found.quantity, align.name),
                ("tie", found.tie, str(row.ordinal) if row.ordinal else ""),
            )
            if have != wanted
        ]
        if not is_same_time(bytes(found.phenomenonTime), msgspec.Raw(time.encode())):
            wrong.append(f"phenomenonTime: {bytes(found.phenomenonTime).decode()}, expected {time}")
        return (
            wrong
            + self._want.altered_result(seq, found.result, found.values)
            + altered_values(align, row, found.values)
        )


def _failed(want: ExpectedRows) -> frozenset[RowKey]:
    """Return the rows for which the align's function fails."""
    rows = list(want.rows.rows)
    results = _apply(want, rows, [[cell.value for cell in want.rows.rows[row].cells] for row in rows])
    return frozenset(row for row, result in zip(rows, results, strict=True) if not math.isfinite(result))


def _apply(want: ExpectedRows, rows: Sequence[RowKey], values: Sequence[Sequence[float | None]]) -> list[float]:
    """Call the function once for all rows with these values. If that fails, call it per row; failed rows yield NaN."""
    if not rows:
        return []
    table = np.array([[math.nan if value is None else value for value in row] for row in values], dtype=np.float64)
    columns = AlignedColumns(
        {name: table[:, at].copy() for at, name in enumerate(want.align.columns)},
        np.array([want.driver[row].result for row in rows]) if want.driver else None,
        np.array([want.rows.rows[row].ts for row in rows], dtype=np.int64),
        [want.things[row] for row in rows],
    )
    try:
        with np.errstate(all="ignore"):
            found = np.asarray(load_row_function(want.align.function or "")(columns))
        if found.dtype.kind in NUMBER_KINDS and found.shape == (len(rows),):
            results: list[float] = found.astype(np.float64).tolist()
            return results
    except (Exception, SystemExit):  # noqa: BLE001, S110 - a user's function may raise anything
        pass
    if len(rows) == 1:
        return [math.nan]
    return [result for at in range(len(rows)) for result in _apply(want, rows[at : at + 1], values[at : at + 1])]


def altered_values(align: AlignSettings, row: ExpectedRow, found: dict[str, float | None]) -> list[str]:
    """Return the differences between a row's values and the expected ones."""
    wrong = [f"values.{name}: there is no such column" for name in found if name not in align.columns]
    for (name, column), cell in zip(align.columns.items(), row.cells, strict=True):
        if name not in found:
            wrong.append(f"values.{name}: missing")
        elif not _is_same(found[name], cell, column.period):
            wrong.append(f"values.{name}: {found[name]!r}, expected {cell.value!r}")
    return wrong


def _is_same(found: float | None, cell: Cell, period: float | None) -> bool:
    want, is_interpolated = cell.value, len(cell.neighbours) > 1
    if found is None or want is None or not is_interpolated:
        return found == want
    distance, scale = abs(found - want), max(abs(one.value) for one in cell.neighbours)
    if period is not None:
        distance, scale = min(distance, abs(period - distance)), max(scale, period)
    return distance <= _RELATIVE_ERROR * scale
