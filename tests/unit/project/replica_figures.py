"""Lists the figures of replicas: the latency around faults, in quiet periods, and the cost."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import Any

from tests.unit.project.recorded import Figure, evidence

_PAGE = "docs/replicas.md"
_LOW, _HIGH = 1_000, 50_000
"""The rates at which the cost was measured."""
_VIEWS = {
    "alone": "one process",
    "standby": "two processes, with a standby",
    "merged topic": "two replicas: the merged topic",
    "merging reader": "two replicas: a reader that merges",
}
"""How the page names what the report names otherwise."""
_STEPS = {
    "quiet": "nothing",
    "start replica 1": "replica 1 is started, in sixteen turns",
    "stop replica 1": "replica 1 is stopped, in sixteen turns",
    "a program computes": "a program computes, in fifteen turns",
    "restart `joiner merge` with one replica": "both processes of `joiner merge` are restarted",
    "restart replica 0 with one replica": "both instances of replica 0 are restarted",
}


def figures_of_replicas() -> Iterable[Figure]:
    """Return the figures of the section on what was measured."""
    yield Figure(_PAGE, "{:.0f} faults in each of three runs", (_of_faults("alone")["faults"],))
    for view, name in _VIEWS.items():
        row = _of_faults(view)
        yield Figure(
            _PAGE,
            f"| {name} | {{:,.0f}} / {{:,.0f}} / {{:,.0f}} | {{:,.0f}} / {{:,.0f}} / {{:,.0f}} "
            "| {:.2f} ({:.2f} to {:.2f}) | {:,.0f} |",
            (*row["fault_ms"], *row["quiet_ms"], row["ratio"][2], *row["interval"][2], max(row["slowest_ms"])),
        )
    merged, reader = (_of_quiet(view)["ratio"] for view in ("merged topic", "merging reader"))
    yield Figure(
        _PAGE,
        "the p50 in the merged topic is {:.2f} times that in the topic of replica 0 alone, and the p99 {:.2f} times. "
        "For a reader that merges by itself, they are {:.2f} and {:.2f} times as high",
        (*merged[:2], *reader[:2]),
    )
    alone = [_of_costs("alone", rate) for rate in (_LOW, _HIGH)]
    yield Figure(
        _PAGE,
        "One process takes {:,.0f} and {:,.1f} s of CPU time for a million records, and writes {:,.0f} and {:,.0f} MB",
        (*map(_cpu_s, alone), *(median(one["written"]) / 1e6 for one in alone)),
    )
    for setup in _setups()[1:]:
        ratios = [_of_costs(setup, rate)["of_alone"] for rate in (_LOW, _HIGH)]
        yield Figure(
            _PAGE,
            f"| {setup} | {{:.2f}} | {{:.2f}} | {{:.2f}} | {{:.2f}} |",
            (*(cpu for cpu, _ in ratios), *(written for _, written in ratios)),
        )


def figures_of_steps() -> Iterable[Figure]:
    """Return the figures of the section on adding a replica, and on taking it away."""
    recorded = evidence("bench_replica_steps")
    yield Figure(_PAGE, "measured this at {:,.0f} records a second", (recorded["machine"]["records/s"],))
    interval_ms = recorded["machine"]["commit interval"].removesuffix("ms")
    yield Figure(_PAGE, "and a commit interval of {:.0f} ms", (float(interval_ms),))
    for step, name in _STEPS.items():
        row = _one(row for row in recorded["figures"]["pauses"] if row["step"] == step)
        found = [row[output][what] for output in ("replica 0", "merged") for what in ("median", "longest", "p99.9")]
        cell = "{:,.0f} / {:,.0f} / {:,.0f}"
        yield Figure(_PAGE, f"| {name} | {cell} | {cell} |", tuple(found))
    for output in ("out", "merged"):
        verdict = recorded["machine"][f"the tester on {output}"]
        count = int(verdict.removeprefix("expected ").partition(", found ")[0].replace(",", ""))
        yield Figure(_PAGE, "The tester found each of the {:,.0f} results once", (count,))


def _of_faults(view: str) -> dict[str, Any]:
    return _one(row for row in _figures()["faults"] if (row["view"], row["kind"]) == (view, "all"))


def _of_quiet(view: str) -> dict[str, Any]:
    return _one(row for row in _figures()["quiet"] if row["view"] == view)


def _of_costs(setup: str, rate: int) -> dict[str, Any]:
    return _one(row for row in _figures()["costs"] if (row["setup"], row["rate"]) == (setup, rate))


def _one(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    (found,) = rows
    return found


def _setups() -> list[str]:
    return list(dict.fromkeys(row["setup"] for row in _figures()["costs"]))


def _cpu_s(row: dict[str, Any]) -> float:
    """Return the CPU time of all processes of the joiner for a million records: the median of the turns."""
    return float(median(map(sum, zip(row["joiner_s"], row["merger_s"], strict=True))))


def _figures() -> dict[str, Any]:
    found: dict[str, Any] = evidence("bench_replicas")["figures"]
    return found
