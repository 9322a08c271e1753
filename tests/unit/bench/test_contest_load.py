"""The load of the latency measurements: when records are due, what is sent, and how a step is judged."""

from __future__ import annotations

import json

import numpy as np
import pytest

from bench.contest.load.latency import Counted, arrivals, judged_step, quantiles_ms, warm_up
from bench.contest.load.receiver import Arrived
from bench.contest.load.sender import THINGS, Records, Schedule
from bench.contest.workload.inputs import make
from broker.wire.columns import StringColumn

SECOND = 1_000_000_000


def test_a_record_is_due_at_a_time_that_depends_on_nothing_but_the_rate() -> None:
    schedule = Schedule(1_000, 5 * SECOND)
    assert schedule.due_by(5 * SECOND) == schedule.due_by(4 * SECOND) == 0
    assert schedule.due_by(6 * SECOND) == 1_000
    assert schedule.due_ns(0, 3).tolist() == [5 * SECOND + ms * 1_000_000 for ms in (1, 2, 3)]
    assert schedule.count_between(6 * SECOND, 8 * SECOND) == 2_000
    assert schedule.behind_ms(900, 6 * SECOND) == 99.0
    assert schedule.behind_ms(1_000, 6 * SECOND) == 0.0


def test_a_sender_that_was_held_up_stamps_records_with_the_time_at_which_they_were_due() -> None:
    schedule, sent, stamps = Schedule(1_000, 0), 0, np.zeros(0, dtype=np.int64)
    # The sender looks at the clock after 1 ms, then only after half a second, then again after 1 ms.
    for now_ns in (1_000_000, 501_000_000, 502_000_000):
        due = schedule.due_by(now_ns)
        stamps, sent = np.append(stamps, schedule.due_ns(sent, due)), due
    assert np.diff(stamps).tolist() == [1_000_000] * 501
    # Had they all arrived at the end, those held up would be late by up to half a second.
    took_ms = (502_000_000 - stamps) / 1e6
    assert took_ms.max() == 501.0
    assert np.median(took_ms) == pytest.approx(250.0, abs=1.0)


def test_rates_that_divide_no_second_give_distinct_and_even_times() -> None:
    due_ns = Schedule(300_000, 1_700_000_000 * SECOND).due_ns(0, 1_000_000)
    assert set(np.diff(due_ns).tolist()) <= {3_333, 3_334}


def test_the_records_sent_are_those_of_the_alternating_workload() -> None:
    records, workload, ids = Records(), make("alternating", 1_000), np.arange(1_000) + 10**18
    thing, values = records.columns(0, ids)
    sent = [json.loads(value) for value in values.each()]
    wanted = [json.loads(message["value"]) for _, message in workload.messages(0, 1_000)]
    for name in ("thing", "quantity", "phenomenonTime"):
        assert [one[name] for one in sent] == [one[name] for one in wanted]
    assert [int(one["id"]) for one in sent] == ids.tolist()
    assert thing.tolist() == (np.arange(1_000) % THINGS).tolist()
    later = records.columns(777, ids[:1])[1].each()
    assert json.loads(later[0])["phenomenonTime"] == wanted[777]["phenomenonTime"]


def step(took_ms: list[float], missing: int = 0) -> dict[str, object]:
    """Judge a step of one second in which results arrived this late, each due at its own time, evenly spaced."""
    due_ns = np.linspace(1, SECOND, len(took_ms)).astype(np.int64)
    times_ns = np.column_stack([due_ns + (np.array(took_ms) * 1e6).astype(np.int64), due_ns])
    return judged_step(times_ns, Counted(0, SECOND, len(took_ms) + missing), 3.0)


def test_a_contender_keeps_up_if_its_latency_does_not_grow() -> None:
    assert step([10.0] * 1_000)["keeps_up"]
    assert not step(list(np.linspace(0, 1_500, 1_000)))["keeps_up"]


def test_records_without_a_result_are_later_than_all_others() -> None:
    assert quantiles_ms(np.arange(1.0, 1_001.0)) == [500.0, 990.0, 999.0]
    assert quantiles_ms(np.arange(1.0, 996.0), missing=5) == [500.0, 990.0, None]
    assert quantiles_ms(np.zeros(0), missing=5) is None
    lacking = step([10.0] * 900, missing=100)
    assert (lacking["ms"], lacking["missing"], lacking["keeps_up"]) == ([10.0, None, None], 100, False)


def test_results_of_other_times_and_second_copies_do_not_count() -> None:
    times_ns = np.array([[30, 10], [40, 10], [99, 90], [30, -5]]) * 1_000_000
    found = judged_step(times_ns, Counted(0, 50_000_000, 1), 3.0)
    assert (found["results"], found["ms"], found["missing"]) == (1, [20.0, 20.0, 20.0], 0)


def test_a_result_is_as_late_as_its_later_record_and_a_retraction_is_no_result() -> None:
    pairs = [b'{"left": {"id": "3"}, "right": {"id": "7"}}', b'{"left": "9", "right": "2", "diff": -1}']
    assert arrivals([Arrived(50, StringColumn.of(pairs)), Arrived(60, StringColumn.of(pairs[:1]))]).tolist() == [
        [50, 7],
        [60, 7],
    ]
    assert arrivals([]).shape == (0, 2)


def parts_received(p50s_ms: list[float | None]) -> int:
    """Return how many parts a warm-up receives, given the p50 of each. None: no result arrives in the part."""
    left = list(p50s_ms)

    def receive(_: float) -> list[Arrived]:
        took_ms = left.pop(0)
        if took_ms is None:
            return []
        return [Arrived(int(took_ms * 1e6), StringColumn.of([b'{"left": "0", "right": "0"}']))]

    warm_up(receive)
    return len(p50s_ms) - len(left)


def test_the_warm_up_lasts_until_the_latency_stops_falling() -> None:
    assert parts_received([100.0, 60.0, 40.0, 39.0, 10.0]) == 4
    assert parts_received([100.0, 120.0, 10.0]) == 2


def test_the_warm_up_has_a_limit_and_ends_if_nothing_arrives() -> None:
    assert parts_received([1000.0 / 2**part for part in range(20)]) == 8
    assert parts_received([None, 5.0]) == 1
    assert parts_received([5.0, None, 4.0]) == 2
