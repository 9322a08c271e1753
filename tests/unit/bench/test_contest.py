"""The contest's workloads and their expected results, and how the output of a contender is judged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from bench.contest import engine, running
from bench.contest.contenders import CONTENDERS
from bench.contest.latency import drain_s
from bench.contest.plan import read
from bench.contest.running import Limits, Results, Watch, _without_withdrawn, judge, pairs_of, steady
from bench.contest.watching import Sample
from bench.contest.workload.expected import Expected, Window, compare, expect, has_all
from bench.contest.workload.inputs import WORKLOADS, Workload, make
from joiner import join
from joiner.check.model import oracle

if TYPE_CHECKING:
    from numpy.typing import NDArray

RECORDS = 3_000


def codes(pairs: set[tuple[int, int]], rows: int) -> list[int]:
    return sorted(left * rows + right for left, right in pairs)


def tiny(*rows: tuple[int, int], lateness_ms: int = 0) -> Workload:
    """Return a workload with a single thing. ``rows``: the side and the time of each record."""
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
    found = join(left, right, time="t", by="k")
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
        sides: list[list[oracle.Rec | oracle.Watermark]] = [
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


@pytest.mark.parametrize("name", ["varying gaps", "skew", "Nexmark"])
@pytest.mark.parametrize("window", [Window(7), Window(300), Window(7, is_grid=True), Window(300, is_grid=True)])
def test_the_pairs_of_a_window_are_counted_as_they_are_listed(name: str, window: Window) -> None:
    workload = make(name, RECORDS)
    assert window.count(workload) == len(pairs_within(workload, window)[0]) > 0


def pairs_within(workload: Workload, window: Window) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return all pairs that a windowed join writes, ordered by the later record of each."""
    left, right = (
        rows.ravel() for rows in np.meshgrid(*(np.flatnonzero(workload.side == side) for side in (0, 1)), indexing="ij")
    )
    held = (workload.thing[left] == workload.thing[right]) & window.holds(
        workload.time_ms[left], workload.time_ms[right]
    )
    left, right = left[held], right[held]
    order = np.argsort(np.maximum(left, right), kind="stable")
    return left[order], right[order]


WIDE = Window(2_000)
NARROW = Window(10)


def judged(
    expected: Expected, pairs: tuple[NDArray[np.int64], NDArray[np.int64]], *, is_quiet: bool, window: Window = WIDE
) -> dict[str, Any]:
    """Judge a run whose results are spaced evenly, up to just before its end. Return its figures."""
    left, right = pairs
    watch = Watch(*IDLE, Limits(), 0)
    watch.is_quiet = is_quiet
    watch.samples = [Sample(0.0, 0.0, 0.0), Sample(10.0, 8.0, 4.0)]
    results = Results(left, right, np.linspace(1.0, 10.0, len(left)))
    held = window.count(expected.workload) if window.width_ms else None
    return judge(results, expected, watch, 10.0, window, held)


def test_as_many_results_as_there_are_neighbours_are_not_the_neighbours() -> None:
    expected = expect(make("varying gaps", RECORDS))
    left, right = pairs_within(expected.workload, WIDE)
    half = np.maximum(left, right) < RECORDS // 2
    assert half.sum() > len(expected.pairs)
    found = judged(expected, (left[half], right[half]), is_quiet=True)
    assert not found["is_through"]
    assert (found["missing"], found["reached"] < 0.6) == (0, True)


def test_a_window_that_gave_all_that_it_holds_is_through_however_it_was_ended() -> None:
    expected = expect(make("varying gaps", RECORDS))
    found = judged(expected, pairs_within(expected.workload, NARROW), is_quiet=False, window=NARROW)
    assert (found["is_through"], found["reached"], found["expected"]) == (True, 1.0, len(expected.pairs))
    assert 0 < found["complete"] < 0.5
    assert has_all(found)


def test_pairs_outside_a_window_do_not_make_up_for_those_that_it_lacks() -> None:
    expected = expect(make("varying gaps", RECORDS))
    left, right = pairs_within(expected.workload, NARROW)
    far = [column[-1:] for column in pairs_within(expected.workload, WIDE)]
    assert not NARROW.holds_all(expected.workload, far[0], far[1])
    others = (np.append(left[:-1], far[0]), np.append(right[:-1], far[1]))
    assert not judged(expected, others, is_quiet=False, window=NARROW)["is_through"]


def test_a_join_that_loses_a_pair_and_reads_to_the_end_is_through_and_found_out() -> None:
    expected = expect(make("alternating", RECORDS))
    left, right = split(expected)
    kept = np.arange(len(left)) != RECORDS // 2
    found = judged(expected, (left[kept], right[kept]), is_quiet=True, window=Window())
    assert (found["is_through"], found["missing"], found["reached"]) == (True, 1, 1.0)
    assert not has_all(found)
    cut = judged(expected, (left[kept], right[kept]), is_quiet=False, window=Window())
    assert not cut["is_through"]


def test_what_was_passed_through_is_through_with_every_record() -> None:
    expected, every = expect(make("alternating", RECORDS)), np.arange(RECORDS)
    assert judged(expected, (every, every), is_quiet=True, window=Window())["is_through"]
    assert not judged(expected, (every[1:], every[1:]), is_quiet=True, window=Window())["is_through"]


class Clock:
    """A clock that advances only while code sleeps on it."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def time(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class Nobody:
    """A stand-in for a Kafka broker, a job, a consumer or a process tree; busy until ``busy_s``."""

    kafka = out = state = None
    roots: tuple[()] = ()
    memory_max = 0

    def __init__(self, clock: Clock | None = None, busy_s: float = 0.0) -> None:
        self.clock, self.busy_s = clock or Clock(), busy_s

    def kafka_cpu_s(self) -> float:
        return 0.0

    def look(self) -> float:
        return min(self.clock.now_s, self.busy_s)

    def close(self) -> None:
        pass


class Alive:
    """A process that is running."""

    returncode = None

    def poll(self) -> None:
        pass


IDLE: tuple[Any, Any, Any] = (Nobody(), None, Nobody())


@pytest.mark.parametrize(("batches", "busy_s"), [([(5, 90), (14, 180)], 15.0), ([(5, 90)], 6.0), ([(5, 40)], 6.0)])
def test_a_run_continues_while_a_batch_is_being_processed(
    batches: list[tuple[float, int]], busy_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    tree: Any = Nobody(clock, busy_s)
    tree.roots = (Alive(),)
    monkeypatch.setattr(running, "time", clock)
    monkeypatch.setattr(running, "make_consumer", lambda *_: Nobody())
    monkeypatch.setattr(running, "folder_bytes", lambda _: 0)
    monkeypatch.setattr(
        running, "count_results", lambda *_: max((count for at_s, count in batches if at_s <= clock.now_s), default=0)
    )
    watch = Watch(*IDLE, Limits(), 80)
    watch.until_ended(tree)
    assert watch.is_quiet
    assert clock.now_s > max(busy_s, batches[-1][0])
    assert clock.now_s < 45.0


RECORDED = Path(__file__).parents[3] / "bench" / "results"


def recorded(kind: str, contender: str, **wanted: Any) -> dict[str, Any]:
    found: dict[str, Any]
    (found,) = [
        one
        for one in read(RECORDED, kind)["measurements"]
        if one["contender"] == contender and all(one[name] == value for name, value in wanted.items())
    ]
    return found


def test_a_recorded_run_is_through_by_what_it_found_and_not_by_how_much() -> None:
    through = {
        (one["contender"], one["width_ms"]): has_all(one)
        for one in read(RECORDED, "widths")["measurements"]
        if one["contender"] != "plain process"
    }
    assert {width for (_, width), is_through in through.items() if is_through} >= {10, 100}
    assert not has_all(recorded("recovery", "Spark range join, best"))
    assert has_all(recorded("recovery", "plain process"))


def test_the_recorded_widths_contain_the_recorded_share_of_pairs() -> None:
    workload = make("varying gaps", read(RECORDED, "widths")["settings"]["width_records"])
    windowed = [one for one in read(RECORDED, "widths")["measurements"] if one["width_ms"]]
    held = [CONTENDERS[one["contender"]].window(one["width_ms"]).count(workload) for one in windowed]
    assert [one["held"] for one in windowed] == held


def test_who_waits_for_event_time_is_listened_to_for_so_much_longer() -> None:
    by_hand = CONTENDERS["Spark as-of by hand"]
    assert by_hand.waits_ms == 10_000
    assert [drain_s(by_hand.waits_ms, rate) - drain_s(0, rate) for rate in (1_000, 5_000)] == [10.0, 2.0]


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


def test_a_retracted_pair_does_not_count() -> None:
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
