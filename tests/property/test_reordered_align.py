"""Does `align` of streams emit exactly the certain rows of the whole tables, for any split into micro-batches?

tests/property/final_rows.py, which is independent of the code under test, says which rows are certain. Their values
must be those that `joiner.align` finds in the whole tables.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import joiner
from joiner import ArgumentError, ColumnRule, column
from joiner.spark.aligning.reordered_align import ReorderedAlign
from joiner.spark.aligning.rules import AlignedColumn, AlignRules
from joiner.spark.rows import Side
from tests.property.final_rows import NOT_YET, Cut, Expected, Row, certain_rows, check_wakes, cuts

SCHEMA = pa.schema(
    [("c0", pa.string()), ("c1", pa.int64()), ("c2", pa.int64()), ("c3", pa.int64()), ("c4", pa.float64())]
)
NUMBER, VALUE = 3, 4
SIDES = 3
LATENESS = st.none() | st.integers(0, 8)
EXAMPLES = int(os.environ.get("LSB_PROPERTY_EXAMPLES", "150"))
"""`make mutations` tries a thousand."""

Found = dict[int, tuple[Any, ...]]
"""Aligned rows: the values of the columns, by the number of the driver's row."""


def table(rows: Sequence[Row]) -> pa.Table:
    """Return a table of rows. Some of them have no value, or NaN."""
    columns: Any = zip(*rows, strict=True) if rows else [[], [], [], []]
    key, ts, first, number = columns
    values = [{0: None, 1: math.nan}.get(one % 6, one % 50 * 1.5) for one in number]
    return pa.table([[None if k is None else f"key{k}" for k in key], ts, first, number, values], schema=SCHEMA)


def rules(*columns: AlignedColumn, schema: pa.Schema = SCHEMA, **options: Any) -> AlignRules:
    # Rows with equal times are ordered by the third column, then by the number, regardless of their arrival.
    sides = tuple(
        Side(name, by=(0,), time=1, order=(2, 0, 1, 3, 4), others=(1, 2, 3, 4), schema=schema)
        for name in ("driver", "one", "other")
    )
    kinds = [pa.float64() if one.rule.rule == "linear" else SCHEMA.types[one.value] for one in columns]
    result = [pa.field(f"c{place}", kind) for place, kind in enumerate([*SCHEMA.types, *kinds])]
    given_options: dict[str, Any] = {"buckets": 1, "lateness": (0,) * SIDES, "has_watermark": (True,) * SIDES} | options
    keys = pa.schema([("c0", pa.string())])
    return AlignRules(sides=sides, keys=keys, columns=columns, result=pa.schema(result), **given_options)


@st.composite
def columns(draw: st.DrawFn, name: str, side: int) -> AlignedColumn:
    rule = draw(st.sampled_from(("previous", "next", "nearest", "linear")))
    found = ColumnRule(
        rule=rule,
        tolerance_ns=draw(st.none() | st.integers(0, 6)),
        period=draw(st.sampled_from((None, 7.0))) if rule == "linear" else None,
        on_missing=draw(st.sampled_from(("null", "null", "drop"))),
    )
    return AlignedColumn(name, side, draw(st.sampled_from((NUMBER, VALUE))), found)


@st.composite
def all_rules(draw: st.DrawFn) -> AlignRules:
    found = [draw(columns("a", 1)), draw(columns("b", 2))]
    if draw(st.booleans()):
        found.append(draw(columns("c", draw(st.sampled_from((1, 2))))))
    return rules(
        *found,
        lateness=draw(st.tuples(*[LATENESS] * SIDES)),
        has_watermark=draw(st.tuples(*[st.booleans()] * SIDES)),
    )


def plain(found: pa.Table) -> Found:
    """Return the rows of a result by number. A row must not be there twice."""
    rows = list(zip(*(one.to_pylist() for one in found.columns[NUMBER:]), strict=True))
    by_number = {row[0]: row[VALUE - NUMBER + 1 :] for row in rows}
    assert len(by_number) == len(rows)
    return by_number


def step(operator: ReorderedAlign, cut: Cut) -> Found:
    return plain(operator.step(*map(table, cut.sides), watermark=cut.watermark).table)


def whole(how: AlignRules, sides: Sequence[Sequence[Row]]) -> Found:
    """Return the rows that `joiner.align` finds in whole tables: the rows of each side, in any order."""
    ordered = [sorted(rows, key=lambda row: (row.ts or 0, row.first, row.number)) for rows in sides]
    there = [[row for row in rows if row.key is not None and row.ts is not None] for rows in ordered]
    tables = [table(rows) for rows in there]
    added = {
        one.name: column(
            tables[one.side],
            f"c{one.value}",
            rule=one.rule.rule,
            tolerance=one.rule.tolerance_ns,
            period=one.rule.period,
            on_missing=one.rule.on_missing,
        )
        for one in how.columns
    }
    found = plain(joiner.align(tables[0], added, time="c1", by="c0"))
    if not any(one.rule.on_missing == "drop" for one in how.columns):
        incomplete = {row.number for row in sides[0]} - {row.number for row in there[0]}
        found |= dict.fromkeys(incomplete, (None,) * len(how.columns))
    return found


@settings(max_examples=EXAMPLES)
@given(feed=cuts(SIDES, 5, 5), how=all_rules())
def test_after_every_micro_batch_the_certain_rows_have_come_out_and_nothing_else(
    feed: list[Cut], how: AlignRules
) -> None:
    operator, late = ReorderedAlign(how), [0] * SIDES
    sides = [Expected(how.lateness[at], has_watermark=how.has_watermark[at]) for at in range(SIDES)]
    relations = [(one.side, one.rule.rule, one.rule.tolerance_ns) for one in how.columns]
    found: Found = {}
    after_each: list[tuple[set[int], set[int]]] = []
    for cut in feed:
        outcome = operator.step(*map(table, cut.sides), watermark=cut.watermark)
        for one, rows in zip(sides, cut.sides, strict=True):
            one.add(rows, cut.watermark)
        new = plain(outcome.table)
        assert not new.keys() & found.keys()
        found |= new
        late = [before + now for before, now in zip(late, outcome.late, strict=True)]
        assert late == [one.late for one in sides]
        after_each.append((set(found), certain_rows(sides, relations)))
    # Rows that arrive later change nothing, so the values are those in the tables of all rows that were ever accepted.
    incomplete = [row for cut in feed for row in cut.sides[0] if row.key is None or row.ts is None]
    expected = whole(how, [[*sides[0].accepted, *incomplete], *(one.accepted for one in sides[1:])])
    for so_far, certain_now in after_each:
        assert so_far == certain_now & expected.keys()
    assert found == {number: expected[number] for number in found}


@given(feed=cuts(SIDES, 5, 5), how=all_rules())
def test_a_snapshot_and_restore_after_any_micro_batch_changes_no_row(feed: list[Cut], how: AlignRules) -> None:
    entire, parted = ReorderedAlign(how), ReorderedAlign(how)
    for cut in feed:
        first = entire.step(*map(table, cut.sides), watermark=cut.watermark)
        second = parted.step(*map(table, cut.sides), watermark=cut.watermark)
        assert str(first.table.to_pylist()) == str(second.table.to_pylist())
        assert first.late == second.late
        parted = ReorderedAlign.restore(how, parted.snapshot())


@given(feed=cuts(SIDES, 5, 5), how=all_rules(), data=st.data())
def test_any_cut_and_order_of_rows_within_the_lateness_gives_the_rows_of_the_whole_tables(
    feed: list[Cut], how: AlignRules, data: st.DataObject
) -> None:
    # No row lags by more than this, so none is late.
    how = replace(how, lateness=(40,) * SIDES, has_watermark=(True,) * SIDES)
    everything = [[row for cut in feed for row in cut.sides[side]] for side in range(SIDES)]
    at_once = step(ReorderedAlign(how), Cut(everything, 1_000))
    operator, found = ReorderedAlign(how), Found()
    rest = [data.draw(st.permutations(rows)) for rows in everything]
    for _ in range(data.draw(st.integers(0, 4))):
        ends = [data.draw(st.integers(0, len(rows))) for rows in rest]
        found |= step(operator, Cut([rows[:end] for rows, end in zip(rest, ends, strict=True)], NOT_YET))
        rest = [rows[end:] for rows, end in zip(rest, ends, strict=True)]
    found |= step(operator, Cut(rest, 1_000))
    assert found == at_once
    expected = whole(how, everything)
    assert found == {number: expected[number] for number in found}
    # Without a tolerance, a next row may still follow. All other rows are certain.
    if all(one.rule.rule == "previous" or one.rule.tolerance_ns is not None for one in how.columns):
        assert found == expected


@pytest.mark.slow
@settings(max_examples=120)
@given(feed=cuts(SIDES, 5, 5), how=all_rules())
def test_no_watermark_makes_a_row_certain_before_the_time_that_was_announced(feed: list[Cut], how: AlignRules) -> None:
    operator = ReorderedAlign(how)
    for cut in feed:
        step(operator, cut)
    check_wakes(operator, max(feed[-1].watermark, 0), 59)


@pytest.mark.parametrize(
    ("rule", "tolerance", "wakes_at", "comes_out_at"),
    [
        ("previous", None, None, 5),
        ("next", None, 10, 10),
        ("next", 3, 8, 8),
        # Four times after the row at 4, no later row can be nearer than the one at 0, and at most a tolerance later.
        ("nearest", None, 6, 8),
        ("nearest", 2, 7, 7),
        ("linear", None, 10, 10),
    ],
)
def test_a_row_that_the_watermark_has_passed_waits_for_what_its_rule_needs(
    rule: str, tolerance: int | None, wakes_at: int | None, comes_out_at: int
) -> None:
    one = AlignedColumn("a", 1, NUMBER, ColumnRule(rule=rule, tolerance_ns=tolerance))
    operator = ReorderedAlign(rules(one, replace(PREVIOUS, name="b", side=2), lateness=(None,) * SIDES))
    cut = Cut([[Row(0, 4, 0, 1)], [Row(0, 0, 0, 2), Row(0, 9, 0, 3)], []], NOT_YET)
    assert step(operator, cut) == {}
    assert operator.wakes_at() == 5
    came_out_at = None
    for watermark in range(5, 20):
        if step(operator, Cut([[], [], []], watermark)):
            came_out_at = came_out_at or watermark
        if watermark == 5:
            assert operator.wakes_at() == wakes_at
    assert came_out_at == comes_out_at
    assert operator.wakes_at() is None


PREVIOUS = AlignedColumn("a", 1, NUMBER, ColumnRule())
NEXT = AlignedColumn("b", 2, NUMBER, ColumnRule(rule="next", tolerance_ns=3))


def test_a_state_is_not_continued_under_other_columns_or_options() -> None:
    operator = ReorderedAlign(rules(PREVIOUS, NEXT, lateness=(1, 2, 3), buckets=4))
    step(operator, Cut([[Row(0, 1, 0, 0)], [], []], 0))
    wider = replace(NEXT, rule=replace(NEXT.rule, tolerance_ns=9))
    fewer = rules(PREVIOUS, lateness=(1, 2, 3), buckets=4)
    for changed, text in (
        (rules(PREVIOUS, NEXT, lateness=(1, 2, 3), buckets=8), "call to align .*: buckets was 4, is now 8"),
        (rules(PREVIOUS, NEXT, lateness=(1, 2, 5), buckets=4), "other lateness was 3, is now 5"),
        (rules(PREVIOUS, wider, lateness=(1, 2, 3), buckets=4), r"columns\['b'\] was .*: 3.* is now .*: 9"),
        (rules(PREVIOUS, lateness=(1, 2, 3), buckets=4), r"columns\['b'\] was .*, is now None"),
        (
            rules(
                PREVIOUS, NEXT, lateness=(1, 2, 3), buckets=4, schema=SCHEMA.set(1, pa.field("c1", pa.timestamp("us")))
            ),
            r"driver types was .*'int64'.*, is now .*'timestamp\[us\]'",
        ),
        (replace(fewer, sides=fewer.sides[:2]), r"columns\['b'\] was .*, is now None"),
    ):
        with pytest.raises(ArgumentError, match=text):
            ReorderedAlign.restore(changed, operator.snapshot())


def test_a_row_of_the_driver_waits_for_its_columns_alone() -> None:
    operator = ReorderedAlign(rules(PREVIOUS, NEXT, lateness=(None, 0, 0), has_watermark=(True, False, False)))
    columns = [Row(0, 5, 0, 1), Row(0, 30, 0, 2)], [Row(0, 12, 0, 3), Row(0, 30, 0, 4)]
    # The watermark of the driver has not begun, and its rows arrive after those of the columns.
    assert step(operator, Cut([[], *columns], NOT_YET)) == {}
    assert step(operator, Cut([[Row(0, 20, 0, 10), Row(0, 10, 0, 11)], [], []], NOT_YET)) == {10: (1, None), 11: (1, 3)}


def test_the_size_of_a_state_does_not_grow_with_the_number_of_micro_batches_that_brought_its_rows() -> None:
    how = rules(PREVIOUS, NEXT, lateness=(0,) * SIDES)
    # The last row of every key in the first column's frame is held.
    rows = [Row(key, 10, 0, key) for key in range(100)]
    at_once, singly = ReorderedAlign(how), ReorderedAlign(how)
    step(at_once, Cut([[], rows, []], 20))
    for row in rows:
        step(singly, Cut([[], [row], []], NOT_YET))
        singly = ReorderedAlign.restore(how, singly.snapshot())
    step(singly, Cut([[], [], []], 20))
    assert len(singly.snapshot()) <= 1.1 * len(at_once.snapshot())


def test_rows_and_keys_that_are_done_leave_nothing_behind() -> None:
    # Without a tolerance, the last row of every key would be the previous row of any later one.
    near = replace(PREVIOUS, rule=replace(PREVIOUS.rule, tolerance_ns=3))
    operator = ReorderedAlign(rules(near, NEXT, lateness=(None,) * SIDES))
    found, sizes = Found(), []
    for at in range(0, 400, 10):
        # Each micro-batch adds two keys. The last of them occurs again in the next micro-batch, so only the number of
        # the other one becomes free.
        driver = [Row(at + key, at, 0, at + key) for key in (0, 1)]
        one = [Row(at + key, at, 0, at + key) for key in (0, 1)]
        other = [Row(at + key, at + 1, 0, at + key) for key in (0, 1)]
        found |= step(operator, Cut([driver, [*one, Row(at - 9, at, 0, -1)], other], at - 5))
        sizes.append(len(operator.snapshot()))
    found |= step(operator, Cut([[], [], []], 1_000))
    assert found == {at + key: (at + key, at + key) for at in range(0, 400, 10) for key in (0, 1)}
    # The last snapshots are as large as the first ones, except that larger numbers take more bytes.
    assert max(sizes[30:]) < 1.1 * max(sizes[2:10])
