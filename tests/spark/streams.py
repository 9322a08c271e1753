"""Streaming queries that join or align the files of folders. Each call of `give` is a micro-batch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from joiner import column
from joiner.spark import align, neighbour_join
from tests.property.final_rows import Numbered, Row

US: Final = 1_000_000
_COLUMNS: Final = "key string, at {}, first bigint, number bigint"


def columns(rows: Sequence[Row], *, in_seconds: bool) -> pa.Table:
    """Return rows as a table. With ``in_seconds``, their times are timestamps."""
    at = pa.array([None if row.ts is None else row.ts * US for row in rows], pa.timestamp("us", "UTC"))
    if not in_seconds:
        at = pa.array([row.ts for row in rows], pa.int64())
    key = pa.array([None if row.key is None else f"key{row.key}" for row in rows], pa.string())
    first, number = (pa.array([row[place] for row in rows], pa.int64()) for place in (2, 3))
    return pa.table({"key": key, "at": at, "first": first, "number": number})


def numbers(frame: DataFrame) -> list[Numbered]:
    """Return the pairs of row numbers in a result, sorted."""
    return sorted(map(tuple, frame.select("number_left", "number_right").collect()), key=str)


class Streams:
    """Two streams and their join. Times are timestamps in whole seconds if there is a watermark, else integers.

    ``options``: the options of `neighbour_join`.
    """

    SIDES: ClassVar[tuple[str, ...]] = ("left", "right")
    OPERATOR: ClassVar = "neighbour_join"

    def __init__(self, spark: SparkSession, folder: Path, *, watermark: str | None = None, **options: Any) -> None:
        self.spark, self._folder, self._watermark = spark, folder, watermark
        self.options: dict[str, Any] = {"by": "key", "time": "at", "order": "first"} | options
        self.query: StreamingQuery | None = None
        self._given = 0
        # By micro-batch id, so that a micro-batch that is repeated after a restart is counted once.
        self._found: dict[int, list[tuple[Any, ...]]] = {}
        for name in self.SIDES:
            (folder / name).mkdir(parents=True)

    def give(self, *sides: Sequence[Row], files: int = 1) -> None:
        """Write rows to the folders, in up to ``files`` files per side, and wait until the query has processed them."""
        self._given += 1
        for name, rows in zip(self.SIDES, sides, strict=False):
            for part in range(min(files, len(rows))):
                path = self._folder / name / f"{self._given}-{part}.parquet"
                hidden = path.with_name(f"_{path.name}")
                pq.write_table(columns(rows[part::files], in_seconds=self._watermark is not None), hidden)
                hidden.rename(path)
        self.wait()

    def wait(self) -> None:
        """Start the query if none is running, and wait until it is idle."""
        self.query = self.query or self.start()
        self.query.processAllAvailable()

    def start(self, mode: str = "append") -> StreamingQuery:
        """Start a query that continues from the checkpoint of the previous one."""
        writer = (
            self.result().writeStream.outputMode(mode).option("checkpointLocation", str(self._folder / "checkpoint"))
        )
        return writer.foreachBatch(self._take).start()

    def result(self) -> DataFrame:
        """Return the result of the operator on the streams."""
        return neighbour_join(*map(self.side, self.SIDES), **self.options)

    def side(self, name: str) -> DataFrame:
        kind = "bigint" if self._watermark is None else "timestamp"
        frame = self.spark.readStream.schema(_COLUMNS.format(kind)).parquet(str(self._folder / name))
        return frame if self._watermark is None else frame.withWatermark("at", self._watermark)

    def stop(self) -> None:
        """Stop the query. The next `give` starts a new one."""
        if self.query is not None:
            self.query.stop()
        self.query = None

    def found(self) -> list[tuple[Any, ...]]:
        """Return all rows emitted so far, sorted."""
        return sorted((row for rows in self._found.values() for row in rows), key=str)

    def watermark(self) -> str:
        """Return the watermark in the query's last progress report."""
        assert self.query is not None
        return str(self.query.recentProgress[-1].eventTime["watermark"])

    def late(self) -> tuple[int, ...]:
        """Return the number of late rows since the query was started, as each metric counts them."""
        assert self.query is not None
        metrics = [
            report.observedMetrics[self.OPERATOR] for report in self.query.recentProgress if report.observedMetrics
        ]
        return tuple(map(sum, zip(*map(tuple, metrics), strict=True)))

    def rows_of(self, frame: DataFrame) -> list[tuple[Any, ...]]:
        """Return what a test compares of a result."""
        return list(numbers(frame))

    def _take(self, frame: DataFrame, batch: int) -> None:
        self._found[batch] = self.rows_of(frame)


class AlignedStreams(Streams):
    """Three streams: a driver, and two whose values become columns of its rows. ``options``: the options of `align`."""

    SIDES: ClassVar[tuple[str, ...]] = ("driver", "one", "other")
    OPERATOR: ClassVar = "align"

    def result(self) -> DataFrame:
        return self.aligned(*map(self.side, self.SIDES))

    def aligned(self, driver: DataFrame, one: DataFrame, other: DataFrame) -> DataFrame:
        """Return the driver's rows with columns of several rules and types, among them one of its own."""
        tagged = other.selectExpr("*", "named_struct('text', concat('row ', number), 'at', at) tag")
        columns = {
            "between": column(one, "number", rule="linear"),
            "last": column(one, "number"),
            "tag": column(tagged, "tag", rule="nearest"),
            "itself": column(driver, "number", rule="next"),
        }
        return align(driver, columns, **self.options)

    def rows_of(self, frame: DataFrame) -> list[tuple[Any, ...]]:
        """Return the driver's numbers and the values, with the text of tags."""
        values = frame.selectExpr("number", "between", "last", "tag.text", "itself")
        return sorted(map(tuple, values.collect()), key=str)
