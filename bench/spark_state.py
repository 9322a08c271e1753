"""Measures how much the Spark stage is slowed down by its state, and whether the state grows over time.

``python -m bench.spark_state --report docs/evidence/bench_spark_state`` starts a temporary Kafka broker. The same
records are joined three times: with no additional held records, with many held in one unit, and with many held in every
unit. These held records belong to machines whose other stream is silent. Then an hour of events (by event time, a
thousand per second) is joined as fast as possible. Meanwhile the state is sampled: the number of held records, the size
of the largest unit snapshot, and the size of Spark's checkpoint folder.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from confluent_kafka import KafkaException

from bench.harness.pipeline import (
    FIRST_MS,
    PARTITIONS,
    THINGS,
    Application,
    about,
    make_sender,
    make_topic,
    own_kafka,
    send,
    things_over_all_units,
)
from bench.harness.report import spread, table, write
from broker.settings import KafkaSettings
from joiner.runtime.clock import SystemClock
from joiner.runtime.kafka.checkpoint_log import read_state
from joiner.runtime.kafka.clients import log_range, make_reader, read_to_end
from joiner.runtime.kafka.readers import Readers
from joiner.runtime.model import checkpoint_key, decode_checkpoint

HOUR: Final = 3_600_000
"""The number of records in an hour of event time, at one record per millisecond."""
_LOOK_S: Final = 1.0
_SMALL_BATCHES: Final = """\
[spark]
master = "local[2]"
checkpoint = "{checkpoint}"
batch_records_max = 50_000

[spark.config]
"spark.sql.streaming.stateStore.maintenanceInterval" = "5s"
"""
"""Settings for sampling the state. Spark removes obsolete state once per maintenance interval. The default of a minute
would be too long for this benchmark to show the removal, so the interval is shortened."""


def produce(kafka: KafkaSettings, topic: str, records: int) -> None:
    """Write alternating speed and torque records of `THINGS` machines, one per ms, evenly across the partitions."""
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


def run_joiner(kafka: KafkaSettings, data: str, folder: Path) -> float:
    """Join a whole topic with the Spark stage on two cores and return records/s."""
    application = Application(kafka, folder, f"state-{uuid4().hex[:8]}", PARTITIONS, data=data)
    application.add_settings('[spark]\nmaster = "local[2]"\n')
    running = application.start(command="spark")
    try:
        application.wait_until_through([running])
    finally:
        running.terminate()
        running.wait()
    return rate_of(application)


def rate_of(application: Application) -> float:
    """Return the rate in records/s, from the moment when all units have made a first commit until the last commit."""
    commits = [commits_of(application, unit) for unit in range(PARTITIONS)]
    first_ms = max(found[0][0] for found in commits)
    last_ms = max(found[-1][0] for found in commits)
    before = sum(max(at for at_ms, at in found if at_ms <= first_ms) for found in commits)
    return (sum(found[-1][1] for found in commits) - before) / ((last_ms - first_ms) / 1000)


def commits_of(application: Application, unit: int) -> list[tuple[int, int]]:
    """Return each commit of a unit as its time in ms and the number of records that the unit had joined by then.

    Commits before the first joined record are left out.
    """
    settings, found = application.settings, []
    with closing(make_reader(settings.kafka, "bench")) as consumer:
        low, high = log_range(consumer, settings.state_topic, unit)
        for message in read_to_end(consumer, SystemClock(), settings.state_topic, unit, low, high):
            if (message.key() or b"").decode() == checkpoint_key(unit):
                joined = sum(decode_checkpoint(message.value() or b"").offsets.values())
                if joined:
                    found.append((int(message.timestamp()[1]), joined))
    return found


def hold(kafka: KafkaSettings, topic: str, records: int, units: int) -> None:
    """Write ``records`` records to each of the first ``units`` units, from machines whose other stream is silent."""
    producer = make_sender(kafka)
    for thing, place in things_over_all_units("silent", PARTITIONS):
        for number in range(records if place < units else 0):
            record = {
                "thing": thing,
                "quantity": "speed",
                "phenomenonTime": FIRST_MS + number,
                "result": float(number),
                "id": f"s{number:x}",
            }
            send(producer, topic, place, record)
    producer.flush()


def grow(kafka: KafkaSettings, data: str, folder: Path) -> list[dict[str, Any]]:
    """Join a whole topic with the Spark stage. Return samples of the state, taken once a second."""
    application = Application(kafka, folder, f"hour-{uuid4().hex[:8]}", PARTITIONS, data=data)
    checkpoint = folder / "checkpoint"
    application.add_settings(_SMALL_BATCHES.format(checkpoint=checkpoint))
    running = application.start(command="spark")
    rows: list[dict[str, Any]] = []
    try:
        while not rows or rows[-1]["records"] < HOUR:
            if running.poll() is not None:
                raise RuntimeError("the stage ended unexpectedly")
            time.sleep(_LOOK_S)
            row = _state(application)
            if row is not None and row["records"] and (not rows or row["records"] > rows[-1]["records"]):
                files = [path.stat().st_size for path in checkpoint.rglob("*") if path.is_file()]
                rows.append(row | {"spark_bytes": sum(files)})
    finally:
        running.terminate()
        running.wait()
    return rows


def _state(application: Application) -> dict[str, Any] | None:
    found = []
    try:
        with closing(Readers(application.settings, SystemClock())) as readers:
            states = [read_state(readers, unit) for unit in range(PARTITIONS)]
    except (KafkaException, FileNotFoundError):
        return None  # being created or removed
    for state in states:
        checkpoint = state.checkpoint()
        if checkpoint is None:
            return None
        held = sum(join.held_left + join.held_right for join in checkpoint.joins.values())
        length = max((one.length for one in state.manifests()), default=0)
        found.append((sum(checkpoint.offsets.values()), held, length))
    records, held_by_unit, lengths = zip(*found, strict=True)
    return {"records": sum(records), "held": sum(held_by_unit), "snapshot_bytes": max(lengths)}


def main() -> int:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=3_000_000, help="that are joined (default 3,000,000)")
    parser.add_argument("--held", type=int, default=100_000, help="records held in a unit (default 100,000)")
    parser.add_argument("--runs", type=int, default=3, help="with each state (default 3)")
    parser.add_argument("--report", type=Path, default=Path(".lsb/bench_spark_state"), help="path of .json and .md")
    options = parser.parse_args()
    names = {
        "nothing more": 0,
        f"{options.held:,} records in one unit": 1,
        f"{options.held:,} records in each of {PARTITIONS} units": PARTITIONS,
    }
    rates: dict[str, list[float]] = {name: [] for name in names}
    with own_kafka() as (kafka, folder):
        for units in names.values():
            make_topic(kafka, f"held-{units}", PARTITIONS)
            hold(kafka, f"held-{units}", options.held, units)
            produce(kafka, f"held-{units}", options.records)
        for turn in range(options.runs):
            for name, units in names.items():
                rate = run_joiner(kafka, f"held-{units}", folder)
                rates[name].append(rate / 1000)
                print(f"run {turn + 1}, {name}: {rate:,.0f} records/s", flush=True)
        make_topic(kafka, "hour", PARTITIONS)
        produce(kafka, "hour", HOUR)
        growth = grow(kafka, "hour", folder)
    reference = statistics.median(next(iter(rates.values())))
    rows = [(name, spread(found, 1), f"{statistics.median(found) / reference:.2f}") for name, found in rates.items()]
    lines = table(["held", "thousand records/s (min / median / max)", "of the first"], rows)
    heads = ["minutes of events joined", "records held", "snapshot of a unit, bytes", "Spark's folder, kB"]
    shown = growth[:: max(1, len(growth) // 20)]
    lines += table(heads, [_minutes(row) for row in shown])
    ran = about() | {"records": options.records}
    write(options.report, "The state of the stage in Spark", ran, {"rates": rates, "growth": growth}, lines)
    return 0


def _minutes(row: dict[str, Any]) -> tuple[object, ...]:
    return f"{row['records'] / 60_000:.0f}", row["held"], row["snapshot_bytes"], row["spark_bytes"] // 1000


if __name__ == "__main__":
    sys.exit(main())
