"""Measures the pause of a join while its units move from one runner to another under load.

``python -m bench.runners.moving --report docs/evidence/bench_moving`` writes ``.json`` and ``.md``. Runners take turns
serving an application: all of its units are repeatedly moved from one runner to the next while records arrive at a
steady rate. Two figures are measured for each unit and move. The pause is the time from the source's last commit to the
target's first one, as reported by ``joiner move``. The gap is the longest time around the pause in which no result was
appended to the unit's partition, by the broker's clock.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaException

from bench.harness.pipeline import PARTITIONS, Application, about, make_topic, own_kafka
from bench.harness.report import spread, table, write
from broker.settings import KafkaSettings
from joiner.cli.move import carry_out
from joiner.runtime.clock import SystemClock
from joiner.runtime.kafka.checkpoint_log import read_checkpoint
from joiner.runtime.kafka.clients import log_range, make_reader, read_to_end
from joiner.runtime.kafka.readers import Readers
from joiner.runtime.migration.order import Step

_WARM_UP_S: Final = 8.0
_BETWEEN_S: Final = 2.0
_AROUND_MS: Final = 1000
_READY_S: Final = 60.0
_LOOK_S: Final = 0.5


class Runner(NamedTuple):
    """A kind of runner: its site, and how to start it on standby."""

    site: str
    start: Callable[[Application], subprocess.Popen[bytes]]


RUNNERS: Final[dict[str, Runner]] = {
    "process": Runner("process", lambda app: app.start("--standby", instance="first")),
    "another process": Runner("green", lambda app: app.start("--standby", "--site", "green", instance="second")),
    "spark": Runner("spark", lambda app: app.start("--standby", instance="in-spark", command="spark")),
}


def measure(
    kafka: KafkaSettings, folder: Path, names: list[str], rate: int, moves: int
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Move all units ``moves`` times under load. Return a row per unit and move, and the tester's counts."""
    name = f"move-{uuid.uuid4().hex[:8]}"
    application = Application(kafka, folder, name, PARTITIONS, data=f"{name}.data")
    make_topic(kafka, application.data, PARTITIONS)
    sender = start_sender(kafka, application.data, rate)
    runners = [RUNNERS[one] for one in names]
    processes = [runners[0].start(application)]
    rows: list[dict[str, Any]] = []
    try:
        # Start only this runner at first, because any runner may claim a unit that has never had an owner.
        _wait_until_owned(application, runners[0].site, processes)
        processes += [runner.start(application) for runner in runners[1:]]
        time.sleep(_WARM_UP_S)
        for turn in range(moves):
            source, target = names[turn % len(names)], names[(turn + 1) % len(names)]
            site, units = RUNNERS[target].site, list(range(PARTITIONS))
            order = carry_out(application.settings, site, units, _READY_S, SystemClock(), lambda _text: None)
            for unit, one in order.units.items():
                if one.step is not Step.MOVED:
                    raise RuntimeError(f"unit {unit} was not moved to {target}: {one.why}")
                if one.pause_ms is None:
                    continue  # the target claimed it before the source's record was written
                row = {"move": turn, "from": source, "to": target, "unit": unit, "pause_ms": one.pause_ms}
                rows.append(row | {"released_ms": one.released_ms})
            pauses = [row["pause_ms"] for row in rows if row["move"] == turn]
            print(f"move {turn + 1}, {source} to {target}: {pauses} ms", flush=True)
            time.sleep(_BETWEEN_S)
        sender.terminate()
        sender.wait()
        application.wait_until_through(processes)
    finally:
        for process in [sender, *processes]:
            process.kill()
            process.wait()
    _add_gaps(application, rows)
    return rows, application.verify()


def start_sender(kafka: KafkaSettings, topic: str, rate: int, batch_ms: int | None = None) -> subprocess.Popen[bytes]:
    """Start a process that sends records to a topic at a steady rate. ``batch_ms``: see `bench.contest.load.sender`."""
    command = [sys.executable, "-m", "bench.contest.load.sender", kafka.bootstrap_servers, topic]
    command += [] if batch_ms is None else [str(batch_ms)]
    sender = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)  # noqa: S603 - this project
    if sender.stdin is not None:
        sender.stdin.write(f"{rate}\n".encode())
        sender.stdin.flush()
    return sender


def _wait_until_owned(application: Application, site: str, running: list[subprocess.Popen[bytes]]) -> None:
    owners: list[str | None] = []
    while owners != [site] * PARTITIONS:
        if any(process.poll() is not None for process in running):
            raise RuntimeError("a runner ended unexpectedly")
        time.sleep(_LOOK_S)
        # A KafkaException means that the state topic is still being created.
        with suppress(KafkaException), closing(Readers(application.settings, SystemClock())) as readers:
            found = [read_checkpoint(readers, unit) for unit in range(PARTITIONS)]
            owners = [one.site if one is not None else None for one in found]


def _add_gaps(application: Application, rows: list[dict[str, Any]]) -> None:
    topic = application.settings.topics.out
    for unit in range(PARTITIONS):
        with closing(make_reader(application.settings.kafka, "bench")) as consumer:
            low, high = log_range(consumer, topic, unit)
            times_ms = [one.timestamp()[1] for one in read_to_end(consumer, SystemClock(), topic, unit, low, high)]
        for row in rows:
            if row["unit"] == unit:
                since_ms = row.pop("released_ms") - _AROUND_MS
                until_ms = since_ms + row["pause_ms"] + 2 * _AROUND_MS
                near = [at_ms for at_ms in times_ms if since_ms <= at_ms <= until_ms]
                row["gap_ms"] = max(after - before for before, after in pairwise(near))


def main() -> int:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--runners", nargs="+", choices=RUNNERS, default=list(RUNNERS)[:2], help="runners, in the order of the moves"
    )
    parser.add_argument("--rate", type=int, default=5_000, help="records a second (default 5000)")
    parser.add_argument("--moves", type=int, default=20, help="moves of all units (default 20)")
    parser.add_argument(
        "--report", type=Path, default=Path(".lsb/bench_moving"), help="path of the .json and .md files"
    )
    options = parser.parse_args()
    with own_kafka() as (kafka, folder):
        rows, verdict = measure(kafka, folder, options.runners, options.rate, options.moves)
    ran = about() | {"results, as the tester finds them": ", ".join(f"{what} {n:,}" for what, n in verdict.items())}
    ran |= {"records/s": options.rate, "units": PARTITIONS, "moves of all units": options.moves}
    write(options.report, "The pause of a move", ran, rows, _lines(rows))
    print("\n".join(_lines(rows)))
    return 0


def _lines(rows: list[dict[str, Any]]) -> list[str]:
    heads = ["from", "to", "units moved", "pause ms (min / median / max)", "p90", "gap ms (min / median / max)", "p90"]
    ways = list(dict.fromkeys((row["from"], row["to"]) for row in rows))
    found = []
    for way in ways:
        pauses, gaps = (
            [row[kind] for row in rows if (row["from"], row["to"]) == way] for kind in ("pause_ms", "gap_ms")
        )
        found.append((*way, len(pauses), spread(pauses, 0), _p90(pauses), spread(gaps, 0), _p90(gaps)))
    text = (
        "Pause: from the source's last commit to the target's first. Gap: the longest time without results around it."
    )
    return [text, *table(heads, found)]


def _p90(values: list[int]) -> str:
    return f"{statistics.quantiles(values, n=10)[-1]:.0f}"


if __name__ == "__main__":
    sys.exit(main())
