"""Compares the joiner with other engines, end to end, on one machine and the same topics.

It starts a temporary Kafka broker, writes each workload once, runs the contenders on it one after another, checks every
output against the expected results, and saves each measurement immediately. Then it redraws the plots and rewrites the
figures on the benchmark page.
"""

from __future__ import annotations

import argparse
import re
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaException

from bench.contest import engine
from bench.contest.contenders import CONTENDERS, PASS_THROUGH
from bench.contest.job import ROOT, NotHereError
from bench.contest.kept import Kept, Measurement
from bench.contest.load.latency import climb, steady_load
from bench.contest.plan import FULL, KINDS, QUICK, Sizes, contender, plan
from bench.contest.report.page import write_report
from bench.contest.running.arena import Arena, FailedError
from bench.contest.running.runs import Task, recovery, throughput
from bench.harness.pipeline import about, own_stack
from bench.harness.report import code_commit, machine
from bench.peers import environments
from bench.peers.jvm import programs
from broker.stack import StackError

_WARM: Final = 0.95
"""The broker is warm once a run takes more than this share of the CPU time that the previous run took."""
_WARM_UP_S_MAX: Final = 120.0
_PATH: Final = re.compile(r"(?:/[\w.+-]+)+/([\w.+-]+)")


def main(given: Sequence[str] | None = None, sizes: Sizes | None = None) -> int:
    """Measure and write the report."""
    options = _options(given)
    sizes = _sizes(options, sizes or (QUICK if options.quick else FULL))
    if not options.report_only:
        ran = about() | machine("pyspark", "pandas") | environments.versions() | programs.versions()
        kept = Kept(options.results, ran, sizes.recorded(), resume=options.resume)
        kinds, chosen = tuple(options.only or sizes.kinds), tuple(options.contenders or sizes.contenders)
        every = list(plan(sizes, kinds, chosen))
        todo = [(place, one) for place, one in enumerate(every, 1) if not kept.has(one)]
        # Handle SIGTERM like Ctrl-C, so that contenders and servers are stopped.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        print(f"making {len(todo)} of {len(every)} measurements, in random order (seed {sizes.seed})", flush=True)
        try:
            measure(todo, kept, sizes, options.minutes)
        except KeyboardInterrupt:
            print("stopped; all finished measurements are saved; use --resume to continue", flush=True)
            return 130
    write_report(options.results, options.page, options.plots)
    return 0


def _sizes(options: argparse.Namespace, sizes: Sizes) -> Sizes:
    """Return the sizes of the benchmark run, overridden by any sizes given on the command line."""
    records = options.records or sizes.records
    turns = dict.fromkeys(KINDS, options.turns) if options.turns else sizes.turns
    return replace(sizes, records=records, turns=turns, seed=sizes.seed if options.seed is None else options.seed)


def measure(todo: list[tuple[int, Measurement]], kept: Kept, sizes: Sizes, minutes: float) -> None:
    """Make the measurements in order until ``minutes`` have passed. Each is paired with its place in the whole plan.

    A resumed run completes an interrupted turn with a different broker. Each measurement therefore records the commit
    of the code and when its broker was started, and the report compares only measurements that agree in both.
    """
    began_s, failed = time.monotonic(), set[str]()
    if not todo:
        return
    with own_stack() as (stack, folder):
        arena = Arena(stack, folder)
        broker = {"broker_start": f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"}
        warm_up(arena, sizes)
        before = todo[0][1]
        for number, (place, one) in enumerate(todo, 1):
            passed_s = time.monotonic() - began_s
            if passed_s > minutes * 60:
                left = len(todo) - number + 1
                print(f"stopped after {minutes:g} minutes with {left} measurements left; use --resume to continue")
                return
            if one.contender in failed:
                continue  # reported once; the next attempt would fail the same way
            if before.curve and before.workload != one.workload:
                # Each point of a curve has its own workload, and the largest ones do not fit into memory together.
                arena.forget(before.workload, _records_of(before, sizes))
            before = one
            try:
                figures = run(one, arena, sizes)
            except (NotHereError, FailedError, KafkaException, OSError, StackError) as error:
                # Record the failure and continue with the next measurement. Local paths are shortened in the recorded
                # reason.
                figures = [{"reason": _PATH.sub(r"…/\1", f"{error}") or type(error).__name__}]
                failed |= {one.contender} if isinstance(error, NotHereError) else set()
            made = broker | {"place": place, "commit": code_commit(ROOT)}
            kept.add(one, [made | found for found in figures])
            shown = "; ".join(map(_shown, figures))
            print(f"[{number}/{len(todo)}, {passed_s / 60:.0f} min] {one}: {shown}", flush=True)


def warm_up(arena: Arena, sizes: Sizes) -> None:
    """Run the pass-through until Kafka's CPU time for a record stops falling, or the time limit is reached.

    Kafka's JVM compiles its code while it runs: soon after startup, a record takes two to three times as much CPU time.
    """
    task, began_s, before_s = (
        Task(PASS_THROUGH, "alternating", sizes.warm_up_records, sizes.limits),
        time.monotonic(),
        0.0,
    )
    while time.monotonic() - began_s < _WARM_UP_S_MAX:
        figures = throughput(arena, task)
        print(f"warming up the broker: {_shown(figures)}", flush=True)
        now_s = figures.get("kafka_cpu_s_per_million", 0.0)
        if before_s and now_s > _WARM * before_s:
            break
        before_s = now_s
    arena.forget(task.workload, task.records)


def run(one: Measurement, arena: Arena, sizes: Sizes) -> list[dict[str, Any]]:
    """Make one measurement and return its figures: a single entry or, for a latency measurement, one entry per rate."""
    records, limits = _records_of(one, sizes), sizes.of(one.kind)[1]
    if one.curve:
        # With many keys, it takes a slow contender a while to reach the second record of any key and write its first
        # result.
        limits = replace(limits, start_s=limits.start_s + records / 20_000)
    if one.contender == engine.NAME:
        return [engine.run(arena.expected(one.workload, records))]
    who = contender(one.contender)
    if one.kind == "latency":
        return climb(arena, who, sizes.rates, sizes.latency_s)
    if one.kind == "steady":
        return [steady_load(arena, who, *sizes.steady)]
    width_ms = one.width_ms
    if one.share:
        width_ms = arena.expected(one.workload, records).width_ms(one.share)
    task = Task(who, one.workload, records, limits, width_ms, one.at if one.curve == "cores" else 0)
    found = recovery(arena, task) if one.kind == "recovery" else throughput(arena, task)
    return [found | ({"width_ms": width_ms} if width_ms else {})]


def _records_of(one: Measurement, sizes: Sizes) -> int:
    """Return the number of records in a measurement's workload: at least two per key."""
    records = sizes.of(one.kind)[0]
    return max(records, 2 * one.at) if one.curve == "keys" else records


def _shown(found: dict[str, Any]) -> str:
    if "reason" in found:
        return f"did not run: {found['reason']}"
    if "recovery_s" in found:
        return f"{found['recovery_s']:.1f} s to the next result"
    if "rate" in found:
        ms = "/".join("never" if value is None else f"{value:.0f}" for value in found["ms"] or ())
        return f"{found['rate']:,}/s {ms or 'nothing'} ms{'' if found['keeps_up'] else ', does not keep up'}"
    rate = found.get("records_per_s")
    words = [f"{rate / 1000:.1f} thousand records/s" if rate else f"{found['results']} results at once"]
    if found.get("complete") is not None:
        words.append(f"complete {found['complete']:.4f}, excess {found['excess']}, double {found['double']}")
    return ", ".join(words) + ("" if found["is_through"] else f", reached {found.get('reached', 0):.0%}")


def _options(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.contest", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="run a small version of everything, in minutes")
    parser.add_argument("--only", nargs="+", choices=KINDS, metavar="KIND", help=", ".join(KINDS))
    names = [*CONTENDERS, engine.NAME]
    parser.add_argument("--contenders", nargs="+", choices=names, metavar="NAME", help="; ".join(names))
    parser.add_argument("--records", type=int, help="number of records in the alternating workload")
    parser.add_argument("--turns", type=int, help="number of runs for each contender named in a headline (default 5)")
    parser.add_argument("--seed", type=int, help=f"seed for the random order of the contenders (default {FULL.seed})")
    parser.add_argument(
        "--minutes", type=float, default=600.0, help="start no more measurements after this many minutes (default 600)"
    )
    parser.add_argument(
        "--resume", action="store_true", help="keep the existing measurements and make only the missing ones"
    )
    parser.add_argument("--report-only", action="store_true", help="write only the report")
    parser.add_argument("--results", type=Path, default=Path("bench/results"), help="folder for the JSON files")
    parser.add_argument("--page", type=Path, default=Path("docs/benchmarks.md"), help="page to write the figures to")
    parser.add_argument("--plots", type=Path, default=Path("docs/plots"), help="folder for the plots")
    return parser.parse_args(given)


if __name__ == "__main__":
    sys.exit(main())
