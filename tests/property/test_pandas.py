"""Compares the join with `pandas.merge_asof`, in all of its directions."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joiner import LocalStreamBuffer

PAIRS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30)), max_size=25)
TOLERANCES = st.none() | st.integers(0, 6)


def columns(records: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return keys, times and positions ordered by time, so that no record is late."""
    records = sorted(records, key=lambda record: record[1])
    table = np.array(records, dtype=np.int64).reshape(-1, 2)
    return table[:, 0].copy(), table[:, 1].copy(), np.arange(len(table))


def joined(left: tuple[np.ndarray, ...], right: tuple[np.ndarray, ...], **options: object) -> set[tuple[int, int]]:
    buffer = LocalStreamBuffer(**options)  # type: ignore[arg-type] # mixed types
    steps = [buffer.push(left=left, right=right), buffer.close()]
    return {pair for step in steps for pair in zip(step.left_seq.tolist(), step.right_seq.tolist(), strict=True)}


def as_of(
    own: tuple[np.ndarray, ...], other: tuple[np.ndarray, ...], direction: str, tolerance_ns: int | None
) -> set[tuple[int, int]]:
    """Return the positions of each record and of its neighbour according to pandas."""
    one, two = (
        pd.DataFrame(dict(zip(("key", "ts", name), side, strict=True)))
        for name, side in (("own", own), ("other", other))
    )
    found = pd.merge_asof(one, two, on="ts", by="key", direction=direction, tolerance=tolerance_ns).dropna()
    return {(int(own), int(other)) for own, other in zip(found["own"], found["other"], strict=True)}


@pytest.mark.parametrize("direction", ["backward", "forward", "nearest"])
@settings(max_examples=100, deadline=None)
@given(left=PAIRS, right=PAIRS, tolerance_ns=TOLERANCES)
def test_each_direction_is_that_of_pandas(
    direction: str, left: list[tuple[int, int]], right: list[tuple[int, int]], tolerance_ns: int | None
) -> None:
    lefts, rights = columns(left), columns(right)
    of_left = as_of(lefts, rights, direction, tolerance_ns)
    of_right = {(left, right) for right, left in as_of(rights, lefts, direction, tolerance_ns)}
    for driver, expected in (("left", of_left), ("right", of_right), ("both", of_left | of_right)):
        found = joined(lefts, rights, direction=direction, driver=driver, tolerance_ns=tolerance_ns)
        assert found == expected, driver


@settings(max_examples=100, deadline=None)
@given(left=PAIRS, right=PAIRS)
def test_the_join_is_the_union_of_four_as_of_joins(left: list[tuple[int, int]], right: list[tuple[int, int]]) -> None:
    lefts, rights = columns(left), columns(right)
    expected = {
        *as_of(lefts, rights, "backward", None),
        *as_of(lefts, rights, "forward", None),
        *((left, right) for right, left in as_of(rights, lefts, "backward", None)),
        *((left, right) for right, left in as_of(rights, lefts, "forward", None)),
    }
    assert joined(lefts, rights) == expected
