"""Laws of the join that hold for all streams, checked without a second implementation.

Set ``LSB_PROPERTY_EXAMPLES=1000`` for a full run. Unless stated otherwise, a law holds for the pairs emitted once all
entries have been read, and again once the streams have ended.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from joiner import LocalStreamBuffer, Step
from joiner.check.model.oracle import ALL_KEYS, Rec, Watermark
from tests.property.interleavings import Feed, Options, feeds, options, pairs, push

Entries = list[Rec | Watermark]
Pairs = tuple[set[tuple[int, int]], set[tuple[int, int]]]
"""The pairs emitted once all entries have been read, and those emitted once the streams have ended."""

EXAMPLES = int(os.environ.get("LSB_PROPERTY_EXAMPLES", "100"))
law = settings(max_examples=EXAMPLES, deadline=None)


def start(chosen: Options) -> LocalStreamBuffer:
    return LocalStreamBuffer(**dataclasses.asdict(chosen))


def join(left: Entries, right: Entries, chosen: Options) -> Pairs:
    buffer = start(chosen)
    emitted = pairs(push(buffer, left, right))
    rest = pairs(buffer.close())
    assert len({*emitted, *rest}) == len(emitted) + len(rest), "a pair is emitted twice"
    return set(emitted), {*emitted, *rest}


def swapped(found: Pairs) -> Pairs:
    emitted, at_end = ({(right, left) for left, right in some} for some in found)
    return emitted, at_end


def union(one: Pairs, other: Pairs) -> Pairs:
    return one[0] | other[0], one[1] | other[1]


def altered(entries: Entries, change: Callable[[Rec | Watermark], Rec | Watermark]) -> Entries:
    return [change(entry) for entry in entries]


def records(*streams: Entries) -> int:
    return sum(isinstance(entry, Rec) for entries in streams for entry in entries)


@law
@given(feeds(), options())
def test_swapping_the_sides_swaps_every_pair(feed: Feed, chosen: Options) -> None:
    other = {"left": "right", "right": "left", "both": "both"}[chosen.driver]
    mirrored = replace(chosen, driver=other, lateness_ns=chosen.lateness_ns[::-1])
    assert swapped(join(feed.right, feed.left, mirrored)) == join(feed.left, feed.right, chosen)


@law
@given(feeds(), options(), st.integers(0, 8))
def test_a_tolerance_takes_away_the_pairs_that_are_farther_apart_and_no_others(
    feed: Feed, chosen: Options, tolerance_ns: int
) -> None:
    ts = [{entry.seq: entry.ts for entry in entries} for entries in (feed.left, feed.right)]
    without = join(feed.left, feed.right, replace(chosen, tolerance_ns=None))
    near = tuple({one for one in some if abs(ts[0][one[0]] - ts[1][one[1]]) <= tolerance_ns} for some in without)
    assert join(feed.left, feed.right, replace(chosen, tolerance_ns=tolerance_ns)) == near


@law
@given(feeds(), options(), st.integers(-(10**18), 10**18), st.integers(1, 10**6))
def test_moving_and_stretching_all_times_changes_nothing(feed: Feed, chosen: Options, by_ns: int, times: int) -> None:
    def change(entry: Rec | Watermark) -> Rec | Watermark:
        return entry._replace(ts=entry.ts * times + by_ns)

    early, late = chosen.lateness_ns
    tolerance_ns = None if chosen.tolerance_ns is None else chosen.tolerance_ns * times
    wider = replace(chosen, tolerance_ns=tolerance_ns, lateness_ns=(early * times, late * times))
    if chosen.direction == "nearest" and times > 1:
        # Stretching makes room between two integer times for nearer records that may still arrive.
        assert (
            join(altered(feed.left, change), altered(feed.right, change), wider)[1]
            == (join(feed.left, feed.right, chosen)[1])
        )
        return
    assert join(altered(feed.left, change), altered(feed.right, change), wider) == join(feed.left, feed.right, chosen)


@law
@given(feeds(), options())
def test_each_key_is_joined_as_if_it_were_alone(feed: Feed, chosen: Options) -> None:
    by_key = replace(chosen, watermark_scope="key")
    each_alone: Pairs = (set(), set())
    for key in range(3):
        left, right = ([one for one in entries if one.key in {key, ALL_KEYS}] for entries in (feed.left, feed.right))
        each_alone = union(each_alone, join(left, right, by_key))
    assert join(feed.left, feed.right, by_key) == each_alone


@law
@given(feeds(), options(), st.permutations(range(3)), st.integers(0, 70_000))
def test_the_numbers_of_the_keys_do_not_matter(feed: Feed, chosen: Options, numbers: Sequence[int], first: int) -> None:
    def change(entry: Rec | Watermark) -> Rec | Watermark:
        return entry if entry.key == ALL_KEYS else entry._replace(key=first + numbers[entry.key])

    found = join(altered(feed.left, change), altered(feed.right, change), chosen)
    assert found == join(feed.left, feed.right, chosen)


@law
@given(feeds(), options())
def test_both_directions_together_are_the_two_of_them(feed: Feed, chosen: Options) -> None:
    both, backward, forward, nearest = (
        join(feed.left, feed.right, replace(chosen, direction=direction))
        for direction in ("both", "backward", "forward", "nearest")
    )
    assert both == union(backward, forward)
    assert nearest[0] <= both[0]
    assert nearest[1] <= both[1]


@law
@given(feeds(), options())
def test_both_drivers_together_are_the_two_of_them(feed: Feed, chosen: Options) -> None:
    both, left, right = (
        join(feed.left, feed.right, replace(chosen, driver=driver)) for driver in ("both", "left", "right")
    )
    assert both == union(left, right)


@law
@given(feeds(), options(), st.integers(0, 5), st.integers(0, 5))
def test_more_lateness_makes_no_record_late(feed: Feed, chosen: Options, more_left: int, more_right: int) -> None:
    early, late = chosen.lateness_ns
    patient = replace(chosen, lateness_ns=(early + more_left, late + more_right))
    steps = [push(LocalStreamBuffer(**dataclasses.asdict(one)), feed.left, feed.right) for one in (chosen, patient)]
    assert set(steps[1].left_late_seq.tolist()) <= set(steps[0].left_late_seq.tolist())
    assert set(steps[1].right_late_seq.tolist()) <= set(steps[0].right_late_seq.tolist())


@law
@given(feeds(), options())
def test_every_event_may_come_twice(feed: Feed, chosen: Options) -> None:
    def named(entries: Entries, copies: int) -> Entries:
        found: Entries = []
        for entry in entries:
            for seq in range(10 * entry.seq, 10 * entry.seq + copies):
                if isinstance(entry, Rec):
                    found.append(entry._replace(seq=seq, event=str(entry.seq)))
                else:
                    found.append(entry._replace(seq=seq))
        return found

    once = push(start(chosen), named(feed.left, 1), named(feed.right, 1))
    buffer = start(chosen)
    twice = push(buffer, named(feed.left, 2), named(feed.right, 2))
    assert pairs(twice) == pairs(once)
    dropped = (len(one) for one in (twice.left_duplicate_seq, twice.right_duplicate_seq))
    late = (len(one) // 2 for one in (twice.left_late_seq, twice.right_late_seq))
    assert sum(dropped) + sum(late) == records(feed.left, feed.right)


@law
@given(feeds(), options())
def test_each_record_is_late_or_a_duplicate_or_held_or_released_and_only_one_of_these(
    feed: Feed, chosen: Options
) -> None:
    buffer = start(chosen)
    steps, before = list[Step](), (0, 0)
    for left_at, right_at, _ in feed.cuts:
        steps.append(push(buffer, feed.left[before[0] : left_at], feed.right[before[1] : right_at]))
        before = (left_at, right_at)
    for side, entries in (("left", feed.left), ("right", feed.right)):
        ends = [
            seq
            for what in ("late", "duplicate", "released")
            for step in steps
            for seq in getattr(step, f"{side}_{what}_seq").tolist()
        ]
        held = buffer.held_seq()[side == "right"].tolist()
        assert sorted(ends + held) == [entry.seq for entry in entries if isinstance(entry, Rec)]


@law
@given(feeds(), options(), st.data())
def test_a_promise_that_is_kept_already_changes_nothing(feed: Feed, chosen: Options, data: st.DataObject) -> None:
    buffer = start(chosen)
    emitted = pairs(push(buffer, feed.left, feed.right))
    key = data.draw(st.integers(0, 2))
    known = int(buffer.frontier_ns([key])[0][0])
    if known > np.iinfo(np.int64).min:
        watermark: Entries = [Watermark(key, data.draw(st.integers(known - 5, known)), 10**6)]
        assert pairs(push(buffer, watermark, [])) == []
    assert {*emitted, *pairs(buffer.close())} == join(feed.left, feed.right, chosen)[1]


@law
@given(feeds(), options(), st.integers(0, 2), st.integers(0, 60))
def test_what_comes_late_changes_nothing_but_the_list_of_what_came_late(
    feed: Feed, chosen: Options, key: int, back_ns: int
) -> None:
    buffer = start(chosen)
    emitted = pairs(push(buffer, feed.left, feed.right))
    known = int(buffer.frontier_ns([key])[0][0])
    if known > np.iinfo(np.int64).min:
        step = push(buffer, [Rec(key, known - 1 - back_ns, 10**6, "z" if is_identified(feed.left) else None)], [])
        assert step.left_late_seq.tolist() == [10**6]
        assert pairs(step) == []
    assert {*emitted, *pairs(buffer.close())} == join(feed.left, feed.right, chosen)[1]


def is_identified(entries: Entries) -> bool:
    return any(isinstance(entry, Rec) and entry.event is not None for entry in entries)


@law
@given(feeds(), options())
def test_of_each_side_and_key_at_most_one_record_is_held_that_nothing_needs(feed: Feed, chosen: Options) -> None:
    """The one exception is a neighbour of a pending record: their pair has been emitted, or they are too far apart."""
    buffer = start(chosen)
    emitted = set(pairs(push(buffer, feed.left, feed.right)))
    frontiers = [of_side.tolist() for of_side in buffer.frontier_ns([0, 1, 2])]
    for side, entries in enumerate((feed.left, feed.right)):
        held = set(buffer.held_seq()[side].tolist())
        kept = [one for one in entries if isinstance(one, Rec) and one.seq in held]
        for key in range(3):
            # Whatever needs the second record also needs all records after it.
            of_key = sorted((one for one in kept if one.key == key), key=lambda one: (one.ts, one.seq))
            for one in of_key[1:2]:
                needed = one.ts >= min(frontiers[0][key], frontiers[1][key])
                assert needed or may_get_a_pair(buffer, one, side, frontiers[1 - side][key], emitted, feed), one


def may_get_a_pair(
    buffer: LocalStreamBuffer, one: Rec, side: int, frontier: int, emitted: set[tuple[int, int]], feed: Feed
) -> bool:
    """Return whether the record gets another pair when the streams end, or when one more record arrives before that."""
    times = {frontier, one.ts - 1, one.ts, one.ts + 1, *(entry.ts for entry in (*feed.left, *feed.right))}
    for ts in (None, *sorted(ts for ts in times if ts >= frontier)):
        entries: Entries = (
            []
            if ts is None
            else [Rec(one.key, ts, 10**6, "z" if is_identified((feed.left, feed.right)[1 - side]) else None)]
        )
        copy = LocalStreamBuffer.restore(buffer.snapshot())
        found = {*pairs(push(copy, *((entries, []) if side else ([], entries)))), *pairs(copy.close())}
        if any(pair[side] == one.seq for pair in found - emitted):
            return True
    return False


@law
@given(feeds(), options())
def test_what_is_held_of_a_side_and_key_are_the_last_ones_of_it(feed: Feed, chosen: Options) -> None:
    buffer, before = start(chosen), (0, 0)
    accepted: tuple[list[Rec], list[Rec]] = ([], [])
    for left_at, right_at, _ in feed.cuts:
        parts = feed.left[before[0] : left_at], feed.right[before[1] : right_at]
        step, before = push(buffer, *parts), (left_at, right_at)
        dropped = (
            {*step.left_late_seq.tolist(), *step.left_duplicate_seq.tolist()},
            {*step.right_late_seq.tolist(), *step.right_duplicate_seq.tolist()},
        )
        for side, part in enumerate(parts):
            accepted[side].extend(one for one in part if isinstance(one, Rec) and one.seq not in dropped[side])
            held = set(buffer.held_seq()[side].tolist())
            for key in range(3):
                of_key = sorted((one.ts, one.seq) for one in accepted[side] if one.key == key)
                is_held = [seq in held for _, seq in of_key]
                assert is_held == sorted(is_held)
