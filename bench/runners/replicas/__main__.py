"""Runs the parts of the measurement, and writes the report."""

from __future__ import annotations

import argparse
import signal
import sys
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaException

from bench.contest.running.arena import Arena
from bench.harness.pipeline import LOW_PAUSE_JAVA, PARTITIONS, about, own_stack
from bench.harness.report import write
from bench.harness.wire import Wires, listeners
from bench.runners import replicas
from bench.runners.replicas import raw
from bench.runners.replicas.analysis import around_faults, in_quiet, of_costs, over_time
from bench.runners.replicas.costs import Load, measure_costs
from bench.runners.replicas.faults import Network
from bench.runners.replicas.group import NAMES
from bench.runners.replicas.observing import SETUPS, Plan, observe
from bench.runners.replicas.page import draw, lines, summary

COSTS: Final = "costs"
PARTS: Final = (COSTS, *SETUPS)
"""In the order in which they are measured. The costs come first, because they warm up the broker."""


def measure(options: argparse.Namespace) -> None:
    """Measure the chosen parts, and keep what was observed. Ctrl-C ends the measurement, and the report follows."""
    chosen = [part for part in PARTS if part in options.only]
    for part in chosen:
        raw.forget(options.raw, part)
    plan = Plan(options.faults, options.rate, options.warm_up, options.raw)
    loads = [Load(options.rate, options.cost_seconds), Load(options.cost_rate, options.cost_seconds / 2)]
    with closing(Wires()) as wires:
        by_name = {name: wires.add() for name in NAMES[:2]}
        # Otherwise, the sizes of the logs would not be what was written.
        kafkas = {"log.cleaner.enable": "false", **listeners(by_name)}
        with own_stack(LOW_PAUSE_JAVA, kafkas) as (stack, folder):
            arena, network = Arena(stack, folder), Network(wires, by_name)
            for part in chosen:
                goes_on = (
                    observe(arena, network, SETUPS[part], plan)
                    if part in SETUPS
                    else keep_costs(arena, loads, options.cost_turns, options.raw)
                )
                if not goes_on:
                    return


def keep_costs(arena: Arena, loads: list[Load], turns: int, folder: Path) -> bool:
    """Measure the costs, and keep each row. Return whether to go on, which is False after Ctrl-C."""
    rows: list[dict[str, Any]] = []
    try:
        for row in measure_costs(arena, loads, turns):
            rows.append(row)
            raw.save_facts(folder, COSTS, {"machine": about(), "rows": rows})
            used = ", ".join(f"{1e6 * row[name] / row['records']:.1f} {name}" for name in ("joiner_s", "merger_s"))
            print(f"{row['setup']}, {row['rate']:,} records/s: {used} per million records", flush=True)
    except KeyboardInterrupt:
        return False
    except (RuntimeError, KafkaException) as error:
        print(f"costs: stopped early ({error!r}); what was measured until then is kept", flush=True)
    return True


def report(folder: Path, path: Path) -> int:
    """Analyse what was kept, and write the report. Return the exit status."""
    kept = {part: found for part in PARTS if (found := raw.load(folder, part)) is not None}
    costs = kept.pop(COSTS, None)
    # A part that ended before its first fault, or before its results were read, has no figures.
    observed = {part: one for part, one in kept.items() if one.facts["faults"] and one.outputs}
    if costs is None and not observed:
        print(f"there is nothing to analyse in {folder}: measure first", file=sys.stderr)
        return 1
    runs = {part: {name: one.facts[name] for name in _OF_RUNS} for part, one in observed.items()}
    figures: dict[str, Any] = {
        "runs": runs,
        "faults": around_faults(observed),
        "quiet": in_quiet(observed),
        "costs": [] if costs is None else of_costs(costs.facts["rows"]),
        "over_time": over_time(observed),
    }
    of_parts = {**observed, **({} if costs is None else {COSTS: costs})}
    ran: dict[str, Any] = dict(next(iter(of_parts.values())).facts["machine"])
    ran["date"] = ", ".join(f"{part} {one.facts['machine']['date']}" for part, one in of_parts.items())
    ran |= {"units": PARTITIONS}
    if observed:
        ran["records/s while faults happened"] = ", ".join(
            f"{part} {one.facts['rate']:,}" for part, one in observed.items()
        )
    write(path, "Latency around faults, with and without replicas", ran, figures, lines(figures, path))
    draw(figures, path)
    print("\n".join([*summary(figures), f"the report is {path.with_suffix('.md')}"]))
    return 0


_OF_RUNS: Final = ("setup", "rate", "faults", "cores", "verdicts", "sender_late_ms", "problem")
"""The facts of a run that the report repeats."""


def main() -> int:
    """Measure, and write the report."""
    parser = argparse.ArgumentParser(description=replicas.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=_positive, default=1_000, help="records a second (default 1000)")
    parser.add_argument("--faults", type=_positive, default=30, help="faults in each configuration (default 30)")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="what to measure (default: all)")
    parser.add_argument("--warm-up", type=float, default=30.0, help="seconds until the first fault (default 30)")
    parser.add_argument(
        "--cost-seconds", type=float, default=20.0, help="seconds of each load whose cost is measured (default 20)"
    )
    parser.add_argument("--cost-rate", type=_positive, default=50_000, help="the higher rate of these (default 50000)")
    parser.add_argument("--cost-turns", type=_positive, default=3, help="turns of each of these loads (default 3)")
    parser.add_argument("--raw", type=Path, default=Path(".lsb/bench_replicas_raw"), help="folder for what is observed")
    parser.add_argument("--analyse", action="store_true", help="measure nothing, and analyse what is in that folder")
    parser.add_argument(
        "--report", type=Path, default=Path(".lsb/bench_replicas"), help="path of the .json, .md and .png files"
    )
    options = parser.parse_args()
    # Otherwise, the processes that were started would go on.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if not options.analyse:
        measure(options)
    return report(options.raw, options.report)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
