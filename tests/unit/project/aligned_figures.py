"""Lists the figures on the pages that concern aligned rows; see `tests.unit.project.figures`."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import Final

from tests.unit.project.recorded import Figure, contest, evidence

_SPEED: Final = "docs/speed.md"
_SPARK: Final = "Spark by hand in Java, ordered"


def _tables() -> Iterable[Figure]:
    ratios = []
    for columns in ("three interpolated columns", "three previous columns"):
        case = {"rows": 1_000_000, "keys": 8, "columns": columns}
        (seconds,) = [
            one["seconds"] for one in evidence("bench_aligned_tables")["figures"] if case.items() <= one.items()
        ]
        for kind, other in (("pandas", "pandas, merge_asof"), ("polars", "polars, join_asof")):
            ratios.append(median(seconds[other]) / median(seconds[f"joiner.align, {kind}"]))
    yield Figure(
        _SPEED,
        "it is {:.1f} times as fast as pandas on pandas frames, and {:.1f} times as fast as polars",
        tuple(ratios[:2]),
    )
    yield Figure(_SPEED, "which need one as-of join each, it is {:.1f} and {:.1f} times as fast.", tuple(ratios[2:]))


def _small_tables() -> Iterable[Figure]:
    small = [one["seconds"] for one in evidence("bench_aligned_tables")["figures"] if one["rows"] == 10_000]
    slower = [one for one in small if median(one["polars, join_asof"]) < median(one["joiner.align, polars"])]
    yield Figure(_SPEED, "`joiner.align` on polars frames in {:.0f} of {:.0f} cases", (len(slower), len(small)))


def _from_kafka_to_kafka() -> Iterable[Figure]:
    page, ours = "docs/benchmarks.md", "plain process"
    join, flink, spark = _of_turns("alternating", ours), _of_turns("rows", "Flink by hand"), _of_turns("rows", _SPARK)
    yield Figure(page, "takes in {:.1f} to {:.1f} times as many records a second as the join", (min(join), max(join)))
    yield Figure(
        page,
        "{:.1f} to {:.1f} times the rate of Flink on ordered records, and {:.1f} times that of Spark (medians).",
        (min(flink), max(flink), median(spark)),
    )
    yield Figure(
        page,
        "cost it {:.1f} s of CPU time, Flink {:.1f} s, or {:.1f} s if it waits for watermarks, and Spark {:.1f} s and "
        "{:.1f} s.",
        tuple(
            median(contest("rows", name, "cpu_s_per_million", workload="rows"))
            for name in (ours, "Flink by hand", "Flink by hand, timers", _SPARK, "Spark by hand in Java")
        ),
    )
    rate = median(contest("rows", ours, "records_per_s", workload="rows")) / 1e3
    yield Figure(
        _SPEED,
        "processes {:.0f} thousand input records a second, {:.1f} to {:.1f} times as many as the two-stream join",
        (rate, min(join), max(join)),
    )


def _of_turns(workload: str, contender: str) -> list[float]:
    """Return how many times the rate of a contender the aligned rows of the joiner have, for each turn."""
    ours, theirs = (
        contest("rows", name, "records_per_s", workload=one)
        for name, one in (("plain process", "rows"), (contender, workload))
    )
    return [one / other for one, other in zip(ours, theirs, strict=True)]


def figures_of_aligned_rows() -> Iterable[Figure]:
    """Return the figures of all pages that concern aligned rows."""
    yield from _tables()
    yield from _small_tables()
    yield from _from_kafka_to_kafka()
