"""When the pacer lets messages be sent, with the time given by the test."""

from __future__ import annotations

from itertools import pairwise

import pytest

from simulator.pacing import BURST_NS, NS_PER_S, SteadyPacer, UnlimitedPacer, pacer_for


def run(pacer: SteadyPacer, wake_ups_ns: list[int]) -> list[tuple[int, int]]:
    """Return the time and the number of messages of each wake-up."""
    bursts = []
    for now_ns in wake_ups_ns:
        count = pacer.due(now_ns)
        pacer.take(count)
        bursts.append((now_ns, count))
    return bursts


@pytest.mark.parametrize("rate", [0.001, 0.3, 1, 7, 999.5, 1_000, 33_333, 1_000_000])
def test_waiting_until_each_due_time_gives_the_rate_without_drift(rate: float) -> None:
    pacer = SteadyPacer(rate)
    now_ns, sent, times = 10**18, 0, []
    for _ in range(2_000):
        count = pacer.due(now_ns)
        pacer.take(count)
        sent += count
        times.append((now_ns - 10**18, sent))
        now_ns += pacer.wait_ns(now_ns)
    for elapsed_ns, total in times:
        scheduled = elapsed_ns * rate / NS_PER_S
        assert scheduled - 1 <= total <= scheduled + 2


def test_the_first_message_is_due_at_once() -> None:
    assert SteadyPacer(0.001).due(5) == 1


def test_nothing_is_due_before_its_time() -> None:
    pacer = SteadyPacer(1_000)
    pacer.take(pacer.due(0))
    assert pacer.due(999_999) == 0
    assert pacer.wait_ns(999_999) == 1
    assert pacer.due(1_000_000) == 1


def test_a_wait_ends_exactly_when_something_is_due() -> None:
    pacer = SteadyPacer(7)
    now_ns = 3
    for _ in range(1_000):
        pacer.take(pacer.due(now_ns))
        wait_ns = pacer.wait_ns(now_ns)
        assert pacer.due(now_ns + wait_ns - 1) == 0
        now_ns += wait_ns
        assert pacer.due(now_ns) == 1


@pytest.mark.parametrize("rate", [1, 100, 1_000, 50_000])
def test_no_burst_after_a_stall_is_larger_than_ten_milliseconds_worth(rate: float) -> None:
    pacer = SteadyPacer(rate)
    bursts = run(pacer, [0, 100 * NS_PER_S, 100 * NS_PER_S + 1, 200 * NS_PER_S])
    assert max(count for _, count in bursts) <= max(1, rate * BURST_NS / NS_PER_S)


def test_a_backlog_is_caught_up_at_no_more_than_twice_the_rate() -> None:
    pacer = SteadyPacer(1_000)
    pacer.take(pacer.due(0))
    stalled_ns = 10 * NS_PER_S
    bursts = run(pacer, [stalled_ns + step * 1_000_000 for step in range(30_000)])
    for (begin_ns, _), _ in pairwise(bursts[::1_000]):
        in_second = sum(count for at_ns, count in bursts if begin_ns <= at_ns < begin_ns + NS_PER_S)
        assert in_second <= 2_000 + 10
    assert 1 + sum(count for _, count in bursts) == (bursts[-1][0] * 1_000) // NS_PER_S + 1


def test_late_wake_ups_do_not_lower_the_rate() -> None:
    pacer = SteadyPacer(1_000)
    bursts = run(pacer, [step * 3_700_000 for step in range(10_000)])
    assert sum(count for _, count in bursts) == 9_999 * 3_700_000 // 1_000_000 + 1


@pytest.mark.parametrize("rate", [0, -1, 1e-9])
def test_a_rate_below_one_millionth_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="at least one millionth of a message per second"):
        SteadyPacer(rate)


def test_max_always_gives_and_never_waits() -> None:
    pacer = pacer_for(None)
    assert isinstance(pacer, UnlimitedPacer)
    for now_ns in range(10):
        count = pacer.due(now_ns)
        assert count > 0
        pacer.take(count)
        assert pacer.wait_ns(now_ns) == 0
