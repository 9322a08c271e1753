"""Compares the recovery times of two joiners, one that holds a million records and one that holds a single record.

``python -m bench.recovery --report docs/evidence/bench_recovery`` starts a temporary Kafka broker and two joiner
applications, both of which receive records of one side only. One holds a million of them, the other a single one. Each
is then killed with SIGKILL and restarted several times, in alternation. Before each restart, a record that completes a
pair is sent. The recovery time is measured from the start of the process until a consumer receives the committed pair.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from confluent_kafka import TopicPartition

from bench.harness.pipeline import FIRST_MS, Application, about, ends, make_sender, make_topic, own_kafka, send
from bench.harness.report import spread, table, write
from broker.settings import KafkaSettings
from joiner.runtime.kafka.clients import make_consumer

THINGS: Final = 32
_DEADLINE_S: Final = 120.0


class Subject:
    """A joiner application that holds ``records`` records of one side because the other side has sent none."""

    def __init__(self, kafka: KafkaSettings, folder: Path, name: str, records: int) -> None:
        self._kafka = kafka
        self._application = Application(kafka, folder, name, 1, data=f"{name}.data")
        self._out = self._application.settings.topics.out
        make_topic(kafka, self._application.data, 1)
        self._producer = make_sender(kafka)
        for number in range(records):
            self._send(f"machine-{number % THINGS}", "speed", FIRST_MS + number, f"{number:x}")
        self._producer.flush()
        with self._joiner() as process:
            self._application.wait_until_through([process])

    def first_pair_s(self, turn: int) -> float:
        """Send a record that completes a pair, start the joiner, and return the seconds until the pair arrives.

        The record is earlier than all held records of the other side, so the first of those with the same key is its
        next neighbour, and the pair is certain at once.
        """
        (before,) = ends(self._kafka, self._out, 1)
        self._send("machine-0", "torque", FIRST_MS - 1000 + turn, f"torque {turn}")
        self._producer.flush()
        with closing(make_consumer(self._kafka, "bench", fetch_wait_max_ms=5)) as consumer:
            consumer.assign([TopicPartition(self._out, 0, before)])
            consumer.poll(0.5)
            began_s = time.monotonic()
            with self._joiner():
                while (message := consumer.poll(0.1)) is None or message.error() is not None:
                    if time.monotonic() > began_s + _DEADLINE_S:
                        raise TimeoutError("no pair arrived")
                return time.monotonic() - began_s

    @contextmanager
    def _joiner(self) -> Iterator[subprocess.Popen[bytes]]:
        process = self._application.start()
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def _send(self, thing: str, quantity: str, time_ms: int, identity: str) -> None:
        record = {
            "thing": thing,
            "quantity": quantity,
            "phenomenonTime": time_ms,
            "result": time_ms % 977,
            "id": identity,
        }
        send(self._producer, self._application.data, 0, record)


def main() -> int:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000, help="records held (default 1,000,000)")
    parser.add_argument("--runs", type=int, default=5, help="starts of each joiner (default 5)")
    parser.add_argument(
        "--report", type=Path, default=Path(".lsb/bench_recovery"), help="path of the .json and .md files"
    )
    options = parser.parse_args()
    found: dict[str, list[float]] = {}
    with own_kafka() as (kafka, folder):
        subjects = {
            "one record held": Subject(kafka, folder, "empty", 1),
            f"{options.records:,} records held": Subject(kafka, folder, "full", options.records),
        }
        for turn in range(options.runs):
            for name, subject in subjects.items():
                took_s = subject.first_pair_s(turn)
                found.setdefault(name, []).append(took_s)
                print(f"run {turn + 1}, {name}: {took_s:.2f} s", flush=True)
    empty_s, full_s = (statistics.median(times) for times in found.values())
    lines = table(
        ["", "s to the first pair (min / median / max)"], [(name, spread(one)) for name, one in found.items()]
    )
    lines += ["", f"The medians are {full_s - empty_s:.2f} s apart."]
    write(options.report, "From the start of the joiner to its first pair", about(), found, lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
