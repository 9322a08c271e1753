"""Does the Spark operator emit exactly the certain pairs of the whole tables, for any split into micro-batches?

The expected output comes from tests/property/final_rows.py, which is independent of the code under test.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from joiner import ArgumentError
from joiner.core.frontier import NEVER
from joiner.spark.joining.reordered_join import ReorderedJoin, Rules, join_whole
from joiner.spark.rows import Side
from tests.property.final_rows import Cut, Expected, Numbered, Row, check_wakes, cuts, expected_rows

SCHEMA = pa.schema([("c0", pa.string()), ("c1", pa.int64()), ("c2", pa.int64()), ("c3", pa.int64())])
LATENESS = st.none() | st.integers(0, 8)
EXAMPLES = int(os.environ.get("LSB_PROPERTY_EXAMPLES", "200"))
"""`make mutations` tries a thousand."""


def table(rows: Sequence[Row]) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else [[], [], [], []]
    key, ts, first, number = columns
    return pa.table([[None if k is None else f"key{k}" for k in key], ts, first, number], schema=SCHEMA)


def side(name: str) -> Side:
    # Rows with equal times are ordered by the third column, then by the number, regardless of their arrival.
    return Side(name, by=(0,), time=1, order=(2, 0, 1, 3), others=(1, 3), schema=SCHEMA)


def rules(**options: Any) -> Rules:
    given_options = {
        "tolerance": None,
        "lateness": (0, 0),
        "has_watermark": (True, True),
        "direction": "both",
        "driver": "both",
        "emit_unmatched": "both",
        "buckets": 1,
    }
    return Rules(sides=(side("left"), side("right")), **(given_options | options))


RULES = st.builds(
    rules,
    tolerance=st.none() | st.integers(0, 6),
    lateness=st.tuples(LATENESS, LATENESS),
    has_watermark=st.tuples(st.booleans(), st.booleans()),
    direction=st.sampled_from(("both", "backward", "forward", "nearest")),
    driver=st.sampled_from(("both", "left", "right")),
    emit_unmatched=st.sampled_from(("both", "left", "none")),
)


def numbers(joined: pa.Table) -> list[Numbered]:
    return list(zip(joined.column(2).to_pylist(), joined.column(4).to_pylist(), strict=True))


def pairs(rows: list[Numbered]) -> list[tuple[int, int]]:
    return [(left, right) for left, right in rows if left is not None and right is not None]


def asked(how: Rules) -> dict[str, Any]:
    return {name: getattr(how, name) for name in ("tolerance", "direction", "driver", "emit_unmatched")}


@settings(max_examples=EXAMPLES)
@given(feed=cuts(2, 6, 6), how=RULES, ends=st.booleans())
def test_after_every_micro_batch_the_certain_part_has_come_out_and_nothing_else(
    feed: list[Cut], how: Rules, *, ends: bool
) -> None:
    join, found, late = ReorderedJoin(how), [], [0, 0]
    sides = [Expected(how.lateness[at], has_watermark=how.has_watermark[at]) for at in (0, 1)]
    for at, cut in enumerate(feed):
        last = ends and at == len(feed) - 1
        outcome = join.step(*map(table, cut.sides), watermark=cut.watermark, ends=last)
        for one, rows in zip(sides, cut.sides, strict=True):
            one.add(rows, cut.watermark)
        found += numbers(outcome.table)
        late = [before + now for before, now in zip(late, outcome.late, strict=True)]
        assert sorted(found, key=str) == expected_rows(sides, **asked(how), ends=last)
        assert late == [one.late for one in sides]


@given(feed=cuts(2, 6, 6), how=RULES)
def test_a_snapshot_and_restore_after_any_micro_batch_changes_nothing(feed: list[Cut], how: Rules) -> None:
    whole, parted = ReorderedJoin(how), ReorderedJoin(how)
    for cut in feed:
        given_rows = tuple(map(table, cut.sides))
        first = whole.step(*given_rows, watermark=cut.watermark)
        second = parted.step(*given_rows, watermark=cut.watermark)
        assert first.table.equals(second.table)
        assert first.late == second.late
        parted = ReorderedJoin.restore(how, parted.snapshot())


@given(feed=cuts(2, 6, 6), how=RULES, data=st.data())
def test_any_cut_and_order_of_rows_within_the_lateness_gives_the_join_of_the_whole_tables(
    feed: list[Cut], how: Rules, data: st.DataObject
) -> None:
    # No row lags by more than this, so none is late.
    how = replace(how, lateness=(40, 40), has_watermark=(True, True))
    lefts, rights = ([row for cut in feed for row in cut.sides[side]] for side in (0, 1))
    whole = numbers(join_whole(how, table(lefts), table(rights)))
    left, right = data.draw(st.permutations(lefts)), data.draw(st.permutations(rights))
    assert sorted(numbers(join_whole(how, table(left), table(right))), key=str) == sorted(whole, key=str)
    join, found = ReorderedJoin(how), []
    for _ in range(data.draw(st.integers(0, 4))):
        i, j = data.draw(st.integers(0, len(left))), data.draw(st.integers(0, len(right)))
        found += numbers(join.step(table(left[:i]), table(right[:j])).table)
        left, right = left[i:], right[j:]
    found += numbers(join.step(table(left), table(right), watermark=1_000).table)
    # Whether a row is unmatched may still be open: without a tolerance, a neighbour may still arrive.
    assert sorted(pairs(found)) == sorted(pairs(whole))
    found += numbers(join.step(ends=True).table)
    assert sorted(found, key=str) == sorted(whole, key=str)


@pytest.mark.slow
@settings(max_examples=120)
@given(feed=cuts(2, 6, 6), how=RULES)
@example(
    feed=[
        Cut([[], [Row(0, 0, 0, 1000)]], NEVER),
        Cut([[], [Row(0, 3, 0, 999)]], NEVER),
        Cut([[], [Row(0, 6, 0, 998)]], NEVER),
    ],
    how=rules(lateness=(None, 0), has_watermark=(True, False), driver="left", emit_unmatched="both"),
)
def test_no_watermark_brings_anything_forth_before_the_moment_that_was_told(feed: list[Cut], how: Rules) -> None:
    join = ReorderedJoin(how)
    for cut in feed:
        join.step(*map(table, cut.sides), watermark=cut.watermark)
    check_wakes(join, max(feed[-1].watermark, 0), 59)


def test_a_state_is_not_continued_under_other_rules() -> None:
    join = ReorderedJoin(rules(lateness=(1, 2), buckets=4))
    join.step(table([Row(0, 1, 0, 0)]))
    for changed, text in (
        ({"buckets": 8}, "buckets was 4, is now 8"),
        ({"lateness": (1, 3)}, r"lateness was \[1, 2\], is now \[1, 3\]"),
        ({"direction": "nearest"}, "direction was both, is now nearest"),
    ):
        with pytest.raises(ArgumentError, match=text):
            ReorderedJoin.restore(rules(**({"lateness": (1, 2), "buckets": 4} | changed)), join.snapshot())


def test_rows_with_other_columns_than_declared_are_refused() -> None:
    other = pa.table({"key": ["a"], "at": ["not a time"], "first": [1], "number": [1]})
    with pytest.raises(ArgumentError, match=r"left: rows have the types .*, but .* were declared"):
        ReorderedJoin(rules()).step(other)
    with pytest.raises(ArgumentError, match="right: the time 9223372036854775807 is outside"):
        ReorderedJoin(rules()).step(None, table([Row(0, 2**63 - 1, 0, 0)]))


def test_keys_that_are_done_leave_nothing_behind_and_their_numbers_mean_nothing_to_the_next_ones() -> None:
    join = ReorderedJoin(rules(tolerance=2, lateness=(None, None), emit_unmatched="none"))
    found, sizes = [], []
    for at in range(0, 400, 10):
        # Each micro-batch adds three keys. The last of them occurs again in the next micro-batch, so only the numbers
        # around it become free.
        left = [Row(at + key, at, 0, at + key) for key in (0, 1, 2)]
        right = [Row(at + key, at + 1, 0, at + key) for key in (0, 1, 2)]
        found += numbers(join.step(table([*left, Row(at - 8, at, 0, -1)]), table(right), watermark=at - 5).table)
        sizes.append(len(join.snapshot()))
    found += numbers(join.step(watermark=1_000).table)
    assert sorted(found) == [(at + key, at + key) for at in range(0, 400, 10) for key in (0, 1, 2)]
    # The last snapshots are as large as the first ones, except that larger numbers take more bytes.
    assert max(sizes[30:]) < 1.1 * max(sizes[2:10])


def test_a_watermark_that_is_not_told_again_still_holds() -> None:
    join = ReorderedJoin(rules(lateness=(None, None)))
    join.step(table([Row(0, 1, 0, 0)]), watermark=10)
    assert join.step(table([Row(0, 1, 0, 1)])).late == (1, 0)
    assert join.wakes_at() is None
