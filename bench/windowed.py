"""A windowed join in Spark, as its users write it: the peer of the neighbour join.

Both quantities are read from one topic, joined on the machine within so many milliseconds, and the pairs written back
to Kafka, at least once. For each batch a line is printed: its records and how many ms it took. The fair settings are
those that made it quickest: state format 4, RocksDB, changelogs; which batch size is best is tried out.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

TUNED: Final = {
    "spark.sql.streaming.join.stateFormatVersion": "4",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.minBatchesToRetain": "2",
}

WIDTH_MS: Final = 16
"""The narrowest window that misses no neighbour in the benchmark's data, where the two streams are 8 ms apart: then it
finds each pair once and nothing else. Who joins real data does not know it, and needs a wider one."""

_RECORD: Final = "thing string, quantity string, phenomenonTime long, result double, id string"
_LOOK_S: Final = 1
_LATENESS: Final = "10 seconds"
"""More than the records of a batch are out of order by, as its partitions are read to different times."""


def main() -> None:
    """Run until stopped."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bootstrap")
    parser.add_argument("data", help="topic to read")
    parser.add_argument("out", help="topic to write")
    parser.add_argument("--jars", type=Path, required=True, help="folder of Spark's Kafka connector")
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--width-ms", type=int, default=WIDTH_MS, help="of the window, to each side")
    parser.add_argument("--batch", type=int, default=200_000, help="records")
    parser.add_argument("--default-settings", action="store_true", help="those of Spark")
    options = parser.parse_args()
    session = make_session(options.master, options.jars, options.partitions, tuned=not options.default_settings)
    records = (
        session.readStream.format("kafka")
        .option("kafka.bootstrap.servers", options.bootstrap)
        .option("subscribe", options.data)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", options.batch)
        .load()
        .select(f.from_json(f.col("value").cast("string"), _RECORD).alias("record"))
        .select("record.*", f.timestamp_millis("record.phenomenonTime").alias("at"))
        .withWatermark("at", _LATENESS)
    )
    pairs = range_join(records, options.width_ms)
    shown = f.struct(
        f.col("l.thing").alias("thing"),
        f.col("l.id").alias("left"),
        f.col("r.id").alias("right"),
        (f.col("l.result") * f.col("r.result")).alias("result"),
        ((f.col("l.phenomenonTime") + f.col("r.phenomenonTime")) / 2).alias("phenomenonTime"),
    )
    query = (
        pairs.select(f.col("l.thing").alias("key"), f.to_json(shown).alias("value"))
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", options.bootstrap)
        .option("kafka.compression.type", "lz4")
        .option("topic", options.out)
        .option("checkpointLocation", options.checkpoint)
        .start()
    )
    told = -1
    while query.isActive:
        for progress in query.recentProgress:
            rows = _read(progress["sources"][0])
            if progress["batchId"] > told and rows:
                told = progress["batchId"]
                print(json.dumps([rows, progress["durationMs"]["triggerExecution"]]), flush=True)
        query.awaitTermination(_LOOK_S)


def _read(source: Any) -> int:
    """Records of a batch, by its offsets: Spark counts each one twice, as both sides of the join read it."""
    begin, end = (json.loads(source[name] or "{}") or {} for name in ("startOffset", "endOffset"))
    return sum(
        at - begin.get(topic, {}).get(partition, 0)
        for topic, partitions in end.items()
        for partition, at in partitions.items()
    )


def make_session(master: str, jars: Path, partitions: int, *, tuned: bool) -> SparkSession:
    """A session with the connector."""
    builder = SparkSession.builder.master(master).appName("windowed")
    given = {
        "spark.jars": ",".join(map(str, sorted(jars.glob("*.jar")))),
        "spark.sql.shuffle.partitions": str(partitions),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "4g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.log.level": "ERROR",
    }
    for name, value in (given | (TUNED if tuned else {})).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def range_join(records: DataFrame, width_ms: int) -> DataFrame:
    """Each speed with each torque of the same machine that is at most so far away."""
    width = f.expr(f"interval {width_ms} milliseconds")
    left = records.where("quantity = 'speed'").alias("l")
    right = records.where("quantity = 'torque'").alias("r")
    near = f.col("r.at").between(f.col("l.at") - width, f.col("l.at") + width)
    return left.join(right, (f.col("l.thing") == f.col("r.thing")) & near)


if __name__ == "__main__":
    main()
