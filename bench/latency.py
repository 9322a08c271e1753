"""Measures the latency of results against an exactly-once pass-through with the same batch waits.

``python -m bench.latency --report docs/evidence/bench_latency`` writes ``.json`` and ``.md``. The pass-through is also
in Python and runs the same transactions, one per unit and batch, but joins nothing. Both get the open load of
`bench.contest.load.latency`, which also defines the latency, and run in a new random order in each turn.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench.contest.__main__ import warm_up
from bench.contest.contenders import OURS, PASS_THROUGH
from bench.contest.load.latency import QUANTILES, climb
from bench.contest.plan import FULL
from bench.contest.running.arena import Arena
from bench.harness.pipeline import LOW_PAUSE_JAVA, about, own_stack
from bench.harness.report import spread, table, write

_CONTENDERS: Final = {"pass-through": PASS_THROUGH, "joiner": OURS[0]}
_SEED: Final = 7
"""The seed for the order of the contenders."""


def measure(rates: list[int], runs: int, seconds: float) -> list[dict[str, Any]]:
    """Return the figures of each run: p50, p99 and p99.9 in ms, and the cores used, by contender and rate."""
    found: list[dict[str, Any]] = []
    draw = random.Random(_SEED)  # noqa: S311 - only an order
    with own_stack(LOW_PAUSE_JAVA) as (stack, folder):
        arena = Arena(stack, folder)
        warm_up(arena, FULL)
        # Discard the first turn: the broker's JIT compiler is busy for minutes after startup.
        for run in range(runs + 1):
            for name in draw.sample(list(_CONTENDERS), len(_CONTENDERS)):
                for step in climb(arena, _CONTENDERS[name], rates, seconds):
                    figures = {"rate": step["rate"], "run": run, "contender": name, "ms": step["ms"]}
                    figures |= {name: step[name] for name in ("contender_cores", "kafka_cores", "measuring_cores")}
                    print(f"{_shown(figures)}{'' if run else ' (not counted)'}", flush=True)
                    found += [figures] if run else []
    return found


def _shown(figures: dict[str, Any]) -> str:
    ms = ", ".join("never" if one is None else f"{one:.0f} ms" for one in figures["ms"] or ())
    return f"{figures['rate']}/s, run {figures['run']}, {figures['contender']}: {ms or 'no results'}"


def main() -> int:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        *("--rates",), type=int, nargs="+", default=[5_000, 20_000], help="records a second (default 5000 20000)"
    )
    parser.add_argument("--seconds", type=float, default=15.0, help="seconds at each rate, of which two thirds count")
    parser.add_argument("--runs", type=int, default=5, help="runs of each contender (default 5)")
    parser.add_argument(
        "--report", type=Path, default=Path(".lsb/bench_latency"), help="path of the .json and .md files"
    )
    options = parser.parse_args()
    found = measure(options.rates, options.runs, options.seconds)
    ran = about() | {"seconds at each rate": options.seconds}
    write(options.report, "Latency from Kafka to Kafka, exactly once", ran, found, _lines(found, options.rates))
    return 0


def _lines(found: list[dict[str, Any]], rates: list[int]) -> list[str]:
    heads = ["records/s", "", *(f"p{quantile:g} ms" for quantile in QUANTILES), "its cores", "Kafka's cores"]
    rows = []
    for rate in rates:
        for name in _CONTENDERS:
            runs = [one for one in found if (one["rate"], one["contender"]) == (rate, name)]
            quantiles = zip(*(one["ms"] for one in runs if one["ms"] and None not in one["ms"]), strict=True)
            cores = (f"{median(one[who] for one in runs):.2f}" for who in ("contender_cores", "kafka_cores"))
            rows.append((f"{rate:,}", name, *(spread(list(column), 0) for column in quantiles), *cores))
    every = [
        (f"{one['rate']:,}", f"{one['contender']}, run {one['run']}", *_cells(one["ms"]))
        for one in sorted(found, key=lambda one: (one["rate"], one["run"]))
    ]
    text = "Minimum / median / maximum of the runs, the median of the cores used, and each run:"
    return [text, *table(heads, rows), *table(heads[: 2 + len(QUANTILES)], every)]


def _cells(ms: list[float | None] | None) -> list[str]:
    return ["never" if one is None else f"{one:.0f}" for one in ms or [None] * len(QUANTILES)]


if __name__ == "__main__":
    sys.exit(main())
