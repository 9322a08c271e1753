"""The neighbour join by hand in Spark, in Java, at least once: a peer of the neighbour join.

It uses ``transformWithState`` (``spark/ByHand.java``), without Python in between. With ``--order watermark`` it holds
each record until the watermark, which lags by one batch plus the lateness and is shared by all things, has passed it;
later ones are dropped silently. ``--order arrival`` assumes that the records of a thing are in order from batch to
batch, and writes their pairs in the batch that brings them.

Settings: those that are best for the same join in Python (``spark_asof.py``): a state partition for each core, the
parallel collector, RocksDB (the only store that Spark accepts for this) with changelogs.
"""

from __future__ import annotations

import argparse
from typing import Final

from bench.peers.jvm.launching import make_parser, start_java, state_of

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
}

VARIANTS: Final[dict[str, dict[str, str]]] = {
    "best": {},
    "4-partitions": {"spark.sql.shuffle.partitions": "4"},
    "no-changelogs": {"spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "false"},
}

_OPENS: Final = [
    # The packages that Spark's own start script opens in Java 17.
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
    parser.add_argument("--order", choices=["watermark", "arrival"], default="watermark", help="of the records")
    parser.add_argument("--batch", type=int, default=200_000, help="records")
    options = parser.parse_args()
    start_java(options, "spark.Joins", arguments(options), _JAVA)


def arguments(options: argparse.Namespace) -> list[str]:
    """Return the arguments of the Java program. Later variants override earlier ones."""
    settings = dict(SETTINGS)
    for name in options.variant:
        settings |= VARIANTS[name]
    given = [options.order, options.bootstrap, options.data, options.out, str(state_of(options))]
    shown = [f"{name}={value}" for name, value in settings.items()]
    return [*given, str(options.lateness_ms), str(options.batch), *shown]


if __name__ == "__main__":
    main()
