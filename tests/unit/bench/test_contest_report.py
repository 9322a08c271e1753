"""How the contest's figures are stored between runs, and the page that is written from them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.contest.contenders import HEADLINE
from bench.contest.kept import Kept, Measurement, read
from bench.contest.plan import QUICK
from bench.contest.report import tables
from bench.contest.report.figures import percent
from bench.contest.report.latencies import found_share
from bench.contest.report.page import BEGIN, END, write_report
from bench.contest.report.plots import bars_of, of_one_recording
from bench.harness.report import json_text


def measured(contender: str, **more: Any) -> dict[str, Any]:
    found = {"results": 100, "rows": 100, "records_per_s": 50_000.0, "results_per_s": 50_000.0, "reached": 1.0}
    found |= {"complete": 1.0, "excess": 0, "double": 0, "start_s": 2.0, "is_through": True, "state_rows": 3}
    return asdict(Measurement("throughput", contender, "alternating", 1)) | found | more


def test_results_are_kept_as_they_come_and_a_resumed_run_knows_them(tmp_path: Path) -> None:
    first, second = (Measurement("throughput", "plain process", "alternating", turn) for turn in (1, 2))
    kept = Kept(tmp_path, {"cores": 2}, QUICK.recorded(), resume=False)
    kept.add(first, [{"records_per_s": 1.0}])
    assert not kept.has(first)
    resumed = Kept(tmp_path, {"cores": 2}, QUICK.recorded(), resume=True)
    assert (resumed.has(first), resumed.has(second)) == (True, False)
    resumed.add(second, [{"records_per_s": 2.0}])
    assert [one["turn"] for one in read(tmp_path, "throughput")["measurements"]] == [1, 2]
    Kept(tmp_path, {}, QUICK.recorded(), resume=False).add(second, [{}])
    assert [one["turn"] for one in read(tmp_path, "throughput")["measurements"]] == [2]


def test_what_failed_is_tried_again_by_a_resumed_run(tmp_path: Path) -> None:
    one = Measurement("throughput", "plain process", "alternating", 1)
    kept = Kept(tmp_path, {}, QUICK.recorded(), resume=True)
    kept.add(one, [{"reason": "out of memory"}])
    assert not kept.has(one)
    kept.add(one, [{"records_per_s": 1.0}])
    assert kept.has(one)
    assert [found.get("reason") for found in read(tmp_path, "throughput")["measurements"]] == [None]


def test_the_page_shows_every_run_and_keeps_the_text_around(tmp_path: Path) -> None:
    kept, page = Kept(tmp_path, {"cores": 2}, QUICK.recorded(), resume=False), tmp_path / "docs" / "page.md"
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
    assert "\nold\n" not in text
    assert "| plain process : Spark range join, tuned, records/s | 1 | 3.0 |" in text
    assert "| Flink interval join | throughput | no environment |" in text
    assert "99.999%" in text
    assert "| plain process | exactly once | 1 | 90.0 |" in text
    assert "| Spark range join, tuned | at least once | 1 | 30.0 |" in text
    assert "`application.buffer_records_max = 10,000,000` (default `" in text
    assert "](../plots/bench_throughput.png)" in text
    assert {path.suffix for path in (tmp_path / "plots").iterdir()} == {".png"}


def page_of(tmp_path: Path, kind: str, *figures: dict[str, Any]) -> str:
    """Write the page for runs of one kind, and return its text."""
    kept = Kept(tmp_path, {"cores": 2}, QUICK.recorded(), resume=False)
    for turn, found in enumerate(figures, 1):
        kept.add(Measurement(kind, found.pop("contender"), "alternating", turn, found.pop("width_ms", 0)), [found])
    write_report(tmp_path, tmp_path / "page.md", tmp_path / "plots")
    return (tmp_path / "page.md").read_text()


def test_what_a_run_lacks_that_was_cut_off_is_not_called_missing(tmp_path: Path) -> None:
    lacking = {"missing": 1_620, "complete": 0.999, "reached": 0.876, "is_through": False, "double": 12}
    found = measured("Spark range join, best") | lacking | {"recovery_s": 12.0, "is_quiet": False}
    text = page_of(tmp_path, "recovery", found)
    assert "| Spark range join, best | 12.0 | - | 12 | 87.600%, cut off |" in text
    assert "*cut off*" in text
    assert "*not judged*" not in text


def test_what_a_run_lacks_that_read_to_the_end_is_missing(tmp_path: Path) -> None:
    found = measured("plain process") | {"missing": 3, "complete": 0.97, "recovery_s": 1.0, "is_quiet": True}
    assert "| plain process | 1.0 | 3 | 0 | 100% |" in page_of(tmp_path, "recovery", found)


def test_a_run_that_was_cut_off_is_named_so_and_not_compared_for_completeness(tmp_path: Path) -> None:
    wide = {"width_ms": 10_000, "missing": 0, "complete": 1.0, "excess": 900, "results": 1_000, "reached": 0.07}
    cut = measured("Flink interval join") | wide | {"is_through": False, "is_quiet": False}
    assert "| Flink interval join | 10,000 | 50.0 | - | 90.000% | 7.000%, cut off |" in page_of(
        tmp_path, "widths", dict(cut)
    )
    stuck = page_of(tmp_path, "widths", cut | {"is_quiet": True})
    assert "| Flink interval join | 10,000 | 50.0 | - | 90.000% | 7.000%, went quiet early |" in stuck
    through = page_of(tmp_path, "widths", cut | {"is_through": True, "is_quiet": True, "reached": 1.0, "complete": 0.3})
    assert "| Flink interval join | 10,000 | 50.0 | 30.000% | 90.000% | 100% |" in through
    assert "not judged" not in stuck + through


def test_a_rate_that_a_contender_does_not_keep_up_with_is_where_it_is_saturated(tmp_path: Path) -> None:
    at = {"contender": "plain process", "contender_cores": 0.5, "kafka_cores": 0.25, "settings": []}
    one = Measurement("latency", "plain process", "alternating", 1)
    kept = Kept(tmp_path, {"cores": 2}, QUICK.recorded(), resume=False)
    steps = [
        at | {"rate": 1_000, "results": 9, "ms": [20.0, 30.0, None], "keeps_up": True},
        at | {"rate": 5_000, "results": 9, "ms": [900.0, None, None], "keeps_up": False},
    ]
    kept.add(one, steps)
    write_report(tmp_path, tmp_path / "page.md", tmp_path / "plots")
    text = (tmp_path / "page.md").read_text()
    assert "| 1,000 | plain process | 20 | 30 | never | yes | 0.50 | 0.25 |" in text
    assert "| 5,000 | plain process | 900 | never | never | 0 of 1 times | 0.50 | 0.25 |" in text
    assert "| plain process | 1,000 | 5,000 | 30 | 0.50 |" in text
    assert "No live load above 5,000 records/s was measured." in text
    assert "was not measured: two processes; Spark stage" in text


def test_a_run_that_other_programs_disturbed_is_marked(tmp_path: Path) -> None:
    text = page_of(tmp_path, "throughput", measured("plain process", foreign_share=0.06))
    assert "| plain process | exactly once | 1 | 50.0 ! |" in text
    assert "A figure marked ! was disturbed" in text
    text = page_of(tmp_path, "throughput", measured("plain process", foreign_share=0.04))
    assert "| plain process | exactly once | 1 | 50.0 |" in text
    assert "disturbed" not in text


def test_states_of_all_contenders_are_shown_in_the_same_columns(tmp_path: Path) -> None:
    runs = [measured("plain process"), measured("Spark range join, best")]
    runs[0]["state"] = {
        "positions": 9,
        "needed_rows": [8, 8],
        "rows": [20, 24],
        "bytes": [100, 200],
        "batch_share": 0.1,
    }
    runs[1]["state"] = {"positions": 4, "needed_rows": [8, 8], "rows": [700, 900], "batch_share": 1.0}
    text = page_of(tmp_path, "throughput", *runs)
    assert "| plain process | 9 | 8 / 8 | 20 / 24 | 10.000% | 100 / 200 |" in text
    assert "| Spark range join, best | 4 | 8 / 8 | 700 / 900 | 100% | - |" in text


def test_the_cost_of_records_is_that_of_the_cpu_time_of_contender_and_kafka(tmp_path: Path) -> None:
    run = measured("plain process") | {"cpu_s_per_million": 2.6, "kafka_cpu_s_per_million": 1.0}
    text = page_of(tmp_path, "throughput", run)
    # A thousand million records take 3,600 s of CPU time: an hour of a core.
    assert "| plain process | 100% | 0% | 0 | 2.6 | 1.0 | 0.040 | - | - |" in text
    assert "at 0.04 € per core-hour" in text


def test_a_file_of_an_earlier_version_is_read_and_resumed(tmp_path: Path) -> None:
    one = Measurement("throughput", "plain process", "alternating", 1)
    old = {name: value for name, value in asdict(one).items() if name not in {"curve", "at"}}
    (tmp_path / "throughput.json").write_text(json.dumps({"measurements": [old | {"records_per_s": 1.0}]}))
    assert Kept(tmp_path, {}, QUICK.recorded(), resume=True).has(one)


def test_no_share_is_rounded_to_all_or_nothing() -> None:
    assert [percent(share) for share in (0.0, 1e-9, 0.5, 0.9999999, 1.0)] == [
        "0%",
        "0.001%",
        "50.000%",
        "99.999%",
        "100%",
    ]


def test_json_has_a_line_for_each_run_and_is_read_back_as_it_was() -> None:
    runs = [{"contender": f"number {number}", "ms": list(range(100))} for number in range(5)]
    text = json_text({"machine": {"cores": 2}, "runs": runs, "none": []})
    assert json.loads(text) == {"machine": {"cores": 2}, "runs": runs, "none": []}
    assert sum(f'"number {number}"' in line for number in range(5) for line in text.splitlines()) == 5
    assert len(text.splitlines()) == 2 + 2 + len(runs) + 2


OURS, SPARK, PYTHON, IN_C = "plain process", "Spark range join, tuned", "pass-through", "pass-through in C"


def runs_of(contender: str, rates: list[float], **more: Any) -> list[dict[str, Any]]:
    """Return a run for each rate, each in a turn of its own."""
    return [measured(contender, records_per_s=rate, **more) | {"turn": turn} for turn, rate in enumerate(rates, 1)]


def ratio_rows(*runs: list[dict[str, Any]]) -> list[str]:
    return tables.ratios({"throughput": [one for some in runs for one in some], "latency": []})[3:]


def test_a_ratio_is_of_two_runs_with_the_same_broker_and_the_same_code() -> None:
    ours = runs_of(OURS, [90.0, 100.0, 110.0], broker_start="a", commit="1")
    other = runs_of(SPARK, [10.0, 10.0, 10.0], broker_start="a", commit="1")
    assert ratio_rows(ours, other) == [f"| {OURS} : {SPARK}, records/s | 3 | 9.0 / 10.0 / 11.0 |"]
    other[0] |= {"broker_start": "b"}
    other[2] |= {"commit": "2"}
    assert ratio_rows(ours, other) == [f"| {OURS} : {SPARK}, records/s | 1 | 10.0 |"]
    ours[1] |= {"broker_start": None, "commit": None}
    assert ratio_rows(ours, other) == []


def test_runs_that_do_not_record_their_broker_are_paired_by_turn() -> None:
    rows = ratio_rows(runs_of(OURS, [90.0, 100.0]), runs_of(SPARK, [10.0, 20.0]))
    assert rows == [f"| {OURS} : {SPARK}, records/s | 2 | 5.0 / 7.0 / 9.0 |"]


def test_a_run_that_was_cut_off_has_no_ratio() -> None:
    other = runs_of(SPARK, [10.0, 10.0])
    other[0] |= {"withheld": "cut off"}
    assert ratio_rows(runs_of(OURS, [90.0, 100.0]), other) == [f"| {OURS} : {SPARK}, records/s | 1 | 10.0 |"]


def test_the_ratio_of_latencies_is_to_the_fastest_variant_of_spark() -> None:
    best = "Spark range join, best"
    p99s = {OURS: 50.0, f"{best}, 1 join partition": 200.0, f"{best}, 2 join partitions": 300.0}
    latency = [{"contender": name, "rate": 5_000, "ms": [1.0, p99, 999.0]} for name, p99 in p99s.items()]
    rows = tables.ratios({"throughput": [], "latency": latency})[3:]
    assert rows == [f"| p99 at 5,000/s, {best} : {OURS} | 1 | 4.0 |"]


def test_what_older_runs_differ_in_is_said_only_while_there_are_any(tmp_path: Path) -> None:
    older = page_of(tmp_path, "throughput", measured(OURS))
    assert "**Older runs.**" in older
    assert "- throughput: " in older
    assert "- latency: " not in older
    assert "**Older runs.**" not in page_of(tmp_path, "throughput", measured(OURS, commit="1"))


def test_the_page_names_the_versions_of_the_peers_and_who_is_in_a_headline(tmp_path: Path) -> None:
    text = page_of(tmp_path, "throughput", measured(OURS))
    for line in ("- apache-flink: 2.", "- bytewax: 0.", "- quixstreams: 3.", "- Flink's Kafka connector: "):
        assert line in text
    assert f"more often than the others: {'; '.join(HEADLINE)}." in text


def test_a_column_of_the_workloads_without_figures_is_left_out() -> None:
    run = measured(OURS) | {"about": "some records"}
    assert "records held" not in "".join(tables.workloads([run]))
    assert "| 7 |" in tables.workloads([run | {"state": {"rows": [5, 7]}}])[-1]


def test_a_rate_is_compared_with_the_fastest_pass_through_of_its_own_turn() -> None:
    runs = [*runs_of(PYTHON, [50.0, 60.0, 150.0]), *runs_of(IN_C, [100.0, 200.0])]
    assert tables.of_pass_through(runs_of(OURS, [50.0, 50.0, 50.0, 50.0]), runs) == [0.5, 0.25, 1 / 3]
    assert tables.of_pass_through(runs_of(OURS, [50.0], broker_start="a"), runs) == []


def test_aligned_rows_are_compared_with_the_two_stream_join_of_their_own_turn() -> None:
    def of_workload(name: str, rates: list[float]) -> list[dict[str, Any]]:
        return [one | {"kind": "rows", "workload": name, "about": name} for one in runs_of(OURS, rates)]

    joins, rows = of_workload("alternating", [100.0, 200.0]), of_workload("rows", [90.0, 150.0, 10.0])
    assert tables.of_two_stream_join(rows, [*rows, *joins]) == [0.9, 0.75]
    assert tables.of_two_stream_join(joins, [*rows, *joins]) == [1.0, 1.0]
    (line,) = [line for line in tables.rows([*rows, *joins]) if "aligned rows |" in line]
    assert "| 3 |" in line
    assert "| 0.75 / 0.82 / 0.90 |" in line


def test_contenders_on_avro_are_compared_with_the_joiner_of_their_own_turn(tmp_path: Path) -> None:
    def of_workload(name: str, workload: str, rates: list[float], **more: Any) -> list[dict[str, Any]]:
        return [one | {"kind": "avro", "workload": workload} | more for one in runs_of(name, rates)]

    ours, json_ = of_workload(OURS, "avro", [200.0, 400.0]), of_workload(OURS, "alternating", [100.0, 300.0])
    peers = of_workload("Flink by hand", "avro", [50.0, 300.0])
    cut_off = of_workload("Flink interval join", "avro", [20.0, 20.0], withheld="cut off", complete=None)
    lines = {line.split(" | ")[0].strip("| "): line for line in tables.avro([*ours, *json_, *peers, *cut_off], "1.2.3")}
    assert "| 1.00 |" in lines["plain process: Avro"]
    assert "| 0.50 / 0.62 / 0.75 |" in lines["plain process: JSON"]
    assert "| 0.25 / 0.50 / 0.75 |" in lines["Flink by hand: Avro"]
    assert "| - | - | - | 0% |" in lines["Flink interval join: Avro"]
    assert "cut off |" in lines["Flink interval join: Avro"]
    assert "Apache Avro 1.2.3" in "".join(lines.values())
    assert tables.avro([], "1.2.3") == []


def test_the_page_has_a_section_of_avro_only_if_runs_are_recorded(tmp_path: Path) -> None:
    assert "Avro input" not in page_of(tmp_path, "throughput", measured(OURS))
    kept = Kept(tmp_path, {"Apache Avro for Java": "1.2.3"}, QUICK.recorded(), resume=False)
    kept.add(Measurement("avro", OURS, "avro", 1), [measured(OURS, about="some records") | {"workload": "avro"}])
    write_report(tmp_path, tmp_path / "page.md", tmp_path / "plots")
    text = (tmp_path / "page.md").read_text()
    assert "## Avro input" in text
    assert "| plain process: Avro | exactly once | 1 | 50.0 |" in text
    assert "Apache Avro 1.2.3" in text


def test_a_line_over_the_keys_has_points_of_one_recording() -> None:
    def at(workload: str, commit: str | None, date: str) -> dict[str, Any]:
        return measured(OURS, commit=commit, date=date) | {"workload": workload}

    old, new = at("1,000 keys", "1", "2026-01-01 00:00 UTC"), at("100,000 keys", "2", "2026-01-02 00:00 UTC")
    same, other = (at("alternating", commit, "2026-01-03 00:00 UTC") for commit in ("2", "3"))
    assert of_one_recording({"workloads": [old, new], "throughput": [same, other]}) == [new, same]
    unknown = [one | {"commit": None} for one in (old, new, same)]
    assert of_one_recording({"workloads": unknown[:2], "throughput": unknown[2:]}) == unknown[:2]
    assert of_one_recording({"workloads": [], "throughput": [same]}) == []


def test_a_bar_says_how_many_runs_it_stands_for() -> None:
    (bar,) = bars_of(runs_of(OURS, [1.0, 2.0, 3.0]))
    assert bar.words.startswith("n=3, exactly once")


def test_a_run_that_lacks_a_little_is_not_said_to_have_ended_at_the_whole_input() -> None:
    assert (
        found_share([{"withheld": "went quiet early", "reached": 0.9996}]) == "went quiet early at 99.960% of the input"
    )
