"""Does a stream join in Spark emit exactly the certain pairs, however its input is batched and across restarts?"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import SparkSession

from joiner.spark import neighbour_join
from tests.long import rest_long
from tests.property.final_rows import Expected, Row, expected_rows
from tests.spark.streams import Streams, columns, numbers


@contextmanager
def streams(spark: SparkSession, folder: Path, **options: Any) -> Iterator[Streams]:
    joined = Streams(spark, folder, **options)
    try:
        yield joined
    finally:
        joined.stop()


def drawn(seed: int, cuts: int, span: int) -> list[tuple[list[Row], list[Row]]]:
    """Return micro-batches of both sides, with disorder, ties, and times that advance by ``span`` per batch."""
    draw = random.Random(seed)
    found, number = [], 0
    for cut in range(cuts):
        sides = []
        for _ in "lr":
            count = draw.randint(0, 8)
            rows = [
                Row(draw.randrange(3), cut * span + draw.randrange(2 * span), draw.randrange(2), number + i)
                for i in range(count)
            ]
            number += count
            sides.append(rows)
        found.append((sides[0], sides[1]))
    return found


@pytest.mark.parametrize(
    ("seed", "options"),
    [
        pytest.param(1, {"lateness": (6, 9)}, marks=pytest.mark.long),
        (2, {"lateness": 12, "tolerance": 3, "emit_unmatched": "both", "direction": "nearest", "driver": "left"}),
    ],
)
def test_after_each_micro_batch_the_certain_part_has_come_out_also_over_a_restart(
    spark: SparkSession, tmp_path: Path, seed: int, options: dict[str, Any]
) -> None:
    feed = drawn(seed, 6, 6)
    how = dict(options)
    lateness = how.pop("lateness")
    lateness = lateness if isinstance(lateness, tuple) else (lateness, lateness)
    sides = [Expected(of_side, has_watermark=False) for of_side in lateness]
    with streams(spark, tmp_path, **options) as joined:
        for at, (left, right) in enumerate(feed):
            if at == 3:
                joined.stop()
            joined.give(left, right)
            for side, rows in zip(sides, (left, right), strict=True):
                side.add(rows, 0)
            assert joined.found() == expected_rows(sides, **how), f"after cut {at} of seed {seed}"
    assert joined.found()


@pytest.mark.parametrize("seed", rest_long(3, 4))
def test_the_watermark_alone_brings_out_what_it_makes_certain_and_in_the_end_the_whole(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    feed = drawn(seed, 5, 6)
    sides = [Expected(None, has_watermark=True) for _ in "lr"]
    everything: tuple[list[Row], list[Row]] = [], []
    # No further row of this key arrives; the watermark makes its pair certain.
    feed[0][0].append(Row(2, 1, 0, 1001))
    feed[0][1].append(Row(2, 2, 0, 1002))
    with streams(spark, tmp_path, watermark="12 seconds", buckets=5) as joined:
        for left, right in [*feed, ([Row(0, 500, 0, 2001)], [Row(0, 500, 0, 2002)])]:
            joined.give(left, right)
            watermark = datetime.fromisoformat(joined.watermark()).astimezone(UTC).timestamp()
            for side, rows, so_far in zip(sides, (left, right), everything, strict=True):
                side.add(rows, int(watermark))
                so_far.extend(rows)
            assert joined.found() == expected_rows(sides)
        assert watermark == 488
        assert joined.late() == (0, 0)
    tables = (spark.createDataFrame(columns(rows[:-1], in_seconds=True)) for rows in everything)
    whole = numbers(neighbour_join(*tables, by="key", time="at", order="first"))
    assert [pair for pair in joined.found() if pair[0] != 2001 and pair[1] != 2002] == whole


def test_late_rows_are_left_out_and_counted(spark: SparkSession, tmp_path: Path) -> None:
    with streams(spark, tmp_path, lateness=2) as joined:
        joined.give([Row(0, 10, 0, 0)], [Row(0, 20, 0, 1)])
        joined.give([Row(0, 7, 0, 2), Row(0, 8, 0, 3)], [Row(0, 1, 0, 4)])
        joined.give([Row(0, 30, 0, 5)], [Row(0, 30, 0, 6)])
        assert joined.late() == (1, 1)
        # The left row at 8 is at the frontier, so it is not late. The left row at 7 and the right row at 1 are late.
        assert joined.found() == [(0, 1), (3, 1)]


def test_rows_of_a_micro_batch_are_taken_together_however_they_travel(spark: SparkSession, tmp_path: Path) -> None:
    # Each row is in its own file, task and Arrow batch, in descending order of time. Read one by one, most would be
    # late.
    rows = [Row(0, 10 - ts, 0, ts) for ts in range(10)]
    settings = {"spark.sql.execution.arrow.maxRecordsPerBatch": "1", "spark.sql.files.maxPartitionBytes": "300"}
    before = {name: spark.conf.get(name) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        with streams(spark, tmp_path, lateness=0) as joined:
            joined.give(rows, rows, files=len(rows))
            assert joined.late() == (0, 0)
            assert joined.found() == sorted(((row.number, row.number) for row in rows[1:]), key=str)
    finally:
        for name, old in before.items():
            spark.conf.set(name, str(old))


def test_other_options_on_an_old_checkpoint_are_refused_with_both(spark: SparkSession, tmp_path: Path) -> None:
    rows = [Row(0, ts, 0, ts) for ts in range(5)]
    with streams(spark, tmp_path, lateness=0) as joined:
        joined.give(rows, rows)
        joined.stop()
        joined.options["tolerance"] = 7
        with pytest.raises(StreamingQueryException, match="tolerance was None, is now 7"):
            joined.give([Row(0, 9, 0, 9)])


def test_only_modes_that_take_nothing_back_are_possible(spark: SparkSession, tmp_path: Path) -> None:
    with streams(spark, tmp_path, lateness=0) as joined, pytest.raises(AnalysisException, match="complete"):
        joined.start("complete")
