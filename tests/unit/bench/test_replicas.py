"""What `bench.runners.replicas` makes of what it has observed: latencies around faults, in quiet periods, and costs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.harness.wire import Wire, listeners
from bench.runners.replicas import raw
from bench.runners.replicas.__main__ import COSTS, report
from bench.runners.replicas.analysis import (
    ALL,
    ALONE,
    MERGED,
    NEVER_MS,
    READER,
    REPLICAS,
    SHARES,
    STANDBY,
    View,
    around_faults,
    compare,
    counts,
    in_quiet,
    joiner_s,
    of_costs,
    over_time,
    quantiles,
    seen,
)
from bench.runners.replicas.costs import log_bytes
from bench.runners.replicas.faults import KILLED, STOPPED, WINDOW_MS, Fault
from bench.runners.replicas.group import complete_of
from bench.runners.replicas.raw import Observed, Output

BEGIN_MS = 1_700_000_000_000
RATE = 1_000
USUAL_MS = 20
"""The latency while nothing happens."""

Latency = Callable[[int], int]
"""Returns the latency in ms of the result that is due at a time, in ms since the beginning."""


def output(latency_ms: Latency, seconds: int, lost: Sequence[int] = ()) -> Output:
    """Return results that are due every millisecond, but for those that are ``lost``."""
    due = np.setdiff1d(np.arange(seconds * 1000), np.array(lost, dtype=np.int64))
    late = np.array([latency_ms(at) for at in due.tolist()], dtype=np.int64)
    return Output((BEGIN_MS + due) * 1_000_000, BEGIN_MS + due + late)


def usual(_: int) -> int:
    return USUAL_MS


def fault(kind: str, at_s: int) -> Fault:
    """Return a fault, after which everything is at work again 5 s later, and quiet from 6 s later on."""
    at_ms = BEGIN_MS + 1000 * at_s
    return Fault(kind, "one", at_ms, at_ms + 5_000, at_ms + 6_000)


FAULTS = (fault(KILLED, 10), fault(STOPPED, 30), fault(KILLED, 50))


def paused(*faults: Fault, for_ms: int = 1_000) -> Latency:
    """Return the latency of results of which none are written for a time after each of these faults."""
    begins = [one.at_ms - BEGIN_MS for one in faults]

    def latency_ms(at: int) -> int:
        left_ms = [begin + for_ms - at for begin in begins if begin <= at < begin + for_ms]
        return max([USUAL_MS, *left_ms])

    return latency_ms


def observed(outputs: Mapping[str, Output], faults: Sequence[Fault] = FAULTS) -> Observed:
    facts = {"rate": RATE, "faults": [one._asdict() for one in faults], "machine": {"date": "today"}, "problem": ""}
    facts |= {"setup": {}, "verdicts": {"replica 0": dict.fromkeys(_COUNTS, 5)}, "sender_late_ms": 1.5}
    return Observed(
        facts | {"cores": dict.fromkeys(("joiner", "Kafka", "measuring", "foreign", "stolen"), 0.5)}, dict(outputs)
    )


_COUNTS = ("expected", "found", "missing", "doubled", "unexpected", "altered", "after")


def row(rows: Sequence[Mapping[str, Any]], **where: Any) -> Mapping[str, Any]:
    (found,) = [one for one in rows if all(one[name] == value for name, value in where.items())]
    return found


def test_a_pause_shows_around_its_fault_and_not_in_the_quiet_period() -> None:
    rows = around_faults({ALONE: observed({"replica 0": output(paused(*FAULTS), 70)})})
    every = row(rows, view=ALONE, kind=ALL)
    # A fifth of the records are due in the pause of 1 s. These are late by up to 1 s, evenly.
    assert every["faults"] == 3
    assert every["fault_ms"] == pytest.approx([USUAL_MS, 950, 995], abs=1)
    assert every["quiet_ms"] == [USUAL_MS] * 3
    assert every["ratio"] == pytest.approx([1.0, 47.5, 49.75], abs=0.1)
    assert every["slowest_ms"] == [1_000] * 3
    assert [one["faults"] for one in rows] == [3, 2, 1], "there was no fault of the third kind"


def test_each_kind_of_fault_has_its_own_row() -> None:
    killed = [one for one in FAULTS if one.kind == KILLED]
    rows = around_faults({STANDBY: observed({"replica 0": output(paused(*killed), 70)})})
    assert row(rows, kind=STOPPED)["fault_ms"] == [USUAL_MS] * 3
    assert row(rows, kind=KILLED)["slowest_ms"] == [1_000, 1_000]
    assert row(rows, kind=ALL)["slowest_ms"] == [1_000, USUAL_MS, 1_000]


def test_faults_that_are_alike_have_narrow_intervals_and_others_wide_ones() -> None:
    alike, other = (
        row(around_faults({ALONE: observed({"replica 0": output(paused(*some), 70)})}), kind=ALL)
        for some in (FAULTS, FAULTS[:1])
    )
    assert alike["interval"][1] == [alike["ratio"][1]] * 2
    low, high = other["interval"][1]
    assert low == 1.0
    assert high > other["ratio"][1] > low


def test_a_reader_of_replicas_sees_the_first_copy_whichever_replica_is_disturbed() -> None:
    of_replicas = {"replica 0": output(paused(FAULTS[0]), 70), "replica 1": output(paused(FAULTS[1], FAULTS[2]), 70)}
    merged = output(lambda _: USUAL_MS + 5, 70)
    found = {REPLICAS: observed({**of_replicas, "merged": merged})}
    rows = around_faults(found)
    assert row(rows, view=READER, kind=ALL)["slowest_ms"] == [USUAL_MS] * 3
    assert row(rows, view=MERGED, kind=ALL)["slowest_ms"] == [USUAL_MS + 5] * 3
    quiet = in_quiet(found)
    assert row(quiet, view=MERGED)["ms"] == [USUAL_MS + 5] * 3
    assert row(quiet, view=MERGED)["ratio"] == [1.25] * 3
    assert row(quiet, view=READER)["ratio"] == row(quiet, view="only replica 1")["ratio"] == [1.0] * 3
    assert "ratio" not in row(quiet, view="only replica 0")


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(1, 99), st.sampled_from(["a", "b"])), min_size=1))
def test_the_first_copy_of_each_result_is_the_earliest(copies: list[tuple[int, int, str]]) -> None:
    outputs = {}
    for name in ("a", "b"):
        of_one = np.array([copy[:2] for copy in copies if copy[2] == name], dtype=np.int64).reshape(-1, 2)
        outputs[name] = Output(of_one[:, 0], of_one[:, 1])
    found = seen(View("part", ("a", "b")), Observed({}, outputs))
    wanted = {due: min(at for one, at, _ in copies if one == due) for due in sorted({due for due, _, _ in copies})}
    assert dict(zip(found.due_ns.tolist(), found.appended_ms.tolist(), strict=True)) == wanted
    assert found.due_ns.tolist() == sorted(wanted)


def test_missing_results_are_slower_than_all_others_and_leave_no_ratio() -> None:
    # Of the 5,000 records around the first fault, 60 have no result: more than the slowest percent.
    lost = range(10_000, 10_061)
    rows = around_faults({ALONE: observed({"replica 0": output(usual, 70, lost)}, FAULTS[:1])})
    found = row(rows, kind=KILLED)
    assert found["fault_ms"] == [USUAL_MS, None, None]
    assert found["ratio"] == [1.0, None, None]
    assert found["interval"] == [[1.0, 1.0], None, None]
    assert found["slowest_ms"] == [None]


def test_a_window_holds_the_records_that_are_due_in_it_and_lacks_none() -> None:
    found = counts(output(usual, 20), [BEGIN_MS + 3_000, BEGIN_MS + 7_777], RATE)
    assert found.shape == (2, NEVER_MS + 1)
    assert found[:, USUAL_MS].tolist() == [WINDOW_MS, WINDOW_MS]
    assert found.sum() == 2 * WINDOW_MS
    # Here, the results end within the window.
    (cut_off,) = counts(output(usual, 20), [BEGIN_MS + 18_000], RATE)
    assert (cut_off[USUAL_MS], cut_off[NEVER_MS]) == (2_000, 2_999)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=300))
def test_quantiles_are_taken_by_rank(took_ms: list[int]) -> None:
    (found,) = quantiles(np.bincount(took_ms, minlength=51)[np.newaxis], np.arange(51))
    assert found.tolist() == np.percentile(took_ms, SHARES, method="inverted_cdf").tolist()


def test_the_comparison_is_the_same_each_time() -> None:
    chance = np.random.default_rng(1)
    these, those = (chance.poisson(3, size=(10, NEVER_MS + 1)) * (np.arange(NEVER_MS + 1) < 90) for _ in range(2))
    assert compare(these, those) == compare(these, those)
    same = compare(these, these)
    assert same.ratio == [1.0] * 3
    assert same.interval == [[1.0, 1.0]] * 3


def test_latencies_over_time_are_those_since_the_fault() -> None:
    found = over_time({ALONE: observed({"replica 0": output(paused(*FAULTS), 70)})})[ALONE]
    assert found.keys() == {KILLED, STOPPED}
    of_kind = dict(found[KILLED])
    assert list(of_kind) == list(range(-1_000, 6_000, 100))
    assert of_kind[-100] == of_kind[1_000] == [USUAL_MS] * 3
    assert of_kind[0][2] == 1_000
    assert of_kind[500][0] == pytest.approx(450, abs=2)


def cost(setup: str, joiner: float, merger: float, written: int) -> dict[str, Any]:
    sizes = {"data": 10**9, "out": written, "merged.state": 5_000, "__consumer_offsets": 300}
    used = {"joiner_s": joiner, "merger_s": merger, "kafka_s": 1.0}
    return {"setup": setup, "rate": 100, "turn": 0, "records": 500_000, "bytes": sizes} | used


def test_costs_are_per_million_records_and_without_the_input() -> None:
    rows = of_costs(
        [cost(ALONE, 2.0, 0.0, 95_000), cost("merged", 4.0, 1.0, 195_000), cost("merged", 5.0, 2.0, 195_000)]
    )
    alone, merged = rows
    assert (alone["joiner_s"], alone["written"], alone["kafkas_own"]) == ([4.0], [200_000], [600])
    assert alone["of_alone"] == [1.0, 1.0]
    assert (merged["merger_s"], joiner_s(merged)) == ([2.0, 4.0], 12.0)
    assert merged["of_alone"] == [3.0, 2.0]
    assert "of_alone" not in of_costs([cost("merged", 4.0, 1.0, 0)])[0]


def test_only_the_logs_of_the_application_and_of_kafka_itself_are_counted(tmp_path: Path) -> None:
    sizes = {"app.out-0": 5, "app.out-1": 6, "app.out.r1-0": 7, "app.r1.state-0": 8, "__transaction_state-3": 9}
    for name, size in (sizes | {"app2.out-0": 100, "other-0": 100}).items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.log").write_bytes(bytes(size))
        (tmp_path / name / "0.index").write_bytes(bytes(1_000))
    assert log_bytes(tmp_path, "app") == {"out": 11, "out.r1": 7, "r1.state": 8, "__transaction_state": 9}


def test_the_metrics_tell_which_replicas_are_complete() -> None:
    metrics = """\
# HELP lsb_joiner_merge_complete Partitions
# TYPE lsb_joiner_merge_complete gauge
lsb_joiner_merge_complete{replica="0",topic="app.out"} 4.0
lsb_joiner_merge_complete{replica="1",topic="app.out"} 3.0
lsb_joiner_merge_complete{replica="1",topic="app.late"} 1.0
"""
    assert complete_of(metrics, "app.out") == {0: 4, 1: 3}
    assert complete_of(metrics, "app") == {}


def test_a_client_that_connects_through_a_wire_is_told_the_address_of_the_wire() -> None:
    wire = Wire()
    wire.port = 1234
    found = listeners({"one": wire})
    assert found["advertised.listeners"].split(",") == ["PLAINTEXT://127.0.0.1:${port}", "ONE://127.0.0.1:1234"]
    assert found["listeners"].endswith(f",ONE://127.0.0.1:{wire.target}")
    assert wire.target not in (0, wire.port)


def test_what_is_kept_is_what_was_observed(tmp_path: Path) -> None:
    found = observed({"replica 0": output(usual, 1), "merged": output(paused(), 1)})
    assert raw.load(tmp_path, REPLICAS) is None
    raw.save_facts(tmp_path, REPLICAS, found.facts)
    kept = raw.load(tmp_path, REPLICAS)
    assert kept is not None
    assert kept == (found.facts, {}), "the results were not read yet"
    raw.save_outputs(tmp_path, REPLICAS, found.outputs)
    kept = raw.load(tmp_path, REPLICAS)
    assert kept is not None
    assert kept.outputs.keys() == found.outputs.keys()
    for name, one in kept.outputs.items():
        assert [array.tolist() for array in one] == [array.tolist() for array in found.outputs[name]]
    raw.forget(tmp_path, REPLICAS)
    assert raw.load(tmp_path, REPLICAS) is None
    assert list(tmp_path.iterdir()) == []


def test_the_report_is_made_from_whatever_was_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept, path = tmp_path / "raw", tmp_path / "out" / "bench"
    assert report(kept, path) == 1
    assert "there is nothing to analyse" in capsys.readouterr().err
    raw.save_facts(kept, COSTS, {"machine": {"date": "today", "cores": 2}, "rows": [cost(ALONE, 2.0, 0.0, 95_000)]})
    raw.save_facts(kept, STANDBY, observed({}, ()).facts)  # interrupted before the first fault
    assert report(kept, path) == 0
    assert "| alone | 100 | 4.0 / 4.0 / 4.0 |" in path.with_suffix(".md").read_text()
    parts = {
        ALONE: {"replica 0": output(paused(*FAULTS), 70)},
        REPLICAS: {"replica 0": output(usual, 70), "replica 1": output(usual, 70), "merged": output(usual, 70)},
    }
    for part, outputs in parts.items():
        raw.save_facts(kept, part, observed(outputs).facts)
        raw.save_outputs(kept, part, outputs)
    path = tmp_path / "new" / "bench"
    assert report(kept, path) == 0
    text = path.with_suffix(".md").read_text()
    assert "| alone | all | 3 | 20 / 950 / 995 | 20 / 20 / 20 | 1.00 (1.00 to 1.00) | 47.50" in text
    assert "| merged topic | 3 | 20 / 20 / 20 | 1.00 (1.00 to 1.00) |" in text
    assert "| replicas | replica 0 | 5 | 5 | 5 |" in text
    figures = json.loads(path.with_suffix(".json").read_text())["figures"]
    assert figures["runs"].keys() == {ALONE, REPLICAS}
    assert path.with_suffix(".png").stat().st_size > 1_000


def test_a_part_whose_outputs_the_tester_could_not_judge_is_reported_as_such(tmp_path: Path) -> None:
    outputs = {"replica 0": output(usual, 70)}
    facts = observed(outputs).facts | {"verdicts": {"replica 0": "not judged: KafkaException"}, "problem": "Ctrl-C"}
    raw.save_facts(tmp_path, ALONE, facts)
    raw.save_outputs(tmp_path, ALONE, outputs)
    assert report(tmp_path, tmp_path / "bench") == 0
    text = (tmp_path / "bench.md").read_text()
    assert "| alone | replica 0 | not judged: KafkaException |" in text
    assert "| Ctrl-C |" in text
