"""Joins in Kafka Streams, exactly once: peers of the neighbour join.

- ``window``: the windowed join of the DSL. Both sides come from one topic, so they are read in the order of the log. It
  writes all pairs within the width, and none across a longer pause.
- ``neighbours``: the neighbour join by hand, a processor with a state for each thing (``streams/ByHand.java``). Without
  lateness it assumes that the records of a thing are in order; with a lateness it holds each record for that long.

Settings: exactly once (v2) with a thread for each core; a commit every second, because each one ends a transaction of
each thread; polls and buffers of a thousand records, Kafka's defaults, because larger ones were slower; batches of a
quarter of a megabyte with lz4. The stores are in memory, with changelog topics; by hand they also have a cache of 64
MB, from which only the newest state of a thing goes to the changelog at each commit.
"""

from __future__ import annotations

import argparse
from typing import Final

from bench.peers.jvm.launching import make_parser, start_java, state_of

SETTINGS: Final[dict[str, str]] = {
    "processing.guarantee": "exactly_once_v2",
    "num.stream.threads": "2",
    "commit.interval.ms": "1000",
    "statestore.cache.max.bytes": str(64 << 20),
    "buffered.records.per.partition": "1000",
    "main.consumer.max.poll.records": "1000",
    "main.consumer.auto.offset.reset": "earliest",
    "main.consumer.fetch.max.bytes": str(64 << 20),
    "main.consumer.max.partition.fetch.bytes": str(8 << 20),
    "producer.compression.type": "lz4",
    "producer.linger.ms": "20",
    "producer.batch.size": str(256 << 10),
    "producer.buffer.memory": str(128 << 20),
}

VARIANTS: Final[dict[str, dict[str, str]]] = {
    "best": {},
    "rocksdb": {"store": "rocksdb"},
    "no-cache": {"statestore.cache.max.bytes": "0"},
    "commit-10ms": {"commit.interval.ms": "10", "producer.linger.ms": "0"},
    "commit-30ms": {"commit.interval.ms": "30", "producer.linger.ms": "5"},
    "commit-100ms": {"commit.interval.ms": "100", "producer.linger.ms": "5"},
    "commit-5s": {"commit.interval.ms": "5000"},
    "one-thread": {"num.stream.threads": "1"},
    "four-threads": {"num.stream.threads": "4"},
    "poll-4000": {"main.consumer.max.poll.records": "4000", "buffered.records.per.partition": "2000"},
    "poll-10000": {"main.consumer.max.poll.records": "10000", "buffered.records.per.partition": "10000"},
    "batch-16k": {"producer.batch.size": "16384"},
    "at-least-once": {"processing.guarantee": "at_least_once"},
}


def main() -> None:
    """Replace this process with Java."""
    parser = make_parser(__doc__, VARIANTS)
    parser.add_argument("--join", choices=["neighbours", "window"], default="neighbours")
    parser.add_argument("--width-ms", type=int, default=16, help="of the window, to each side")
    options = parser.parse_args()
    start_java(options, "streams.Joins", arguments(options))


def arguments(options: argparse.Namespace) -> list[str]:
    """Return the arguments of the Java program. Later variants override earlier ones."""
    settings = SETTINGS | {
        "bootstrap.servers": options.bootstrap,
        "application.id": options.out,
        "state.dir": str(state_of(options)),
    }
    for name in options.variant:
        settings |= VARIANTS[name]
    store = settings.pop("store", "memory")
    numbers = [str(options.width_ms), str(options.lateness_ms)]
    shown = [f"{name}={value}" for name, value in settings.items()]
    return [options.join, options.data, options.out, store, *numbers, *shown]


if __name__ == "__main__":
    main()
