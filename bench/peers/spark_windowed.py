"""Windowed joins in Spark, as its users would write them, for comparison with the neighbour join in the benchmarks.

Reads both quantities from one topic, or each from its own, joins the records of each machine within a window given in
milliseconds, and writes the pairs back to Kafka, at least once. None of the variants can express "the neighbour,
however far away":

- ``range``: all pairs whose times differ by at most the window. If the window is too narrow, it misses neighbours; if
  it is wider than necessary, the join also writes pairs that are not neighbours.
- ``tumbling``: all pairs in the same window of a fixed grid. It misses neighbours on either side of a window boundary,
  and within a window pairs every left record with every right record.
- ``nearest``: the range join, reduced to the nearest right record before and after each left record. This is an as-of
  join from the left side: it misses a pair if the left record is a neighbour of the right one, but not the other way
  round. A pair is written once the watermark has passed its left record, one batch plus the lateness after the record
  was read.

The settings are the best of those tried (``trials/spark_windowed.json``). These changes made the range join faster,
each in addition to the previous ones (thousand records/s on two cores): state format 4 in RocksDB with changelogs, 32;
format 2 in memory with time buckets (`range_join`), 42; one join partition per core and Java's parallel garbage
collector, 60; parsing each record only once, 67. With all of these settings, format 4 in RocksDB without buckets
reaches 52. In-memory state is limited by the available memory; Spark still writes it to the checkpoint. Asynchronous
progress tracking (``asyncProgressTrackingEnabled``) is not an option, because Spark refuses it for stateful queries.

``--settings`` selects how many of these settings are used: ``default`` keeps Spark's defaults, including 200 join
partitions; ``tuned`` uses RocksDB with changelogs, as Spark's documentation advises for large states, with state format
4 (an internal setting, which is not in the documentation), one partition per core and the parallel collector; ``best``
applies the best settings found.

Prints a line per batch: its number of records, its duration in ms, and the size of its state.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

_STORE: Final = "org.apache.spark.sql.execution.streaming.state.{}StateStoreProvider"
_OF_BOTH: Final = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",  # as many as there are cores
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
    "spark.sql.streaming.minBatchesToRetain": "2",
}
_TUNED: Final = _OF_BOTH | {
    "spark.sql.streaming.join.stateFormatVersion": "4",
    "spark.sql.streaming.stateStore.providerClass": _STORE.format("RocksDB"),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
}
_BEST: Final = _OF_BOTH | {
    "spark.sql.streaming.join.stateFormatVersion": "2",
    "spark.sql.streaming.stateStore.providerClass": _STORE.format("HDFSBacked"),
    # These optimizer rules would push filters below the JSON parser, which would then run once per filter.
    "spark.sql.optimizer.excludedRules": ",".join(
        f"org.apache.spark.sql.catalyst.optimizer.{rule}"
        for rule in ("PushDownPredicates", "PushPredicateThroughNonJoin", "InferFiltersFromConstraints")
    ),
    "spark.sql.optimizer.enableJsonExpressionOptimization": "false",
}
SETTINGS: Final[dict[str, dict[str, str]]] = {"default": {}, "tuned": _TUNED, "best": _BEST}

WIDTH_MS: Final = 16
"""Default window. The streams in the benchmark's data are 8 ms apart, so this is the narrowest window that contains
every pair of neighbours, and it contains no other pairs. The right width for real data is unknown and has to be
larger."""

LATENESS_MS: Final = 10_000
"""Default lateness. A batch reads its partitions up to different event times, so its records are out of order; the
lateness has to exceed that disorder."""

SINKS: Final = {
    "batched": {
        "kafka.compression.type": "lz4",
        "kafka.linger.ms": "5",
        "kafka.batch.size": "1000000",
        "kafka.buffer.memory": "134217728",
    },
    "default": {"kafka.compression.type": "lz4"},
}
"""Producer settings: ``batched`` creates batches as large as the joiner's producer does (librdkafka's batches hold up
to 1 MB); ``default`` keeps Kafka's defaults except for the compression."""

_RECORD: Final = "thing string, quantity string, phenomenonTime long, result double, id string"
_LOOK_S: Final = 1


def main() -> None:
    """Run until stopped."""
    parser = make_parser(__doc__ or "")
    parser.add_argument("--variant", choices=VARIANTS, default="range")
    parser.add_argument("--width-ms", type=int, default=WIDTH_MS, help="width of the window (range: to each side)")
    parser.add_argument("--bucket-ms", type=int, help="size of range_join's buckets; 0: none (default: 10 widths)")
    parser.add_argument("--settings", choices=SETTINGS, default="best", help="see above (default best)")
    options = parser.parse_args()
    if options.bucket_ms is None:
        options.bucket_ms = 10 * options.width_ms if options.settings == "best" else 0
    # Only ``nearest`` needs batches without data: its results may become final when no more records arrive.
    idle = {"spark.sql.streaming.noDataMicroBatches.enabled": str(options.variant == "nearest").lower()}
    settings = SETTINGS[options.settings]
    session = make_session(options, settings | idle if settings else {})
    topics = options.data.split(",")
    of_topic = {topic: read(session, options, topic) for topic in topics}
    left, right = (
        # Each side uses only half of the records, so filter the JSON text before parsing it.
        parse(of_topic[topic].where(f.col("value").contains(name)), options).where(f.col("quantity") == name)
        for name, topic in zip(("speed", "torque"), topics * (2 // len(topics)), strict=True)
    )
    run(VARIANTS[options.variant](left, right, options), options)


def range_join(left: DataFrame, right: DataFrame, options: argparse.Namespace) -> DataFrame:
    """Join each left record with all right records of the same machine that are at most the window's width away.

    Spark compares a record with all held records of the same join key. To keep that number small, the key can include a
    time bucket: each left record is in one bucket, and each right record in all buckets that can contain a partner.
    This does not change which pairs are found.
    """
    names = ["thing"]
    if options.bucket_ms:
        names.append("bucket")
        left = left.withColumn("bucket", _bucket(0, options))
        both = f.array_distinct(f.array(_bucket(-options.width_ms, options), _bucket(options.width_ms, options)))
        right = right.withColumn("bucket", f.explode(both))
    left, right = left.alias("l"), right.alias("r")
    # Spark needs the condition on the timestamps to derive how long to hold a record. Comparing the integer times first
    # makes the join faster.
    width = f.expr(f"interval {options.width_ms} milliseconds")
    near = f.abs(f.col("l.phenomenonTime") - f.col("r.phenomenonTime")) <= options.width_ms
    near &= f.col("r.at").between(f.col("l.at") - width, f.col("l.at") + width)
    for name in names:
        near &= f.col(f"l.{name}") == f.col(f"r.{name}")
    return left.join(right, near).select(*_shown())


def _bucket(further_ms: int, options: argparse.Namespace) -> Column:
    return f.floor((f.col("phenomenonTime") + further_ms) / options.bucket_ms)


def tumbling_join(left: DataFrame, right: DataFrame, options: argparse.Namespace) -> DataFrame:
    """Join each left record with all right records of the same machine in the same tumbling window."""
    window = f"{options.width_ms} milliseconds"
    left, right = (side.withColumn("window", f.window("at", window)) for side in (left, right))
    left, right = left.alias("l"), right.alias("r")
    same = (f.col("l.thing") == f.col("r.thing")) & (f.col("l.window") == f.col("r.window"))
    return left.join(right, same).select(*_shown())


def nearest_join(left: DataFrame, right: DataFrame, options: argparse.Namespace) -> DataFrame:
    """Join each left record with the nearest right records before and after it that are within the window."""
    pairs = range_join(left, right, options)
    other = f.struct("right_time", "right", "right_result")
    kept = pairs.groupBy("at", "thing", "left", "left_time", "left_result").agg(
        f.max(f.when(f.col("right_time") <= f.col("left_time"), other)).alias("previous"),
        f.min(f.when(f.col("right_time") >= f.col("left_time"), other)).alias("next"),
    )
    found = f.explode(f.array_distinct(f.array_compact(f.array("previous", "next")))).alias("found")
    return kept.select("thing", "left", "left_time", "left_result", found).select("*", "found.*")


def _shown() -> list[Column]:
    return [
        f.col("l.at").alias("at"),
        f.col("l.thing").alias("thing"),
        f.col("l.id").alias("left"),
        f.col("l.phenomenonTime").alias("left_time"),
        f.col("l.result").alias("left_result"),
        f.col("r.id").alias("right"),
        f.col("r.phenomenonTime").alias("right_time"),
        f.col("r.result").alias("right_result"),
    ]


VARIANTS: Final[dict[str, Callable[[DataFrame, DataFrame, argparse.Namespace], DataFrame]]] = {
    "range": range_join,
    "tumbling": tumbling_join,
    "nearest": nearest_join,
}


def make_parser(about: str) -> argparse.ArgumentParser:
    """Return a parser for the arguments that all Spark peers share."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bootstrap")
    parser.add_argument("data", help="topic to read, or one topic for each side, separated by a comma")
    parser.add_argument("out", help="topic to write")
    parser.add_argument("--jars", type=Path, required=True, help="folder of Spark's Kafka connector")
    parser.add_argument("--state", type=Path, required=True, help="folder for the checkpoint")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--partitions", type=int, default=4, help="partitions of each topic")
    parser.add_argument("--batch", type=int, default=200_000, help="records per batch")
    parser.add_argument("--lateness-ms", type=int, default=LATENESS_MS, help="lateness of the watermark")
    parser.add_argument("--sink", choices=SINKS, default="batched", help="settings of the producer")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="another Spark setting")
    return parser


def make_session(options: argparse.Namespace, settings: dict[str, str]) -> SparkSession:
    """Return a session with the Kafka connector."""
    builder = SparkSession.builder.master(options.master).appName("peer")
    given = {
        "spark.jars": ",".join(map(str, sorted(options.jars.glob("*.jar")))),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "4g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.log.level": "ERROR",
    }
    for name, value in (given | settings | dict(one.split("=", 1) for one in options.set)).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def read(session: SparkSession, options: argparse.Namespace, topic: str) -> DataFrame:
    """Return a topic's message values as strings. If two topics are read, they share the batch size equally."""
    return (
        session.readStream.format("kafka")
        .option("kafka.bootstrap.servers", options.bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", options.batch // len(options.data.split(",")))
        .load()
        .select(f.col("value").cast("string"))
    )


def parse(values: DataFrame, options: argparse.Namespace) -> DataFrame:
    """Return the parsed records, with the event time as a Spark timestamp that carries the watermark."""
    return (
        values.select(f.from_json("value", _RECORD).alias("record"))
        .select("record.*", f.timestamp_millis("record.phenomenonTime").alias("at"))
        .withWatermark("at", f"{options.lateness_ms} milliseconds")
    )


def run(pairs: DataFrame, options: argparse.Namespace) -> None:
    """Write the pairs to Kafka, and print a line about each batch, until the query is stopped."""
    shown = f.struct(
        "thing",
        "left",
        "right",
        (f.col("left_result") * f.col("right_result")).alias("result"),
        ((f.col("left_time") + f.col("right_time")) / 2).alias("phenomenonTime"),
    )
    query = (
        pairs.select(f.col("thing").alias("key"), f.to_json(shown).alias("value"))
        .writeStream.format("kafka")
        .options(**SINKS[options.sink])
        .option("kafka.bootstrap.servers", options.bootstrap)
        .option("topic", options.out)
        .option("checkpointLocation", str(options.state))
        .start()
    )
    _report(query)


def _report(query: StreamingQuery) -> None:
    reported = -1
    while query.isActive:
        for progress in query.recentProgress:
            rows = _read_by(progress["sources"])
            if progress["batchId"] > reported and rows:
                reported = progress["batchId"]
                states = progress["stateOperators"]
                line = {
                    "records": rows,
                    "took_ms": progress["durationMs"]["triggerExecution"],
                    "at_s": _ended_s(progress),
                    "state_rows": sum(state["numRowsTotal"] for state in states),
                    "state_bytes": sum(state["memoryUsedBytes"] for state in states),
                }
                print(json.dumps(line), flush=True)
        query.awaitTermination(_LOOK_S)


def _ended_s(progress: Any) -> float:
    """Return when a batch ended, in seconds since the epoch."""
    took_s = float(progress["durationMs"]["triggerExecution"]) / 1000
    return datetime.fromisoformat(progress["timestamp"]).timestamp() + took_s


def _read_by(sources: list[Any]) -> int:
    """Return the number of records in a batch, computed from its offsets: Spark itself counts each record twice."""
    begin: dict[str, dict[str, int]] = {}
    end: dict[str, dict[str, int]] = {}
    for source in sources:
        begin |= json.loads(source["startOffset"] or "{}") or {}
        end |= json.loads(source["endOffset"] or "{}") or {}
    return sum(
        at - begin.get(topic, {}).get(partition, 0)
        for topic, partitions in end.items()
        for partition, at in partitions.items()
    )


if __name__ == "__main__":
    main()
