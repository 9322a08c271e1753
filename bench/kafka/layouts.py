"""Measures the speed of the joiner from Kafka to Kafka when other programs produce its input.

The same records are joined from three topics: in the project's own JSON form, in JSON of another layout with messages
of the same size, and in Avro with a schema registry. In the latter two, a ``[[stream]]`` with a condition selects
each side. The contenders run in random order on the same broker; see `bench.kafka` for how a rate is measured. The
results of all contenders are equal but for the names and ids in them.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.harness.other_layout import QUANTITIES, avro_encoder, document, register, stream_settings
from bench.harness.pipeline import (
    FIRST_MS,
    PARTITIONS,
    Application,
    about,
    make_sender,
    make_topic,
    own_stack,
    send_message,
    things_over_all_units,
)
from bench.harness.report import spread, table, write
from bench.kafka import THINGS, seconds_between
from broker.settings import KafkaSettings


class Reading(NamedTuple):
    """A record to be sent: its thing and partition, what was measured and when (ms since the epoch), and its id."""

    thing: str
    partition: int
    quantity: str
    time_ms: int
    value: float
    identity: str


def readings(count: int) -> Iterator[Reading]:
    """Yield records that are a millisecond apart. `THINGS` machines take turns, each alternating speed and torque."""
    things = things_over_all_units("machine", THINGS)
    for number in range(count):
        turn, which = divmod(number, THINGS)
        quantity = QUANTITIES[turn % 2]
        yield Reading(*things[which], quantity, FIRST_MS + number, (number * 7919 % 100_000) / 100, f"{number:x}")


def own_form(one: Reading) -> bytes:
    """Encode a record in the project's own form."""
    return _json(
        {
            "thing": one.thing,
            "quantity": one.quantity,
            "phenomenonTime": one.time_ms,
            "result": one.value,
            "id": one.identity,
        }
    )


def other_layout(one: Reading) -> dict[str, Any]:
    """Return a record in another layout. As JSON, it has as many bytes as in the project's own form."""
    return document(one.thing, one.quantity, one.time_ms, one.value, one.identity)


def as_json(one: Reading) -> bytes:
    """Encode a record in another layout."""
    return _json(other_layout(one))


def as_avro(schema_id: int) -> Callable[[Reading], bytes]:
    """Return a function that encodes a record in Avro, with the id of the schema."""
    encode = avro_encoder(schema_id)
    return lambda one: encode(other_layout(one))


def _json(content: dict[str, Any]) -> bytes:
    return json.dumps(content).encode()


class Layout(NamedTuple):
    """A form of messages: how to encode a record, and the ``format`` of the streams, or an empty string for none."""

    encode: Callable[[Reading], bytes]
    format: str


OWN: Final = "own form"


def layouts(registry: str) -> dict[str, Layout]:
    """Return all forms. ``registry``: the URL of a schema registry."""
    return {
        OWN: Layout(own_form, ""),
        "JSON of another layout": Layout(as_json, "json"),
        "Avro": Layout(as_avro(register(registry)), "avro"),
    }


def produce(kafka: KafkaSettings, topic: str, records: int, encode: Callable[[Reading], bytes]) -> int:
    """Write records to a topic. Return the size of their values in bytes."""
    make_topic(kafka, topic, PARTITIONS)
    producer, size = make_sender(kafka), 0
    for one in readings(records):
        value = encode(one)
        size += len(value)
        send_message(producer, topic, one.partition, value, one.thing.encode())
    producer.flush()
    return size


def run(kafka: KafkaSettings, folder: Path, topic: str, layout: Layout, registry: str) -> float:
    """Return the seconds between the first and the last result of a joiner that reads the topic."""
    name = f"join-{uuid.uuid4().hex[:8]}"
    # The topic of the own form cannot have other streams, so it is another one if there are any.
    application = Application(kafka, folder, name, PARTITIONS, data=f"{name}.data" if layout.format else topic)
    if layout.format:
        application.add_settings(stream_settings(topic, layout.format, registry))
    application.data = topic
    process = application.start()
    try:
        application.wait_until_through([process])
    finally:
        process.terminate()
        process.wait()
    return seconds_between(kafka, application.settings.topics.out)


def main() -> int:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000, help="records in each topic (default 1,000,000)")
    parser.add_argument("--runs", type=int, default=5, help="runs of each contender (default 5)")
    parser.add_argument(
        "--report", type=Path, default=Path(".lsb/bench_layouts"), help="path of the .json and .md files"
    )
    options = parser.parse_args()
    with own_stack() as (stack, folder):
        stack.up([stack.registry])
        kafka, known = KafkaSettings(bootstrap_servers=stack.kafka.address), layouts(stack.registry.url)
        topics = {name: f"bench.{place}" for place, name in enumerate(known)}
        sizes = {name: produce(kafka, topics[name], options.records, one.encode) for name, one in known.items()}
        found: dict[str, list[float]] = {name: [] for name in known}
        for turn in range(options.runs):
            for name in random.sample(list(known), len(known)):
                seconds = run(kafka, folder, topics[name], known[name], stack.registry.url)
                found[name].append(options.records / seconds / 1000)
                print(f"run {turn + 1}, {name}: {found[name][-1]:.0f} thousand records/s", flush=True)
    own = statistics.median(found[OWN])
    rows = [
        (name, f"{sizes[name] / options.records:.0f}", spread(rates, 0), f"{statistics.median(rates) / own:.2f}")
        for name, rates in found.items()
    ]
    heads = ["", "bytes a message", "thousand records/s (min / median / max)", "of the own form"]
    write(
        options.report,
        "Kafka to Kafka, exactly once, messages of other programs",
        about() | {"records": options.records},
        found,
        table(heads, rows),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
