"""How the contest's figures are stored between runs, and the page that is written from them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.contest.plan import QUICK, Kept, Measurement, plan, read
from bench.contest.report import BEGIN, END, percent, write_report
from bench.harness.report import json_text


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
    kept.add(one, [{"reason": "out of memory"}])
    assert not kept.has(one)
    kept.add(one, [{"records_per_s": 1.0}])
    assert kept.has(one)
    assert [found.get("reason") for found in read(tmp_path, "throughput")["measurements"]] == [None]


def test_the_page_shows_every_run_and_keeps_the_text_around(tmp_path: Path) -> None:
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
    assert {path.suffix for path in (tmp_path / "plots").iterdir()} == {".png"}


def page_of(tmp_path: Path, kind: str, *figures: dict[str, Any]) -> str:
    """Write the page for runs of one kind, and return its text."""
    kept = Kept(tmp_path, {"cores": 2}, QUICK, resume=False)
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


def test_a_run_that_its_count_ended_is_not_judged_and_has_no_rate(tmp_path: Path) -> None:
    wide = {"width_ms": 10_000, "missing": 70, "complete": 0.3, "excess": 900, "results": 1_000, "reached": 0.07}
    text = page_of(tmp_path, "widths", measured("Flink interval join") | wide | {"held": 30_000})
    assert "| Flink interval join | 10,000 | - | - | 90.000% | 7.000%, not judged |" in text
    again = page_of(tmp_path, "widths", measured("Flink interval join") | wide | {"held": 1_000})
    assert "| Flink interval join | 10,000 | 50.0 | 30.000% | 90.000% | 7.000% |" in again


def test_no_contender_fails_to_keep_up_because_of_results_that_could_not_have_been_emitted(tmp_path: Path) -> None:
    silent = {"contender": "Spark as-of by hand", "rate": 1_000, "results": 0, "ms": None, "keeps_up": False}
    row = "| 1,000 | Spark as-of by hand | - | - | - |"
    assert f"{row} not judged |" in page_of(tmp_path, "latency", dict(silent))
    assert f"{row} 0 of 1 times |" in page_of(tmp_path, "latency", silent | {"listened_s": 22.0})


def test_what_was_held_at_the_end_is_not_compared_with_the_largest_state_of_others(tmp_path: Path) -> None:
    runs = [measured(name) | {"missing": 0, "state_rows": rows} for name, rows in (("plain process", 3), ("x", 660))]
    runs[1]["contender"] = "Spark range join, best"
    text = page_of(tmp_path, "throughput", *runs)
    (ours,) = [line.split(" | ") for line in text.splitlines() if line.startswith("| plain process | 100% | ")]
    (theirs,) = [
        line.split(" | ") for line in text.splitlines() if line.startswith("| Spark range join, best | 100% | ")
    ]
    assert (ours[7], ours[9], theirs[7], theirs[9]) == ("3", "-", "-", "660")
    assert "in the state" not in text.partition("## Ratios")[2].partition("##")[0]


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
