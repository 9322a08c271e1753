"""The contest's own judgement: its data, what it expects of it, how it compares, and the page that it writes."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from bench.contest import engine
from bench.contest.expected import Expected, compare, expect
from bench.contest.plan import QUICK, Kept, Measurement, plan, read
from bench.contest.report import BEGIN, END, percent, write_report
from bench.contest.running import Results, _without_withdrawn, pairs_of, steady
from bench.contest.workloads import WORKLOADS, Workload, make
from joiner import join
from joiner.check import oracle

if TYPE_CHECKING:
    from numpy.typing import NDArray

RECORDS = 3_000


def codes(pairs: set[tuple[int, int]], rows: int) -> list[int]:
    return sorted(left * rows + right for left, right in pairs)


def tiny(*rows: tuple[int, int], lateness_ms: int = 0) -> Workload:
    """One thing; side and time of each row."""
    side, time_ms = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
    nothing = np.zeros(len(rows), dtype=np.int64)
    return Workload("tiny", "", ["a"], np.zeros(1, np.int64), nothing, side, time_ms, lateness_ms)


def split(expected: Expected) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    left, right = np.divmod(expected.pairs, len(expected.workload))
    return left, right


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_is_the_same_each_time_and_as_long_as_asked(name: str) -> None:
    once, again = make(name, RECORDS), make(name, RECORDS)
    assert len(once) == RECORDS
    assert list(once.messages(0, RECORDS)) == list(again.messages(0, RECORDS))
    assert set(once.side.tolist()) == {0, 1}


def test_a_message_says_what_the_row_is() -> None:
    workload = make("alternating", 100)
    place, message = next(workload.messages(9, 10))
    value = json.loads(message["value"])
    assert place == workload.partition[9]
    assert value["thing"].encode() == message["key"]
    assert (value["quantity"], value["id"], value["phenomenonTime"]) == ("torque", "9", workload.time_ms[9])


@pytest.mark.parametrize("name", WORKLOADS)
def test_what_is_expected_is_what_the_library_and_the_engine_find(name: str) -> None:
    expected = expect(make(name, RECORDS))
    workload = expected.workload
    sides = [np.flatnonzero(workload.side == side) for side in (0, 1)]
    left, right = ({"k": workload.thing[rows], "t": workload.time_ms[rows], "row": rows} for rows in sides)
    found = join(left, right, on="t", by="k")
    every = np.union1d(expected.pairs, expected.may_be)
    assert np.array_equal(np.sort(found["row_left"] * RECORDS + found["row_right"]), every)
    judged = engine.run(expected)
    assert (judged["complete"], judged["excess"], judged["double"], judged["reached"]) == (1.0, 0, 0, 1.0)
    assert judged["results"] == len(expected.pairs)


@pytest.mark.parametrize("lateness_ms", [0, 3])
def test_what_is_expected_is_what_nested_loops_find(lateness_ms: int) -> None:
    draw = np.random.default_rng(lateness_ms)
    for _ in range(50):
        times = np.sort(draw.integers(0, 20, 12))
        times = times[np.argsort(np.arange(12) + draw.integers(0, 2, 12) * lateness_ms / 3, kind="stable")]
        workload = tiny(*zip(draw.integers(0, 2, 12).tolist(), times.tolist(), strict=True), lateness_ms=lateness_ms)
        sides: list[list[oracle.Rec | oracle.Mark]] = [
            [oracle.Rec(0, int(workload.time_ms[row]), int(row)) for row in np.flatnonzero(workload.side == side)]
            for side in (0, 1)
        ]
        wanted = oracle.join(*sides, lateness_ns=lateness_ms)
        if not wanted.left.late and not wanted.right.late and all(sides):
            assert expect(workload).pairs.tolist() == codes(wanted.pairs, 12)


def test_what_only_the_end_makes_certain_may_be_there_or_not() -> None:
    expected = expect(tiny((0, 10), (1, 20), (0, 30), (1, 40)))
    assert expected.pairs.tolist() == codes({(0, 1), (2, 1), (2, 3)}, 4)
    assert expected.may_be.tolist() == []
    expected = expect(tiny((1, 10), (0, 20), (0, 30)))
    assert expected.pairs.tolist() == codes({(1, 0)}, 3)
    assert expected.may_be.tolist() == codes({(2, 0)}, 3)


def test_planted_faults_are_found() -> None:
    expected = expect(make("rates 1:10", RECORDS))
    left, right = split(expected)
    kept = np.arange(len(left)) != 100
    far = (left[50], right[900])
    wrong = compare(expected, np.append(left[kept], [left[7], far[0]]), np.append(right[kept], [right[7], far[1]]))
    assert (wrong.missing, wrong.excess, wrong.double, wrong.reached) == (1, 1, 1, 1.0)
    assert wrong.found == wrong.expected - 1
    assert wrong.complete < 1
    assert compare(expected, left, right).complete == 1


def test_what_was_not_reached_is_not_judged() -> None:
    expected = expect(make("alternating", RECORDS))
    left, right = split(expected)
    half = np.maximum(left, right) < RECORDS / 2
    found = compare(expected, left[half], right[half])
    assert (found.missing, found.rows) == (0, RECORDS // 2)
    assert found.expected == half.sum()


def test_the_width_of_a_window_is_that_of_the_neighbours_it_must_hold() -> None:
    expected = expect(make("alternating", RECORDS))
    assert expected.width_ms(1.0) == 8
    assert expected.width_ms(0.5) == 8
    rates = expect(make("rates 1:10", RECORDS))
    assert rates.width_ms(0.1) < rates.width_ms(1.0) == 80


def test_pairs_of_everybody_are_read() -> None:
    ours = b'{"id": "power:0:1:2", "left": {"id": "4", "result": 1}, "right": {"id": "7"}, "result": 2}'
    peers = b'{"thing": "a", "left": "5", "right": "6", "result": 2.0, "diff": -1}'
    assert pairs_of([ours, peers, b'{"id": "9", "thing": "a"}']) == [(4, 7, 1), (5, 6, -1), (9, 9, 1)]


def test_a_pair_that_was_taken_back_is_none() -> None:
    pairs = np.array([(1, 2, 1), (3, 4, 1), (1, 2, -1), (1, 2, 1)])
    found = _without_withdrawn(pairs, np.arange(4.0))
    assert (found.left.tolist(), found.at_s.tolist(), found.withdrawn) == ([3, 1], [1.0, 3.0], 1)


def test_the_steady_part_begins_behind_a_fifth_of_the_results() -> None:
    assert steady(np.array([0.0, 0.5, 0.6, 0.7, 0.8, 0.9])) == (4 / 6, 0.5, 0.9)
    assert steady(np.zeros(6)) is None


def test_the_steady_part_begins_with_a_batch() -> None:
    smooth = np.array([0.0, 0.1, 0.2, 0.3, 0.4, 0.5])
    assert steady(smooth) == (4 / 6, 0.1, 0.5)
    assert steady(np.concatenate([smooth, smooth + 3, smooth + 6])) == (12 / 18, 0.5, 6.5)


def test_results_are_cut_at_a_moment() -> None:
    nothing = np.zeros(3, dtype=np.int64)
    assert Results(nothing, nothing, np.array([1.0, 2.0, 3.0])).first(2.0).at_s.tolist() == [1.0, 2.0]


def test_the_turns_are_outside_and_each_measurement_is_planned_once() -> None:
    every = list(plan(QUICK, ("throughput", "widths"), ("plain process", "Spark range join, best")))
    assert len(set(every)) == len(every) > 4
    assert [one.turn for one in every] == sorted(one.turn for one in every)
    assert {one.contender for one in every} == {"plain process", "Spark range join, best"}


def measured(contender: str, **more: Any) -> dict[str, Any]:
    found = {"results": 100, "rows": 100, "records_per_s": 50_000.0, "results_per_s": 50_000.0, "reached": 1.0}
    found |= {"complete": 1.0, "excess": 0, "double": 0, "start_s": 2.0, "is_through": True, "state_rows": 3}
    return asdict(Measurement("throughput", contender, "alternating", 1)) | found | more


def test_results_are_kept_as_they_come_and_a_resumed_run_knows_them(tmp_path: Path) -> None:
    first, second = (Measurement("throughput", "plain process", "alternating", turn) for turn in (1, 2))
    kept = Kept(tmp_path, {"cores": 2}, QUICK, resume=False)
    kept.add(first, [{"records_per_s": 1.0}])
    assert not kept.has(first)
    resumed = Kept(tmp_path, {"cores": 2}, QUICK, resume=True)
    assert (resumed.has(first), resumed.has(second)) == (True, False)
    resumed.add(second, [{"records_per_s": 2.0}])
    assert [one["turn"] for one in read(tmp_path, "throughput")["measurements"]] == [1, 2]
    Kept(tmp_path, {}, QUICK, resume=False).add(second, [{}])
    assert [one["turn"] for one in read(tmp_path, "throughput")["measurements"]] == [2]


def test_what_failed_is_tried_again_by_a_resumed_run(tmp_path: Path) -> None:
    one = Measurement("throughput", "plain process", "alternating", 1)
    kept = Kept(tmp_path, {}, QUICK, resume=True)
    kept.add(one, [{"reason": "too tired"}])
    assert not kept.has(one)
    kept.add(one, [{"records_per_s": 1.0}])
    assert kept.has(one)
    assert [found.get("reason") for found in read(tmp_path, "throughput")["measurements"]] == [None]


def test_the_page_shows_every_run_that_was_made_and_keeps_what_stands_around(tmp_path: Path) -> None:
    kept, page = Kept(tmp_path, {"cores": 2}, QUICK, resume=False), tmp_path / "docs" / "page.md"
    page.parent.mkdir()
    page.write_text(f"# Title\n\nFindings.\n\n{BEGIN}\nold\n{END}\n\nThe end.\n")
    for contender, rate in (("plain process", 90_000.0), ("Spark range join, tuned", 30_000.0)):
        one = Measurement("throughput", contender, "alternating", 1)
        kept.add(one, [measured(contender, records_per_s=rate, complete=0.999999)])
    kept.add(Measurement("throughput", "Flink interval join", "alternating", 1), [{"reason": "no environment"}])
    write_report(tmp_path, page, tmp_path / "plots")
    text = page.read_text()
    assert text.startswith("# Title\n\nFindings.\n")
    assert text.endswith(f"{END}\n\nThe end.\n")
    assert "old" not in text
    assert "| plain process : Spark range join, tuned, records/s | 3.0 | 12 | no |" in text
    assert "| Flink interval join | throughput | no environment |" in text
    assert "99.999%" in text
    assert "](../plots/bench_throughput.png)" in text
    assert {path.suffix for path in (tmp_path / "plots").iterdir()} == {".png", ".svg"}


def test_no_share_is_rounded_to_all_or_nothing() -> None:
    assert [percent(share) for share in (0.0, 1e-9, 0.5, 0.9999999, 1.0)] == [
        "0%",
        "0.001%",
        "50.000%",
        "99.999%",
        "100%",
    ]
