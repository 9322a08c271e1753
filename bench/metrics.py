"""Measures the cost of metrics: compares a joiner whose metrics are scraped every second with one without metrics.

``python -m bench.metrics --report docs/evidence/bench_metrics`` starts a temporary Kafka broker, writes the input once,
runs both joiners in each turn, in alternating order, and writes ``.json`` and ``.md``. The result is the ratio of their
rates within a turn, because other load on the machine affects both alike.
"""

from __future__ import annotations

import argparse
import contextlib
import resource
import statistics
import sys
import threading
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench.harness.pipeline import PARTITIONS, Application, about, make_topic, own_kafka
from bench.harness.report import spread, table, write
from bench.kafka import produce, seconds_between
from broker.settings import KafkaSettings
from broker.stack.ports import choose_port

_EVERY_S: Final = 1.0


@contextlib.contextmanager
def scraped(port: int) -> Iterator[list[int]]:
    """Scrape a joiner's metrics every second, as Prometheus would. Yield the list of response sizes."""
    stop, sizes = threading.Event(), list[int]()

    def scrape() -> None:
        while not stop.wait(_EVERY_S):
            # The joiner may not be listening yet.
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                sizes.append(len(answer.read()))

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield sizes
    finally:
        stop.set()
        thread.join()


def run(kafka: KafkaSettings, data: str, folder: Path, *, with_metrics: bool) -> tuple[float, float]:
    """Run a joiner. Return the seconds between its first and last result, and its total CPU time in seconds."""
    before_s = _spent_s()
    application = Application(kafka, folder, f"join-{uuid.uuid4().hex[:8]}", PARTITIONS, data=data)
    with contextlib.ExitStack() as stack:
        if with_metrics:
            port = choose_port()
            application.add_settings(f"\n[metrics]\nlisten = {port}\n")
            sizes = stack.enter_context(scraped(port))
        process = application.start()
        stack.callback(process.wait)
        stack.callback(process.terminate)
        application.wait_until_through([process])
        if with_metrics and not sizes:
            raise RuntimeError("the run ended before any metrics were scraped; use more records")
    return seconds_between(kafka, application.settings.topics.out), _spent_s() - before_s


def _spent_s() -> float:
    """Return the CPU seconds of all child processes that have exited."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> int:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000, help="records in the input topic (default 1,000,000)")
    parser.add_argument("--runs", type=int, default=7, help="runs of each joiner (default 7)")
    parser.add_argument(
        "--report", type=Path, default=Path(".lsb/bench_metrics"), help="path of the .json and .md files"
    )
    options = parser.parse_args()
    rates: dict[bool, list[float]] = {False: [], True: []}
    cores: dict[bool, list[float]] = {False: [], True: []}
    with own_kafka() as (kafka, folder):
        make_topic(kafka, "bench.data", PARTITIONS)
        produce(kafka, "bench.data", options.records)
        for turn in range(options.runs):
            for with_metrics in (False, True) if turn % 2 else (True, False):
                took_s, spent_s = run(kafka, "bench.data", folder, with_metrics=with_metrics)
                rates[with_metrics].append(options.records / took_s / 1000)
                cores[with_metrics].append(spent_s / options.records * 1e6)
            print(f"run {turn + 1}: {rates[False][-1]:.0f} without, {rates[True][-1]:.0f} with", flush=True)
    ratios, of_cores = (
        [with_ / without for without, with_ in zip(*found.values(), strict=True)] for found in (rates, cores)
    )
    figures = {
        "thousand records a second": {"without": rates[False], "with": rates[True], "with / without": ratios},
        "core seconds a million records": {"without": cores[False], "with": cores[True], "with / without": of_cores},
    }
    rows = [
        ("without metrics", spread(rates[False], 0), spread(cores[False], 2)),
        ("with metrics, scraped every second", spread(rates[True], 0), spread(cores[True], 2)),
        ("with / without, by turn", spread(ratios, 3), spread(of_cores, 3)),
    ]
    lines = table(
        ["min / median / max", "thousand records/s", "core seconds per million records, including start and stop"], rows
    )
    write(options.report, "What metrics cost", about() | {"records": options.records}, figures, lines)
    print(f"with / without: {statistics.median(ratios):.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
