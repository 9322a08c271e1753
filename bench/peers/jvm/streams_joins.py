"""Exactly-once joins in Kafka Streams, for comparison with the neighbour join in the benchmarks.

- ``window``: the windowed join of the Kafka Streams DSL. Both sides come from one topic, so they are read in log order.
  The join writes every pair within the window, and no pair whose records are further apart than that.
- ``neighbours``: the neighbour join implemented by hand, as a processor with a separate state for each thing
  (``streams/ByHand.java``). Without a lateness, it assumes that the records of each thing arrive in order. If a
  lateness is set, it holds each record for that long.

The settings are exactly-once processing (v2) with one thread per core; one commit per second, because every commit ends
one transaction per thread; Kafka's default of a thousand records per poll and buffer, because larger values were
slower; and a producer with the settings of all peers. The stores are in memory and backed by changelog topics. The
hand-written join also has a 64 MB cache, so that each commit writes only the newest state of a thing to the changelog.
"""

from __future__ import annotations

import argparse
from typing import Final

from bench.peers.jvm.launching import add_schema, make_parser, producer, schema_of, sinks, start_java, state_of

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
    **producer("producer."),
}

VARIANTS: Final[dict[str, dict[str, str]]] = {
    "best": {},
    "rocksdb": {"store": "rocksdb"},
    "no-cache": {"statestore.cache.max.bytes": "0"},
    "commit-10ms": {"commit.interval.ms": "10", "producer.linger.ms": "0"},
    "commit-30ms": {"commit.interval.ms": "30"},
    "commit-100ms": {"commit.interval.ms": "100"},
    "commit-5s": {"commit.interval.ms": "5000"},
    "one-thread": {"num.stream.threads": "1"},
    "four-threads": {"num.stream.threads": "4"},
    "poll-4000": {"main.consumer.max.poll.records": "4000", "buffered.records.per.partition": "2000"},
    "poll-10000": {"main.consumer.max.poll.records": "10000", "buffered.records.per.partition": "10000"},
    "small-fetches": {"main.consumer.max.partition.fetch.bytes": str(1 << 20)},
    "at-least-once": {"processing.guarantee": "at_least_once"},
    **sinks("producer."),
}


def main() -> None:
    """Replace this process with Java."""
    parser = make_parser(__doc__, VARIANTS)
    parser.add_argument("--join", choices=["neighbours", "window"], default="neighbours")
    parser.add_argument("--width-ms", type=int, default=16, help="width of the window, to each side")
    add_schema(parser)
    options = parser.parse_args()
    start_java(options, "streams.Joins", arguments(options))


def arguments(options: argparse.Namespace) -> list[str]:
    """Return the command-line arguments for the Java program. If variants conflict, the last one wins."""
    settings = SETTINGS | {
        "bootstrap.servers": options.bootstrap,
        "application.id": options.out,
        "state.dir": str(state_of(options)),
        **schema_of(options),
    }
    for name in options.variant:
        settings |= VARIANTS[name]
    store = settings.pop("store", "memory")
    numbers = [str(options.width_ms), str(options.lateness_ms)]
    shown = [f"{name}={value}" for name, value in settings.items()]
    return [options.join, options.data, options.out, store, *numbers, *shown]


if __name__ == "__main__":
    main()
