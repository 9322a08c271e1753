"""Measures the speed of the joiner from Kafka to Kafka, compared with exactly-once pass-throughs of the same input.

``python -m bench.kafka --report docs/evidence/bench_kafka`` starts a temporary Kafka, writes the input once, runs the
contenders on it several times in random order, and writes ``.json`` and ``.md``. Input and output are JSON. Each
contender runs in processes of its own. It is timed from the first to the last record in its output topic, by the
broker's clock, so its startup is not included.

A pass-through consumes records, produces them to another topic, and commits them together with their offsets. The one
in C calls librdkafka, the library that confluent_kafka is built on, and creates no object per message. The one in Java
uses Kafka's own client. The ones in Python use confluent_kafka; like the joiner, they reuse their dicts and tune the
garbage collector. All but one commit the same transactions as the joiner: one for each unit and batch. The transactions
for a batch run in parallel while the next batch is read. Every rate is compared with the rate of the fastest
pass-through. A pass-through writes what it reads, which is less than half of what the joiner writes.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Message, Producer, TopicPartition

from bench.harness.pipeline import (
    FIRST_MS,
    PARTITIONS,
    Application,
    about,
    ends,
    make_sender,
    make_topic,
    own_kafka,
    send,
)
from bench.harness.report import spread, table, write
from bench.peers.ceiling.programs import build
from broker.partitioner import partition_of
from broker.settings import KafkaSettings
from joiner.runtime.clock import SystemClock
from joiner.runtime.kafka.clients import log_range, make_consumer, make_producer, make_reader, read_to_end
from joiner.runtime.runners.gc_tuning import tune_gc

THINGS: Final = 32
_WAIT_S: Final = 600.0
_TAIL: Final = 1000
BATCH: Final = 30_000
"""The joiner's default."""

_AT_ONCE: Final = 1_000
"""How many messages are passed to a producer in one call, as in the joiner."""

_REQUEST_MESSAGES: Final = 5_000
"""How many of the messages fit into one request. Like the joiner, a pass-through waits until they are acknowledged
before it passes on more messages of the partition, because the client would poll without pausing meanwhile."""


def produce(kafka: KafkaSettings, topic: str, records: int) -> None:
    """Write records that are a millisecond apart. `THINGS` machines take turns, each alternating speed and torque."""
    producer = make_sender(kafka)
    things = [f"machine-{number}" for number in range(THINGS)]
    places = [partition_of(thing.encode(), PARTITIONS) for thing in things]
    for number in range(records):
        which, turn = number % THINGS, number // THINGS
        record = {
            "thing": things[which],
            "quantity": ("speed", "torque")[turn % 2],
            "phenomenonTime": FIRST_MS + number,
            "result": (number * 7919 % 100_000) / 100,
            "id": f"{number:x}",
        }
        send(producer, topic, places[which], record)
    producer.flush()


class _Copier:
    """Copies messages to a topic, using the transactions of one producer."""

    def __init__(self, producer: Producer, data: str, out: str, group: Any) -> None:
        self._producer, self._data, self._out, self._group = producer, data, out, group
        self._slots: list[dict[str, Any]] = [{"key": None, "value": None} for _ in range(_AT_ONCE)]

    def copy(self, by_partition: dict[int, list[Message]]) -> None:
        """Copy messages grouped by partition, and commit them with their offsets in one transaction."""
        ends = {number: (messages[-1].offset() or 0) + 1 for number, messages in by_partition.items()}
        self._producer.begin_transaction()
        places = [TopicPartition(self._data, *end) for end in ends.items()]
        self._producer.send_offsets_to_transaction(places, self._group)
        for first in range(0, max(map(len, by_partition.values())), _REQUEST_MESSAGES):
            if first:
                self._producer.flush()
            for number, messages in by_partition.items():
                self._pass_on(number, messages[first : first + _REQUEST_MESSAGES])
        self._producer.commit_transaction()

    def _pass_on(self, number: int, messages: list[Message]) -> None:
        for begin in range(0, len(messages), _AT_ONCE):
            part = messages[begin : begin + _AT_ONCE]
            for slot, message in zip(self._slots, part, strict=False):
                slot["key"], slot["value"] = message.key(), message.value()
            self._producer.produce_batch(self._out, self._slots[: len(part)], partition=number)


def pass_through(bootstrap: str, data: str, out: str, batch: int, records: int, *, of_units: bool) -> None:
    """Copy ``records`` records to another topic, each batch in a transaction with its offsets.

    If ``of_units`` is set, each partition has its own transactions, which run in parallel, as in the joiner.
    """
    kafka = KafkaSettings(bootstrap_servers=bootstrap)
    consumer = make_consumer(kafka, out, queued_max_messages_kbytes=64 * 1024, fetch_queue_backoff_ms=2)
    consumer.assign([TopicPartition(data, number, 0) for number in range(PARTITIONS)])
    group = consumer.consumer_group_metadata()
    copiers = [
        _Copier(_make_producer(kafka, f"{out}-{number}"), data, out, group)
        for number in range(PARTITIONS if of_units else 1)
    ]
    tune_gc()
    with ThreadPoolExecutor(len(copiers)) as pool:
        commits: dict[int, Future[None]] = {}
        while records > 0:
            by_partition: dict[int, list[Message]] = {}
            for message in consumer.consume(batch, 0.02):
                by_partition.setdefault(message.partition() or 0, []).append(message)
                records -= 1
            if not of_units and by_partition:
                # Wait for the commit before reading more: with one producer, reading during a commit was a sixth
                # slower.
                copiers[0].copy(by_partition)
                continue
            for number, messages in by_partition.items():
                if number in commits:
                    commits[number].result()
                commits[number] = pool.submit(copiers[number].copy, {number: messages})
        for written in commits.values():
            written.result()


def _make_producer(kafka: KafkaSettings, transactional_id: str) -> Producer:
    producer = make_producer(
        kafka,
        transactional_id=transactional_id,
        queue_buffering_backpressure_threshold=1,
        retry_backoff_ms=2,
        retry_backoff_max_ms=4,
        linger_ms=5,
        compression_type="lz4",
    )
    producer.init_transactions()
    return producer


def start_pass_through(
    kafka: KafkaSettings, data: str, out: str, batch: int, records: int, *, of_units: bool
) -> subprocess.Popen[bytes]:
    """Start the pass-through in a process, which exits once it has copied the last record."""
    make_topic(kafka, out, PARTITIONS)
    given = [kafka.bootstrap_servers, data, out, str(batch), str(records), str(int(of_units))]
    command = [sys.executable, "-m", "bench.kafka", "--pass-through", *given]
    return subprocess.Popen(command)  # noqa: S603 - this program


def run_pass_through(kafka: KafkaSettings, data: str, _folder: Path, *, of_units: bool) -> float:
    """Return the seconds between the first and the last record that the pass-through writes."""
    out = f"raw-{uuid.uuid4().hex[:8]}"
    if start_pass_through(kafka, data, out, BATCH, sum(ends(kafka, data, PARTITIONS)), of_units=of_units).wait(_WAIT_S):
        raise RuntimeError("the pass-through failed")
    return seconds_between(kafka, out)


def run_program(kafka: KafkaSettings, data: str, _folder: Path, command: Sequence[str]) -> float:
    """Return the seconds between the first and the last record that a program of `bench.peers.ceiling` writes."""
    out, records = f"raw-{uuid.uuid4().hex[:8]}", sum(ends(kafka, data, PARTITIONS))
    make_topic(kafka, out, PARTITIONS)
    given = [kafka.bootstrap_servers, data, out, str(PARTITIONS), str(BATCH), str(records)]
    subprocess.run([*command, *given], check=True, timeout=_WAIT_S)  # noqa: S603 - built by this program
    return seconds_between(kafka, out)


def run_joiner(
    kafka: KafkaSettings, data: str, folder: Path, processes: int, results: str = "full", command: str = "run"
) -> float:
    """Return the seconds between the first and the last result of a joiner in ``processes`` processes.

    If there are two processes, each serves half of the units. ``results`` is the setting `application.results`, and
    ``command`` the command that starts the joiner.
    """
    name = f"join-{uuid.uuid4().hex[:8]}"
    application = Application(kafka, folder, name, PARTITIONS, data=data, results=results)
    running = [application.start(instance=str(number), command=command) for number in range(processes)]
    try:
        application.wait_until_through(running)
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait()
    return seconds_between(kafka, application.settings.topics.out)


def seconds_between(kafka: KafkaSettings, topic: str) -> float:
    """Return the seconds between the first and the last committed record of a topic, by the broker's clock."""
    times_ms, clock = [], SystemClock()
    with closing(make_reader(kafka, "bench")) as consumer:
        for number in range(PARTITIONS):
            low, high = log_range(consumer, topic, number)
            first = next(read_to_end(consumer, clock, topic, number, low, high))
            *_, last = read_to_end(consumer, clock, topic, number, max(low, high - _TAIL), high)
            times_ms += [first.timestamp()[1], last.timestamp()[1]]
    return (max(times_ms) - min(times_ms)) / 1000


Run = Callable[[KafkaSettings, str, Path], float]

PASS_THROUGHS: Final[dict[str, Run]] = {
    "pass-through, a transaction for each unit": partial(run_pass_through, of_units=True),
    "pass-through, one transaction": partial(run_pass_through, of_units=False),
}

JOINERS: Final[dict[str, Run]] = {
    "joiner": partial(run_joiner, processes=1),
    "joiner, compact results": partial(run_joiner, processes=1, results="compact"),
    "joiner, two processes": partial(run_joiner, processes=2),
    "joiner, a stage in Spark": partial(run_joiner, processes=1, command="spark"),
}


def main() -> int:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000, help="records in the input topic (default 1,000,000)")
    parser.add_argument("--runs", type=int, default=5, help="runs of each contender (default 5)")
    parser.add_argument("--report", type=Path, default=Path(".lsb/bench_kafka"), help="path of the .json and .md files")
    parser.add_argument("--pass-through", nargs=6, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.pass_through:
        bootstrap, data, out, batch, records, of_units = options.pass_through
        pass_through(bootstrap, data, out, int(batch), int(records), of_units=bool(int(of_units)))
        return 0
    with own_kafka() as (kafka, folder):
        programs, missing = build(folder)
        pass_throughs = PASS_THROUGHS | {name: partial(run_program, command=made) for name, made in programs.items()}
        contenders = pass_throughs | JOINERS
        found: dict[str, list[float]] = {name: [] for name in contenders}
        make_topic(kafka, "bench.data", PARTITIONS)
        produce(kafka, "bench.data", options.records)
        for turn in range(options.runs):
            for name, run in random.sample(list(contenders.items()), len(contenders)):
                rate = options.records / run(kafka, "bench.data", folder) / 1000
                found[name].append(rate)
                print(f"run {turn + 1}, {name}: {rate:.0f} thousand records/s", flush=True)
    reference = max(statistics.median(found[name]) for name in pass_throughs)
    rows = [(name, spread(rates, 0), f"{statistics.median(rates) / reference:.2f}") for name, rates in found.items()]
    lines = table(["", "thousand records/s (min / median / max)", "of the fastest pass-through"], rows)
    ran = about() | {"records": options.records} | ({"not run": "; ".join(missing)} if missing else {})
    write(options.report, "Kafka to Kafka, exactly once, JSON in and out", ran, found, lines)
    return 0
