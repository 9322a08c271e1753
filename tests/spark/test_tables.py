"""Does the join of two tables in Spark equal `joiner.join` and pandas, for every type, partitioning and time zone?"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's convention

from joiner import join
from joiner.spark import neighbour_join
from tests.property import final_rows
from tests.spark.streams import numbers


def frame(seed: int, rows: int, name: str) -> pd.DataFrame:
    """Return random rows ordered by time, with many ties. The row numbers are in the column ``name``."""
    draw = np.random.default_rng(seed)
    table = pd.DataFrame({"machine": draw.integers(0, 12, rows), "at": np.sort(draw.integers(0, 3 * rows // 12, rows))})
    return table.assign(**{name: np.arange(rows)})


def of_pandas(left: pd.DataFrame, right: pd.DataFrame) -> set[tuple[int, int]]:
    """Return the union of the four as-of joins of pandas."""
    found: set[tuple[int, int]] = set()
    for one, other in ((left, right), (right, left)):
        for direction in ("backward", "forward"):
            pairs = pd.merge_asof(one, other, on="at", by="machine", direction=direction).dropna()
            found |= set(zip(pairs["left"].astype(int), pairs["right"].astype(int), strict=True))
    return found


def found_pairs(joined: Any) -> list[tuple[Any, Any]]:
    rows = joined.collect() if isinstance(joined, DataFrame) else joined.itertuples()
    pairs = [(row.left, row.right) for row in rows]
    return sorted(((None if pd.isna(i) else int(i), None if pd.isna(j) else int(j)) for i, j in pairs), key=str)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"tolerance": 2, "emit_unmatched": "both"},
        {"driver": "left", "direction": "backward"},
        {"driver": "right", "direction": "nearest", "emit_unmatched": "right"},
    ],
)
def test_the_join_of_tables_is_that_of_the_library_and_of_pandas(spark: SparkSession, options: dict[str, Any]) -> None:
    left, right = frame(1, 3_000, "left"), frame(2, 2_000, "right")
    # Shuffled and repartitioned. Rows with equal times are ordered by their numbers.
    shuffled = [spark.createDataFrame(table.sample(frac=1, random_state=3)).repartition(3) for table in (left, right)]
    joined = neighbour_join(shuffled[0], shuffled[1], by="machine", time="at", order=("left", "right"), **options)
    assert found_pairs(joined) == found_pairs(join(left, right, time="at", by="machine", **options))
    if not options:
        assert set(found_pairs(joined)) == of_pandas(left, right)


def test_neither_partitions_nor_buckets_nor_the_order_of_rows_change_the_result(spark: SparkSession) -> None:
    # By default rows are ordered by all columns, so rows with equal key and time are ordered by their numbers here as
    # well.
    left, right = (frame(seed, 500, name) for seed, name in ((4, "left"), (5, "right")))
    expected = found_pairs(join(left, right, time="at", by="machine"))
    for buckets, partitions, seed in ((1, 1, 1), (17, 4, 2)):
        tables = [
            spark.createDataFrame(table.sample(frac=1, random_state=seed)).repartition(partitions)
            for table in (left, right)
        ]
        joined = neighbour_join(tables[0], tables[1], by="machine", time="at", buckets=buckets)
        assert found_pairs(joined) == expected


NOON = datetime(2024, 6, 1, 12, tzinfo=UTC)
KEYS: dict[str, list[Any]] = {
    "string": ["a", "ä", ""],
    "bigint": [1, -(2**62), 2**53 + 1],
    "boolean": [True, False],
    "double": [float("nan"), 0.0, float("inf")],
    "decimal(20,3)": [Decimal("1.500"), Decimal("-1.500")],
    "binary": [b"\x00", b""],
    "date": [date(2024, 1, 1), date(1, 1, 1)],
    "timestamp": [NOON, NOON + timedelta(microseconds=1)],
}


@pytest.mark.parametrize("kind", KEYS)
def test_every_plain_type_is_a_key(spark: SparkSession, kind: str) -> None:
    values = KEYS[kind]
    rows = [(value, at, number) for number, value in enumerate(values) for at in (1, 2)]
    left = spark.createDataFrame(rows, f"key {kind}, at int, number int")
    # In Spark's joins, -0.0 equals 0.0.
    right = left.selectExpr("-key as key" if kind == "double" else "key", "at", "number")
    if kind == "double":
        right = right.where("not key < -1")
    joined = neighbour_join(left, right, by="key", time="at", order="number")
    matched = [number for number, value in enumerate(values) if value != float("inf")]
    assert {(pair[0], pair[1]) for pair in numbers(joined)} == {(number, number) for number in matched}
    assert joined.schema["key"].dataType == left.schema["key"].dataType


def test_keys_of_several_columns_and_of_two_widths_meet(spark: SparkSession) -> None:
    left = spark.createDataFrame(
        [("a", 1, 5, 0), ("a", 2, 5, 1), ("b", 1, 5, 2)], "k string, Part int, at int, number int"
    )
    right = spark.createDataFrame([("a", 1, 6, 0), ("b", 2, 6, 1)], "K string, part bigint, at bigint, number int")
    joined = neighbour_join(left, right, by=["k", "part"], time="at")
    assert joined.dtypes == [
        ("k", "string"),
        ("Part", "bigint"),
        ("at_left", "int"),
        ("number_left", "int"),
        ("at_right", "bigint"),
        ("number_right", "int"),
    ]
    assert numbers(joined) == [(0, 0)]
    everything = neighbour_join(left.drop("k", "Part"), right.drop("k", "part"), by=(), time="at")
    assert numbers(everything) == [(0, 0), (1, 0), (2, 0), (2, 1)]


def test_every_type_of_time_is_exact(spark: SparkSession) -> None:
    # Times one microsecond apart, in years beyond the range of int64 nanoseconds.
    rows = [(f"{year}-07-01 00:00:00.00000{last}", year) for year in ("0001", "1969", "9999") for last in "123"]
    text = spark.createDataFrame(rows, "at string, key string")
    for kind in ("timestamp", "timestamp_ntz"):
        times = text.selectExpr(f"cast(at as {kind}) at", "key")
        middle = times.where("cast(at as string) like '%2'")
        joined = neighbour_join(middle, times, by="key", time="at", tolerance=timedelta(0))
        assert joined.where("at_left = at_right").count() == joined.count() == 3
        assert joined.schema["at_left"].dataType == times.schema["at"].dataType
        assert neighbour_join(middle, times, by="key", time="at", tolerance="1 microsecond").count() == 9
    days, other = (
        spark.createDataFrame([(date(2024, 1, day),) for day in month], "at date") for month in ((1, 3), (2,))
    )
    assert neighbour_join(days, other, by=(), time="at", tolerance="23 hours").count() == 0
    assert neighbour_join(days, other, by=(), time="at", tolerance="1 day").count() == 2


def test_what_a_row_carries_arrives_exactly_whatever_the_session_s_zone(spark: SparkSession) -> None:
    row = Row(
        key="k",
        at=1,
        big=2**63 - 1,
        no_big=None,
        exact=Decimal("12345678901234567890.123456789"),
        when=datetime(2024, 1, 1, 12),  # noqa: DTZ001 - as Spark returns it
        local=datetime(1, 1, 1),  # noqa: DTZ001 - a time without zone
        raw=bytearray(b"\x00\xff"),
        nested=[Row(a={"x": datetime(2024, 3, 31, 2)}, b=[1.5, None])],  # noqa: DTZ001 - as Spark returns it
    )
    schema = (
        "key string, at int, big bigint, no_big bigint, exact decimal(38,9), when timestamp, local timestamp_ntz, "
        "raw binary, nested array<struct<a: map<string, timestamp>, b: array<double>>>"
    )
    left = spark.createDataFrame([row], schema)
    right = spark.createDataFrame([("k", 2)], "key string, at int")
    zone = spark.conf.get("spark.sql.session.timeZone")
    for other in ("America/St_Johns", zone):
        joined = neighbour_join(left, right, by="key", time="at").withColumnRenamed("at_left", "at")
        assert joined.select(*left.columns).collect() == left.collect()
        spark.conf.set("spark.sql.session.timeZone", str(other))


def test_equal_times_are_ordered_by_content_nulls_first_nested_columns_too(spark: SparkSession) -> None:
    left = spark.createDataFrame([(1, 0)], "at int, number int")
    content = [None, [1], [2], [3]]
    rows = [(1, content[number], number) for number in (2, 0, 3, 1)]
    right = spark.createDataFrame(rows, "at int, content array<int>, number int").repartition(3)
    for order in ("content", ("content", "number"), None):
        joined = neighbour_join(left, right, by=(), time="at", order=order, driver="left")
        assert numbers(joined) == [(0, 0), (0, 3)]


def test_rows_without_a_key_or_a_time_match_nothing_and_are_told_where_asked_for(spark: SparkSession) -> None:
    rows = [(None, 1, 0), ("a", None, 1), ("a", 1, 2), (None, None, 3)]
    table = spark.createDataFrame(rows, "key string, at int, number int")
    assert numbers(neighbour_join(table, table, by="key", time="at")) == [(2, 2)]
    assert numbers(neighbour_join(table.limit(0), table, by="key", time="at", emit_unmatched="left")) == []
    expected: list[final_rows.Numbered] = [(2, 2), *((number, None) for number in (0, 1, 3))]
    assert numbers(neighbour_join(table, table, by="key", time="at", emit_unmatched="left")) == sorted(
        expected, key=str
    )


def test_odd_names_of_columns_are_no_obstacle(spark: SparkSession) -> None:
    left = spark.createDataFrame([(1, 2, 3, 4)], "`a.b` int, `t t` int, `x``y` int, same int")
    right = spark.createDataFrame([(1, 2, 3)], "`A.b` int, other int, SAME int")
    joined = neighbour_join(left, right, by="a.b", time=("t t", "other"), suffixes=("", "_r"))
    assert joined.columns == ["a.b", "t t", "x`y", "same", "other", "SAME_r"]
    assert [tuple(row) for row in joined.collect()] == [(1, 2, 3, 4, 2, 3)]
    assert joined.select(F.col("`a.b`")).count() == 1
