"""A first join in Spark: joins a stream of speeds and a stream of torques, from two machines, by neighbours.

Run it on your machine, or submit it to a cluster whose workers share the folder::

    python -m demo.neighbour_join
    python -m zipfile -c joiner.zip joiner/
    spark-submit --master spark://… --py-files joiner.zip demo/neighbour_join.py /some/folder

It needs the project's ``spark`` extra, but neither Kafka nor a database.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from joiner.spark import neighbour_join

SPEED = [("mill", "10:00:00", 900), ("mill", "10:00:30", 950), ("lathe", "10:00:12", 400), ("mill", "12:00:00", 0)]
TORQUE = [("mill", "10:00:20", 4.0), ("mill", "10:00:24", 5.0), ("lathe", "10:00:11", 7.5), ("mill", "12:00:00", 0.0)]


def main() -> None:
    """Join the streams in the given folder, or in a temporary one, and show the pairs."""
    spark = (
        SparkSession.builder.appName("neighbour_join")
        .config(
            "spark.sql.streaming.stateStore.providerClass",
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        )
        .getOrCreate()
    )
    with tempfile.TemporaryDirectory() as own:
        show(spark, Path(sys.argv[1] if len(sys.argv) > 1 else own))


def show(spark: SparkSession, folder: Path) -> None:
    """Write the two streams into a folder, read them as streams, join them, and print the pairs."""
    spark.createDataFrame(SPEED, "machine string, time string, rpm int").write.json(str(folder / "speed"))
    spark.createDataFrame(TORQUE, "machine string, time string, nm double").write.json(str(folder / "torque"))
    speed = read(spark, folder / "speed", "rpm int")
    torque = read(spark, folder / "torque", "nm double")

    joined = neighbour_join(speed, torque, by="machine", time="at", tolerance="1 minute")

    query = (
        joined.writeStream.format("parquet")
        .option("path", str(folder / "joined"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    found = spark.read.parquet(str(folder / "joined"))
    found.selectExpr("machine", "at_left", "rpm", "at_right", "nm", "rpm * nm as power").orderBy(
        "machine", "at_left", "at_right"
    ).show()


def read(spark: SparkSession, folder: Path, value: str) -> DataFrame:
    """Read a folder of files as a stream whose rows may be up to ten seconds late."""
    rows = spark.readStream.schema(f"machine string, time string, {value}").json(str(folder))
    at = rows.selectExpr("machine", "to_timestamp('2024-06-01 ' || time) as at", value.split(maxsplit=1)[0])
    return at.withWatermark("at", "10 seconds")


if __name__ == "__main__":
    main()
