"""Compares the joiner with other engines, end to end, on one machine and the same topics.

It starts a temporary Kafka broker, writes each workload once, runs the contenders on it one after the other, checks
every output against the expected results, and saves each measurement immediately. Then it rewrites the plots and the
figures on the page.
"""

from __future__ import annotations

import argparse
import re
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaException

from bench.contest import engine
from bench.contest.contenders import CONTENDERS, NotHereError
from bench.contest.latency import climb
from bench.contest.plan import FULL, KINDS, QUICK, Kept, Measurement, Sizes, plan, trials
from bench.contest.report import write_report
from bench.contest.running import Arena, FailedError, recovery, throughput
from bench.harness.pipeline import about, own_stack
from bench.harness.report import machine
from broker.stack import StackError

_PATH: Final = re.compile(r"(?:/[\w.+-]+)+/([\w.+-]+)")


def main(given: Sequence[str] | None = None, sizes: Sizes | None = None) -> int:
    """Measure and write the report."""
    options = _options(given)
    sizes = sizes or (QUICK if options.quick else FULL)
    sizes = replace(sizes, records=options.records or sizes.records)
    if not options.report_only:
        ran = about() | machine("pyspark", "pandas")
        kept = Kept(options.results, ran, sizes, resume=options.resume)
        kinds, chosen = tuple(options.only or sizes.kinds), tuple(options.contenders or sizes.contenders)
        todo = [one for one in plan(sizes, kinds, chosen) if not kept.has(one)]
        # Handled like Ctrl-C, so that contenders and servers are stopped.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            measure(todo, kept, sizes, options.minutes)
        except KeyboardInterrupt:
            print("stopped; the measurements are kept: continue with --resume", flush=True)
            return 130
    write_report(options.results, options.page, options.plots)
    return 0


def measure(todo: list[Measurement], kept: Kept, sizes: Sizes, minutes: float) -> None:
    """Make the measurements in order. Do not start any after ``minutes``."""
    end_s, failed = time.monotonic() + minutes * 60, set[str]()
    with own_stack() as (stack, folder):
        arena = Arena(stack, folder)
        for number, one in enumerate(todo, 1):
            if time.monotonic() > end_s:
                left = len(todo) - number + 1
                print(f"{minutes:g} minutes have passed and {left} measurements are left; continue with --resume")
                return
            if one.contender in failed:
                continue  # reported once; the next attempt would fail the same way
            try:
                figures = run(one, arena, sizes)
            except (NotHereError, FailedError, KafkaException, OSError, StackError) as error:
                # The other measurements continue. Local paths are removed from the reason.
                figures = [{"reason": _PATH.sub(r"…/\1", f"{error}") or type(error).__name__}]
                failed |= {one.contender} if isinstance(error, NotHereError) else set()
            kept.add(one, figures)
            print(f"[{number}/{len(todo)}] {one}: {'; '.join(map(_shown, figures))}", flush=True)


def run(one: Measurement, arena: Arena, sizes: Sizes) -> list[dict[str, Any]]:
    """Make one measurement and return its figures; a latency measurement has one set per rate."""
    records, limits = sizes.of(one.kind)
    if one.contender == engine.NAME:
        return [engine.run(arena.expected(one.workload, records))]
    contender = (CONTENDERS | trials())[one.contender]
    if one.kind == "latency":
        return climb(arena, contender, sizes.rates, sizes.latency_s)
    width_ms = one.width_ms
    if one.share:
        width_ms = arena.expected(one.workload, records).width_ms(one.share)
    measured = recovery if one.kind == "recovery" else throughput
    found = measured(arena, contender, one.workload, records, limits, width_ms=width_ms)
    return [found | ({"width_ms": width_ms} if width_ms else {})]


def _shown(found: dict[str, Any]) -> str:
    if "reason" in found:
        return f"did not run: {found['reason']}"
    if "recovery_s" in found:
        return f"{found['recovery_s']:.1f} s to the next result"
    if "rate" in found:
        ms = "/".join(f"{value:.0f}" for value in found["ms"] or ())
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
    parser.add_argument("--quick", action="store_true", help="a small version of everything, within minutes")
    parser.add_argument("--only", nargs="+", choices=KINDS, metavar="KIND", help=", ".join(KINDS))
    names = [*CONTENDERS, engine.NAME]
    parser.add_argument("--contenders", nargs="+", choices=names, metavar="NAME", help="; ".join(names))
    parser.add_argument("--records", type=int, help="records of the alternating workload")
    parser.add_argument(
        "--minutes", type=float, default=100.0, help="start no measurement after this time (default 100)"
    )
    parser.add_argument("--resume", action="store_true", help="keep existing measurements and make the missing ones")
    parser.add_argument("--report-only", action="store_true", help="only write the report")
    parser.add_argument("--results", type=Path, default=Path("bench/results"), help="folder of the JSON files")
    parser.add_argument("--page", type=Path, default=Path("docs/benchmarks.md"), help="page with the figures")
    parser.add_argument("--plots", type=Path, default=Path("docs/plots"), help="folder of the plots")
    return parser.parse_args(given)


if __name__ == "__main__":
    sys.exit(main())
