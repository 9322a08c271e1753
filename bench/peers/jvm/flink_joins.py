"""An exactly-once neighbour join, as users would write it with Flink's DataStream API, for comparison with the joiner.

A ``KeyedProcessFunction`` (``flink/ByHand.java``) keeps a state for each thing. With ``--order timers``, it handles
disorder: a record waits until the watermark has reached its time, and a record that arrives after that is ignored.
``--order arrival`` is faster, but assumes that the records of each thing are in order. If a lateness is given, timers
are always used.

Where they apply, the settings are the same as for the interval join: the parallel garbage collector with a heap of 4
GB, object reuse, state in memory, a checkpoint every second, and the producer of all peers. In addition, the program
has serializers of its own for records and states, and runs one task per core. With timers, the sources are aligned in
event time, because the state must hold all records by which one source is ahead of the slowest; for the same reason,
they then fetch less at a time.
"""

from __future__ import annotations

import argparse
from typing import Final

from bench.peers.jvm.launching import (
    HEAP,
    add_quantities,
    add_schema,
    make_parser,
    producer,
    quantities_of,
    schema_of,
    sinks,
    start_java,
    state_of,
)

_PARALLELISM, _INTERVAL = "parallelism.default", "execution.checkpointing.interval"
_MODE, _BACKEND = "execution.checkpointing.mode", "state.backend.type"
_TRANSACTIONS: Final = "transaction_naming"

SETTINGS: Final[dict[str, str]] = {
    _INTERVAL: "1 s",
    _MODE: "EXACTLY_ONCE",
    _TRANSACTIONS: "INCREMENTING",
    _BACKEND: "hashmap",
    _PARALLELISM: "2",
    "pipeline.object-reuse": "true",
    "pipeline.auto-watermark-interval": "50 ms",
    "taskmanager.memory.managed.size": "512m",
    "drift_ms": "0",
    "source.max.poll.records": "10000",
    "source.max.partition.fetch.bytes": str(1 << 20),
    "sink.transaction.timeout.ms": "600000",
    "sink.compression.type": "lz4",
    **producer("sink."),
}

ALIGNED: Final[dict[str, str]] = {
    "drift_ms": "1000",
    "source.max.poll.records": "2000",
    "source.max.partition.fetch.bytes": str(256 << 10),
}
"""Settings for alignment. A source that fetched more at a time would get far ahead of the others before being
paused."""

VARIANTS: Final[dict[str, dict[str, str]]] = {
    "best": {},
    "rocksdb": {_BACKEND: "rocksdb", "execution.checkpointing.incremental": "true"},
    "parallelism-1": {_PARALLELISM: "1"},
    "parallelism-4": {_PARALLELISM: "4"},
    "checkpoint-200ms": {_INTERVAL: "200 ms", "pipeline.auto-watermark-interval": "10 ms"},
    "checkpoint-100ms": {_INTERVAL: "100 ms", "pipeline.auto-watermark-interval": "10 ms"},
    "checkpoint-5s": {_INTERVAL: "5 s"},
    "checkpoint-10s": {_INTERVAL: "10 s"},
    "not-aligned": {"drift_ms": "0", "source.max.partition.fetch.bytes": str(1 << 20)},
    "drift-10s": {"drift_ms": "10000"},
    "small-fetches": {"source.max.poll.records": "2000", "source.max.partition.fetch.bytes": str(256 << 10)},
    "large-fetches": {"source.max.poll.records": "10000", "source.max.partition.fetch.bytes": str(1 << 20)},
    "huge-fetches": {"source.max.poll.records": "50000", "source.max.partition.fetch.bytes": str(8 << 20)},
    "pooled-transactions": {_TRANSACTIONS: "POOLING"},
    "no-object-reuse": {"pipeline.object-reuse": "false"},
    "at-least-once": {_MODE: "AT_LEAST_ONCE"},
    **sinks("sink."),
}

_OPENS: Final = [
    # The packages that Flink's own start script opens on Java 17.
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in ("java.lang", "java.net", "java.io", "java.nio", "java.text", "java.time", "java.util")
]


def main() -> None:
    """Replace this process with Java."""
    parser = make_parser(__doc__, VARIANTS)
    parser.add_argument(
        "--order", choices=["timers", "arrival"], default="arrival", help="order in which to join records"
    )
    add_quantities(parser)
    add_schema(parser)
    options = parser.parse_args()
    start_java(options, "flink.Joins", arguments(options), [*HEAP, *_OPENS])


def arguments(options: argparse.Namespace) -> list[str]:
    """Return the command-line arguments for the Java program. If variants conflict, the last one wins."""
    state = state_of(options)
    order = "timers" if options.lateness_ms else options.order
    settings = (
        SETTINGS
        | {
            "execution.checkpointing.dir": (state / "checkpoints").as_uri(),
            "state.backend.rocksdb.localdir": str(state / "rocksdb"),
            # Not inside the state folder, whose size is measured, because Flink keeps a copy of each jar here.
            "io.tmp.dirs": str(state.with_name(f"{state.name}-scratch")),
        }
        | quantities_of(options)
        | schema_of(options)
        | (ALIGNED if order == "timers" else {})
    )
    for name in options.variant:
        settings |= VARIANTS[name]
    if order == "arrival":
        settings["drift_ms"] = "0"  # for every variant: there is no held state that alignment could keep small
    given = [order, options.bootstrap, options.data, options.out, str(options.lateness_ms)]
    return [*given, *(f"{name}={value}" for name, value in settings.items())]


if __name__ == "__main__":
    main()
