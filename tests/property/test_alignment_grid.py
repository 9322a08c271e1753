"""The rows of a grid come out as the definition says, for every rule, interleaving, cut and restore."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joiner import AlignBuffer, AlignedRows, ArgumentError, ColumnRule, Grid
from joiner.alignment.rules import RULES
from joiner.check.model import aligned
from joiner.check.model.expected_rows import certain_grid_rows
from joiner.check.model.oracle import Rec, Stream, Watermark
from joiner.core.arguments import WATERMARK_SCOPES
from tests.property.interleavings import columns
from tests.property.test_alignment import column_of, is_close, judged, rules_of

Rows = dict[tuple[int, int], tuple[float | None, ...]]
"""Values by key and number of the tick."""


@dataclass(frozen=True)
class Case:
    """A grid, its columns, and how to feed them: after each cut, how many entries of each stream have been fed."""

    grid: aligned.Grid
    columns: list[aligned.Column]
    watermark_scope: str
    cuts: list[tuple[list[int], bool]]


GRIDS = st.builds(aligned.Grid, st.integers(1, 9), st.integers(-30, 30), st.none() | st.integers(0, 9))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    found = draw(st.lists(column_of(), min_size=1, max_size=3))
    sizes = [len(one.entries) for one in found]
    at, cuts = [0] * len(sizes), []
    while at != sizes:
        at = [min(one + draw(st.integers(0, 9)), size) for one, size in zip(at, sizes, strict=True)]
        cuts.append((at, draw(st.integers(0, 4)) == 0))
    return Case(draw(GRIDS), found, draw(st.sampled_from(WATERMARK_SCOPES)), cuts)


def seeded_case(seed: int) -> Case:
    """Return a case with more rows than Hypothesis draws, and with every rule in turn."""
    draw = random.Random(seed)

    def column(number: int) -> aligned.Column:
        entries: list[Rec | Watermark] = []
        drift, spread = draw.choice([1, 3]), draw.choice([1, 4, 9])
        for seq in range(draw.randint(3, 30)):
            ts, key = drift * seq + draw.randint(0, spread), draw.choice([0, 0, 1])
            is_watermark = draw.random() < 0.1
            entries.append(
                Watermark(draw.choice([-1, key]), ts, seq) if is_watermark else Rec(key, ts, seq, draw.choice("ab"))
            )
        rule = RULES[(seed + number) % len(RULES)]
        values = {entry.seq: float(draw.randint(0, 400)) for entry in entries}
        period = 360.0 if rule == "linear" and draw.random() < 0.5 else None
        tolerance_ns = draw.choice([None, draw.randint(0, 9)])
        on_missing = draw.choice(["null", "null", "null", "drop"])
        return aligned.Column(entries, values, rule, tolerance_ns, period, on_missing, draw.choice([0, 0, 3, 9]))

    found = [column(number) for number in range(draw.choice([1, 2, 3]))]
    sizes = [len(one.entries) for one in found]
    at, cuts = [0] * len(sizes), []
    while at != sizes:
        at = [min(one + draw.randint(0, 8), size) for one, size in zip(at, sizes, strict=True)]
        cuts.append((at, draw.random() < 0.3))
    grid = aligned.Grid(draw.randint(1, 7), draw.randint(-30, 30), draw.choice([None, None, draw.randint(0, 9)]))
    return Case(grid, found, draw.choice(WATERMARK_SCOPES), cuts)


def buffer_of(case: Case) -> AlignBuffer:
    every_ns, origin_ns, max_gap_ns = case.grid
    grid = Grid(every_ns=every_ns, origin_ns=origin_ns, max_gap_ns=max_gap_ns)
    return AlignBuffer(rules_of(case.columns), grid=grid, watermark_scope=case.watermark_scope)


def push(buffer: AlignBuffer, case: Case, begin: list[int], end: list[int]) -> AlignedRows:
    """Feed the entries between two cuts."""
    of_columns: dict[str, Any] = {}
    column_watermarks: dict[str, Any] = {}
    for number, one in enumerate(case.columns):
        part = list(one.entries[begin[number] : end[number]])
        of_column, of_watermarks = columns(part)
        values = np.array([one.values[entry.seq] for entry in part if isinstance(entry, Rec)], dtype=np.float64)
        if of_column is not None:
            of_columns[f"c{number}"] = of_column, values
        if of_watermarks is not None:
            column_watermarks[f"c{number}"] = of_watermarks
    return buffer.push(columns=of_columns, column_watermarks=column_watermarks)


def rows_of(found: AlignedRows, grid: aligned.Grid) -> Rows:
    """Return the rows, and check that each comes once, in order and at the time of its tick."""
    rows: Rows = {}
    order = list(zip(found.key.tolist(), found.ts_ns.tolist(), strict=True))
    assert order == sorted(order)
    for at, (key, ts) in enumerate(order):
        tick = int(found.seq[at])
        assert ts == grid.origin_ns + tick * grid.every_ns
        assert (key, tick) not in rows
        rows[key, tick] = tuple(
            None if found.is_missing[name][at] else float(found.values[name][at]) for name in found.values
        )
        assert all(math.isnan(found.values[name][at]) for name in found.values if found.is_missing[name][at])
    return rows


def assert_equal(found: Rows, wanted: Rows) -> None:
    assert found.keys() == wanted.keys()
    for tick, row in found.items():
        for value, expected in zip(row, wanted[tick], strict=True):
            assert (value is None) == (expected is None)
            assert value is None or expected is None or is_close(value, expected)


def wanted_of(case: Case, at: list[int], *, closed: bool = False) -> Rows:
    parts = [one._replace(entries=one.entries[:count]) for one, count in zip(case.columns, at, strict=True)]
    return aligned.align_grid(case.grid, parts, watermark_scope=case.watermark_scope, closed=closed)


def check_every_step(case: Case) -> None:
    buffer, out, last = buffer_of(case), Rows(), dict[int, int]()
    begin = [0] * len(case.columns)
    for end, restores in case.cuts:
        rows = rows_of(push(buffer, case, begin, end), case.grid)
        # The rows of a key are in time order across steps as well, so each comes once.
        assert all(tick > last.get(key, tick - 1) for key, tick in rows)
        last |= {key: max(tick for other, tick in rows if other == key) for key, _ in rows}
        out |= rows
        assert_equal(out, wanted_of(case, end))
        if restores:
            buffer = AlignBuffer.restore(buffer.snapshot())
        begin = end
    out |= rows_of(buffer.close(), case.grid)
    assert_equal(out, wanted_of(case, [len(one.entries) for one in case.columns], closed=True))
    assert (len(buffer), buffer.held()) == (0, 0)


@pytest.mark.parametrize("block", range(4))
def test_the_same_for_many_seeds(block: int) -> None:
    for seed in range(50 * block, 50 * (block + 1)):
        check_every_step(seeded_case(seed))


@given(cases())
def test_rows_of_a_grid_are_those_of_the_definition_after_every_step(case: Case) -> None:
    check_every_step(case)


@given(cases(), st.integers(1, 3))
def test_a_step_with_too_many_ticks_changes_nothing(case: Case, ticks_max: int) -> None:
    every_ns, origin_ns, max_gap_ns = case.grid
    grid = Grid(every_ns=every_ns, origin_ns=origin_ns, max_gap_ns=max_gap_ns, ticks_max=ticks_max)
    buffer = AlignBuffer(rules_of(case.columns), grid=grid, watermark_scope=case.watermark_scope)
    begin, out = [0] * len(case.columns), Rows()
    for end, _ in case.cuts:
        before, due = buffer.snapshot(), len(wanted_all(case, end)) - len(wanted_all(case, begin))
        if due <= ticks_max:
            out |= rows_of(push(buffer, case, begin, end), case.grid)
            assert_equal(out, wanted_of(case, end))
            begin = end
            continue
        with pytest.raises(ArgumentError, match=f"more than ticks_max = {ticks_max} ticks"):
            push(buffer, case, begin, end)
        assert buffer.snapshot() == before


def wanted_all(case: Case, at: list[int]) -> Rows:
    """Return the rows of all certain ticks, also of those that are left out because a value is missing."""
    kept = [one._replace(on_missing="null") for one in case.columns]
    return wanted_of(Case(case.grid, kept, case.watermark_scope, case.cuts), at)


@given(cases())
def test_late_and_duplicate_records_are_reported_by_column(case: Case) -> None:
    buffer, begin = buffer_of(case), [0] * len(case.columns)
    late: dict[str, list[int]] = {}
    duplicates: dict[str, list[int]] = {}
    for end, _ in case.cuts:
        found = push(buffer, case, begin, end)
        for name in found.values:
            late.setdefault(name, []).extend(found.late_seq[name].tolist())
            duplicates.setdefault(name, []).extend(found.duplicate_seq[name].tolist())
        begin = end
    for number, one in enumerate(case.columns):
        stream = Stream(one.entries, one.lateness_ns, watermark_scope=case.watermark_scope)
        assert late.get(f"c{number}", []) == [record.seq for record in stream.late]
        assert duplicates.get(f"c{number}", []) == [record.seq for record in stream.duplicates]


def records(name: str, begin: int, end: int) -> dict[str, Any]:
    """Return a column with a record every 10 ns."""
    at = np.arange(begin, end)
    return {name: ((np.zeros(len(at), np.int64), at * 10, at), at.astype(np.float64))}


@pytest.mark.parametrize("rule", RULES)
def test_records_between_two_ticks_are_released(rule: str) -> None:
    buffer = AlignBuffer({"a": ColumnRule(rule=rule), "b": ColumnRule(rule=rule)}, grid=Grid(every_ns=1_000_000))
    for begin in range(1, 20_000, 100):
        found = buffer.push(columns=records("a", begin, begin + 100) | records("b", begin, begin + 100))
        assert len(found) == 0
        assert buffer.held() <= 4


@pytest.mark.parametrize("rule", RULES)
def test_a_backlog_is_released_once_the_other_column_has_come_as_far(rule: str) -> None:
    buffer = AlignBuffer({"a": ColumnRule(rule=rule), "b": ColumnRule(rule=rule)}, grid=Grid(every_ns=25))
    for begin in range(0, 10_000, 1000):
        assert len(buffer.push(columns=records("a", begin, begin + 1000))) == 0
    assert buffer.held() == 10_000
    found = buffer.push(columns=records("b", 0, 10_000))
    assert found.seq.tolist() == list(range(10_000 * 10 // 25))
    assert buffer.held() <= 4
    # The place of the backlog has been given back; what was left is still right.
    found = buffer.push(columns=records("a", 10_000, 10_100) | records("b", 10_000, 10_100))
    assert found.seq.tolist() == list(range(10_000 * 10 // 25, 10_100 * 10 // 25))
    wanted = {"previous": found.ts_ns // 10, "next": -(-found.ts_ns // 10), "nearest": found.ts_ns // 10}
    assert found.values["b"].tolist() == wanted.get(rule, found.ts_ns / 10).tolist()


def test_of_records_at_the_time_of_a_tick_the_first_one_is_kept_for_its_next_value() -> None:
    buffer = AlignBuffer({"a": ColumnRule(rule="next"), "b": ColumnRule()}, grid=Grid(every_ns=10))
    keys, ones = np.zeros(4, np.int64), np.arange(4)
    a = (keys, np.array([5, 10, 10, 20]), ones), ones.astype(np.float64)
    b = (keys[:2], np.array([5, 11]), ones[:2]), np.zeros(2)
    assert len(buffer.push(columns={"a": a, "b": ((keys[:1], b[0][1][:1], ones[:1]), b[1][:1])})) == 0
    found = buffer.push(columns={"b": ((keys[1:2], b[0][1][1:], ones[1:2]), b[1][1:])})
    assert found.values["a"].tolist() == [1.0]


@given(cases())
def test_the_rows_that_the_tester_expects_are_those_of_the_definition(case: Case) -> None:
    columns_of = [(judged(list(one.entries), one.lateness_ns, case.watermark_scope), one) for one in case.columns]
    found = certain_grid_rows(case.grid, columns_of)
    wanted = wanted_of(case, [len(one.entries) for one in case.columns])
    assert {tick: tuple(cell.value for cell in row.cells) for tick, row in found.rows.items()} == wanted
    assert all(row.ts == case.grid.origin_ns + tick * case.grid.every_ns for (_, tick), row in found.rows.items())
    assert not found.left_out


@pytest.mark.parametrize("seed", range(60))
def test_the_ticks_that_wait_are_those_that_have_rows_once_the_streams_end(seed: int) -> None:
    case = seeded_case(seed)
    # A row that is left out is no longer waiting.
    whole = replace(case, columns=[one._replace(on_missing="null") for one in case.columns])
    buffer, begin = buffer_of(case), [0] * len(case.columns)
    for end, restores in case.cuts:
        push(buffer, case, begin, end)
        if restores:
            buffer = AlignBuffer.restore(buffer.snapshot())
        waiting = wanted_of(whole, end, closed=True).keys() - wanted_of(whole, end).keys()
        by_key = buffer.grid_rows.waiting_by_key()
        assert {int(key): int(by_key[key]) for key in by_key.nonzero()[0]} == Counter(key for key, _ in waiting)
        held, records = buffer.grid_rows.held_by_stream(), buffer.grid_rows.held_records()
        assert sum(held.values()) == buffer.held() == sum(rows.shape[1] for rows in records.values())
        assert {name: len(buffer.grid_rows.held_ts(name)) for name in held} == held
        begin = end
    assert begin == [len(one.entries) for one in case.columns]
