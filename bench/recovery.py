"""How long does a joiner that holds a million records need to its first new pair, beside one that holds nothing?

``python -m bench.recovery --report docs/evidence/bench_recovery`` starts a Kafka of its own and lets two applications
begin: one reads records of one side alone and holds them all, the other a single one. Then each is killed with SIGKILL,
started anew several times, in turn, and given a record that completes a pair. The time is that from the start of the
process to the pair's arrival, committed, at a consumer; the record is there before the process is.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from confluent_kafka import Producer, TopicPartition

from bench.kafka import make_topic, wait_until_through
from bench.report import machine, spread, table, write
from broker.settings import KafkaSettings, load_settings
from broker.stack import ephemeral_stack
from broker.stack.parts import KAFKA_VERSION
from joiner.run.clients import log_range, make_consumer
from joiner.run.settings import JoinerSettings

THINGS: Final = 32
_FIRST_MS: Final = 1_554_096_460_000
_DEADLINE_S: Final = 120.0

_SETTINGS: Final = """\
[kafka]
bootstrap_servers = "{bootstrap}"

[topics]
data = "{name}.data"
out = "{name}.out"
late = "{name}.late"
rejected = "{name}.rejected"
partitions = 1

[application]
name = "{name}"
instance = "one"
buffer_records_max = 10_000_000

[[join]]
name = "power"
left = "speed"
right = "torque"
function = "product"
output = "power"
"""


class Subject:
    """An application that holds so many records of one side."""

    def __init__(self, kafka: KafkaSettings, folder: Path, name: str, records: int) -> None:
        self._kafka, self._name = kafka, name
        self._config = folder / f"{name}.toml"
        self._config.write_text(_SETTINGS.format(bootstrap=kafka.bootstrap_servers, name=name))
        make_topic(kafka, f"{name}.data", 1)
        self._producer = Producer(kafka.producer_config(linger_ms=50, compression_type="lz4"))
        for number in range(records):
            self._send(f"machine-{number % THINGS}", "speed", _FIRST_MS + number, f"{number:x}")
        self._producer.flush()
        settings = load_settings(JoinerSettings, self._config)
        with self._joiner() as process:
            wait_until_through(settings, [self._end("data")], [process])

    def first_pair_s(self, turn: int) -> float:
        """Start the joiner; the seconds until it has joined what came before its start.

        The record that comes is earlier than all that are held: it is the previous neighbour of one of them.
        """
        before = self._end("out")
        self._send("machine-0", "torque", _FIRST_MS - 1000 + turn, f"torque {turn}")
        self._producer.flush()
        with closing(make_consumer(self._kafka, "bench", fetch_wait_max_ms=5)) as consumer:
            consumer.assign([TopicPartition(f"{self._name}.out", 0, before)])
            consumer.poll(0.5)
            began_s = time.monotonic()
            with self._joiner():
                while (message := consumer.poll(0.1)) is None or message.error() is not None:
                    if time.monotonic() > began_s + _DEADLINE_S:
                        raise TimeoutError("no pair came")
                return time.monotonic() - began_s

    @contextmanager
    def _joiner(self) -> Iterator[subprocess.Popen[bytes]]:
        command = [sys.executable, "-m", "joiner", "run", "--config", str(self._config), "--log-level", "warning"]
        process = subprocess.Popen(command)  # noqa: S603 - the joiner
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def _end(self, topic: str) -> int:
        with closing(make_consumer(self._kafka, "bench")) as consumer:
            return log_range(consumer, f"{self._name}.{topic}", 0)[1]

    def _send(self, thing: str, quantity: str, time_ms: int, identity: str) -> None:
        value = {
            "thing": thing,
            "quantity": quantity,
            "phenomenonTime": time_ms,
            "result": time_ms % 977,
            "id": identity,
        }
        while True:
            try:
                self._producer.produce(f"{self._name}.data", json.dumps(value).encode(), thing.encode(), 0)
            except BufferError:
                self._producer.poll(0.1)
            else:
                return


def main() -> int:
    """Measure, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000, help="that are held (default 1,000,000)")
    parser.add_argument("--runs", type=int, default=5, help="starts of each (default 5)")
    parser.add_argument("--report", type=Path, default=Path(".lsb/bench_recovery"), help="where .json and .md go")
    options = parser.parse_args()
    found: dict[str, list[float]] = {}
    with ephemeral_stack(say=print) as stack, tempfile.TemporaryDirectory() as folder:
        stack.kafka.more = {"log.message.timestamp.type": "LogAppendTime"}
        stack.up([stack.kafka])
        kafka = KafkaSettings(bootstrap_servers=stack.kafka.address)
        subjects = {
            "one record held": Subject(kafka, Path(folder), "empty", 1),
            f"{options.records:,} records held": Subject(kafka, Path(folder), "full", options.records),
        }
        for turn in range(options.runs):
            for name, subject in subjects.items():
                took_s = subject.first_pair_s(turn)
                found.setdefault(name, []).append(took_s)
                print(f"run {turn + 1}, {name}: {took_s:.2f} s", flush=True)
    empty_s, full_s = (statistics.median(taken) for taken in found.values())
    lines = table(
        ["", "s to the first pair (min / median / max)"], [(name, spread(one)) for name, one in found.items()]
    )
    lines += ["", f"The medians are {full_s - empty_s:.2f} s apart."]
    about = machine("confluent-kafka", "msgspec", "numpy") | {"Kafka": KAFKA_VERSION}
    write(options.report, "From the start of the joiner to its first pair", about, found, lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
