"""The expected output of operators whose rows have no arrival order, computed by nested loops over the final rows.

The oracle is the only project code used. A row is final once the frontier of its own side and key is above its time.
The final rows are ordered by time and content, and the frontiers follow them as watermarks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hypothesis import strategies as st

from joiner.check.model import aligned, oracle
from joiner.check.model.oracle import ALL_KEYS, Rec, Watermark

if TYPE_CHECKING:
    from joiner.spark.reordering import Reordered

NOT_YET: Final = -(2**63)
KEYS: Final = 3


class Row(NamedTuple):
    """A row: key, time, the column that orders equal times, and a number that makes the row unique."""

    key: int | None
    ts: int | None
    first: int
    number: int


class Cut(NamedTuple):
    """A micro-batch: the rows of each side, and the watermark after them."""

    sides: list[list[Row]]
    watermark: int


@st.composite
def cuts(draw: st.DrawFn, sides: int, cuts_max: int, rows_max: int) -> list[Cut]:
    """Generate micro-batches with few distinct keys and times (hence ties), in any order.

    Watermarks sometimes advance. Row numbers decrease, so that the order by content differs from the order of arrival.
    ``cuts_max``: the number of micro-batches; ``rows_max``: the number of rows of a side in each; both at most.
    """
    found: list[Cut] = []
    watermark, number = NOT_YET, 1_000
    key = st.sampled_from((*range(KEYS), *range(KEYS), None))
    # Narrower ranges give more ties.
    width = draw(st.sampled_from((1, 3, 13)))
    ts = st.sampled_from((*range(width), *range(width), None))
    for base in range(draw(st.integers(1, cuts_max))):
        drawn: list[list[Row]] = []
        for _ in range(sides):
            rows = draw(st.lists(st.tuples(key, ts, st.integers(0, 1)), max_size=rows_max))
            drawn.append(
                [Row(k, None if t is None else t + base * 3, a, number - i) for i, (k, t, a) in enumerate(rows)]
            )
            number -= len(rows)
        watermark = max(watermark, draw(st.sampled_from((NOT_YET, NOT_YET, 0, 3, 5, 7, 12, 20, 40))))
        found.append(Cut(drawn, watermark))
    return found


Numbered = tuple[int | None, int | None]
"""A row of the result: the numbers of its left and its right row."""


class Expected:
    """One side of the nested loops: its late and its accepted rows, and the frontier of each key."""

    def __init__(self, lateness: int | None, *, has_watermark: bool) -> None:
        self.accepted: list[Row] = []
        self.late = 0
        self.incomplete: set[int] = set()
        self._lateness, self._has_watermark = lateness, has_watermark
        self._watermark = NOT_YET

    def add(self, rows: list[Row], watermark: int) -> None:
        before = {row.key: self.frontier(row.key) for row in rows}
        for row in rows:
            if row.key is None or row.ts is None:
                self.incomplete.add(row.number)
            elif row.ts < before[row.key]:
                self.late += 1
            else:
                self.accepted.append(row)
        self._watermark = watermark if self._has_watermark else NOT_YET

    def frontier(self, key: int | None) -> int:
        own = [
            row.ts - self._lateness
            for row in self.accepted
            if row.key == key and row.ts is not None and self._lateness is not None
        ]
        return max([*own, self._watermark])

    def entries(self, *, ends: bool) -> list[Rec | Watermark]:
        """Return the final rows ordered by time and content, then the frontiers as watermarks."""
        final = [row for row in self.accepted if ends or (row.ts or 0) < self.frontier(row.key)]
        final.sort(key=lambda row: (row.ts, row.first, row.number))
        found: list[Rec | Watermark] = [Rec(row.key or 0, row.ts or 0, row.number) for row in final]
        found += [Watermark(key, self.frontier(key), -1) for key in range(KEYS)]
        return [*found, Watermark(ALL_KEYS, self._watermark, -1)]


def in_log_order(entries: list[Rec | Watermark]) -> tuple[list[Rec | Watermark], dict[int, int]]:
    """Return the entries with increasing positions, and the row number at each position."""
    numbered = [entry._replace(seq=at) for at, entry in enumerate(entries)]
    return numbered, {at: entry.seq for at, entry in enumerate(entries)}


def expected_rows(
    sides: list[Expected],
    *,
    tolerance: int | None = None,
    direction: str = "both",
    driver: str = "both",
    emit_unmatched: str = "none",
    ends: bool = False,
) -> list[Numbered]:
    """Return all rows that must have been emitted, sorted."""
    (left, of_left), (right, of_right) = (in_log_order(one.entries(ends=ends)) for one in sides)
    options: dict[str, Any] = {"tolerance_ns": tolerance, "direction": direction, "driver": driver}
    found: list[Numbered] = [
        (of_left[i], of_right[j]) for i, j in oracle.join(left, right, closed=ends, **options).pairs
    ]
    unmatched = oracle.unmatched(left, right, closed=ends, **options)
    if emit_unmatched in {"left", "both"}:
        found += [(number, None) for number in {of_left[i] for i in unmatched[0]} | sides[0].incomplete]
    if emit_unmatched in {"right", "both"}:
        found += [(None, number) for number in {of_right[i] for i in unmatched[1]} | sides[1].incomplete]
    return sorted(found, key=str)


def certain_rows(sides: Sequence[Expected], columns: Sequence[tuple[int, str, int | None]]) -> set[int]:
    """Return the numbers of the driver's rows whose columns are all certain, and of its rows without a key or a time.

    ``sides``: the driver, then the columns' frames. ``columns``: the side, rule and tolerance of each column.
    """
    # The order of the driver's rows does not matter, so all of them are here, not only the final ones.
    driver, numbers = in_log_order(sides[0].entries(ends=True))
    given = []
    for side, rule, tolerance in columns:
        entries, seqs = in_log_order(sides[side].entries(ends=False))
        given.append(aligned.Column(entries, dict.fromkeys(seqs, 0.0), rule, tolerance))
    found, _ = aligned.align(driver, given)
    return {numbers[seq] for seq in found} | sides[0].incomplete


def check_wakes(operator: Reordered, first: int, last: int) -> None:
    """Check that no watermark from ``first`` to ``last`` brings output before the one that the operator names.

    Of those before it, only the last one is tried, because it brings whatever an earlier one would bring.
    """
    watermark = first
    while watermark <= last:
        wakes_at = operator.wakes_at()
        if wakes_at is not None and wakes_at <= watermark:
            operator.step(watermark=watermark)
        else:
            watermark = last if wakes_at is None else min(wakes_at - 1, last)
            assert not operator.step(watermark=watermark).table.num_rows
        watermark += 1
