"""Checks `joiner.spark.neighbour_join` against `joiner.join` and pandas on a large table, and measures its speed.

    python -m bench.spark_operator --rows 10000000

It has three parts:

- *Table*: two tables, one per side, are joined by Spark (from parquet files), by `joiner.join` and by four calls of
  `pandas.merge_asof`. The three results must be equal.
- *Disordered stream*: Spark joins a fifth as many rows, which arrive in micro-batches and are out of order by at most
  the watermark delay. At the end the watermark passes all rows. The output must equal the output of `joiner.join`.
- *Stream*: Spark joins micro-batches of two equal-sized files, one per side, into a sink that discards the output. This
  is repeated with different numbers of buckets; with as many buckets as keys, this shows the cost of one group per key.

The data is random with a fixed seed. The figures apply to the machine they were measured on; only their ratios are
meaningful elsewhere.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from joiner import join
from joiner.spark import neighbour_join

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

KEYS: Final = 1_000
SEED: Final = 1
STREAM_BATCHES: Final = 8
STREAM_BUCKETS: Final = (2, 8, 64, KEYS)
DISORDER_MS: Final = 60_000


def main() -> None:
    """Run all parts of the benchmark and print their figures. Exit with status 1 if any results differ."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rows", type=int, default=10_000_000, help="total number of rows in both tables")
    parser.add_argument("--batch-rows", type=int, default=200_000, help="rows per micro-batch, counting both sides")
    parser.add_argument("--cores", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        spark = session(options.cores, Path(folder))
        is_equal = bench_table(spark, Path(folder), options.rows)
        is_equal &= check_stream(spark, Path(folder) / "disordered", options.rows // 5)
        for buckets in STREAM_BUCKETS:
            bench_stream(spark, Path(folder) / f"stream-{buckets}", options.batch_rows, buckets)
        spark.stop()
    sys.exit(0 if is_equal else 1)


def session(cores: int, folder: Path) -> SparkSession:
    """Return a local Spark session."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    spark = (
        SparkSession.builder.master(f"local[{cores}]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "4g")
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.sql.shuffle.partitions", str(4 * cores))
        .config(
            "spark.sql.streaming.stateStore.providerClass",
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        )
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def rows(draw: np.random.Generator, count: int, start: int, name: str) -> pa.Table:
    """Return ``count`` random rows in time order, starting at time ``start``. The column ``name`` numbers the rows."""
    at = start + np.sort(draw.integers(0, 4 * count, count))
    columns = {"key": draw.integers(0, KEYS, count), "at": at, name: np.arange(count), "value": draw.random(count)}
    return pa.table(columns)


def bench_table(spark: SparkSession, folder: Path, count: int) -> bool:
    """Join two tables in Spark, with `joiner.join` and with pandas. Return whether the three results are equal."""
    draw = np.random.default_rng(SEED)
    tables = {name: rows(draw, count // 2, 0, name) for name in ("left", "right")}
    for name, table in tables.items():
        # Write several row groups, so that Spark can read the file in parallel.
        pq.write_table(table, folder / f"{name}.parquet", row_group_size=500_000)
    print(f"Table: {count:,} rows of both sides, {KEYS:,} keys")
    # Run a small join first, so that the start of the JVM and the workers is not included in the measured time.
    spark.range(10).selectExpr("id", "id as at").transform(lambda t: neighbour_join(t, t, by="id", time="at")).count()
    frames = [spark.read.parquet(str(folder / f"{name}.parquet")) for name in tables]
    seconds, _ = timed(
        lambda: (
            neighbour_join(frames[0], frames[1], by="key", time="at", order=("left", "right"))
            .select("left", "right")
            .write.parquet(str(folder / "joined"))
        )
    )
    print(f"  Spark           {seconds:7.1f} s  {count / seconds:12,.0f} rows/s")
    found = pq.read_table(folder / "joined").to_pandas()
    left, right = (table.to_pandas() for table in tables.values())
    seconds, joined = timed(lambda: join(left, right, time="at", by="key"))
    print(f"  joiner.join     {seconds:7.1f} s  {count / seconds:12,.0f} rows/s")
    seconds, pairs = timed(lambda: of_pandas(left, right))
    print(f"  four merge_asof {seconds:7.1f} s  {count / seconds:12,.0f} rows/s")
    answers = [in_order(one["left"].to_numpy(), one["right"].to_numpy()) for one in (found, joined)]
    answers.append(np.unique(in_order(*pairs), axis=0))
    is_equal = all(np.array_equal(answers[0], other) for other in answers[1:])
    print(f"  {len(answers[0]):,} pairs; all three results are {'equal' if is_equal else 'DIFFERENT'}")
    return is_equal


def timed(work: Any) -> tuple[float, Any]:
    """Call ``work``. Return the duration of the call in seconds, and its result."""
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def of_pandas(left: pd.DataFrame, right: pd.DataFrame) -> tuple[Ints, Ints]:
    """Return the pairs of neighbours found by four pandas as-of joins. A pair may occur more than once."""
    found = []
    for one, other in ((left, right), (right, left)):
        for direction in ("backward", "forward"):
            joined = pd.merge_asof(one, other, on="at", by="key", direction=direction)[["left", "right"]].dropna()
            found.append(joined.astype(np.int64))
    pairs = pd.concat(found)
    return pairs["left"].to_numpy(), pairs["right"].to_numpy()


def in_order(left: Ints, right: Ints) -> Ints:
    """Return sorted pairs (int64, shape (n, 2))."""
    order = np.lexsort((right, left))
    return np.stack([left[order], right[order]], axis=1)


def check_stream(spark: SparkSession, folder: Path, count: int) -> bool:
    """Join an out-of-order stream in Spark. Return whether `joiner.join` finds the same pairs."""
    draw = np.random.default_rng(SEED)
    tables, frames = {}, []
    for name in ("left", "right"):
        table = tables[name] = rows(draw, count // 2, 0, name)
        # Shuffle the rows so that each is less than `DISORDER_MS` behind the latest row before it.
        order = np.argsort(table["at"].to_numpy() + draw.integers(0, DISORDER_MS, len(table)))
        marker = table.slice(len(table) - 1).set_column(1, "at", pa.array([8 * count + 10 * DISORDER_MS]))
        marker = marker.set_column(0, "key", pa.array([KEYS]))
        stream = table.take(order)
        cuts = np.linspace(0, len(stream), STREAM_BATCHES + 1).astype(int).tolist()
        parts = [stream.slice(begin, end - begin) for begin, end in itertools.pairwise(cuts)]
        (folder / name).mkdir(parents=True)
        for batch, part in enumerate([*parts, marker]):
            path = folder / name / f"{batch}.parquet"
            pq.write_table(part.set_column(1, "at", part["at"].cast(pa.timestamp("ms", "UTC"))), path)
            os.utime(path, (batch, batch))
        schema = f"key bigint, at timestamp, {name} bigint, value double"
        frame = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder / name))
        frames.append(frame.withWatermark("at", f"{DISORDER_MS} milliseconds"))
    joined = neighbour_join(frames[0], frames[1], by="key", time="at", order=("left", "right"), buckets=8)
    writer = joined.select("left", "right").writeStream.option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(folder / "joined"))
    query.awaitTermination()
    found = pq.read_table(folder / "joined").to_pandas()
    expected = join(tables["left"].to_pandas(), tables["right"].to_pandas(), time="at", by="key")
    came, wanted = (in_order(one["left"].to_numpy(), one["right"].to_numpy()) for one in (found, expected))
    is_equal = np.array_equal(came, wanted)
    batches = sum(report.numInputRows > 0 for report in query.recentProgress)
    print(
        f"Disordered stream: {count:,} rows in {batches} micro-batches. Spark found {len(came):,} pairs, joiner.join "
        f"{len(wanted):,}; the results are {'equal' if is_equal else 'DIFFERENT'}"
    )
    return is_equal


def bench_stream(spark: SparkSession, folder: Path, count: int, buckets: int) -> None:
    """Time micro-batches of one file per side. The first two, in which the workers start, are not counted."""
    draw = np.random.default_rng(SEED)
    frames = []
    for name in ("left", "right"):
        (folder / name).mkdir(parents=True)
        for batch in range(STREAM_BATCHES):
            path = folder / name / f"{batch}.parquet"
            pq.write_table(rows(draw, count // 2, batch * 2 * count, name), path)
            os.utime(path, (batch, batch))
        schema = f"key bigint, at bigint, {name} bigint, value double"
        frames.append(spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder / name)))
    joined = neighbour_join(frames[0], frames[1], by="key", time="at", lateness=0, buckets=buckets)
    writer = joined.writeStream.format("noop").option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    seconds = sorted(report.batchDuration / 1_000 for report in query.recentProgress[2:])
    middle = seconds[len(seconds) // 2]
    print(f"Stream: {count:,} rows per batch, {buckets:5} buckets: {middle:6.2f} s, {count / middle:10,.0f} rows/s")


if __name__ == "__main__":
    main()
