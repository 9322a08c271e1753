"""Finds the best settings for a peer, a join in another engine that the benchmarks compare with the joiner.

Runs a peer with one variant of its settings after another, and stores the figures in ``trials``. For example, ``python
-m bench.peers.try_settings flink_interval best rocksdb`` starts a temporary Kafka broker, writes the input once, and
runs each variant on it, with the narrowest window that contains every pair. The output is compared with the expected
neighbours. To exclude startup and shutdown, the rate is measured, by the broker's clock, from when 20 % of the results
have been written until 95 % have been.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import closing
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Final

from confluent_kafka.admin import NewTopic

from bench.harness.pipeline import (
    FIRST_MS,
    PARTITIONS,
    THINGS,
    ends,
    make_sender,
    make_topic,
    own_kafka,
    things_over_all_units,
)
from bench.harness.report import machine
from bench.peers.environments import ENVIRONMENTS, command
from broker.settings import KafkaSettings
from broker.stack.parts import KAFKA_VERSION
from joiner.runtime.clock import SystemClock
from joiner.runtime.kafka.clients import log_range, make_admin, make_reader, read_to_end

_PACKAGES: Final = {"flink": "apache-flink", "quix": "quixstreams", "bytewax": "bytewax", "pathway": "pathway"}
_TWO_TOPICS: Final = ("quix_asof",)
_TRIALS: Final = Path(__file__).with_name("trials")
_LOOK_S: Final = 0.5
_STILL_S: Final = 10.0
"""A run ends if no new result arrives within this time. Some peers write results only once per checkpoint."""


def produce(kafka: KafkaSettings, topics: list[str], records: int) -> set[tuple[str, str]]:
    """Write alternating speed and torque records of `THINGS` machines. Return the pairs of neighbours.

    The records go to a single topic, or to one topic per quantity. Their Kafka timestamps are set to the event times,
    because some engines read the time from there.
    """
    admin, things = make_admin(kafka), things_over_all_units("machine", THINGS)
    settings = {"message.timestamp.type": "CreateTime", "retention.ms": "-1"}
    for made in admin.create_topics([NewTopic(name, PARTITIONS, 1, config=settings) for name in topics]).values():
        made.result()
    producer = make_sender(kafka)
    before: dict[str, str] = {}
    pairs = set()
    for number in range(records):
        (thing, place), side, name = things[number % THINGS], number // THINGS % 2, f"{number:x}"
        record = {
            "thing": thing,
            "quantity": ("speed", "torque")[side],
            "phenomenonTime": FIRST_MS + number,
            "result": (number * 7919 % 100_000) / 100,
            "id": name,
        }
        while True:
            try:
                given = (topics[side % len(topics)], json.dumps(record), thing, place)
                producer.produce(*given, timestamp=FIRST_MS + number)
            except BufferError:
                producer.poll(0.1)
            else:
                break
        if thing in before:
            pairs.add((before[thing], name) if side else (name, before[thing]))
        before[thing] = name
    producer.flush()
    return pairs


def run(kafka: KafkaSettings, start: list[str], data: str, given: list[str], wanted: int, seconds: float) -> str:
    """Run a peer's command until no more results arrive. Return the name of its result topic."""
    out = f"out-{uuid.uuid4().hex[:8]}"
    make_topic(kafka, out, PARTITIONS)
    with tempfile.TemporaryDirectory() as state, tempfile.TemporaryFile() as log:
        arguments = [kafka.bootstrap_servers, data, out, "--partitions", str(PARTITIONS), "--state", state, *given]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        running = subprocess.Popen([*start, *arguments], stdout=log, stderr=log, env=environment)
        began_s = changed_s = time.monotonic()
        seen = 0
        while time.monotonic() - began_s < seconds and (not seen or time.monotonic() - changed_s < _STILL_S):
            time.sleep(_LOOK_S)
            if running.poll() is not None:
                log.seek(0)
                raise RuntimeError(f"{' '.join(given)} ended unexpectedly:\n{log.read()[-2000:].decode()}")
            now = sum(ends(kafka, out, PARTITIONS))
            if now != seen:
                seen, changed_s = now, time.monotonic()
            if seen >= wanted and time.monotonic() - changed_s > _STILL_S / 4:
                break
        running.terminate()
        running.wait(30)
    return out


def judge(kafka: KafkaSettings, out: str, wanted: set[tuple[str, str]], records: int) -> dict[str, int]:
    """Return the rate in records/s and the numbers of found, missing, wrong and duplicate pairs."""
    times_ms, found = [], []
    with closing(make_reader(kafka, "bench")) as consumer:
        for number in range(PARTITIONS):
            for message in read_to_end(consumer, SystemClock(), out, number, *log_range(consumer, out, number)):
                pair = json.loads(message.value() or b"")
                times_ms.append(message.timestamp()[1])
                found.append((pair["left"], pair["right"]))
    times_ms.sort()
    rate = 0
    if times_ms:
        took_ms = times_ms[len(times_ms) * 19 // 20] - times_ms[len(times_ms) // 5]
        # A run that was stopped early has not read all of its input. Use the share of expected pairs that it found as
        # an estimate of the share of input that it read.
        rate = round(0.75 * min(1.0, len(set(found) & wanted) / len(wanted)) * records / max(took_ms, 1) * 1000)
    right = set(found) & wanted
    return {
        "records/s": rate,
        "found": len(right),
        "missing": len(wanted) - len(right),
        "no neighbours": len(set(found) - wanted),
        "doubled": len(found) - len(set(found)),
    }


def main() -> int:
    """Run the variants and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=sorted(ENVIRONMENTS))
    parser.add_argument("variants", nargs="+")
    parser.add_argument("--records", type=int, default=400_000)
    parser.add_argument("--seconds", type=float, default=60, help="time limit for each variant")
    parser.add_argument("--within", type=float, default=3600, help="start no variant after this time, in seconds")
    parser.add_argument("--folder", type=Path, default=Path(".lsb"), help="folder of the environments")
    parser.add_argument("--give", default="", help="additional arguments for the peer")
    options = parser.parse_args()
    start = command(options.peer, options.folder, print)
    packages = distributions(path=[str(place) for place in Path(start[0]).parents[1].glob("lib/python*/site-packages")])
    package = _PACKAGES[ENVIRONMENTS[options.peer]]
    version = next(one.version for one in packages if one.name == package)
    about = machine() | {"Kafka": KAFKA_VERSION, package: version, "records": options.records}
    data = ["data.left", "data.right"] if options.peer in _TWO_TOPICS else ["data"]
    path = _TRIALS / f"{options.peer}.json"
    began_s = time.monotonic()
    with own_kafka() as (kafka, _):
        wanted = produce(kafka, data, options.records)
        for variant in options.variants:
            if time.monotonic() - began_s > options.within:
                print(f"{variant}: no time left")
                continue
            given = ["--variant", variant, *options.give.split()]
            try:
                out = run(kafka, start, ",".join(data), given, len(wanted), options.seconds)
            except RuntimeError as error:
                print(error)
                continue
            figures = {"variant": " ".join(given[1:])} | judge(kafka, out, wanted, options.records) | about
            print(json.dumps(figures), flush=True)
            tried: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps([*tried, figures], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
