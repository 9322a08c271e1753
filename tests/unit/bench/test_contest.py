"""The contest's workloads and their expected results, and how the output of a contender is judged."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from bench.contest import engine
from bench.contest.contenders import CONTENDERS
from bench.contest.job import Limits
from bench.contest.kept import read
from bench.contest.load.latency import drain_s
from bench.contest.report.figures import is_through
from bench.contest.running import watch as watching
from bench.contest.running.arena import FailedError
from bench.contest.running.judging import judge, steady
from bench.contest.running.outputs import Results, pairs_of, without_withdrawn
from bench.contest.running.watch import Watch
from bench.contest.workload.expected import Expected, Window, compare, expect
from bench.contest.workload.inputs import WORKLOADS, Workload, make
from bench.harness.processes import Sample
from joiner import join
from joiner.check.model import oracle

if TYPE_CHECKING:
    from collections.abc import Callable

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
    watch = Watch(*IDLE, Limits(), never_at_end)
    watch.is_quiet = is_quiet
    watch.samples = [Sample(0.0, 0.0, 0.0), Sample(10.0, 8.0, 4.0)]
    return judge(Results(left, right, np.linspace(1.0, 10.0, len(left))), expected, watch, 10.0, window)


def test_as_many_results_as_there_are_neighbours_are_not_the_neighbours() -> None:
    expected = expect(make("varying gaps", RECORDS))
    left, right = pairs_within(expected.workload, WIDE)
    half = np.maximum(left, right) < RECORDS // 2
    assert half.sum() > len(expected.pairs)
    found = judged(expected, (left[half], right[half]), is_quiet=True)
    assert not found["is_through"]
    assert (found["missing"], found["reached"] < 0.6) == (0, True)


def test_a_window_that_was_read_to_the_end_is_through_and_lacks_the_neighbours_outside_it() -> None:
    expected = expect(make("varying gaps", RECORDS))
    found = judged(expected, pairs_within(expected.workload, NARROW), is_quiet=True, window=NARROW)
    assert (found["is_through"], found["reached"], found["expected"]) == (True, 1.0, len(expected.pairs))
    assert 0 < found["complete"] < 0.5


def test_a_run_that_lacks_neighbours_and_was_ended_by_a_limit_is_not_through() -> None:
    expected = expect(make("varying gaps", RECORDS))
    assert not judged(expected, pairs_within(expected.workload, NARROW), is_quiet=False, window=NARROW)["is_through"]


def test_a_window_is_observed_to_the_end_of_its_input_however_much_it_writes() -> None:
    expected = expect(make("varying gaps", RECORDS))
    left, right = pairs_within(expected.workload, WIDE)
    before_end = np.maximum(left, right) < RECORDS - 200
    assert before_end.sum() > 5 * len(expected.pairs)
    assert not expected.shows_end(left[before_end], right[before_end], WIDE)
    shuffled = np.random.default_rng(0).permutation(len(left))
    assert expected.shows_end(left[shuffled], right[shuffled], WIDE)
    assert judged(expected, (left, right), is_quiet=False)["is_through"]


def test_a_partition_that_was_not_read_to_its_end_keeps_a_run_from_being_through() -> None:
    expected = expect(make("alternating", RECORDS))
    left, right = split(expected)
    lags = (expected.workload.partition[left] == 2) & (np.maximum(left, right) > RECORDS - 100)
    found = judged(expected, (left[~lags], right[~lags]), is_quiet=True, window=Window())
    assert lags.any()
    assert not found["is_through"]
    assert not expected.shows_end(left[~lags], right[~lags])


def test_pairs_that_a_contender_need_not_have_emitted_yet_are_not_missing() -> None:
    expected = expect(make("alternating", RECORDS))
    left, right = split(expected)
    waits = Window(waits_ms=100)
    time_ms = expected.workload.time_ms
    # As `spark/ByHand.java` does: a record at the watermark's own time is not joined yet.
    early = time_ms[np.maximum(left, right)] < time_ms.max() - 100
    assert early.sum() < len(left)
    found = judged(expected, (left[early], right[early]), is_quiet=True, window=waits)
    assert (found["is_through"], found["missing"], found["reached"]) == (True, 0, 1.0)
    assert not judged(expected, (left[early], right[early]), is_quiet=True, window=Window())["is_through"]


def test_a_join_that_loses_a_pair_and_reads_to_the_end_is_through_and_found_out() -> None:
    expected = expect(make("alternating", RECORDS))
    left, right = split(expected)
    kept = np.arange(len(left)) != RECORDS // 2
    found = judged(expected, (left[kept], right[kept]), is_quiet=True, window=Window())
    assert (found["is_through"], found["missing"], found["reached"]) == (True, 1, 1.0)
    cut = judged(expected, (left[kept], right[kept]), is_quiet=False, window=Window())
    assert not cut["is_through"]


def test_what_was_passed_through_is_through_with_every_record() -> None:
    expected, every = expect(make("alternating", RECORDS)), np.arange(RECORDS)
    assert judged(expected, (every, every), is_quiet=True, window=Window())["is_through"]
    lacking = judged(expected, (every[1:], every[1:]), is_quiet=True, window=Window())
    assert (lacking["is_through"], lacking["reached"]) == (False, (RECORDS - 1) / RECORDS)


class Clock:
    """A clock that advances only while code sleeps on it."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def time(self) -> float:
        return self.now_s

    def process_time(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class Nobody:
    """A stand-in for a Kafka broker, a job, a consumer or a process tree; busy until ``busy_s``."""

    kafka = out = state = folder = None
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


class Exited:
    """A process that has exited."""

    def __init__(self, returncode: int | None) -> None:
        self.returncode = returncode

    def poll(self) -> int | None:
        return self.returncode


IDLE: tuple[Any, Any] = (Nobody(), Nobody())


def never_at_end(_left: Any, _right: Any) -> bool:
    return False


def observed(
    monkeypatch: pytest.MonkeyPatch,
    batches: list[tuple[float, int]],
    busy_s: float,
    limits: Limits,
    end_at: int | None = None,
    root: Any = None,
    at_count: Callable[[int], int] = lambda count: count,
) -> tuple[Watch, float]:
    """Observe a run with these numbers of results over time. Return the watch, and when it stopped looking.

    The last results show the end of the input once there are ``end_at`` of them. ``at_count`` is called with each count
    and returns what the observer sees.
    """
    clock = Clock()
    tree: Any = Nobody(clock, busy_s)
    tree.roots = (root or Alive(),)

    def count(*_: Any) -> int:
        return max((count for at_s, count in batches if at_s <= clock.now_s), default=0)

    monkeypatch.setattr(watching, "time", clock)
    monkeypatch.setattr(watching, "make_consumer", lambda *_: Nobody())
    monkeypatch.setattr(watching, "folder_bytes", lambda _: 0)
    monkeypatch.setattr(watching, "last_words", lambda _: "")
    monkeypatch.setattr(watching, "read_tail", lambda _: (count(), None))
    monkeypatch.setattr(watching, "count_results", lambda *_: at_count(count()))
    watch = Watch(*IDLE, limits, lambda left, _: end_at is not None and int(left) >= end_at)
    watch.until_ended(tree)
    return watch, clock.now_s


@pytest.mark.parametrize(("batches", "busy_s"), [([(5, 90), (14, 180)], 15.0), ([(5, 90)], 6.0), ([(5, 40)], 6.0)])
def test_a_run_continues_while_a_batch_is_being_processed(
    batches: list[tuple[float, int]], busy_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, ended_s = observed(monkeypatch, batches, busy_s, Limits())
    assert watch.is_quiet
    assert max(busy_s, batches[-1][0]) < ended_s < 45.0


def test_a_run_ends_soon_after_its_last_results_show_the_end_of_the_input(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = [(5.0, 90), (14.0, 180)]
    watch, ended_s = observed(monkeypatch, batches, 14.0, Limits(quiet_s=30.0), end_at=180)
    assert (watch.is_quiet, 14.0 < ended_s < 20.0) == (True, True)


def test_an_engine_that_is_never_idle_is_given_longer_and_then_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    watch, ended_s = observed(monkeypatch, [(5.0, 90)], 1e9, Limits(quiet_s=6.0), end_at=90)
    assert (watch.is_quiet, 11.0 < ended_s < 12.0) == (True, True)
    watch, ended_s = observed(monkeypatch, [(5.0, 90)], 1e9, Limits(budget_s=90.0), end_at=91)
    assert (watch.is_quiet, ended_s > 95.0) == (False, True)


def test_no_number_of_results_ends_a_run_before_its_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    many = [(float(at_s), 1_000_000 * at_s) for at_s in range(1, 200)]
    watch, ended_s = observed(monkeypatch, many, 1e9, Limits(budget_s=90.0))
    assert (watch.is_quiet, 90.0 < ended_s < 93.0) == (False, True)


def test_a_contender_that_exits_with_an_error_or_without_a_result_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FailedError):
        observed(monkeypatch, [(1.0, 5)], 0.0, Limits(), root=Exited(1))
    with pytest.raises(FailedError):
        observed(monkeypatch, [], 0.0, Limits(), root=Exited(0))
    with pytest.raises(FailedError, match="no result within 7 s"):
        observed(monkeypatch, [], 0.0, Limits(start_s=7.0))
    assert observed(monkeypatch, [(1.0, 5)], 0.0, Limits(quiet_s=60.0), root=Exited(0))[0].is_quiet


def test_results_written_between_the_count_and_the_exit_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    root, seen = Exited(None), [0]

    def exits_during_the_count(count: int) -> int:
        # Its only transaction ends after the observer has asked for the number of results, and it exits at once.
        root.returncode = 0 if count else None
        seen.append(count)
        return seen[-2]

    watch, _ = observed(monkeypatch, [(4.0, 90)], 0.0, Limits(), root=root, at_count=exits_during_the_count)
    assert watch.is_quiet


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
        (one["contender"], one["width_ms"]): is_through(one)
        for one in read(RECORDED, "widths")["measurements"]
        if one["contender"] != "plain process"
    }
    assert {width for (_, width), is_at_end in through.items() if is_at_end} >= {10, 100}
    assert not is_through(recorded("recovery", "Spark range join, best"))
    assert is_through(recorded("recovery", "plain process"))


@pytest.mark.parametrize("kind", ["throughput", "workloads", "widths", "recovery"])
def test_every_recorded_run_is_through_or_says_that_it_was_cut_off(kind: str) -> None:
    for one in read(RECORDED, kind)["measurements"]:
        assert "reason" in one or is_through(one) or not one["is_through"]


def test_who_waits_for_event_time_is_listened_to_for_so_much_longer() -> None:
    by_hand = CONTENDERS["Spark as-of by hand"]
    assert by_hand.waits_ms == 10_000
    assert [drain_s(by_hand.waits_ms, rate) - drain_s(0, rate) for rate in (1_000, 5_000)] == [10.0, 2.0]


def test_pairs_of_everybody_are_read() -> None:
    ours = b'{"id": "power:0:1:2", "left": {"id": "4", "result": 1}, "right": {"id": "7"}, "result": 2}'
    peers = b'{"thing": "a", "left": "5", "right": "6", "result": 2.0, "diff": -1}'
    assert pairs_of([ours, peers, b'{"id": "9", "thing": "a"}']) == [(4, 7, 1), (5, 6, -1), (9, 9, 1)]


def test_a_retracted_pair_does_not_count() -> None:
    pairs = np.array([(1, 2, 1), (3, 4, 1), (1, 2, -1), (1, 2, 1)])
    found = without_withdrawn(pairs, np.arange(4.0))
    assert (found.left.tolist(), found.at_s.tolist(), found.withdrawn) == ([3, 1], [1.0, 3.0], 1)


def test_a_contender_that_waits_for_event_time_waits_for_its_window_too() -> None:
    nearest = CONTENDERS["Spark range join, nearest kept"]
    assert nearest.window(8, lateness_ms=500).waits_ms == 10_000 + 500 + 16
    assert CONTENDERS["Flink interval join"].window(8, lateness_ms=500).waits_ms == 0


def test_the_steady_part_begins_behind_a_fifth_of_the_results() -> None:
    assert steady(np.array([0.0, 0.5, 0.6, 0.7, 0.8, 0.9])) == (4 / 6, 0.5, 0.9)
    assert steady(np.zeros(6)) is None


def test_the_steady_part_of_a_contender_that_works_in_batches_begins_with_a_batch() -> None:
    smooth = np.array([0.0, 0.1, 0.2, 0.3, 0.4, 0.5])
    assert steady(smooth, in_batches=True) == (4 / 6, 0.1, 0.5)
    assert steady(np.concatenate([smooth, smooth + 3, smooth + 6]), in_batches=True) == (12 / 18, 0.5, 6.5)


def test_a_stall_does_not_move_the_steady_part_of_a_contender_that_works_continuously() -> None:
    smooth = np.array([0.0, 0.1, 0.2, 0.3, 0.4, 0.5])
    assert steady(np.concatenate([smooth, smooth + 3, smooth + 6])) == (14 / 18, 0.3, 6.5)


def test_structured_streaming_works_in_batches_and_nobody_else() -> None:
    in_batches = {name for name, one in CONTENDERS.items() if one.in_batches}
    assert in_batches == {name for name in CONTENDERS if "Spark" in name and not name.startswith("Spark stage")}


def test_the_share_of_the_results_in_the_steady_part_is_recorded() -> None:
    expected = expect(make("alternating", RECORDS))
    found = judged(expected, split(expected), is_quiet=True, window=Window())
    assert found["steady_share"] == pytest.approx(0.8, abs=0.001)
