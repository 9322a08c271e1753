"""Computes the expected rows of one align in one unit, and compares the rows in the output with them.

Values in linear columns may differ by 1e-12 of the larger neighbour, or of the period. Where a period wraps around,
values at either end are accepted. All other values must match exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from broker.times import mean_text
from broker.wire.records import row_id
from joiner.check.model.aligned import Column
from joiner.check.model.expected_rows import Cell, ExpectedRow, Rows, certain_rows
from joiner.check.verify.pairs import is_same_time

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    """An aligned row in the topic ``out``."""

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

    ``due``: the required rows, by seq. ``ids``: each row's seq, by its id. ``driver``: the driver's records, by seq.
    """

    align: AlignSettings
    rows: Rows
    due: frozenset[int]
    ids: dict[str, int]
    driver: dict[int, Record]

    def left_out(self, side: str) -> set[int]:
        """Return the positions of the side's records whose rows were left out."""
        return self.rows.left_out if side == _DRIVER else set()

    def used(self, side: str) -> set[int]:
        """Return the positions of the side's records that are in a row."""
        return set(self.rows.rows) if side == _DRIVER else self.rows.used[list(self.align.columns).index(side)]


def expect_rows(
    judgement: UnitJudgement, align: AlignSettings, sides: Sequence[SideJudgement], due: Rows | None
) -> ExpectedRows:
    """Return an align's expected rows, given the records read so far. ``due``: the rows at C, or None if C' = C."""
    rows = rows_now(judgement, align, sides)
    return ExpectedRows(
        align,
        rows,
        frozenset((due or rows).rows),
        {row_id(align.name, judgement.unit, judgement.position(seq)): seq for seq in rows.rows},
        judgement.records[sides[0].topic],
    )


def rows_now(judgement: UnitJudgement, align: AlignSettings, sides: Sequence[SideJudgement]) -> Rows:
    """Return an align's certain rows, given the records read so far."""
    columns = []
    for side, column in zip(sides[1:], align.columns.values(), strict=True):
        records = judgement.records[side.topic]
        values = {seq: records[seq].result for seq in side.accepted}
        rule = Column([], values, column.rule, column.tolerance, column.period, column.on_missing, column.lateness)
        columns.append((side.judge.stream(), rule))
    return certain_rows(sides[0].judge.stream(), columns)


class RowComparison:
    """Compares the rows of one align in one unit, message by message."""

    def __init__(self, want: ExpectedRows, judgement: UnitJudgement, time_unit: str, findings: Findings) -> None:
        self._want, self._judgement, self._time_unit, self._findings = want, judgement, time_unit, findings
        self._seen: dict[int, str] = {}

    def add(self, message: Message, identity: str) -> None:
        """Compare one message, whose id names the align."""
        name, seq = self._want.align.name, self._want.ids.get(identity)
        if seq is None:
            self._findings.differ("unexpected", ROWS, name, f"row {identity} at {message.place}: it is not expected")
            return
        if seq in self._seen:
            text = f"row {identity}: at {self._seen[seq]} and again at {message.place}"
            self._findings.differ("doubled", ROWS, name, text)
        self._seen.setdefault(seq, message.place)
        if wrong := self._altered(message, seq):
            text = f"row {identity} at {message.place}: {'; '.join(wrong)}"
            self._findings.differ("altered", ROWS, name, text)

    def conclude(self) -> None:
        """Count the rows, and report those that are missing."""
        name = self._want.align.name
        tally = self._findings.tally(ROWS, name)
        for identity, seq in self._want.ids.items():
            if seq not in self._want.due:
                tally.after += seq in self._seen
                continue
            tally.expected += 1
            if seq in self._seen:
                tally.found += 1
            else:
                text = (
                    f"row {identity} of {self._want.driver[seq].thing}: driver offset {self._judgement.position(seq)}"
                )
                self._findings.differ("missing", ROWS, name, text)

    def _altered(self, message: Message, seq: int) -> list[str]:
        try:
            found = _row.decode(message.value or b"")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return [f"not a valid row: {error}"]
        row, driver, align = self._want.rows.rows[seq], self._want.driver[seq], self._want.align
        time = mean_text(row.ts, row.ts, self._time_unit)
        wrong = [
            f"{name}: {have!r}, expected {wanted!r}"
            for name, have, wanted in (
                ("thing", found.thing, driver.thing),
                ("Kafka key", message.key, driver.thing.encode()),
                ("quantity", found.quantity, align.name),
                ("result", found.result, driver.result),
                ("tie", found.tie, str(row.ordinal) if row.ordinal else ""),
            )
            if have != wanted
        ]
        if not is_same_time(bytes(found.phenomenonTime), msgspec.Raw(time.encode())):
            wrong.append(f"phenomenonTime: {bytes(found.phenomenonTime).decode()}, expected {time}")
        return wrong + altered_values(align, row, found.values)


def altered_values(align: AlignSettings, row: ExpectedRow, found: dict[str, float | None]) -> list[str]:
    """Return the differences between the values of a row and the expected ones."""
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
