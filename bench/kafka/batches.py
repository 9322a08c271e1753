"""Measures the speed of the joiner from Kafka to Kafka when each message holds many records, in Arrow format.

The joiner is compared with pass-throughs, which copy the same messages exactly once without decoding them. The
contenders run one after another, in random order, on the same broker. A rate is the number of records divided by the
time between the first and the last message written, by the broker's clock; startup is not included.

The input is large enough for a run to take several seconds: 20 million records occupy half a gigabyte in Kafka.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from confluent_kafka import Producer

from bench.harness.pipeline import (
    FIRST_MS,
    PARTITIONS,
    Application,
    about,
    ends,
    make_sender,
    make_topic,
    own_kafka,
    things_over_all_units,
)
from bench.harness.report import spread, table, write
from bench.kafka import run_program, seconds_between, start_pass_through
from bench.peers.ceiling.programs import build
from broker.settings import KafkaSettings
from broker.wire.arrow.rows import encode_columns

THINGS: Final = 32
_AT_ONCE: Final = 100
"""How many messages a pass-through reads at once. Their total size is about what the joiner reads at once."""
_WAIT_S: Final = 600.0


def produce(kafka: KafkaSettings, topic: str, records: int, rows: int, *, with_ids: bool) -> None:
    """Write messages of ``rows`` records each. Records are a millisecond apart; machines take turns.

    Each machine alternates speed and torque.
    """
    producer = make_sender(kafka)
    by_partition: dict[int, list[str]] = {}
    for name, partition in things_over_all_units("machine", THINGS):
        by_partition.setdefault(partition, []).append(name)
    for first in range(0, records // PARTITIONS, rows):
        at = np.arange(first, first + rows)
        for partition, names in by_partition.items():
            things, turn = pa.array((at % len(names)).astype(np.int32)), at // len(names)
            value = encode_columns(
                pa.DictionaryArray.from_arrays(things, pa.array(names)),
                pa.DictionaryArray.from_arrays(pa.array((turn % 2).astype(np.int8)), pa.array(["speed", "torque"])),
                FIRST_MS + at,
                (at * 7919 % 100_000) / 100,
                [f"{number:x}" for number in at.tolist()] if with_ids else None,
            )
            _send(producer, topic, partition, value)
    producer.flush()


def _send(producer: Producer, topic: str, partition: int, value: bytes) -> None:
    while True:
        try:
            producer.produce(topic, value, partition=partition)
        except BufferError:
            producer.poll(0.1)
        else:
            producer.poll(0)
            return


def run_joiner(kafka: KafkaSettings, data: str, folder: Path, results: str) -> float:
    """Return the seconds between the first and the last message that the joiner writes."""
    name = f"join-{uuid.uuid4().hex[:8]}"
    application = Application(kafka, folder, name, PARTITIONS, data=data, data_format="arrow", results=results)
    process = application.start()
    try:
        application.wait_until_through([process])
    finally:
        process.terminate()
        process.wait()
    return seconds_between(kafka, application.settings.topics.out)


def run_pass_through(kafka: KafkaSettings, data: str, _folder: Path) -> float:
    """Return the seconds between the first and the last message that a pass-through in Python writes."""
    out, messages = f"raw-{uuid.uuid4().hex[:8]}", sum(ends(kafka, data, PARTITIONS))
    if start_pass_through(kafka, data, out, _AT_ONCE, messages, of_units=True).wait(_WAIT_S):
        raise subprocess.SubprocessError("the pass-through failed")
    return seconds_between(kafka, out)


Run = Callable[[KafkaSettings, str, Path], float]


def main() -> int:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--records", type=int, default=20_000_000, help="records in the input topic (default 20,000,000)"
    )
    parser.add_argument("--rows", type=int, default=10_000, help="records per message (default 10,000)")
    parser.add_argument("--ids", action="store_true", help="give each record an id")
    parser.add_argument("--runs", type=int, default=5, help="runs of each contender (default 5)")
    parser.add_argument("--only", nargs="*", help="run only the contenders whose name contains one of these words")
    parser.add_argument(
        "--report", type=Path, default=Path(".lsb/bench_batches"), help="path of the .json and .md files"
    )
    options = parser.parse_args()
    with own_kafka() as (kafka, folder):
        programs, missing = build(folder)
        pass_throughs: dict[str, Run] = {"pass-through, a transaction for each unit": run_pass_through}
        pass_throughs |= {name: partial(run_program, command=made) for name, made in programs.items()}
        contenders = pass_throughs | {
            "joiner, results in Arrow": partial(run_joiner, results="arrow"),
            "joiner, results in JSON": partial(run_joiner, results="full"),
        }
        if options.only:
            contenders = {name: run for name, run in contenders.items() if any(one in name for one in options.only)}
        found: dict[str, list[float]] = {name: [] for name in contenders}
        make_topic(kafka, "bench.data", PARTITIONS)
        produce(kafka, "bench.data", options.records, options.rows, with_ids=options.ids)
        for turn in range(options.runs):
            for name, run in random.sample(list(contenders.items()), len(contenders)):
                rate = options.records / run(kafka, "bench.data", folder) / 1e6
                found[name].append(rate)
                print(f"run {turn + 1}, {name}: {rate:.2f} million records/s", flush=True)
    reference = max((statistics.median(found[name]) for name in pass_throughs if found.get(name)), default=1.0)
    rows = [(name, spread(rates), f"{statistics.median(rates) / reference:.2f}") for name, rates in found.items()]
    lines = table(["", "million records/s (min / median / max)", "of the fastest pass-through"], rows)
    ran = about() | {"records": options.records, "records in a message": options.rows, "ids": options.ids}
    ran |= {"not run": "; ".join(missing)} if missing else {}
    write(options.report, "Kafka to Kafka, exactly once, many records in a message, as Arrow", ran, found, lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
