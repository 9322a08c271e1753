"""Measures the speed of the joiner from Kafka to Kafka, compared with an exactly-once pass-through of the same bytes.

``python -m bench.kafka --report docs/evidence/bench_kafka`` starts a temporary Kafka broker, writes the input once,
runs the contenders on it several times in turn, and writes ``.json`` and ``.md``. Input and output are JSON. Each
contender is a process. Its time is that between the first and the last record in its output topic, by the broker's
clock, so that its start does not count. The pass-through only consumes, produces, sends offsets and commits, with the
joiner's client settings. It is not an upper limit: it creates a dict per message, and runs with Python's default
garbage-collector settings. The reference makes the joiner's transactions: one per unit and batch, those of a batch in
parallel and while the next batch is read. The variant with one transaction for all units is faster. The pass-through
writes its input, which is less than half of the joiner's output.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final

from confluent_kafka import Producer, TopicPartition

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
from broker.partitioner import partition_of
from broker.settings import KafkaSettings
from joiner.runtime.clock import SystemClock
from joiner.runtime.kafka.clients import log_range, make_consumer, make_producer, make_reader, read_to_end

THINGS: Final = 32
_WAIT_S: Final = 600.0
_TAIL: Final = 1000
BATCH: Final = 30_000
"""The joiner's default."""

_AT_ONCE: Final = 1_000
"""Number of messages that are passed to a producer in one call, as in the joiner."""


def produce(kafka: KafkaSettings, topic: str, records: int) -> None:
    """Write speed and torque of `THINGS` machines in turn, a millisecond apart."""
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


def pass_through(bootstrap: str, data: str, out: str, batch: int, records: int, *, of_units: bool) -> None:
    """Copy ``records`` records to another topic, each batch in a transaction with its offsets.

    ``of_units``: each partition has its own transaction, written at the same time as the others, as in the joiner.
    """
    kafka = KafkaSettings(bootstrap_servers=bootstrap)
    consumer = make_consumer(kafka, out, queued_max_messages_kbytes=64 * 1024, fetch_queue_backoff_ms=2)
    producers = [_make_producer(kafka, f"{out}-{number}") for number in range(PARTITIONS if of_units else 1)]
    consumer.assign([TopicPartition(data, number, 0) for number in range(PARTITIONS)])
    metadata = consumer.consumer_group_metadata()

    def commit(
        producer: Producer, by_partition: dict[int, list[dict[str, bytes | None]]], ends: dict[int, int]
    ) -> None:
        producer.begin_transaction()
        producer.send_offsets_to_transaction([TopicPartition(data, *end) for end in ends.items()], metadata)
        for number, messages in by_partition.items():
            for begin in range(0, len(messages), _AT_ONCE):
                producer.produce_batch(out, messages[begin : begin + _AT_ONCE], partition=number)
        producer.commit_transaction()

    with ThreadPoolExecutor(len(producers)) as pool:
        commits: dict[int, Future[None]] = {}
        while records > 0:
            by_partition: dict[int, list[dict[str, bytes | None]]] = {}
            ends: dict[int, int] = {}
            for message in consumer.consume(batch, 0.02):
                number = message.partition() or 0
                by_partition.setdefault(number, []).append({"key": message.key(), "value": message.value()})
                ends[number] = (message.offset() or 0) + 1
                records -= 1
            if not of_units and by_partition:
                # Not while the next batch is read: with one producer, that was slower by a sixth.
                commit(producers[0], by_partition, ends)
                continue
            for number, messages in by_partition.items():
                if number in commits:
                    commits[number].result()
                given = {number: messages}, {number: ends[number]}
                commits[number] = pool.submit(commit, producers[number], *given)
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
    """Start the pass-through in a process, which ends with the last record."""
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


def run_joiner(kafka: KafkaSettings, data: str, folder: Path, processes: int) -> float:
    """Return the same for the joiner in ``processes`` processes; a second one claims half of the units."""
    application = Application(kafka, folder, f"join-{uuid.uuid4().hex[:8]}", PARTITIONS, data=data)
    running = [application.start(instance=str(number)) for number in range(processes)]
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


CONTENDERS: Final[dict[str, Callable[[KafkaSettings, str, Path], float]]] = {
    "pass-through, a transaction for each unit": partial(run_pass_through, of_units=True),
    "pass-through, one transaction": partial(run_pass_through, of_units=False),
    "joiner": partial(run_joiner, processes=1),
    "joiner, two processes": partial(run_joiner, processes=2),
}


def main() -> int:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000, help="in the input topic (default 1,000,000)")
    parser.add_argument("--runs", type=int, default=5, help="of each contender (default 5)")
    parser.add_argument("--report", type=Path, default=Path(".lsb/bench_kafka"), help="path of .json and .md")
    parser.add_argument("--pass-through", nargs=6, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.pass_through:
        bootstrap, data, out, batch, records, of_units = options.pass_through
        pass_through(bootstrap, data, out, int(batch), int(records), of_units=bool(int(of_units)))
        return 0
    found: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    with own_kafka() as (kafka, folder):
        make_topic(kafka, "bench.data", PARTITIONS)
        produce(kafka, "bench.data", options.records)
        for turn in range(options.runs):
            for name, run in CONTENDERS.items():
                rate = options.records / run(kafka, "bench.data", folder) / 1000
                found[name].append(rate)
                print(f"run {turn + 1}, {name}: {rate:.0f} thousand records/s", flush=True)
    reference = statistics.median(next(iter(found.values())))
    rows = [(name, spread(rates, 0), f"{statistics.median(rates) / reference:.2f}") for name, rates in found.items()]
    lines = table(["", "thousand records/s (min / median / max)", "of the first"], rows)
    ran = about() | {"records": options.records}
    write(options.report, "Kafka to Kafka, exactly once, JSON in and out", ran, found, lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
