"""How fast is the stage in Spark, Kafka to Kafka, exactly once, beside a windowed join in Spark on the same data?

``python -m bench.spark --report docs/evidence/bench_spark`` starts a Kafka of its own, writes the input once, and lets
each contender read it several times in turn. All have two cores; the windowed join is tried with three sizes of its
batches, has the narrowest window that finds every pair, and need not be exactly once. A rate is that at which the
input's share of the output appears, by the broker's clock, without its first quarter: starting up and warming up count
for nobody.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException

from bench.pipeline import FIRST_MS, Application, about, ends, make_sender, make_topic, own_kafka, send
from bench.report import spread, table, write
from broker.partitioner import partition_of
from broker.settings import KafkaSettings
from broker.stack.parts import Parts, parts_folder
from joiner.run.clients import log_range, make_reader, read_to_end

PARTITIONS: Final = 4
THINGS: Final = 8
_WARM: Final = 0.25
"""Of the output, which is not counted."""
_QUIET_S: Final = 10.0
"""A contender whose output has not grown for so long is done."""
_WAIT_S: Final = 1800.0
_LOOK_S: Final = 1.0
WINDOWED: Final = "windowed join, tuned, batches of {}"
BATCHES: Final = (100_000, 200_000, 400_000)

Run = Callable[[KafkaSettings, str, Path], str]
"""Joins everything there is in a topic; returns its output topic."""


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


def run_joiner(kafka: KafkaSettings, data: str, folder: Path, command: str, cores: int = 2) -> str:
    """The joiner as a plain process or as a stage in Spark with so many cores."""
    application = Application(kafka, folder, f"{command}-{uuid.uuid4().hex[:8]}", PARTITIONS, data=data)
    application.add_settings(f'[spark]\nmaster = "local[{cores}]"\n')
    running = application.start(command=command)
    try:
        application.wait_until_through([running])
    finally:
        running.terminate()
        running.wait()
    return application.settings.topics.out


def run_windowed(kafka: KafkaSettings, data: str, folder: Path, batch: int) -> str:
    """The windowed join; it is done when nothing more comes."""
    out = f"windowed-{uuid.uuid4().hex[:8]}"
    make_topic(kafka, out, PARTITIONS)
    jars = Parts(parts_folder(Path(".lsb")), print).spark_kafka()
    given = [kafka.bootstrap_servers, data, out, "--jars", str(jars), "--checkpoint", str(folder / out)]
    command = [sys.executable, "-m", "bench.windowed", *given, "--batch", str(batch)]
    running = subprocess.Popen(command)  # noqa: S603 - the peer
    try:
        _wait_until_quiet(kafka, out, running)
    finally:
        running.terminate()
        running.wait()
    return out


def _wait_until_quiet(kafka: KafkaSettings, topic: str, running: subprocess.Popen[bytes]) -> None:
    there, since_s, until_s = 0, time.monotonic(), time.monotonic() + _WAIT_S
    while not there or time.monotonic() - since_s < _QUIET_S:
        if running.poll() is not None or time.monotonic() > until_s:
            raise RuntimeError("the windowed join has ended by itself, or takes too long")
        time.sleep(_LOOK_S)
        with contextlib.suppress(KafkaException):  # one that was just made has no leader for a moment
            found = sum(ends(kafka, topic, PARTITIONS))
            if found > there:
                there, since_s = found, time.monotonic()


def rate_of(kafka: KafkaSettings, topic: str, records: int) -> tuple[float, int]:
    """Input records/s, without the warm-up, and how many records were written."""
    times_ms = []
    with closing(make_reader(kafka, "bench")) as consumer:
        for number in range(PARTITIONS):
            low, high = log_range(consumer, topic, number)
            times_ms += [found.timestamp()[1] for found in read_to_end(consumer, topic, number, low, high)]
    times_ms.sort()
    first = int(len(times_ms) * _WARM)
    return records * (1 - _WARM) / ((times_ms[-1] - times_ms[first]) / 1000), len(times_ms)


CONTENDERS: Final[dict[str, Run]] = {
    "stage in Spark": partial(run_joiner, command="spark"),
    "stage in Spark, one core": partial(run_joiner, command="spark", cores=1),
    "plain process": partial(run_joiner, command="run"),
    **{WINDOWED.format(f"{batch:,}"): partial(run_windowed, batch=batch) for batch in BATCHES},
}


def main() -> int:
    """Measure, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=2_000_000, help="in the input topic (default 2,000,000)")
    parser.add_argument("--runs", type=int, default=3, help="of each contender (default 3)")
    parser.add_argument("--report", type=Path, default=Path(".lsb/bench_spark"), help="where .json and .md go")
    options = parser.parse_args()
    found: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    written: dict[str, int] = {}
    with own_kafka() as (kafka, folder):
        make_topic(kafka, "bench.data", PARTITIONS)
        produce(kafka, "bench.data", options.records)
        for turn in range(options.runs):
            for name, run in CONTENDERS.items():
                rate, written[name] = rate_of(kafka, run(kafka, "bench.data", folder), options.records)
                found[name].append(rate / 1000)
                print(f"run {turn + 1}, {name}: {rate:,.0f} records/s", flush=True)
    medians = {name: statistics.median(rates) for name, rates in found.items()}
    reference = max(median for name, median in medians.items() if name.startswith("windowed"))
    rows = [
        (name, spread(rates, 1), f"{medians[name] / reference:.1f}", f"{written[name]:,}")
        for name, rates in found.items()
    ]
    heads = ["", "thousand records/s (min / median / max)", "of the best windowed join", "records written"]
    ran = about() | {"records": options.records}
    write(options.report, "Spark: the stage beside a windowed join", ran, found, table(heads, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
