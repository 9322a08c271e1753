"""Measures the latency of results, compared with that of an exactly-once pass-through.

``python -m bench.latency --report docs/evidence/bench_latency`` writes ``.json`` and ``.md``. The pass-through waits
for batches as the joiner does, and makes the same transactions: one per unit and batch. Records are sent at a steady
rate. The latency of a result is the time from just before its later record is passed to the producer until the
committed result reaches a consumer. Sender, contender and consumer are processes on one machine and share its clock.
Results in the first seconds of a run do not count.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import numpy as np
from confluent_kafka import Producer, TopicPartition

from bench.harness.pipeline import FIRST_MS, PARTITIONS, Application, about, make_topic, own_kafka
from bench.harness.report import spread, table, write
from bench.kafka import BATCH, THINGS, start_pass_through
from broker.kafka.topics import topic_facts
from broker.partitioner import partition_of
from broker.settings import KafkaSettings
from joiner.runtime.kafka.clients import make_admin, make_consumer

_WARM_UP_S: Final = 5.0
_WARM_UP_TURNS: Final = 2
_JAVA: Final = ("-Xms768m", "-Xmx768m", "-XX:+UseZGC")
"""JVM options for Kafka. The default garbage collector would pause it for up to 120 ms, several times a minute."""
_QUIET_S: Final = 5.0
"""A run ends after this time without results."""
_QUANTILES: Final = (50, 99, 99.9)


def send(bootstrap: str, topic: str, rate: int, seconds: float) -> None:
    """Send records at a steady rate. The id of a record is the time at which it was sent, in ns."""
    producer = Producer(KafkaSettings(bootstrap_servers=bootstrap).producer_config(linger_ms=5))
    things = [f"machine-{number}" for number in range(THINGS)]
    places = [partition_of(thing.encode(), PARTITIONS) for thing in things]
    began_s = time.monotonic()
    for number in range(int(rate * seconds)):
        ahead_s = began_s + number / rate - time.monotonic()
        if ahead_s > 0:
            time.sleep(ahead_s)
        which, turn = number % THINGS, number // THINGS
        value = {
            "thing": things[which],
            "quantity": ("speed", "torque")[turn % 2],
            "phenomenonTime": FIRST_MS + number,
            "result": number / 7,
            "id": str(time.time_ns()),
        }
        producer.produce(topic, json.dumps(value).encode(), things[which].encode(), places[which])
        producer.poll(0)
    producer.flush()


def measure(kafka: KafkaSettings, folder: Path, contender: str, rate: int, seconds: float) -> list[float]:
    """Run a contender and return the latencies, in ms, of all results after the warm-up."""
    name = f"late-{uuid.uuid4().hex[:8]}"
    data, out = f"{name}.data", f"{name}.out"
    make_topic(kafka, data, PARTITIONS)
    if contender == "joiner":
        running = Application(kafka, folder, name, PARTITIONS, data=data).start()
    else:
        running = start_pass_through(kafka, data, out, BATCH, int(rate * seconds), of_units=True)
    given = [kafka.bootstrap_servers, data, str(rate), str(seconds)]
    try:
        with closing(make_consumer(kafka, name, fetch_wait_max_ms=5, auto_offset_reset="earliest")) as consumer:
            while out not in topic_facts(make_admin(kafka), [out]):
                time.sleep(0.1)
            consumer.assign([TopicPartition(out, number, 0) for number in range(PARTITIONS)])
            sender = subprocess.Popen([sys.executable, "-m", "bench.latency", "--send", *given])  # noqa: S603 - this
            arrived: list[tuple[int, bytes]] = []
            last_s = time.monotonic()
            while sender.poll() is None or time.monotonic() - last_s < _QUIET_S:
                messages = consumer.consume(1000, 0.002)
                now_ns = time.time_ns()
                arrived += [(now_ns, message.value() or b"") for message in messages if message.error() is None]
                last_s = time.monotonic() if messages else last_s
    finally:
        running.terminate()
        running.wait()
    sent_ns = [max(_sent_ns(json.loads(value))) for _, value in arrived]
    first_ns = min(sent_ns) + int(_WARM_UP_S * 1e9)
    return [(at - sent) / 1e6 for (at, _), sent in zip(arrived, sent_ns, strict=True) if sent > first_ns]


def _sent_ns(content: dict[str, Any]) -> list[int]:
    """Return when the records of a result were sent, in ns: two times, or one for a passed-through record."""
    return [int(content[side]["id"]) for side in ("left", "right")] if "left" in content else [int(content["id"])]


def main() -> int:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=int, nargs="+", default=[5_000], help="records a second (default 5000)")
    parser.add_argument("--seconds", type=float, default=25.0, help="of each run (default 25)")
    parser.add_argument("--runs", type=int, default=5, help="of each contender and rate (default 5)")
    parser.add_argument("--report", type=Path, default=Path(".lsb/bench_latency"), help="path of .json and .md")
    parser.add_argument("--send", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.send:
        bootstrap, topic, rate, seconds = options.send
        send(bootstrap, topic, int(rate), float(seconds))
        return 0
    found: list[dict[str, Any]] = []
    with own_kafka(_JAVA) as (kafka, folder):
        for rate in options.rates:
            # The first turns warm up the broker, whose JIT compiler is busy for minutes after start-up.
            for turn in range(-_WARM_UP_TURNS, options.runs):
                for name in ("pass-through", "joiner"):
                    took_ms = measure(kafka, folder, name, rate, options.seconds)
                    if turn < 0:
                        continue
                    quantiles = np.percentile(took_ms, _QUANTILES).tolist()
                    found.append({"rate": rate, "run": turn + 1, "contender": name, "ms": quantiles})
                    print(
                        f"{rate}/s, run {turn + 1}, {name}: " + ", ".join(f"{ms:.0f} ms" for ms in quantiles),
                        flush=True,
                    )
    ran = about() | {"seconds a run": options.seconds}
    write(options.report, "Latency from Kafka to Kafka, exactly once", ran, found, _lines(found, options.rates))
    return 0


def _lines(found: list[dict[str, Any]], rates: list[int]) -> list[str]:
    heads = ["records/s", "", *(f"p{quantile:g} ms" for quantile in _QUANTILES)]
    rows = []
    for rate in rates:
        for name in ("pass-through", "joiner"):
            runs = [one["ms"] for one in found if (one["rate"], one["contender"]) == (rate, name)]
            rows.append((f"{rate:,}", name, *(spread(list(column), 0) for column in zip(*runs, strict=True))))
    every = [
        (f"{one['rate']:,}", f"{one['contender']}, run {one['run']}", *(f"{ms:.0f}" for ms in one["ms"]))
        for one in found
    ]
    return [
        "The first table has the minimum / median / maximum of the runs, the second one each run:",
        *table(heads, rows),
        *table(heads, every),
    ]


if __name__ == "__main__":
    sys.exit(main())
