"""Windowed joins in Spark, as its users would write them: peers of the neighbour join.

Both quantities are read from one topic, or from one each, joined on the machine within a width in milliseconds, and the
pairs written back to Kafka, at least once. None of the variants can express "the neighbour, however far away":

- ``range``: all pairs at most the width apart. Too narrow a window misses neighbours; a wider one pairs everything in
  it.
- ``tumbling``: all pairs in the same window of a fixed grid. It misses every neighbour across a window boundary, and
  within a window pairs all records of one side with all of the other.
- ``nearest``: the range join, reduced to the nearest right record before and after each left one. That is the as-of
  join from the left side; pairs that are neighbours only as seen from the right record are missing. A pair is written
  once the watermark has passed its left record, one batch plus the lateness after it was read.

The settings are the best of those tried (``trials/spark_windowed.json``). What made the range join faster, each change
in addition to the previous ones, in thousand records/s on two cores: state format 4 in RocksDB with changelogs 32;
format 2 in memory with buckets of time (`range_join`) 42; a partition of the join for each core and Java's parallel
collector 60; each record parsed once 67. With all of that, format 4 in RocksDB without buckets reaches 52. State in
memory has to fit there; Spark still writes it to the checkpoint. Progress cannot be tracked asynchronously
(``asyncProgressTrackingEnabled``): Spark refuses it for stateful queries.

``--settings`` selects how much of that is used: ``default``, Spark's own, with its 200 partitions of the join;
``tuned``, what its documentation advises for large state: state format 4 in RocksDB with changelogs, and a partition
for each core and the parallel collector; ``best``, all of the above.

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
    # These rules would push conditions below the parser, which then runs once per condition.
    "spark.sql.optimizer.excludedRules": ",".join(
        f"org.apache.spark.sql.catalyst.optimizer.{rule}"
        for rule in ("PushDownPredicates", "PushPredicateThroughNonJoin", "InferFiltersFromConstraints")
    ),
    "spark.sql.optimizer.enableJsonExpressionOptimization": "false",
}
SETTINGS: Final[dict[str, dict[str, str]]] = {"default": {}, "tuned": _TUNED, "best": _BEST}

WIDTH_MS: Final = 16
"""The narrowest window that misses no neighbour in the benchmark's data, whose streams are 8 ms apart: it finds
exactly the neighbours. For real data this width is unknown, and must be larger."""

LATENESS_MS: Final = 10_000
"""Lateness: more than the disorder within a batch, whose partitions reach different event times."""

SINKS: Final = {
    "batched": {
        "kafka.compression.type": "lz4",
        "kafka.linger.ms": "5",
        "kafka.batch.size": "1000000",
        "kafka.buffer.memory": "134217728",
    },
    "default": {"kafka.compression.type": "lz4"},
}
"""Settings of the producer: those of the joiner's (librdkafka's batches hold up to 1 MB), and Kafka's own."""

_RECORD: Final = "thing string, quantity string, phenomenonTime long, result double, id string"
_LOOK_S: Final = 1


def main() -> None:
    """Run until stopped."""
    parser = make_parser(__doc__ or "")
    parser.add_argument("--variant", choices=VARIANTS, default="range")
    parser.add_argument("--width-ms", type=int, default=WIDTH_MS, help="of the window; of a range, to each side")
    parser.add_argument("--bucket-ms", type=int, help="of a range: see range_join; 0: none (default: ten widths)")
    parser.add_argument("--settings", choices=SETTINGS, default="best", help="see above (default best)")
    options = parser.parse_args()
    if options.bucket_ms is None:
        options.bucket_ms = 10 * options.width_ms if options.settings == "best" else 0
    # Batches without data are useful only for ``nearest``, which may still have results to write.
    idle = {"spark.sql.streaming.noDataMicroBatches.enabled": str(options.variant == "nearest").lower()}
    settings = SETTINGS[options.settings]
    session = make_session(options, settings | idle if settings else {})
    topics = options.data.split(",")
    of_topic = {topic: read(session, options, topic) for topic in topics}
    left, right = (
        # Filter the text before parsing, because each side drops half of the records.
        parse(of_topic[topic].where(f.col("value").contains(name)), options).where(f.col("quantity") == name)
        for name, topic in zip(("speed", "torque"), topics * (2 // len(topics)), strict=True)
    )
    run(VARIANTS[options.variant](left, right, options), options)


def range_join(left: DataFrame, right: DataFrame, options: argparse.Namespace) -> DataFrame:
    """Join each left record with every right one of the same machine within the width.

    Spark's join compares a record with all held records of its key. With buckets as part of the key, each left record
    is in one bucket and each right one in every bucket of its possible partners, so that a key holds few records; the
    pairs stay the same.
    """
    names = ["thing"]
    if options.bucket_ms:
        names.append("bucket")
        left = left.withColumn("bucket", _bucket(0, options))
        both = f.array_distinct(f.array(_bucket(-options.width_ms, options), _bucket(options.width_ms, options)))
        right = right.withColumn("bucket", f.explode(both))
    left, right = left.alias("l"), right.alias("r")
    # Spark derives from the timestamps how long to hold a record; comparing the numbers first is faster.
    width = f.expr(f"interval {options.width_ms} milliseconds")
    near = f.abs(f.col("l.phenomenonTime") - f.col("r.phenomenonTime")) <= options.width_ms
    near &= f.col("r.at").between(f.col("l.at") - width, f.col("l.at") + width)
    for name in names:
        near &= f.col(f"l.{name}") == f.col(f"r.{name}")
    return left.join(right, near).select(*_shown())


def _bucket(further_ms: int, options: argparse.Namespace) -> Column:
    return f.floor((f.col("phenomenonTime") + further_ms) / options.bucket_ms)


def tumbling_join(left: DataFrame, right: DataFrame, options: argparse.Namespace) -> DataFrame:
    """Join each left record with every right one of the same machine in the same window."""
    window = f"{options.width_ms} milliseconds"
    left, right = (side.withColumn("window", f.window("at", window)) for side in (left, right))
    left, right = left.alias("l"), right.alias("r")
    same = (f.col("l.thing") == f.col("r.thing")) & (f.col("l.window") == f.col("r.window"))
    return left.join(right, same).select(*_shown())


def nearest_join(left: DataFrame, right: DataFrame, options: argparse.Namespace) -> DataFrame:
    """Join each left record with the nearest right one before and after it, within the window."""
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
    parser.add_argument("data", help="topic to read, or two separated by a comma, one for each side")
    parser.add_argument("out", help="topic to write")
    parser.add_argument("--jars", type=Path, required=True, help="folder of Spark's Kafka connector")
    parser.add_argument("--state", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--partitions", type=int, default=4, help="of the topics")
    parser.add_argument("--batch", type=int, default=200_000, help="records")
    parser.add_argument("--lateness-ms", type=int, default=LATENESS_MS, help="of the watermark")
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
    """Return the values of a topic as strings. A batch has as many records from several topics as from a single one."""
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
    """Write pairs to Kafka and report each batch until stopped."""
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
    """Return when a batch ended, in s since the epoch."""
    took_s = float(progress["durationMs"]["triggerExecution"]) / 1000
    return datetime.fromisoformat(progress["timestamp"]).timestamp() + took_s


def _read_by(sources: list[Any]) -> int:
    """Return the number of records in a batch from its offsets, because Spark counts each twice, once per side."""
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
