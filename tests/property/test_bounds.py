"""No result comes out that is older than the bound of its key, for any option, interleaving, batch and restore."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from joiner import ALL_KEYS, AlignBuffer, ColumnRule, LocalStreamBuffer
from joiner.alignment.buffer import AlignedRows
from joiner.check.model import oracle
from joiner.check.model.oracle import Rec, Watermark
from joiner.core.frontier import NEVER
from tests.property import test_alignment as of_driver
from tests.property import test_alignment_grid as of_grid
from tests.property.interleavings import Feed, Options, feeds, options, pairs, push, seeded
from tests.property.test_engine import SEEDS, everywhere, note_seed

KEYS = np.arange(4)
"""More keys than the streams have, so that the last one is never used."""

AFTER = 10**6
"""A position behind those of every stream."""

Entries = list[Rec | Watermark]


def bounds_of(buffer: LocalStreamBuffer | AlignBuffer) -> list[int]:
    """Return the bounds of the keys, and last that of a key that was never used."""
    bounds, of_unused = buffer.bounds_ns(KEYS)
    return [*bounds.tolist(), of_unused]


def check_rise(before: list[int], now: list[int]) -> None:
    assert all(one <= other for one, other in zip(before, now, strict=True)), "a bound went back"
    assert now[-1] == now[KEYS[-1]]


def check_bounds(feed: Feed, chosen: Options) -> None:
    buffer = LocalStreamBuffer(**dataclasses.asdict(chosen))
    left, right = ({entry.seq: entry for entry in entries} for entries in (feed.left, feed.right))
    bounds, before = bounds_of(buffer), (0, 0)
    for left_at, right_at, restart in feed.cuts:
        step = push(buffer, feed.left[before[0] : left_at], feed.right[before[1] : right_at])
        before = (left_at, right_at)
        for left_seq, right_seq in pairs(step):
            one, other = left[left_seq], right[right_seq]
            assert one.ts + other.ts >= 2 * bounds[one.key]
        now = bounds_of(buffer)
        check_rise(bounds, now)
        bounds = now
        if restart:
            buffer = LocalStreamBuffer.restore(buffer.snapshot())
            assert bounds_of(buffer) == bounds


@everywhere
@given(feeds(), options())
def test_no_pair_is_older_than_the_bound_of_its_key(feed: Feed, chosen: Options) -> None:
    check_bounds(feed, chosen)


@pytest.mark.parametrize("block", range(8))
def test_the_same_for_thousands_of_seeds(block: int) -> None:
    for seed in range(block * SEEDS, (block + 1) * SEEDS):
        with note_seed(seed):
            check_bounds(*seeded(seed))


def oldest_possible(left: Entries, right: Entries, buffer: LocalStreamBuffer, chosen: Options) -> int | None:
    """Return the mean time, rounded down, of the oldest pair of key 0 that up to one more record a side can bring."""
    given, of_options = (left, right), dataclasses.asdict(chosen)
    done = oracle.join(left, right, **of_options).pairs
    frontiers = [int(of_side[0]) for of_side in buffer.frontier_ns(KEYS[:1])]
    times = {entry.ts for entry in left + right} | {ts + more for ts in frontiers for more in (0, 1)}
    lefts, rights = ([[], *([Rec(0, ts, AFTER)] for ts in sorted(times) if ts >= frontier)] for frontier in frontiers)
    sums = []
    for more_left in lefts:
        for more_right in rights:
            sides = given[0] + more_left, given[1] + more_right
            found = [{entry.seq: entry for entry in entries} for entries in sides]
            for left_seq, right_seq in oracle.join(*sides, closed=True, **of_options).pairs - done:
                one, other = found[0][left_seq], found[1][right_seq]
                sums += [one.ts + other.ts] if one.key == 0 else []
    return min(sums) // 2 if sums else None


def test_some_continuation_of_the_streams_attains_the_bound() -> None:
    """A bound that is too low would hold up the reader of the results for nothing."""
    attained = 0
    for seed in range(40):
        feed, chosen = seeded(seed)
        buffer, before = LocalStreamBuffer(**dataclasses.asdict(chosen)), (0, 0)
        for number, (left_at, right_at, _) in enumerate(feed.cuts):
            push(buffer, feed.left[before[0] : left_at], feed.right[before[1] : right_at])
            before = (left_at, right_at)
            bound = bounds_of(buffer)[0]
            if number % 4 or bound == NEVER:
                continue
            with note_seed(seed):
                oldest = oldest_possible(feed.left[:left_at], feed.right[:right_at], buffer, chosen)
                assert oldest is None or oldest >= bound
                # With a tolerance or for the nearest neighbour, the oldest pair may be a little later.
                if oldest is not None and chosen.tolerance_ns is None and chosen.direction != "nearest":
                    assert oldest == bound
                    attained += 1
    assert attained > 30


def check_rows(buffer: AlignBuffer, case: Any, begin: list[int], push_rows: Callable[..., AlignedRows]) -> None:
    """Check the rows of a case of `of_driver` or `of_grid`. ``begin``: a zero for each stream."""
    bounds = bounds_of(buffer)
    for end, restores in case.cuts:
        found = push_rows(buffer, case, begin, end)
        assert all(ts >= bounds[key] for key, ts in zip(found.key.tolist(), found.ts_ns.tolist(), strict=True))
        now, begin = bounds_of(buffer), end
        check_rise(bounds, now)
        bounds = now
        if restores:
            buffer = AlignBuffer.restore(buffer.snapshot())
            assert bounds_of(buffer) == bounds


@pytest.mark.parametrize("block", range(4))
def test_no_row_of_a_driver_is_older_than_the_bound_of_its_key(block: int) -> None:
    for seed in range(25 * block, 25 * (block + 1)):
        case = of_driver.seeded_case(seed)
        check_rows(of_driver.buffer_of(case), case, [0] * (1 + len(case.columns)), of_driver.push)


@pytest.mark.parametrize("block", range(4))
def test_no_row_of_a_grid_is_older_than_the_bound_of_its_key(block: int) -> None:
    for seed in range(50 * block, 50 * (block + 1)):
        case = of_grid.seeded_case(seed)
        check_rows(of_grid.buffer_of(case), case, [0] * len(case.columns), of_grid.push)


def test_the_bound_of_an_align_is_its_oldest_waiting_row_or_the_frontier_of_its_driver() -> None:
    def column(*values: int) -> np.ndarray:
        return np.array(values, dtype=np.int64)

    buffer = AlignBuffer({"speed": ColumnRule()})
    buffer.push(driver=(column(0, 0), column(10, 20), column(0, 1)))
    assert bounds_of(buffer)[0] == 10
    speeds = (column(0), column(11), column(0)), np.array([1.0])
    assert buffer.push(columns={"speed": speeds}).ts_ns.tolist() == [10]
    assert bounds_of(buffer)[0] == 20
    buffer.push(driver_watermarks=(column(ALL_KEYS), column(30), column(2)))
    assert bounds_of(buffer) == [20, 30, 30, 30, 30]
