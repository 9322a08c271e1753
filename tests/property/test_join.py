"""Does `joiner.join` give the same pairs as the stream join and as polars' as-of join, for every kind of table?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joiner import LocalStreamBuffer, join
from joiner.check.model import oracle
from joiner.check.model.oracle import Rec

RECORDS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30)), max_size=25)
TOLERANCES = st.none() | st.integers(0, 6)
DIRECTIONS = st.sampled_from(["both", "backward", "forward", "nearest"])
DRIVERS = st.sampled_from(["both", "left", "right"])


def arrays(records: list[tuple[int, int]], name: str) -> dict[str, np.ndarray]:
    table = np.array(records, dtype=np.int64).reshape(-1, 2)
    return {"key": table[:, 0].copy(), "ts": table[:, 1].copy(), name: np.arange(len(table))}


def pairs(joined: Any) -> list[tuple[int | None, int | None]]:
    """Return the pairs of row numbers, with None for a missing side."""
    columns = [joined[name] for name in ("left", "right")]
    plain = [
        column.to_list()
        if hasattr(column, "to_list")
        else column.to_pylist()
        if hasattr(column, "to_pylist")
        else np.ma.masked_array(column).tolist()
        for column in columns
    ]
    return [
        (None if pd.isna(left) else int(left), None if pd.isna(right) else int(right))
        for left, right in zip(*plain, strict=True)
    ]


@settings(max_examples=200, deadline=None)
@given(left=RECORDS, right=RECORDS, tolerance=TOLERANCES, direction=DIRECTIONS, driver=DRIVERS)
def test_the_join_of_two_tables_is_that_of_the_streams_which_bring_their_rows(
    left: list[tuple[int, int]], right: list[tuple[int, int]], tolerance: int | None, direction: str, driver: str
) -> None:
    options: dict[str, Any] = {"direction": direction, "driver": driver, "emit_unmatched": "both"}
    found = pairs(
        join(arrays(left, "left"), arrays(right, "right"), time="ts", by="key", tolerance=tolerance, **options)
    )
    buffer = LocalStreamBuffer(tolerance_ns=tolerance, lateness_ns=30, **options)
    sides = [(table["key"], table["ts"], np.arange(len(table["ts"]))) for table in map(arrays, (left, right), "lr")]
    steps = [buffer.push(left=sides[0]), buffer.push(right=sides[1]), buffer.close()]
    expected: list[tuple[int | None, int | None]] = []
    for step in steps:
        expected += zip(step.left_seq.tolist(), step.right_seq.tolist(), strict=True)
        expected += [(seq, None) for seq in step.left_unmatched_seq.tolist()]
        expected += [(None, seq) for seq in step.right_unmatched_seq.tolist()]
    assert sorted(found, key=str) == sorted(expected, key=str)


class Stream:
    """An object of which only its Arrow stream is known."""

    def __init__(self, table: dict[str, np.ndarray]) -> None:
        self._table = pa.table(table)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


def lazy(table: dict[str, np.ndarray]) -> pl.LazyFrame:
    return pl.DataFrame(table).lazy()


FRAMES: list[Any] = [pd.DataFrame, pl.DataFrame, lazy, pa.table, Stream]
"""What makes a table of each kind from a mapping of arrays."""


@settings(max_examples=50, deadline=None)
@given(left=RECORDS, right=RECORDS, unmatched=st.sampled_from(["none", "left", "both"]))
def test_every_kind_of_table_gives_the_same_rows(
    left: list[tuple[int, int]], right: list[tuple[int, int]], unmatched: str
) -> None:
    tables = arrays(left, "left"), arrays(right, "right")
    # With a second key column of the same content.
    for table in tables:
        table["name"] = np.array(["a", "b", "c"])[table["key"]]
    for by in ("key", ["key", "name"], ["name"]):
        of_arrays, *of_frames = (
            sorted(pairs(join(*map(kind, tables), time="ts", by=by, emit_unmatched=unmatched)), key=str)
            for kind in [dict, *FRAMES]
        )
        assert of_frames == [of_arrays] * len(FRAMES)


@pytest.mark.parametrize("kind", [dict, *FRAMES])
@settings(max_examples=40, deadline=None)
@given(
    left=RECORDS,
    right=RECORDS,
    tolerance=TOLERANCES,
    direction=DIRECTIONS,
    driver=DRIVERS,
    order=st.sampled_from(["key", "left", "time"]),
    has_datetimes=st.booleans(),
)
def test_on_every_kind_of_table_the_join_is_that_of_the_oracle(
    kind: Any,
    left: list[tuple[int, int]],
    right: list[tuple[int, int]],
    tolerance: int | None,
    direction: str,
    driver: str,
    order: str,
    *,
    has_datetimes: bool,
) -> None:
    tables = arrays(left, "left"), arrays(right, "right")
    if has_datetimes:
        for table in tables:
            table["ts"] = table["ts"].astype("datetime64[ms]")
    length = None if tolerance is None else f"{tolerance}ms" if has_datetimes else tolerance
    options: dict[str, Any] = {"direction": direction, "driver": driver}
    found = pairs(
        join(*map(kind, tables), time="ts", by="key", tolerance=length, order=order, emit_unmatched="both", **options)
    )
    streams = [[Rec(key, ts, seq) for seq, (key, ts) in enumerate(rows)] for rows in (left, right)]
    # No record is late.
    of_oracle: dict[str, Any] = {"lateness_ns": 30, "tolerance_ns": tolerance, "closed": True, **options}
    lefts, rights = oracle.unmatched(*streams, **of_oracle)
    expected: list[Any] = [*oracle.join(*streams, **of_oracle).pairs]
    expected += [(seq, None) for seq in lefts] + [(None, seq) for seq in rights]
    assert sorted(found, key=str) == sorted(expected, key=str)


@settings(max_examples=50, deadline=None)
@given(
    left=RECORDS,
    right=RECORDS,
    unmatched=st.sampled_from(["none", "right", "both"]),
    kinds=st.tuples(st.sampled_from(FRAMES), st.sampled_from(FRAMES)),
)
def test_tables_of_two_kinds_and_with_two_names_for_the_key_give_the_same_rows(
    left: list[tuple[int, int]], right: list[tuple[int, int]], unmatched: str, kinds: tuple[Any, Any]
) -> None:
    tables = arrays(left, "left"), arrays(right, "right")
    expected = join(*tables, time="ts", by="key", emit_unmatched=unmatched)
    renamed = {{"key": "number", "ts": "at"}.get(name, name): column for name, column in tables[1].items()}
    found = join(
        kinds[0](tables[0]),
        kinds[1](renamed),
        time=("ts", "at"),
        left_by="key",
        right_by="number",
        emit_unmatched=unmatched,
    )
    assert sorted(pairs(found), key=str) == sorted(pairs(expected), key=str)
    of_kind = {lazy: pl.DataFrame, pa.table: pa.Table, Stream: pa.Table}.get(kinds[0], kinds[0])
    assert isinstance(found, of_kind)


@pytest.mark.parametrize("direction", ["backward", "forward", "nearest"])
@settings(max_examples=50, deadline=None)
@given(left=RECORDS, right=RECORDS, tolerance=TOLERANCES)
def test_the_as_of_join_of_each_direction_is_that_of_polars(
    direction: Any, left: list[tuple[int, int]], right: list[tuple[int, int]], tolerance: int | None
) -> None:
    # No two distances are equal here. At equal distances, polars selects the next row, and the last of several rows
    # with equal times. pandas and the join select the previous row, and the nearest in the order of equal times.
    right = sorted(set(right)) if direction == "nearest" else right
    lefts = pl.DataFrame(arrays(sorted(((key, 4 * ts) for key, ts in left), key=lambda row: row[1]), "left"))
    rights = pl.DataFrame(arrays(sorted(((key, 4 * ts + 1) for key, ts in right), key=lambda row: row[1]), "right"))
    expected = lefts.join_asof(
        rights, on="ts", by="key", strategy=direction, tolerance=tolerance, check_sortedness=False
    ).drop_nulls()
    found = join(lefts, rights, time="ts", by="key", tolerance=tolerance, direction=direction, driver="left")
    assert sorted(pairs(found), key=str) == sorted(pairs(expected), key=str)


@settings(max_examples=50, deadline=None)
@given(left=RECORDS, right=RECORDS, seed=st.integers(0, 2**32 - 1))
def test_the_order_of_rows_does_not_matter_where_times_differ(
    left: list[tuple[int, int]], right: list[tuple[int, int]], seed: int
) -> None:
    draw = np.random.default_rng(seed)
    tables = [pd.DataFrame(arrays(sorted(set(rows)), name)) for rows, name in ((left, "left"), (right, "right"))]
    shuffled = [table.iloc[draw.permutation(len(table))] for table in tables]
    assert sorted(pairs(join(*tables, time="ts", by="key"))) == sorted(pairs(join(*shuffled, time="ts", by="key")))


@settings(max_examples=100, deadline=None)
@given(left=RECORDS, right=RECORDS, unmatched=st.sampled_from(["none", "left", "right", "both"]))
def test_an_order_changes_nothing_but_the_order(
    left: list[tuple[int, int]], right: list[tuple[int, int]], unmatched: str
) -> None:
    tables = arrays(left, "left"), arrays(right, "right")
    by_key, by_left, by_time = (
        pairs(join(*tables, time="ts", by="key", emit_unmatched=unmatched, order=order))
        for order in ("key", "left", "time")
    )

    def time(side: int, row: int | None, other: int | None) -> int:
        return (left, right)[side][row][1] if row is not None else (right, left)[side][other][1]  # type: ignore[index] # one is there

    def by_right(one: int | None, other: int | None) -> tuple[float, float]:
        return (-1, -1) if other is None else (right[other][1], other)

    last = len(left)
    assert by_left == sorted(
        by_key, key=lambda row: (last if row[0] is None else row[0], *(row[::-1] if row[0] is None else by_right(*row)))
    )
    assert by_time == sorted(
        by_key,
        key=lambda row: (
            time(0, *row),
            time(1, *row[::-1]),
            *(-1 if number is None else number for number in row),
        ),
    )
