"""States are sampled at the same input positions for all contenders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.contest.states import POSITIONS, State, printed, summarise, time_of_position
from bench.contest.workload.expected import expect
from bench.contest.workload.inputs import make

ROWS = 1_000


def second_of(row: int) -> float:
    """Return when a run with a hundred rows a second reaches a row."""
    return row / 100


def needs_nothing(_: int) -> int:
    return 0


def test_a_state_is_that_which_was_known_when_the_results_had_got_to_a_position() -> None:
    states = [State(0.0, rows=5), State(2.5, rows=50), State(8.5, rows=20), State(60.0, rows=10_000)]
    found = summarise(states, ROWS, second_of, needs_nothing)
    # 5 at 10 and 20 %, 50 from 30 to 80 %, 20 at 90 %; what was held after the last position does not count.
    assert (found["positions"], found["rows"]) == (len(POSITIONS), [50, 50])


def test_a_run_that_was_cut_off_has_only_the_positions_that_it_reached() -> None:
    found = summarise([State(0.0, rows=7)], ROWS, lambda row: second_of(row) if row < 350 else None, needs_nothing)
    assert (found["positions"], found["rows"]) == (3, [7, 7])


def test_the_parts_of_a_state_are_added_up_and_each_figure_is_kept_apart() -> None:
    states = [
        *(State(0.0, rows=3, batch_rows=100, part=part) for part in range(4)),
        State(0.0, bytes=10, part=0),
        State(5.5, rows=9, batch_rows=1, part=0),
    ]
    found = summarise(states, ROWS, second_of, needs_nothing)
    assert (found["rows"], found["bytes"]) == ([12, 18], [10, 10])
    assert found["batch_share"] == 1.0


def test_a_state_that_is_only_the_batch_in_progress_says_so() -> None:
    found = summarise([State(0.0, rows=200_008, batch_rows=200_000)], ROWS, second_of, needs_nothing)
    assert found["batch_share"] == pytest.approx(0.99996)
    assert "batch_share" not in summarise([State(0.0, bytes=5)], ROWS, second_of, needs_nothing)


def test_a_run_without_any_known_state_gives_none() -> None:
    assert summarise([], ROWS, second_of, needs_nothing) == {"positions": 9, "needed_rows": [0, 0]}


def test_the_time_of_a_position_is_that_of_the_first_result_at_or_behind_it() -> None:
    time_of = time_of_position(np.array([1, 2, 2, 9]), np.array([1.0, 2.0, 3.0, 4.0]))
    assert [time_of(row) for row in (0, 1, 2, 3, 9, 10)] == [1.0, 1.0, 2.0, 4.0, 4.0, None]


def test_a_partition_that_runs_ahead_does_not_make_the_position_that_of_the_whole_input() -> None:
    expected = expect(make("alternating", 1_600))
    left, right = np.divmod(expected.pairs, 1_600)
    later = np.maximum(left, right)
    in_order, by_partition = np.argsort(later), np.lexsort((later, expected.workload.partition[later]))
    position = expected.position(left[in_order], right[in_order])
    # Two of the eight things are in each partition; the first eight rows complete no pair.
    assert np.abs(position - later[in_order]).max() <= 8
    assert expected.position(left[by_partition], right[by_partition])[len(later) // 4 - 1] == 400
    assert expected.position(left[in_order[::-1]], right[in_order[::-1]])[3] == pytest.approx(1_600, abs=8)


def test_what_must_be_held_are_the_records_with_a_neighbour_to_come() -> None:
    expected = expect(make("alternating", 1_600))
    # Each of the eight things waits for the next record of its other side.
    assert expected.needed_rows(800) == 8
    assert expected.needed_rows(0) == expected.needed_rows(1_600) == 0


def test_the_states_that_a_contender_prints_are_read(tmp_path: Path) -> None:
    out = tmp_path / "0.out"
    out.write_text('starting\n{"at_s": 5.5, "records": 200, "state_rows": 0}\n{oops\n{"at_s": 6, "state_rows": 7}\n')
    assert printed([out]) == [State(5.5, rows=None, batch_rows=200), State(6.0, rows=7)]
