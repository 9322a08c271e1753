"""Does `align` of streams in Spark emit exactly the certain rows, however its input is batched and across restarts?"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

import joiner
from joiner import column
from joiner.spark import align
from tests.property.final_rows import Expected, Row, certain_rows
from tests.spark.streams import AlignedStreams, columns

RULES: Final = ((1, "linear", None), (1, "previous", None), (2, "nearest", None), (0, "next", None))
"""The columns of `AlignedStreams`: side, rule and tolerance."""


@contextmanager
def streams(spark: SparkSession, folder: Path, **options: Any) -> Iterator[AlignedStreams]:
    aligned = AlignedStreams(spark, folder, **options)
    try:
        yield aligned
    finally:
        aligned.stop()


def drawn(seed: int, cuts: int, span: int) -> list[list[list[Row]]]:
    """Return micro-batches of three sides, with disorder, ties, and times that advance by ``span`` per batch."""
    draw = random.Random(seed)
    found, number = [], 0
    for cut in range(cuts):
        sides = []
        for _ in AlignedStreams.SIDES:
            count = draw.randint(2, 8)
            rows = [
                Row(draw.randrange(3), cut * span + draw.randrange(2 * span), draw.randrange(2), number + i)
                for i in range(count)
            ]
            number += count
            sides.append(rows)
        found.append(sides)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1])
def test_after_each_micro_batch_the_certain_rows_have_come_out_also_over_a_restart(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    feed = drawn(seed, 4, 6)
    # No further rows of this key arrive; the watermark makes its row certain.
    feed[0][0].append(Row(7, 2, 0, 1001))
    feed[0][1] += [Row(7, 1, 0, 1002), Row(7, 3, 0, 1003)]
    feed[0][2].append(Row(7, 2, 0, 1004))
    # A row without a key has no neighbours.
    feed[1][0].append(Row(None, 2, 0, 1005))
    feed.append([[Row(0, 500, 0, 2000 + side)] for side in range(3)])
    sides = [Expected(None, has_watermark=True) for _ in AlignedStreams.SIDES]
    everything: list[list[Row]] = [[] for _ in sides]
    after_each = []
    with streams(spark, tmp_path, watermark="12 seconds", buckets=5) as aligned:
        for at, cut in enumerate(feed):
            if at == 2:
                aligned.stop()
            aligned.give(*cut)
            watermark = int(datetime.fromisoformat(aligned.watermark()).astimezone(UTC).timestamp())
            for side, rows, so_far in zip(sides, cut, everything, strict=True):
                side.add(rows, watermark)
                so_far.extend(rows)
            after_each.append((aligned.found(), certain_rows(sides, RULES)))
        assert watermark == 488
        assert not any(aligned.late())
        assert [side.late for side in sides] == [0, 0, 0]
        tables = [spark.createDataFrame(columns(rows, in_seconds=True)) for rows in everything]
        whole = {row[0]: row for row in aligned.rows_of(aligned.aligned(*tables))}
    assert 1001 in {row[0] for row in aligned.found()}
    for found, certain in after_each:
        assert found == sorted((whole[number] for number in certain), key=str)


def test_late_rows_are_counted_by_the_frame_in_which_they_are_late(spark: SparkSession, tmp_path: Path) -> None:
    with streams(spark, tmp_path, lateness=2) as aligned:
        aligned.give([Row(0, 10, 0, 0)], [Row(0, 20, 0, 1)], [Row(0, 30, 0, 2)])
        late = [Row(0, 7, 0, 3), Row(0, 8, 0, 4)], [Row(0, 17, 0, 5)] * 2, [Row(0, 1, 0, 6)] * 3
        aligned.give(*late)
        aligned.give([Row(0, 40, 0, 7)])
        # In the order of the metrics: the driver, then the columns, two of which have the same frame. The last column
        # is of the driver's frame.
        assert aligned.late() == (1, 2, 2, 3, 1)
        assert aligned.query is not None
        assert list(aligned.query.recentProgress[0].observedMetrics["align"].asDict()) == [
            "late_driver",
            "late_column_between",
            "late_column_last",
            "late_column_tag",
            "late_column_itself",
        ]


PLAIN = "key string, at timestamp, value double"


def stream(spark: SparkSession) -> DataFrame:
    rate = spark.readStream.format("rate").load()
    return rate.selectExpr("'k' as key", "timestamp as at", "value", "timestamp as seen")


def test_streams_that_could_never_answer_are_refused(spark: SparkSession) -> None:
    watermarked, plain = stream(spark).withWatermark("at", "1 second"), stream(spark)
    table = spark.createDataFrame([], PLAIN)
    cases: list[tuple[Any, DataFrame, str]] = [
        (watermarked, table, r"driver is a stream and columns\['new'\] is a table: .* foreachBatch"),
        (table, watermarked, r"driver is a table and columns\['new'\] is a stream"),
        (watermarked, plain, r"columns\['new'\] is a stream with neither watermark nor lateness, so no row"),
        (plain, watermarked, "driver is a stream with neither watermark nor lateness"),
        (
            watermarked,
            stream(spark).withWatermark("seen", "1 second"),
            r"columns\['new'\] has its watermark on 'seen', not on its time",
        ),
        (joiner.grid("1s"), watermarked, "driver is a grid"),
    ]
    for driver, other, text in cases:
        with pytest.raises(AnalysisException, match=text):
            align(driver, {"new": column(other, "value")}, time="at", by="key")
    of_plain = {"new": column(plain, "value")}
    assert align(watermarked, of_plain, time="at", by="key", lateness="1 s").isStreaming
    with pytest.raises(AnalysisException, match=r"lateness must be a duration .*, not 5"):
        align(watermarked, of_plain, time="at", by="key", lateness=5)
