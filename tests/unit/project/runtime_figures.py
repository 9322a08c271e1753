"""Lists the figures of the running joiner: the latency of its results, and their pauses."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import Any

import numpy as np

from bench.runners.computing import COMPUTES
from bench.runners.failover.effects import SHARES, longest
from bench.runners.failover.instances import WORKER_KILLED
from tests.unit.project.recorded import Figure, evidence

_SPEED = "docs/speed.md"
_INSTANCES = "docs/instances.md"

_EVENTS = {
    "killed": "an instance is killed",
    WORKER_KILLED: "a worker process is killed",
    "leaves": "an instance exits on SIGTERM",
    "joins": "an instance starts",
    "drained": "an instance is drained",
    "undrained": "a drain is undone",
}
"""How the documentation calls each kind of event."""


def figures_of_latency() -> Iterable[Figure]:
    """Return the figures of results' latency against the pass-through with the same transactions."""
    quantiles = [_of_pass_through(5_000, number) for number in range(3)]
    yield Figure(
        _SPEED,
        "the p50 is {:.0f} ms, the p99 {:.0f} ms and the p99.9 {:.0f} ms: {:.1f}, {:.1f} and {:.1f} times those of",
        (*(ours for ours, _ in quantiles), *(ratio for _, ratio in quantiles)),
    )
    yield Figure(_SPEED, "At 20,000, the p99 is {:.0f} ms, {:.1f} times as much", _of_pass_through(20_000, 1))
    slow, quick = ([_cores(rate, who) for who in ("contender", "kafka", "measuring")] for rate in (5_000, 20_000))
    yield Figure(_SPEED, "The joiner uses {:.2f} and {:.2f} cores", (slow[0], quick[0]))
    yield Figure(
        _SPEED, "with the measuring programs, {:.2f} and {:.2f} of the two cores are busy", (sum(slow), sum(quick))
    )
    p99, ratio = quantiles[1]
    yield Figure(
        "docs/benchmarks.md",
        "In newer runs, timed from when a record was due, its p99 was {:.0f} ms, {:.1f} times that of the pass-through",
        (p99, ratio),
    )
    yield Figure(
        "docs/operations.md",
        "| p50 {:.0f} ms, p99 {:.0f} ms after the later record",
        (quantiles[0][0], quantiles[1][0]),
    )


def figures_of_pauses() -> Iterable[Figure]:
    """Return the figures of the pauses when instances come and go."""
    recorded = evidence("bench_failover")
    figures = recorded["figures"]
    machine = recorded["machine"]
    yield Figure(_INSTANCES, "two instances under {:,.0f} records/s", (machine["records/s"],))
    yield Figure(_INSTANCES, "in batches of {:.0f} ms", (machine["batches of the load, ms"],))
    for kind, name in _EVENTS.items():
        pauses_ms = np.percentile(longest(figures["pauses"], kind), [50, 99]).tolist()
        staying_ms = figures["gaps_ms"][kind][SHARES.index(99.9)]
        yield Figure(_INSTANCES, f"| {name} | {{:.0f}} | {{:,.0f}} | {{:.0f}} |", (*pauses_ms, staying_ms))
    calm_ms = figures["gaps_ms"]["calm"][SHARES.index(99.9)]
    yield Figure(_INSTANCES, "in calm periods, their p99.9 is {:.0f} ms", (calm_ms,))
    control = evidence("bench_failover_control")["figures"]["gaps_ms"]
    computing_ms, quiet_ms = (control[kind][SHARES.index(99.9)] for kind in (COMPUTES, "calm"))
    assert computing_ms > max(control[kind][SHARES.index(99.9)] for kind in _EVENTS)
    yield Figure(_INSTANCES, "was {:.0f} ms, and {:.0f} ms in calm periods", (computing_ms, quiet_ms))


def _of_pass_through(rate: int, number: int) -> tuple[float, float]:
    """Return a latency quantile of the joiner at a rate, in ms, and its ratio to that of the pass-through."""
    ours, theirs = (
        median(one["ms"][number] for one in _runs(rate, contender)) for contender in ("joiner", "pass-through")
    )
    return ours, ours / theirs


def _cores(rate: int, who: str) -> float:
    """Return how many cores someone used while the joiner ran at a rate."""
    return float(median(one[f"{who}_cores"] for one in _runs(rate, "joiner")))


def _runs(rate: int, contender: str) -> list[dict[str, Any]]:
    return [one for one in evidence("bench_latency")["figures"] if (one["rate"], one["contender"]) == (rate, contender)]
