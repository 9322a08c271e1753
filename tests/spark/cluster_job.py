"""The Spark job of the cluster test. It joins tables and streams, and reports where its code was loaded from."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from joiner.spark import neighbour_join

SCHEMA = "machine int, at bigint, number int"


def where_from(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In a task, yield the operator's file and any modules that a worker should not have imported."""
    from joiner.spark import reordering  # noqa: PLC0415 - on the worker

    for _ in batches:
        others = sorted({"broker", "connector", "confluent_kafka"} & set(sys.modules))
        yield pa.RecordBatch.from_arrays([pa.array([f"{reordering.__file__} {others}"])], names=["place"])


def pairs(joined: DataFrame) -> list[list[int]]:
    """Return the pairs of a join, sorted."""
    return sorted([row.number_left, row.number_right] for row in joined.collect())


def main(folder: Path) -> None:
    """Join the rows in ``folder`` and print the results as a line of JSON."""
    spark = (
        SparkSession.builder.config(
            "spark.sql.streaming.stateStore.providerClass",
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        )
    ).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    left, right = (spark.read.schema(SCHEMA).json(str(folder / side)) for side in ("left", "right"))
    table = pairs(neighbour_join(left, right, by="machine", time="at", order="number"))
    left, right = (
        spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder / side))
        for side in ("left", "right")
    )
    joined = neighbour_join(left, right, by="machine", time="at", order="number", lateness=10)
    writer = joined.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    writer.option("path", str(folder / "joined")).trigger(availableNow=True).start().awaitTermination()
    stream = pairs(spark.read.parquet(str(folder / "joined")))
    places = spark.range(0, 4, 1, 4).mapInArrow(where_from, "place string").collect()
    results = {"table": table, "stream": stream, "places": [row.place for row in places]}
    print("FOUND " + json.dumps(results))  # noqa: T201 - the test reads this line
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
