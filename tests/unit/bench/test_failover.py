"""The effects of events on units, as `bench.runners.failover` finds them in what was committed."""

from __future__ import annotations

import numpy as np
import pytest

from bench.runners.failover.effects import UnitOutput, gaps, latencies, longest, pauses
from bench.runners.failover.instances import WORKER_KILLED, Event

STAYS = [("two", "two"), ("two", "two")]
"""The owners of two units that keep them."""


def output(*appended_ms: int) -> UnitOutput:
    """Return the output of a unit with results at these times."""
    times = np.array(appended_ms, dtype=np.int64)
    return UnitOutput(times, times)


def pause_ms(kind: str, *appended_ms: int) -> int:
    """Return the pause around an event at 10,000 ms, which is settled at 11,000 ms and over at 13,000 ms."""
    (row,) = pauses([Event(kind, "one", 10_000, 11_000, 13_000, STAYS)], [output(*appended_ms)])
    return int(row["pause_ms"])


@pytest.mark.parametrize("kind", ["killed", WORKER_KILLED, "joins"])
@pytest.mark.parametrize(
    ("appended_ms", "expected"),
    [
        ((9_900, 10_700, 12_900), 2_200),
        ((9_000, 12_000, 12_500, 13_500), 3_000),  # a pause that began long before the event
        ((9_900, 14_000), 4_100),  # one that outlasts what is looked at
        ((5_000, 20_000), 15_000),
    ],
)
def test_a_pause_counts_in_full_even_if_it_begins_before_the_event_or_outlasts_it(
    kind: str, appended_ms: tuple[int, ...], expected: int
) -> None:
    assert pause_ms(kind, *appended_ms) == expected


def test_units_without_results_around_an_event_have_no_gaps_and_no_latencies_there() -> None:
    events = [
        Event("killed", "one", 10_000, 11_000, 13_000, STAYS),
        Event("joins", "one", 30_000, 31_000, 33_000, STAYS),
    ]
    outputs = [output(*range(5_000, 9_000, 100), 20_000, *range(29_000, 34_000, 100))]
    rows = pauses(events, outputs)
    assert [row["pause_ms"] for row in rows] == [20_000 - 8_900, 100]
    found = gaps(events, outputs, rows)
    assert found == {"joins": [100.0] * 3, "calm": [100.0] * 3}
    times = latencies(events, outputs)
    assert times["killed"] == []
    assert [since_ms for since_ms, _ in times["joins"]] == list(range(-1_000, 3_000, 100))


def test_after_a_kill_a_later_pause_is_that_of_the_return() -> None:
    assert pause_ms("killed", 9_900, 10_700, 11_500, 13_000) == 800
    assert pause_ms("joins", 9_900, 10_100, 10_800, 13_000) == 2_200
    assert pause_ms(WORKER_KILLED, 9_900, 10_100, 10_300, 11_100, 13_000) == 800


def test_a_pause_that_begins_once_the_units_are_settled_is_that_of_the_next_event() -> None:
    assert pause_ms("undrained", 9_900, 10_100, 10_500, 11_000, 11_100, 12_900, 20_000) == 500


def test_units_that_change_owner_are_not_among_those_that_stay() -> None:
    owners = [("one", "two"), ("two", "two"), ("one", "two")]
    event = Event(WORKER_KILLED, "one", 10_000, 11_000, 13_000, owners)
    outputs = [output(9_900, 10_900, 12_000), output(*range(9_800, 13_000, 100))]
    rows = pauses([event], outputs)
    assert [(row["unit"], row["changes"], row["pause_ms"]) for row in rows] == [(0, 2, 1_100), (1, 0, 100)]
    assert gaps([event], outputs, rows)[WORKER_KILLED] == [100.0] * 3


def test_the_longest_pause_of_an_event_is_that_of_any_unit() -> None:
    rows = [
        {"event": 1, "kind": "killed", "pause_ms": 700},
        {"event": 1, "kind": "killed", "pause_ms": 900},
        {"event": 2, "kind": "joins", "pause_ms": 100},
        {"event": 3, "kind": "killed", "pause_ms": 400},
    ]
    assert longest(rows, "killed") == [900, 400]
    assert longest(rows, "leaves") == []
