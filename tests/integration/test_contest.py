"""A tiny version of the whole contest: real Kafka, real contenders, checked results, a page and its plots."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.contest.__main__ import main
from bench.contest.contenders import SPARK_BEST
from bench.contest.job import Limits
from bench.contest.kept import read
from bench.contest.plan import Sizes

TINY = Sizes(
    records=6_000,
    width_records=3_000,
    avro_records=6_000,
    warm_up_records=2_000,
    turns={},
    # Reached only on a busy machine, because a run ends once it has all results.
    limits=Limits(budget_s=240.0, start_s=180.0, quiet_s=20.0),
    widths_ms=(100,),
    rates=(500,),
    latency_s=3.0,
)
CHOSEN = ("plain process", "pass-through", SPARK_BEST.name)


@pytest.mark.long
def test_the_contest_runs_and_judges_and_reports(tmp_path: Path) -> None:
    page, folders = tmp_path / "page.md", {name: tmp_path / name for name in ("results", "plots")}
    given = ["--page", str(page), *(f"--{name}={path}" for name, path in folders.items())]
    main([*given, "--only", "throughput", "--contenders", *CHOSEN], TINY)
    main([*given, "--only", "latency", "--contenders", "plain process"], TINY)
    found = {one["contender"]: one for one in read(folders["results"], "throughput")["measurements"]}
    assert [one["reason"] for one in found.values() if "reason" in one] == []
    assert found["pass-through"]["rows"] == TINY.records
    for name in ("plain process", SPARK_BEST.name):
        judged = found[name]
        assert (judged["complete"], judged["reached"], judged["excess"], judged["double"]) == (1.0, 1.0, 0, 0)
        assert judged["is_through"]
        assert judged["memory_bytes"] > 0
    late = {one["contender"]: one for one in read(folders["results"], "latency")["measurements"]}
    assert late["plain process"]["results"] > 0
    assert 0 < late["plain process"]["ms"][0] < late["plain process"]["max_ms"]
    text = page.read_text()
    assert all(f"| {name} |" in text for name in CHOSEN)
    # Latencies are drawn only of rates with which a contender keeps up, and a busy machine may be too slow for any.
    drawn = {"bench_throughput.png"} | ({"bench_latency.png"} if late["plain process"]["keeps_up"] else set())
    assert {path.name for path in folders["plots"].iterdir()} == drawn


@pytest.mark.long
def test_the_joiner_finds_the_same_neighbours_in_avro(tmp_path: Path) -> None:
    page, folders = tmp_path / "page.md", {name: tmp_path / name for name in ("results", "plots")}
    given = ["--page", str(page), *(f"--{name}={path}" for name, path in folders.items())]
    main([*given, "--only", "avro", "--contenders", "plain process"], TINY)
    found = {one["workload"]: one for one in read(folders["results"], "avro")["measurements"]}
    assert [one["reason"] for one in found.values() if "reason" in one] == []
    assert set(found) == {"avro", "alternating"}
    for judged in found.values():
        assert (judged["complete"], judged["reached"], judged["excess"], judged["double"]) == (1.0, 1.0, 0, 0)
    assert "| plain process: Avro |" in page.read_text()
