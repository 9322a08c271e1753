"""Runs the events, and writes the report."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from bench.harness.pipeline import PARTITIONS, about, own_kafka
from bench.harness.plot import plot_over_time
from bench.harness.report import table, write
from bench.runners import failover
from bench.runners.failover.effects import SHARES, gaps, latencies, longest, of_units, pauses
from bench.runners.failover.instances import CALM_S, KINDS, NAMES, Bench
from bench.runners.moving import start_sender
from broker.settings import KafkaSettings

BATCH_MS: Final = 25
"""How long the load waits for more records to send together. At 5 ms, it would take half of one of two cores."""


class Plan(NamedTuple):
    """How many events of each kind happen, at how many records a second, and for how long events are played before."""

    events: int
    rate: int
    standbys: int
    warm_up_s: float


def measure(kafka: KafkaSettings, folder: Path, plan: Plan) -> tuple[Bench, dict[str, int]]:
    """Trigger each kind of event ``plan.events`` times. Return what happened, and the tester's counts."""
    bench = Bench(kafka, folder, plan.standbys)
    sender = start_sender(kafka, bench.application.data, plan.rate, BATCH_MS)
    try:
        for name in NAMES:
            bench.start(name)
        bench.settle(2)
        time.sleep(5 * CALM_S)
        try:
            warm_up(bench, plan.warm_up_s)
            play(bench, plan.events)
        except (KeyboardInterrupt, RuntimeError) as error:
            print(f"stopped early ({error!r}); the events until then are reported", flush=True)
        sender.terminate()
        sender.wait()
        bench.application.wait_until_through([*bench.running.values()])
        for name in [*bench.running]:
            bench.stop(name, kill=False)
    finally:
        sender.kill()
        sender.wait()
        bench.close()
    return bench, bench.application.verify()


def warm_up(bench: Bench, for_s: float) -> None:
    """Play events that do not count for at least ``for_s`` seconds: Kafka is slow at first. Raises as `play` does."""
    until_s = time.monotonic() + for_s
    while time.monotonic() < until_s:
        for name in NAMES:
            bench.play(name)
    bench.events.clear()


def play(bench: Bench, count: int) -> None:
    """Trigger each kind of event ``count`` times. Raises RuntimeError if the units are not served again in time."""
    for turn in range(count):
        bench.play(NAMES[turn % 2])
    for turn in range(count):
        if turn % 2 == 0:
            # A new supervisor: one that restarts the same worker again and again waits for longer each time.
            bench.supervise()
        bench.kill_worker(turn % 2)


def main() -> int:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(description=failover.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=5_000, help="records a second (default 5000)")
    parser.add_argument("--events", type=int, default=50, help="events of each kind (default 50)")
    parser.add_argument("--standbys", type=int, default=1, help="standbys of each unit (default 1)")
    parser.add_argument(
        "--report", type=Path, default=Path(".lsb/bench_failover"), help="path of the .json, .md and .png files"
    )
    parser.add_argument("--warm-up", type=float, default=180.0, help="seconds until events count (default 180)")
    options = parser.parse_args()
    plan = Plan(options.events, options.rate, options.standbys, options.warm_up)
    with own_kafka() as (kafka, folder):
        bench, verdict = measure(kafka, folder, plan)
        outputs = of_units(bench.application.settings)
    rows = pauses(bench.events, outputs)
    figures: dict[str, Any] = {
        "pauses": rows,
        "gaps_ms": gaps(bench.events, outputs, rows),
        "latency_ms": latencies(bench.events, outputs),
    }
    application = bench.application.settings.application
    ran = about() | {"results, as the tester finds them": ", ".join(f"{what} {n:,}" for what, n in verdict.items())}
    ran |= {"records/s": options.rate, "units": PARTITIONS, "standbys": options.standbys}
    ran |= {"batches of the load, ms": BATCH_MS, "events before those that count, s": options.warm_up}
    ran |= {"application.failure_timeout": f"{application.failure_timeout / 1e6:.0f} ms"}
    write(
        options.report, "The pauses of units when instances come and go", ran, figures, lines(figures, options.report)
    )
    draw(figures["latency_ms"], options.report)
    print("\n".join(lines(figures, options.report)))
    return 0


def lines(figures: Mapping[str, Any], path: Path) -> list[str]:
    """Return the lines of the report."""
    rows, found, calm = figures["pauses"], [], _share(figures["gaps_ms"].get("calm"))
    for kind in [kind for kind in KINDS if any(row["kind"] == kind for row in rows)]:
        of_kind = [row for row in rows if row["kind"] == kind]
        slowest = longest(rows, kind)
        changes = sum(row["changes"] for row in of_kind) / len({row["event"] for row in of_kind})
        staying = figures["gaps_ms"].get(kind)
        found.append((kind, len(slowest), f"{changes:.1f}", *_spread(slowest), _share(staying)))
    heads = ["instance", "events", "changes of owner per event", "pause p50 ms", "p99", "max"]
    heads.append("units that stay: p99.9 of gaps, ms")
    return [
        "The longest pause of any unit, by event. Units that keep their owner are compared with themselves: in calm",
        f"periods, the p99.9 of the gaps between their results is {calm} ms.",
        *table(heads, found),
        "",
        f"![Latency around each kind of event]({path.name}.png)",
    ]


def draw(latency_ms: Mapping[str, Any], path: Path) -> None:
    """Draw the latency around each kind of event."""
    panels = {
        f"s ({kind})": {
            f"p{share:g}": [(since_ms / 1000, values[number]) for since_ms, values in latency_ms[kind]]
            for number, share in enumerate(SHARES)
        }
        for kind in KINDS
        if kind in latency_ms
    }
    plot_over_time(path, panels, "latency, ms")


def _share(found: list[float] | None) -> str:
    return "-" if found is None else f"{found[SHARES.index(99.9)]:.0f}"


def _spread(values: list[int]) -> tuple[str, str, str]:
    if not values:
        return "-", "-", "-"
    return tuple(f"{value:.0f}" for value in (*np.percentile(values, [50, 99]), max(values)))  # type: ignore[return-value]


if __name__ == "__main__":
    sys.exit(main())
