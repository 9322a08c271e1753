"""Compares the engine with the nested-loop oracle after every step, however the streams are fed."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joiner import LocalStreamBuffer
from joiner.check.model import oracle
from tests.property.interleavings import Feed, Options, feeds, options, pairs, push, seeded

EXAMPLES = int(os.environ.get("LSB_PROPERTY_EXAMPLES", "250"))
SEEDS = int(os.environ.get("LSB_PROPERTY_SEEDS", "150"))
everywhere = settings(max_examples=EXAMPLES, deadline=None)


def start(chosen: Options) -> LocalStreamBuffer:
    return LocalStreamBuffer(emit_unmatched="both", **dataclasses.asdict(chosen))


def answer(feed: Feed, chosen: Options, at: tuple[int, int], *, closed: bool = False) -> oracle.Answer:
    return oracle.join(
        feed.left[: at[0]],
        feed.right[: at[1]],
        **dataclasses.asdict(chosen),
        closed=closed,
    )


def unmatched_until(
    feed: Feed, chosen: Options, at: tuple[int, int], *, closed: bool = False
) -> tuple[set[int], set[int]]:
    left, right = feed.left[: at[0]], feed.right[: at[1]]
    return oracle.unmatched(left, right, closed=closed, **dataclasses.asdict(chosen))


@everywhere
@given(feeds(), options())
def test_what_was_emitted_is_a_function_of_the_consumed_prefixes_alone(feed: Feed, chosen: Options) -> None:
    check_every_step(feed, chosen)


@pytest.mark.parametrize("block", range(8))
def test_the_same_for_thousands_of_seeds(block: int) -> None:
    for seed in range(block * SEEDS, (block + 1) * SEEDS):
        with note_seed(seed):
            check_every_step(*seeded(seed))


@contextlib.contextmanager
def note_seed(seed: int) -> Iterator[None]:
    try:
        yield
    except AssertionError as error:
        error.add_note(f"seed {seed}")
        raise


def check_every_step(feed: Feed, chosen: Options) -> None:
    buffer = start(chosen)
    emitted: list[tuple[int, int]] = []
    late: tuple[list[int], list[int]] = ([], [])
    duplicates: tuple[list[int], list[int]] = ([], [])
    released: tuple[set[int], set[int]] = (set(), set())
    unmatched: tuple[list[int], list[int]] = ([], [])
    before = (0, 0)
    for left_at, right_at, restart in feed.cuts:
        step = push(buffer, feed.left[before[0] : left_at], feed.right[before[1] : right_at])
        before = (left_at, right_at)
        assert not released[0] & set(step.left_seq.tolist()), "refers to a record that was released"
        assert not released[1] & set(step.right_seq.tolist()), "refers to a record that was released"
        emitted += pairs(step)
        for side, (late_seq, duplicate_seq, released_seq) in enumerate(
            [
                (step.left_late_seq, step.left_duplicate_seq, step.left_released_seq),
                (step.right_late_seq, step.right_duplicate_seq, step.right_released_seq),
            ]
        ):
            late[side].extend(late_seq.tolist())
            duplicates[side].extend(duplicate_seq.tolist())
            released[side].update(released_seq.tolist())
        expected = answer(feed, chosen, before)
        expected_unmatched = unmatched_until(feed, chosen, before)
        assert sorted(emitted) == sorted(expected.pairs)
        for side, stream in enumerate((expected.left, expected.right)):
            assert late[side] == [record.seq for record in stream.late]
            assert sorted(duplicates[side]) == [record.seq for record in stream.duplicates]
            ordinal = oracle.ordinals(stream.accepted)
            seq, places = ((step.left_seq, step.left_ordinal), (step.right_seq, step.right_ordinal))[side]
            assert places.tolist() == [ordinal[at] for at in seq.tolist()]
            unmatched[side].extend((step.left_unmatched_seq, step.right_unmatched_seq)[side].tolist())
            assert sorted(unmatched[side]) == sorted(expected_unmatched[side])
            accepted = {record.seq for record in stream.accepted}
            assert accepted == released[side] | set(buffer.held_seq()[side].tolist())
        if restart:
            buffer = LocalStreamBuffer.restore(buffer.snapshot())
    step = buffer.close()
    assert sorted(emitted + pairs(step)) == sorted(answer(feed, chosen, before, closed=True).pairs)
    expected_unmatched = unmatched_until(feed, chosen, before, closed=True)
    assert sorted(unmatched[0] + step.left_unmatched_seq.tolist()) == sorted(expected_unmatched[0])
    assert sorted(unmatched[1] + step.right_unmatched_seq.tolist()) == sorted(expected_unmatched[1])
    assert len(buffer) == 0


@everywhere
@given(feeds(), options(), st.randoms(use_true_random=False))
def test_two_ways_of_feeding_the_same_streams_emit_the_same_set(
    feed: Feed, chosen: Options, chance: random.Random
) -> None:
    whole, one_by_one = start(chosen), start(chosen)
    together = pairs(push(whole, feed.left, feed.right))
    singly: list[tuple[int, int]] = []
    left, right = list(feed.left), list(feed.right)
    while left or right:
        from_left = bool(left) and (not right or chance.random() < 0.5)
        entry = (left if from_left else right).pop(0)
        singly += pairs(push(one_by_one, [entry] if from_left else [], [] if from_left else [entry]))
    assert len(singly) == len(set(singly))
    assert sorted(together) == sorted(singly)


@everywhere
@given(feeds(), options())
def test_restore_at_any_point_changes_nothing(feed: Feed, chosen: Options) -> None:
    buffer = start(chosen)
    before = (0, 0)
    for left_at, right_at, _ in feed.cuts:
        part = feed.left[before[0] : left_at], feed.right[before[1] : right_at]
        copy = LocalStreamBuffer.restore(buffer.snapshot())
        step, step_of_copy = push(buffer, *part), push(copy, *part)
        for name in step.__dataclass_fields__:
            assert getattr(step, name).tolist() == getattr(step_of_copy, name).tolist()
        before = (left_at, right_at)
    assert buffer.snapshot() == LocalStreamBuffer.restore(buffer.snapshot()).snapshot()


@everywhere
@given(st.sets(st.integers(0, 60), max_size=15), st.sets(st.integers(0, 60), max_size=15))
def test_mean_times_of_pairs_are_unique_where_a_stream_has_no_equal_times(
    left_times: set[int], right_times: set[int]
) -> None:
    left_ts, right_ts = sorted(left_times), sorted(right_times)
    found = oracle.join(
        [oracle.Rec(0, ts, seq) for seq, ts in enumerate(left_ts)],
        [oracle.Rec(0, ts, seq) for seq, ts in enumerate(right_ts)],
        closed=True,
    ).pairs
    sums = [left_ts[left] + right_ts[right] for left, right in found]
    assert len(sums) == len(set(sums))


@pytest.mark.parametrize("driver", ["both", "right"])
def test_at_the_end_the_nearest_neighbour_is_certain_however_far_away_it_is(driver: str) -> None:
    left: list[oracle.Rec | oracle.Watermark] = [oracle.Rec(0, 0, 0)]
    # Both records are nearer to the largest int64 than to the left record.
    right: list[oracle.Rec | oracle.Watermark] = [oracle.Rec(0, 2**62, 0), oracle.Rec(0, 2**62 + 1, 1)]
    buffer = LocalStreamBuffer(direction="nearest", driver=driver)
    before = pairs(push(buffer, left, right))
    expected = oracle.join(left, right, direction="nearest", driver=driver, closed=True).pairs
    assert expected == {(0, 0), (0, 1)}
    assert sorted(before + pairs(buffer.close())) == sorted(expected)


@pytest.mark.parametrize("seed", range(3))
def test_in_order_streams_hold_only_what_may_still_have_neighbours(seed: int) -> None:
    buffer = LocalStreamBuffer()
    left: list[oracle.Rec | oracle.Watermark] = [oracle.Rec(0, 2 * i + seed, i) for i in range(500)]
    right: list[oracle.Rec | oracle.Watermark] = [oracle.Rec(0, 2 * i + 1, i) for i in range(500)]
    for at in range(0, 500, 10):
        push(buffer, left[at : at + 10], right[at : at + 10])
        assert len(buffer) <= 4 + seed
