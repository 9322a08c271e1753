"""Lists the measured figures on the pages: the passage that contains each, and the recorded runs that it comes from.

A placeholder in the passage stands for a figure, in the format used on the page. The values are computed here from the
JSON files that the benchmarks wrote, so a page can neither keep a figure from an older run nor round in its favour.
Figures that a run was judged not to support (`judged` in `bench.contest.report.figures`) are absent, so no page can
state them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cache
from statistics import median
from typing import Any

from tests.unit.project.aligned_figures import figures_of_aligned_rows
from tests.unit.project.page_figures import figures_of_the_page
from tests.unit.project.recorded import Figure, contest, contests, evidence, trials
from tests.unit.project.replica_figures import figures_of_replicas, figures_of_steps
from tests.unit.project.runtime_figures import figures_of_latency, figures_of_pauses


def _each(one: Iterable[float], other: Iterable[float]) -> list[float]:
    """Return the ratio for each turn."""
    return [mine / theirs for mine, theirs in zip(one, other, strict=False)]


PROCESS, STAGE, PASS_THROUGH = "plain process", "Spark stage", "pass-through"
BEST, TUNED = (f"Spark range join, {name}" for name in ("best", "tuned"))
FLINK, FLINK_BY_HAND = "Flink interval join", "Flink by hand"
TWO_TOPICS = "Spark range join, two topics"
KAFKA_STREAMS = "Kafka Streams window", "Kafka Streams by hand"


def _rates(contender: str) -> list[float]:
    return contest("throughput", contender, "records_per_s")


def _of_rates(one: str, other: str) -> list[float]:
    return _each(_rates(one), _rates(other))


def _throughput(contender: str, figure: str) -> float:
    return median(contest("throughput", contender, figure))


def _late_ms(contender: str, number: int, rate: int = 5_000) -> float:
    return median(contest("latency", contender, f"ms {number}", rate=rate))


def _cpu_s(contender: str) -> float:
    """Return the CPU time for a million records, in s."""
    return _throughput(contender, "cpu_s_per_million")


def _only(kind: str, contender: str, figure: str, **where: Any) -> float:
    (found,) = contest(kind, contender, figure, **where)
    return found


def _benchmarks() -> Iterable[Figure]:
    page = "docs/benchmarks.md"
    best, tuned = _of_rates(PROCESS, BEST), _of_rates(PROCESS, TUNED)
    cpu = {name: _throughput(name, "cpu_s_per_million") for name in (PROCESS, BEST, TUNED, STAGE)}
    yield Figure(page, "{:.1f} to {:.1f} times as many records a second as Spark with", (min(best), max(best)))
    yield Figure(
        page,
        "and {:.1f} to {:.1f} times as many as Spark tuned for large states (medians {:.1f} and {:.1f}).",
        (min(tuned), max(tuned), median(best), median(tuned)),
    )
    yield Figure(
        page,
        "A million records cost the plain process {:.1f} s of CPU time, and Spark {:.1f} s and {:.1f} s.",
        (cpu[PROCESS], cpu[BEST], cpu[TUNED]),
    )
    yield Figure(
        page,
        "With a topic for each side, Spark with the best settings reached {:.1f} times its rate with one topic",
        (_of_rates(TWO_TOPICS, BEST)[0],),
    )
    flink = _of_rates(PROCESS, FLINK)
    yield Figure(
        page,
        "joins {:.0f} thousand records a second, and the plain process {:.1f} to {:.1f} times as many.",
        (_throughput(FLINK, "records_per_s") / 1e3, min(flink), max(flink)),
    )
    yield Figure(
        page,
        "A million records cost it {:.1f} s of CPU time. The windowed join of Kafka Streams costs {:.1f} s, but",
        (_cpu_s(FLINK), _cpu_s(KAFKA_STREAMS[0])),
    )
    yield Figure(
        page,
        "written by hand in Java for Spark costs {:.1f} s on ordered records, and {:.1f} s with a watermark.",
        (_cpu_s("Spark by hand in Java, ordered"), _cpu_s("Spark by hand in Java")),
    )
    best, tuned = _of_rates(STAGE, BEST), _of_rates(STAGE, TUNED)
    yield Figure(
        page,
        "reaches {:.1f} to {:.1f} and {:.1f} to {:.1f} times the rates of those two windowed joins, for {:.1f} s of",
        (min(best), max(best), min(tuned), max(tuned), cpu[STAGE]),
    )
    beside = _of_rates(STAGE, PROCESS)
    yield Figure(
        page,
        "one for each core, and reached {:.1f} to {:.1f} times the rate of the plain process.",
        (min(beside), max(beside)),
    )
    narrow, wide = ({"width_ms": width_ms} for width_ms in (100, 1_072))
    excess, results = (contest("widths", FLINK, name, **wide)[0] for name in ("excess", "results"))
    yield Figure(
        page,
        "finds {:.1%} of the neighbours with 100 ms to each side, and {:.1%} with {:,} ms, but then {:.1%} of its",
        (
            _only("widths", FLINK, "complete", **narrow),
            _only("widths", FLINK, "complete", **wide),
            _only("widths", FLINK, "width_ms", share=0.99),
            excess / results,
        ),
    )


def _benchmarks_of_workloads() -> Iterable[Figure]:
    page = "docs/benchmarks.md"
    bursts, skew = ({"workload": name} for name in ("bursts and gaps", "skew"))
    yield Figure(
        page,
        "is {:.0f} s wide on bursts with silences between them, and {:.0f} s on skewed things; there, within the "
        "shorter time limits of the older runs, Spark got through {:.1%} and {:.1%} of the input, and Flink through "
        "{:.1%} and {:.1%}.",
        (
            *(_only("workloads", BEST, "width_ms", **where) / 1e3 for where in (bursts, skew)),
            *(_only("workloads", name, "reached", **where) for name in (BEST, FLINK) for where in (bursts, skew)),
        ),
    )
    held = {one["workload"]: one["state_rows"] for one in contests()["workloads"] if one["contender"] == PROCESS}
    in_order = max(one["state"]["rows"][1] for one in contests()["throughput"] if one["contender"] == PROCESS)
    yield Figure(
        page,
        "held {:.0f} records for 8 things with ordered records; at the end of the input, in older runs, it held {:.0f} "
        "for each of 1,000 or 100,000 things, {:,.0f} where",
        (in_order, held["100,000 keys"] / 100_000, held["rates 1:1000"]),
    )
    yield Figure(page, "{:.0f} for each of 1,000", (held["1,000 keys"] / 1_000,))
    yield Figure(page, "all {:,.0f} of the Nexmark-like workload", (held["like Nexmark"],))


def _benchmarks_of_others() -> Iterable[Figure]:
    page = "docs/benchmarks.md"
    yield Figure(
        page,
        "joiner's p99 is {:.0f} ms. Spark with the best settings, in micro-batches, has {:.0f} ms, {:.1f} times as",
        (_late_ms(PROCESS, 1), _late_ms(BEST, 1), _late_ms(BEST, 1) / _late_ms(PROCESS, 1)),
    )
    yield Figure(page, "every 200 ms, has {:.0f} ms;", (_late_ms(FLINK, 1),))
    in_c, in_java = (_throughput(f"pass-through in {name}", "records_per_s") / 1e3 for name in ("C", "Java"))
    yield Figure(page, "copies {:,.0f} thousand records a second where", (in_c,))
    yield Figure(
        page,
        "joins {:.0f} thousand (medians), and one in Java copies {:.0f} thousand.",
        (_throughput(PROCESS, "records_per_s") / 1e3, in_java),
    )
    yield Figure(
        page,
        "With Flink, exactly once, a million records cost {:.1f} s of CPU time, against {:.1f} s for the plain "
        "process; with Kafka Streams, {:.1f} s.",
        tuple(map(_cpu_s, (FLINK_BY_HAND, PROCESS, KAFKA_STREAMS[1]))),
    )
    yield Figure(
        page,
        "Two processes reached {:.2f} times the rate of one in the turn in which both ran, and {:.2f} times in",
        (_of_rates("two processes", PROCESS)[0], _kafka("joiner, two processes") / _kafka("joiner")),
    )
    yield Figure(
        page,
        "needs {:,.0f} MB of memory where the plain process needs {:,.0f} MB, and its first result comes after "
        "{:.1f} s.",
        (*(_throughput(name, "memory_bytes") / 1e6 for name in (STAGE, PROCESS)), _throughput(STAGE, "start_s")),
    )
    yield Figure(page, "the former one had a p99 of {:.0f} ms at 5,000", (_late_ms(STAGE, 1),))
    by_hand = "bytewax by hand"
    yield Figure(
        page,
        "the hand-written join has a p99 of {:.0f} ms at that rate. At 20,000 records a second, its p99 is {:.0f} ms, "
        "and the joiner's {:.0f} ms.",
        (_late_ms(by_hand, 1), *(_late_ms(name, 1, rate=20_000) for name in (by_hand, PROCESS))),
    )
    yield Figure(
        page,
        "Flink's interval join reached {:.0f} and {:.0f} thousand records a second, and Pathway's {:.0f} and {:.0f}",
        tuple(rate / 1e3 for peer in ("flink_interval", "pathway_join") for rate in trials(peer, "best")),
    )
    yield Figure(page, "which joins nothing, has a p99 of {:.0f} ms at the lower rate.", (_late_ms(PASS_THROUGH, 1),))
    through = _of_rates(PROCESS, PASS_THROUGH)
    yield Figure(page, "each unit, the joiner reaches {:.1f} to {:.1f} times the rate.", (min(through), max(through)))
    yield Figure(
        page,
        "turn, the rate of the plain process differs by {:.0%}.",
        (max(_rates(PROCESS)) / min(_rates(PROCESS)) - 1,),
    )


def _benchmarks_of_the_runs() -> Iterable[Figure]:
    page = "docs/benchmarks.md"
    measured = [one for one in contests()["throughput"] if one.get("cpu_s_per_million")]
    turns = Counter(one["contender"] for one in measured)
    costs = [contest("throughput", name, "cpu_s_per_million") for name, count in turns.items() if count > 1]
    yield Figure(
        page,
        "The same work cost up to {:.1f} times as much CPU time in one turn as in another",
        (max(max(cost) / min(cost) for cost in costs),),
    )
    yield Figure(
        page,
        "other programs took up to {:.0%} of the machine",
        (max(one.get("foreign_share", 0.0) for one in measured),),
    )
    (first,) = (one for one in measured if (one["contender"], one["turn"]) == (PROCESS, 1))
    yield Figure(
        page,
        "the plain process was slowest ({:.0f} thousand records a second, {:.1f} s of CPU time for a million)",
        (first["records_per_s"] / 1e3, first["cpu_s_per_million"]),
    )
    for peer, also in (("Flink by hand", "With Flink, it joins"), (KAFKA_STREAMS[1], "with Kafka Streams,")):
        ratios = _of_rates(PROCESS, peer)
        yield Figure(
            page,
            also + " {:.0f} thousand records a second, and the plain process {:.1f} to {:.1f} times as many",
            (_throughput(peer, "records_per_s") / 1e3, min(ratios), max(ratios)),
        )
    (one_core,) = _rates("Spark stage, one core")
    yield Figure(page, "instances of the stage reached {:.2f} times the rate of one", (_rates(STAGE)[0] / one_core,))


OF_UNITS = "pass-through, a transaction for each unit"


def _kafka(contender: str) -> float:
    return float(median(evidence("bench_kafka")["figures"][contender]))


def _engine_rate(curve: str, who: str = "engine", /, **where: int) -> float:
    """Return the rate in million records a second."""
    (found,) = [
        one
        for one in evidence("bench_engine")["figures"][curve]
        if all(one["case"][name] == value for name, value in where.items())
    ]
    return float(found["case"]["records"] / median(found["seconds"][who]) / 1e6)


def _faster_tables() -> list[float]:
    """Return the speedups over pandas on the same frames."""
    return [
        median(one["seconds"]["pandas, four merge_asof"]) / median(one["seconds"]["joiner.join, pandas"])
        for one in evidence("bench_tables")["figures"]
    ]


_SPEED = "docs/speed.md"


def _speed_of_the_engine() -> Iterable[Figure]:
    few, many = ({"keys": keys} for keys in (8, 1_000))
    yield Figure(
        _SPEED,
        "the engine joins {:.1f} million records a second with 8 keys and {:.1f} million with 1,000.",
        (_engine_rate("keys", **few), _engine_rate("keys", **many)),
    )
    short, long = (_engine_rate("records in all", records=records) for records in (10_000, 10_000_000))
    yield Figure(
        _SPEED,
        "{:.1f} million records a second with ten thousand records in all, and {:.1f} million with ten million",
        (short, long),
    )
    cold, warm = (
        (_engine_rate(curve, "pandas", **case), _engine_rate(curve, **case) / _engine_rate(curve, "pandas", **case))
        for curve, case in (("keys", few), ("records in all", {"records": 1_000_000}))
    )
    yield Figure(
        _SPEED,
        "rates for pandas: {:.1f} and {:.1f} million records a second. The engine is {:.1f} and {:.1f} times as fast",
        (cold[0], warm[0], cold[1], warm[1]),
    )
    yield Figure(
        _SPEED,
        "This is {:.1f} to {:.1f} times (8 keys, see below) and {:.1f} times (1,000 keys) the rate of",
        (warm[1], cold[1], _engine_rate("keys", **many) / _engine_rate("keys", "pandas", **many)),
    )
    small, usual = (_engine_rate("records in a batch", batch=batch) for batch in (100, 10_000))
    yield Figure(
        _SPEED,
        "A step with a hundred records takes {:.1f} µs. Per record, that is {:.1f} times as long",
        (100 / small, usual / small),
    )
    ahead = {
        records: _engine_rate("records that one side runs ahead", ahead=records) for records in (0, 100_000, 1_000_000)
    }
    yield Figure(
        _SPEED,
        "Rates fall from {:.1f} million records a second to {:.1f} million with 100,000 records ahead, and to {:.1f} "
        "million with a million: a step of 10,000 records takes {:.1f} ms instead of {:.2f} ms.",
        (*ahead.values(), 10 / ahead[1_000_000], 10 / ahead[0]),
    )


def _speed_of_tables() -> Iterable[Figure]:
    faster = _faster_tables()
    yield Figure(_SPEED, "one call on pandas frames is {:.1f} to {:.1f} times as fast", (min(faster), max(faster)))
    own, other = ("joiner.join, polars", "polars, four join_asof")
    runs = evidence("bench_tables")["figures"]
    slower = [one for one in runs if median(one["seconds"][other]) < median(one["seconds"][own])]
    yield Figure(_SPEED, "on polars frames in {:.0f} of {:.0f} cases", (len(slower), len(runs)))


def _speed_of_the_joiner() -> Iterable[Figure]:
    fastest = max((name for name in evidence("bench_kafka")["figures"] if name.startswith("pass-through")), key=_kafka)
    assert fastest == "pass-through in C"
    yield Figure(
        _SPEED,
        "The joiner processes {:.0f} thousand records a second, {:.2f} times the rate of the fastest pass-through, "
        "which is written in C with the same client library, and {:.2f} times that of the Python pass-through that",
        (_kafka("joiner"), _kafka("joiner") / _kafka(fastest), _kafka("joiner") / _kafka(OF_UNITS)),
    )
    compact = _kafka("joiner, compact results")
    yield Figure(
        _SPEED,
        "the joiner processes {:.0f} thousand records a second, {:.2f} times the rate of the fastest pass-through.",
        (compact, compact / _kafka(fastest)),
    )
    of_layouts = {name: median(runs) for name, runs in evidence("bench_layouts")["figures"].items()}
    own = of_layouts.pop("own form")
    yield Figure(
        _SPEED,
        "are joined at {:.2f} times the rate of the project's own form, and Avro messages with a schema registry at "
        "{:.2f} times",
        tuple(rate / own for rate in of_layouts.values()),
    )
    profile = evidence("bench_profile")["figures"]
    ours, copy = profile["joiner"], profile["pass-through in C"]
    yield Figure(
        _SPEED,
        "cost the joiner {:.1f} s of CPU time and Kafka {:.1f} s, while the pass-through in C costs {:.1f} s and Kafka "
        "{:.1f} s",
        tuple(median(run[what] for run in runs) for runs in (ours, copy) for what in ("process_s", "kafka_s")),
    )
    steps = {step: median(run["steps"][step] for run in ours) for step in ours[0]["steps"]}
    yield Figure(
        _SPEED,
        "Of its {:.1f} s, composing results takes {:.1f} s, parsing records {:.1f} s, and finding neighbours {:.2f} s.",
        (
            median(run["process_s"] for run in ours),
            *(steps[step] for step in ("computing and composing results", "parsing records", "finding neighbours")),
        ),
    )
    yield Figure(_SPEED, "Another {:.1f} s go mostly to the Kafka client's", (steps["the Kafka client's own threads"],))
    whole = [sum(median(run[what] for run in runs) for what in ("process_s", "kafka_s")) for runs in (ours, copy)]
    yield Figure(_SPEED, "Kafka, the joiner takes {:.1f} times as much CPU time for a record", (whole[0] / whole[1],))
    rates = {name: median(found) for name, found in evidence("bench_batches")["figures"].items()}
    yield Figure(_SPEED, "it joins {:.1f} million records a second", (rates.pop("joiner, results in Arrow"),))
    yield Figure(_SPEED, "without decoding them, processes {:.1f} million", (max(rates.values()),))
    yield Figure(
        _SPEED,
        "In older runs of all engines, the p99 was {:.0f} ms, {:.1f} times that of the pass-through",
        (_late_ms(PROCESS, 1), _late_ms(PROCESS, 1) / _late_ms(PASS_THROUGH, 1)),
    )
    nothing, much = (median(runs) for runs in evidence("bench_recovery")["figures"].values())
    yield Figure(_SPEED, "it takes {:.2f} s with one record held, and {:.2f} s more", (nothing, much - nothing))


def _spark() -> Iterable[Figure]:
    page = "docs/spark.md"
    yield Figure(page, "one command, first result after {:.1f} s |", (_throughput(PROCESS, "start_s"),))
    ways = ("process", "spark"), ("spark", "another process"), ("another process", "process")
    moves = [
        [one for one in evidence("bench_moving_spark")["figures"] if (one["from"], one["to"]) == way] for way in ways
    ]
    pauses, gaps = ([[one[name] for one in of_way] for of_way in moves] for name in ("pause_ms", "gap_ms"))
    (count,) = {len(runs) for runs in pauses}
    yield Figure(
        page,
        "a unit paused for {:.0f} ms on its way from a process to Spark, for {:.0f} ms on its way back, and for "
        "{:.0f} ms from process to process (medians of {:.0f}; the longest {:.0f} ms)",
        (*map(median, pauses), count, max(map(max, pauses))),
    )
    yield Figure(
        page,
        "was {:.0f} ms, {:.0f} ms and {:.0f} ms (medians; the longest {:,.0f} ms)",
        (*map(median, gaps), max(map(max, gaps))),
    )


def _others() -> Iterable[Figure]:
    page = "docs/operations.md"
    yield Figure(page, "what was measured: {:.0f} thousand records/s", (_throughput(PROCESS, "records_per_s") / 1e3,))
    yield Figure(page, "| {:.0f} MB at full rate, plus the held records", (_throughput(PROCESS, "memory_bytes") / 1e6,))
    ratios = evidence("bench_metrics")["figures"]["thousand records a second"]["with / without"]
    yield Figure(
        "docs/metrics.md",
        "joined {:.2f} times as many records a second as the other (median of eight turns, {:.2f} to {:.2f};",
        (median(ratios), min(ratios), max(ratios)),
    )
    yield from figures_of_the_page()
    yield from figures_of_replicas()
    yield from figures_of_steps()
    (killed,) = [run for run in evidence("chaos")["runs"] if run["seed"] == "MQTT broker killed"]
    yield Figure(
        "docs/guarantees.md",
        "HiveMQ lost {:.0f} quantities in {:.0f} kills",
        (killed["lost before Kafka"], killed["kills"]),
    )


@cache
def figures() -> list[Figure]:
    """Return the figures of all pages."""
    return [
        *_benchmarks(),
        *_benchmarks_of_workloads(),
        *_benchmarks_of_others(),
        *_benchmarks_of_the_runs(),
        *_speed_of_the_engine(),
        *_speed_of_tables(),
        *figures_of_aligned_rows(),
        *_speed_of_the_joiner(),
        *figures_of_latency(),
        *figures_of_pauses(),
        *_spark(),
        *_others(),
    ]
