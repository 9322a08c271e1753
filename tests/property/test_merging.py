"""Partitions are merged by time however they arrive: nothing is lost, and only silence makes messages overtake."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from joiner.runtime.repartition.merging import PATIENCE_S, Part, TimeMerger, merged_order
from joiner.runtime.task.decoding.messages import Messages
from tests.manual_clock import ManualClock

LOGS = st.lists(st.lists(st.integers(0, 30), max_size=12).map(sorted), min_size=1, max_size=4)


def messages(first: int, times_ms: list[int]) -> Messages:
    count = len(times_ms)
    return Messages.of(range(first, first + count), times_ms, [b"x"] * count)


def in_order(parts: list[Part]) -> list[tuple[int, int, int]]:
    """Return the time, partition and offset of each message, in the order of copying."""
    if not parts:
        return []
    found = []
    for number, row in merged_order(parts):
        _, partition, some = parts[number]
        found.append((int(some.append_ms[row]), partition, int(some.offset[row])))
    return found


@given(LOGS, st.data())
def test_messages_come_out_by_time_whatever_arrives_first(logs: list[list[int]], data: st.DataObject) -> None:
    merger = TimeMerger(ManualClock())
    at = [0] * len(logs)
    for number in range(len(logs)):
        merger.begin(("t", number))
    out: list[tuple[int, int, int]] = []
    ended: set[int] = set()
    while len(ended) < len(logs):
        number = data.draw(st.sampled_from([one for one in range(len(logs)) if one not in ended]))
        count = data.draw(st.integers(1, 5))
        if some := logs[number][at[number] : at[number] + count]:
            merger.add(("t", number), messages(at[number], some))
            at[number] += len(some)
        else:
            merger.end(("t", number))
            ended.add(number)
        out += in_order(merger.take())
    assert [time for time, _, _ in out] == sorted(time for log in logs for time in log)
    for number, log in enumerate(logs):
        assert [offset for _, partition, offset in out if partition == number] == list(range(len(log)))


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=6), min_size=1, max_size=4))
def test_the_order_within_a_partition_is_kept_even_if_its_times_go_back(logs: list[list[int]]) -> None:
    found = in_order([Part("t", number, messages(0, log)) for number, log in enumerate(logs)])
    for number, log in enumerate(logs):
        assert [offset for _, partition, offset in found if partition == number] == list(range(len(log)))


def taken(merger: TimeMerger) -> list[Any]:
    return [(part.partition, part.messages.append_ms.tolist()) for part in merger.take()]


def test_a_silent_partition_is_waited_for_only_so_long() -> None:
    clock = ManualClock()
    merger = TimeMerger(clock)
    merger.begin(("t", 0))
    merger.begin(("t", 1))
    merger.begin(("other", 0))
    merger.add(("t", 0), messages(0, [1, 2]))
    assert taken(merger) == []
    merger.add(("other", 0), messages(0, [7]))
    assert taken(merger) == [(0, [7])]
    clock.sleep(PATIENCE_S + 1)
    assert taken(merger) == [(0, [1, 2])]


def test_messages_at_the_ends_of_all_partitions_are_not_held_back() -> None:
    merger = TimeMerger(ManualClock())
    for number in range(2):
        merger.begin(("t", number))
        merger.end(("t", number))
    merger.add(("t", 0), messages(0, [1, 9]))
    assert taken(merger) == [(0, [1, 9])]


def test_a_partition_that_is_far_ahead_is_full_until_the_others_catch_up() -> None:
    merger = TimeMerger(ManualClock())
    merger.begin(("t", 0))
    merger.begin(("t", 1))
    merger.add(("t", 0), Messages.of([0, 1], [5, 6], [bytes(20_000_000)] * 2))
    assert taken(merger) == []
    assert merger.full() == {("t", 0)}
    merger.add(("t", 1), messages(0, [5]))
    merger.remove(("t", 1))
    assert taken(merger) == [(0, [5, 6])]
    assert merger.full() == set()


def test_a_partition_that_was_paused_is_waited_for_again() -> None:
    """While it was paused, it could deliver nothing."""
    clock = ManualClock(100_000)
    merger = TimeMerger(clock)
    merger.begin(("t", 0))
    merger.begin(("t", 1))
    merger.add(("t", 0), Messages.of([0], [5], [bytes(20_000_000)]))
    clock.sleep(PATIENCE_S + 1)
    merger.add(("t", 1), messages(0, [5, 50]))
    assert taken(merger) == [(0, [5]), (1, [5])]
    merger.resume(("t", 0))
    assert taken(merger) == []
    clock.sleep(PATIENCE_S + 1)
    assert taken(merger) == [(1, [50])]


def test_a_partition_at_its_end_is_not_waited_for_however_long_it_is_silent() -> None:
    clock = ManualClock(100_000)
    merger = TimeMerger(clock)
    for number in range(2):
        merger.begin(("t", number))
        merger.end(("t", number))
    for wait_s in (0, PATIENCE_S - 1, PATIENCE_S + 1):
        clock.sleep(wait_s)
        merger.add(("t", 0), messages(0, [7]))
        assert taken(merger) == [(0, [7])]


def test_a_time_in_the_future_counts_as_the_time_of_reading() -> None:
    """Otherwise, its partition would wait for it, and the others would not wait for its partition."""
    clock = ManualClock(100)
    merger = TimeMerger(clock)
    merger.begin(("t", 0))
    merger.begin(("t", 1))
    merger.add(("t", 0), messages(0, [90_000, 99_000_000, 95_000]))
    merger.add(("t", 1), messages(0, [99_000]))
    assert taken(merger) == [(0, [90_000]), (1, [99_000])]
    clock.sleep(1)
    merger.add(("t", 1), messages(1, [100_500, 100_600]))
    assert taken(merger) == [(0, [99_000_000, 95_000])]
    merger.add(("t", 0), messages(3, [100_550]))
    assert taken(merger) == [(0, [100_550]), (1, [100_500])]
