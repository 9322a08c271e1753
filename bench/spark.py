"""How fast is the stage in Spark, Kafka to Kafka, exactly once, beside a windowed join in Spark on the same data?

``python -m bench.spark --report docs/evidence/bench_spark`` starts a Kafka of its own, writes the input once, and lets
each contender read it several times in turn. All have two cores; the windowed join is tried with three sizes of its
batches, has the narrowest window that finds every pair, and need not be exactly once. The first batch, with which Spark
warms up, counts for nobody: the joiner's rate is that between its first and its last commits, by the broker's clock;
the windowed join's that of its batches behind the first, as Spark tells it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import uuid
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final

from bench.pipeline import FIRST_MS, Application, about, ends, make_sender, make_topic, own_kafka, send
from bench.report import spread, table, write
from broker.partitioner import partition_of
from broker.settings import KafkaSettings
from broker.stack.parts import Parts, parts_folder
from joiner.run.clients import log_range, make_reader, read_to_end
from joiner.run.progress import decode_progress, progress_key

PARTITIONS: Final = 4
THINGS: Final = 8
_ENOUGH: Final = 1_000_000
"""Records after which the rate of the windowed join, whose state holds a batch or two, does not change any more."""
WINDOWED: Final = "windowed join, tuned, batches of {}"
BATCHES: Final = (100_000, 200_000, 400_000)

Run = Callable[[KafkaSettings, str, Path], float]
"""Joins everything there is in a topic; returns records/s."""


def things_over_all_units(kind: str, count: int) -> list[tuple[str, int]]:
    """Names of so many things, and their partitions, which take turns."""
    things: list[tuple[str, int]] = []
    number = 0
    while len(things) < count:
        name, wanted = f"{kind}-{number}", len(things) % PARTITIONS
        if partition_of(name.encode(), PARTITIONS) == wanted:
            things.append((name, wanted))
        number += 1
    return things


def produce(kafka: KafkaSettings, topic: str, records: int) -> None:
    """Speed and torque of `THINGS` machines by turns, a millisecond apart; as many machines in each partition."""
    producer = make_sender(kafka)
    things = things_over_all_units("machine", THINGS)
    for number in range(records):
        thing, place = things[number % THINGS]
        record = {
            "thing": thing,
            "quantity": ("speed", "torque")[number // THINGS % 2],
            "phenomenonTime": FIRST_MS + number,
            "result": (number * 7919 % 100_000) / 100,
            "id": f"{number:x}",
        }
        send(producer, topic, place, record)
    producer.flush()


def run_joiner(kafka: KafkaSettings, data: str, folder: Path, command: str, cores: int = 2) -> float:
    """The joiner as a plain process or as a stage in Spark with so many cores."""
    application = Application(kafka, folder, f"{command}-{uuid.uuid4().hex[:8]}", PARTITIONS, data=data)
    application.add_settings(f'[spark]\nmaster = "local[{cores}]"\n')
    running = application.start(command=command)
    try:
        application.wait_until_through([running])
    finally:
        running.terminate()
        running.wait()
    return rate_of(application)


def rate_of(application: Application) -> float:
    """Records/s from when each unit had its first commit to the last one."""
    commits = [commits_of(application, unit) for unit in range(PARTITIONS)]
    first_ms = max(found[0][0] for found in commits)
    last_ms = max(found[-1][0] for found in commits)
    before = sum(max(at for at_ms, at in found if at_ms <= first_ms) for found in commits)
    return (sum(found[-1][1] for found in commits) - before) / ((last_ms - first_ms) / 1000)


def commits_of(application: Application, unit: int) -> list[tuple[int, int]]:
    """When the commits of a unit were made that had joined something, and how many records were joined by then."""
    settings, found = application.settings, []
    with closing(make_reader(settings.kafka, "bench")) as consumer:
        low, high = log_range(consumer, settings.state_topic, unit)
        for message in read_to_end(consumer, settings.state_topic, unit, low, high):
            if (message.key() or b"").decode() == progress_key(unit):
                joined = sum(decode_progress(message.value() or b"").offsets.values())
                if joined:
                    found.append((int(message.timestamp()[1]), joined))
    return found


def run_windowed(kafka: KafkaSettings, data: str, folder: Path, batch: int) -> float:
    """The windowed join, until it has read enough."""
    out = f"windowed-{uuid.uuid4().hex[:8]}"
    make_topic(kafka, out, PARTITIONS)
    jars = Parts(parts_folder(Path(".lsb")), print).spark_kafka()
    given = [kafka.bootstrap_servers, data, out, "--jars", str(jars), "--state", str(folder / out)]
    command = [sys.executable, "-m", "bench.peers.spark_windowed", *given, "--batch", str(batch)]
    wanted = min(_ENOUGH, sum(ends(kafka, data, PARTITIONS)))
    batches: list[tuple[int, int]] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE) as running:  # noqa: S603 - the peer
        try:
            for line in iter(running.stdout.readline, b"") if running.stdout else ():
                told = json.loads(line)
                batches.append((told["records"], told["took_ms"]))
                if sum(rows for rows, _ in batches) >= wanted:
                    break
        finally:
            running.terminate()
    return sum(rows for rows, _ in batches[1:]) / (sum(took_ms for _, took_ms in batches[1:]) / 1000)


CONTENDERS: Final[dict[str, Run]] = {
    "stage in Spark": partial(run_joiner, command="spark"),
    "stage in Spark, one core": partial(run_joiner, command="spark", cores=1),
    "plain process": partial(run_joiner, command="run"),
    **{WINDOWED.format(f"{batch:,}"): partial(run_windowed, batch=batch) for batch in BATCHES},
}


def main() -> int:
    """Measure, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=4_000_000, help="in the input topic (default 4,000,000)")
    parser.add_argument("--runs", type=int, default=3, help="of each contender (default 3)")
    parser.add_argument("--report", type=Path, default=Path(".lsb/bench_spark"), help="where .json and .md go")
    options = parser.parse_args()
    found: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    contenders = dict(CONTENDERS)
    with own_kafka() as (kafka, folder):
        make_topic(kafka, "bench.data", PARTITIONS)
        produce(kafka, "bench.data", options.records)
        for turn in range(options.runs):
            for name, run in contenders.items():
                rate = run(kafka, "bench.data", folder) / 1000
                found[name].append(rate)
                print(f"run {turn + 1}, {name}: {rate:.1f} thousand records/s", flush=True)
            # The others were tried, and are slower.
            best = max((name for name in found if name.startswith("windowed")), key=lambda name: max(found[name]))
            contenders = {
                name: run for name, run in CONTENDERS.items() if not name.startswith("windowed") or name == best
            }
    medians = {name: statistics.median(rates) for name, rates in found.items()}
    rows = [
        (name, len(rates), spread(rates, 1), f"{medians[name] / medians[best]:.1f}") for name, rates in found.items()
    ]
    heads = ["", "runs", "thousand records/s (min / median / max)", "of the best windowed join"]
    ran = about() | {"records": options.records}
    write(options.report, "Spark: the stage beside a windowed join", ran, found, table(heads, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
