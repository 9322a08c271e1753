"""The neighbour join implemented by hand in Spark (Java), for comparison in the benchmarks.

Delivery is at least once. The join (``spark/ByHand.java``) uses ``transformWithState`` and runs entirely in the JVM,
without Python. With ``--order watermark`` it holds each record until the watermark has passed it; records older than
the watermark are dropped silently. The watermark lags by one batch plus the lateness and is shared by all things.
``--order arrival`` assumes that the records of each thing are in order from batch to batch, and writes each pair in the
batch that completes it.

The settings are those that worked best for the same join in Python (``spark_asof.py``): one state partition per core,
the parallel garbage collector, RocksDB, the only store that Spark accepts for ``transformWithState``, with changelogs,
and batches of 200,000 records. The trials of the contest can show whether other batch sizes suit this faster program
better (``python -m bench.contest --only trials``).
"""

from __future__ import annotations

import argparse
from typing import Final

from bench.peers.jvm.launching import add_quantities, make_parser, producer, quantities_of, sinks, start_java, state_of

SETTINGS: Final[dict[str, str]] = {
    "spark.master": "local[2]",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
    "spark.sql.streaming.minBatchesToRetain": "2",
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.log.level": "ERROR",
    **producer("sink."),
}

VARIANTS: Final[dict[str, dict[str, str]]] = {
    "best": {},
    "4-partitions": {"spark.sql.shuffle.partitions": "4"},
    "no-changelogs": {"spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "false"},
    **sinks("sink."),
}

_OPENS: Final = [
    # Spark's own start script opens the same packages when it runs on Java 17.
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in (
        *("java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util"),
        *("java.util.concurrent", "java.util.concurrent.atomic", "sun.nio.ch", "sun.nio.cs", "sun.security.action"),
        "sun.util.calendar",
    )
]
_JAVA: Final = ("-Xmx4g", "-XX:+UseParallelGC", *_OPENS)


def main() -> None:
    """Replace this process with Java."""
    parser = make_parser(__doc__, VARIANTS)
    parser.add_argument(
        "--order", choices=["watermark", "arrival"], default="watermark", help="order in which to join records"
    )
    parser.add_argument("--batch", type=int, default=200_000, help="records per batch")
    add_quantities(parser)
    options = parser.parse_args()
    start_java(options, "spark.Joins", arguments(options), _JAVA)


def arguments(options: argparse.Namespace) -> list[str]:
    """Return the command-line arguments for the Java program. If variants conflict, the last one wins."""
    settings = SETTINGS | quantities_of(options)
    for name in options.variant:
        settings |= VARIANTS[name]
    given = [options.order, options.bootstrap, options.data, options.out, str(state_of(options))]
    shown = [f"{name}={value}" for name, value in settings.items()]
    return [*given, str(options.lateness_ms), str(options.batch), *shown]


if __name__ == "__main__":
    main()
