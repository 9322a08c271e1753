"""Do the aligned rows of DataFrames equal those of `joiner.align`, for every rule, partitioning and type?"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's convention

import joiner
from joiner import column
from joiner.spark import align

MACHINES = 12


def table(seed: int, rows: int, name: str) -> pd.DataFrame:
    """Return random rows with many equal times, in an order in which the one further down is later by its ``number``.

    The column ``name`` contains a float, or nothing in about one row of five.
    """
    draw = np.random.default_rng(seed)
    values = draw.normal(100.0, 300.0, rows)
    values[draw.random(rows) < 0.2] = np.nan
    return pd.DataFrame(
        {
            "machine": draw.integers(0, MACHINES, rows),
            "at": np.sort(draw.integers(0, 3 * rows // MACHINES, rows)),
            "number": np.arange(rows),
            name: values,
        }
    )


def in_spark(spark: SparkSession, rows: pd.DataFrame, *, seed: int = 3, partitions: int = 3) -> DataFrame:
    """Return shuffled and repartitioned rows. Values that are missing are null in some rows, and NaN in the others."""
    frame = spark.createDataFrame(rows.sample(frac=1, random_state=seed)).repartition(partitions)
    name = rows.columns[-1]
    value = F.nanvl(F.col(name), F.when(F.col("number") % 2 == 0, float("nan")))
    return frame.withColumn(name, value)


def by_number(found: Any) -> list[tuple[Any, ...]]:
    """Return the rows of a result, in the order of the driver's numbers, with None for missing values."""
    rows = found.collect() if isinstance(found, DataFrame) else found.itertuples(index=False)
    return sorted(tuple(None if pd.isna(value) else value for value in row) for row in rows)


KEEPING: list[dict[str, Any]] = [
    {},
    {"rule": "previous", "tolerance": 2},
    {"rule": "next", "tolerance": 1},
    {"rule": "nearest"},
    {"rule": "linear"},
    {"rule": "linear", "period": 360.0},
]
"""Columns that leave no row of the driver out, so that all of them can be added at once."""

DROPPING: list[dict[str, Any]] = [
    {"rule": "nearest", "tolerance": 1, "on_missing": "drop"},
    {"rule": "linear", "tolerance": 6, "on_missing": "drop"},
]


@pytest.mark.parametrize("rules", [KEEPING, *([one] for one in DROPPING)], ids=["keeping", "nearest", "linear"])
def test_the_rows_of_tables_are_those_of_the_library(spark: SparkSession, rules: list[dict[str, Any]]) -> None:
    torque, speed = table(1, 1_500, "nm"), table(2, 1_000, "rpm")
    names = {f"rpm{number}": options for number, options in enumerate(rules)}
    added = {name: column(speed, "rpm", **options) for name, options in names.items()}
    expected = joiner.align(torque, added, time="at", by="machine")
    frames = in_spark(spark, torque), in_spark(spark, speed)
    columns = {name: column(frames[1], "rpm", **options) for name, options in names.items()}
    found = align(frames[0], columns, time="at", by="machine", order="number")
    assert by_number(found) == by_number(expected)
    assert (len(expected) < len(torque)) == (rules is not KEEPING)
    kinds = {"machine": "bigint", "at": "bigint", "number": "bigint", "nm": "double"} | dict.fromkeys(names, "double")
    assert found.dtypes == list(kinds.items())


def test_neither_partitions_nor_buckets_nor_the_order_of_rows_change_the_result(spark: SparkSession) -> None:
    tables = table(4, 500, "nm"), table(5, 400, "rpm"), table(6, 300, "degrees")

    def aligned(of: Any, frames: Any, **options: Any) -> list[tuple[Any, ...]]:
        torque, speed, position = frames
        columns = {
            "rpm": column(speed, "rpm", rule="linear"),
            "last": column(speed, "number"),
            "turn": column(position, "degrees", rule="linear", period=360.0, tolerance=9),
            "next": column(position, "number", rule="next", on_missing="drop"),
            "same": column(torque, "number", rule="nearest"),
        }
        return by_number(of(torque, columns, time="at", by="machine", **options))

    expected = aligned(joiner.align, tables)
    assert 0 < len(expected) < 500
    for buckets, partitions, seed in ((1, 1, 1), (17, 4, 2), (None, 2, 3)):
        frames = [in_spark(spark, rows, seed=seed, partitions=partitions) for rows in tables]
        # By default rows are ordered by all columns, so those with equal key and time by their numbers.
        assert aligned(align, frames, buckets=buckets) == expected


def test_all_rows_have_one_key_unless_by_names_others(spark: SparkSession) -> None:
    torque, speed = table(7, 60, "nm"), table(8, 50, "rpm")
    frames = in_spark(spark, torque), in_spark(spark, speed)
    without = joiner.align(torque, {"last": column(speed, "number")}, time="at")
    found = align(frames[0], {"last": column(frames[1], "number")}, time="at", order="number")
    assert by_number(found) == by_number(without)


def test_times_and_keys_of_other_names_and_integer_keys_of_two_widths_meet(spark: SparkSession) -> None:
    torque = spark.createDataFrame([("a", 1, 5), ("a", 2, 5), ("b", 1, 5)], "k string, Part int, at int")
    speed = spark.createDataFrame([("a", 1, 4, 7), ("b", 2, 4, 8)], "thing string, p bigint, t bigint, rpm smallint")
    mode = spark.createDataFrame([("b", 1, 6, "manual")], "k string, part tinyint, at int, mode string")
    columns = {
        "rpm": column(speed, time="t", by=["thing", "p"]),
        "mode": column(mode, rule="nearest"),
        "when": column(mode, "at", rule="next"),
    }
    found = align(torque, columns, time="at", by=["k", "part"])
    assert found.dtypes == [
        ("k", "string"),
        ("Part", "int"),
        ("at", "int"),
        ("rpm", "smallint"),
        ("mode", "string"),
        ("when", "int"),
    ]
    assert sorted(map(tuple, found.collect())) == [
        ("a", 1, 5, 7, None, None),
        ("a", 2, 5, None, None, None),
        ("b", 1, 5, None, "manual", 6),
    ]


def test_rows_without_a_key_or_a_time_stay_without_values_and_give_none(spark: SparkSession) -> None:
    rows = [(None, 1, 0), ("a", None, 1), ("a", 1, 2), (None, None, 3)]
    frame = spark.createDataFrame(rows, "key string, at int, number int")
    found = align(frame, {"other": column(frame, "number")}, time="at", by="key")
    assert sorted(map(tuple, found.select("number", "other").collect())) == [(0, None), (1, None), (2, 2), (3, None)]
    dropped = {"other": column(frame, "number"), "same": column(frame, "number", on_missing="drop")}
    assert align(frame, dropped, time="at", by="key").collect() == [Row(key="a", at=1, number=2, other=2, same=2)]


def test_a_frame_without_rows_is_no_obstacle(spark: SparkSession) -> None:
    rows = spark.createDataFrame([("a", 1, [1])], "key string, at int, value array<int>")
    nothing = rows.limit(0)
    found = align(rows, {"value2": column(nothing, "value"), "at2": column(nothing, "at", rule="linear")}, time="at")
    assert [tuple(row) for row in found.collect()] == [("a", 1, [1], None, None)]
    assert align(nothing, {"other": column(rows, "value")}, time="at", by="key").collect() == []


def test_equal_times_are_ordered_by_order_and_then_by_content_nulls_first(spark: SparkSession) -> None:
    driver = spark.createDataFrame([(1,)], "at int")
    rows = [(1, first, number) for first, number in ((2, 0), (1, 3), (None, 9), (2, 1))]
    frame = spark.createDataFrame(rows, "at int, first int, number int").repartition(3)
    for order, last, following in ((None, 1, 9), ("first", 1, 9), ("number", 9, 0), (("number", "first"), 9, 0)):
        columns = {"last": column(frame, "number"), "next": column(frame, "number", rule="next")}
        assert [tuple(row) for row in align(driver, columns, time="at", order=order).collect()] == [
            (1, last, following)
        ]


def test_columns_of_every_type_arrive_exactly_whatever_the_session_s_zone(spark: SparkSession) -> None:
    row = Row(
        key="k",
        at=datetime(2024, 3, 31, 2),  # noqa: DTZ001 - as Spark returns it
        big=2**63 - 1,
        exact=Decimal("12345678901234567890.123456789"),
        when=datetime(2024, 1, 1, 12),  # noqa: DTZ001 - as Spark returns it
        local=datetime(1, 1, 1),  # noqa: DTZ001 - a time without zone
        raw=bytearray(b"\x00\xff"),
        flag=True,
        nested=[Row(a={"x": datetime(2024, 3, 31, 2)}, b=[1.5, None])],  # noqa: DTZ001 - as Spark returns it
    )
    schema = (
        "key string, at timestamp, big bigint, exact decimal(38,9), when timestamp, local timestamp_ntz, raw binary, "
        "flag boolean, nested array<struct<a: map<string, timestamp>, b: array<double>>>"
    )
    frame = spark.createDataFrame([row], schema)
    values = frame.columns[2:]
    zone = spark.conf.get("spark.sql.session.timeZone")
    for other in ("America/St_Johns", zone):
        columns = {f"new {name}": column(frame, name, tolerance="0s") for name in values}
        found = align(frame, columns, time="at", by="key")
        assert found.select(*frame.columns).collect() == frame.collect()
        assert [tuple(one) for one in found.select(*(f"`new {name}`" for name in values)).collect()] == [
            tuple(one) for one in frame.select(*values).collect()
        ]
        assert [kind for _, kind in found.dtypes[-len(values) :]] == [kind for _, kind in frame.dtypes[2:]]
        spark.conf.set("spark.sql.session.timeZone", str(other))


def test_microseconds_are_exact_in_all_years(spark: SparkSession) -> None:
    rows = [(f"{year}-07-01 00:00:00.00000{last}", year) for year in ("0001", "1969", "9999") for last in "13"]
    times = spark.createDataFrame(rows, "at string, key string").selectExpr("cast(at as timestamp_ntz) at", "key")
    driver = times.selectExpr("at + interval '1' microsecond at", "key").where("cast(at as string) like '%2'")
    for tolerance, count in (("1us", 3), ("0.9us", 0)):
        columns = {
            "before": column(times, "at", tolerance=tolerance, on_missing="drop"),
            "after": column(times, "at", rule="next", tolerance=tolerance),
        }
        found = align(driver, columns, time="at", by="key")
        assert found.where("before < at and at < after").count() == count


PLAIN = "key string, at timestamp, value double"


def empty(spark: SparkSession, schema: str = PLAIN) -> DataFrame:
    return spark.createDataFrame([], schema)


@pytest.mark.parametrize(
    ("schema", "options", "of_column", "text"),
    [
        (PLAIN, {"by": "thing"}, {}, "by: driver has no column 'thing'; it has 'key', 'at', 'value'"),
        (PLAIN, {}, {"by": "thing"}, r"by: columns\['new'\] has no column 'thing'"),
        (PLAIN, {}, {"by": ["key", "value"]}, r"columns\['new'\]: by must name 1 columns, as for the driver"),
        (PLAIN, {"time": "when"}, {}, "time: driver has no column 'when'"),
        (PLAIN, {}, {"time": "when"}, r"time: columns\['new'\] has no column 'when'"),
        (PLAIN, {}, {"value": "rpm"}, r"value: columns\['new'\] has no column 'rpm'; it has 'key', 'at', 'value'"),
        (
            PLAIN + ", more int",
            {},
            {},
            r"columns\['new'\]: specify the column of values, as in column\(table, 'value'\)",
        ),
        (PLAIN, {}, {"time": "value"}, r"time: columns\['new'\]\['value'\] is double; it must be a timestamp"),
        (
            "key int, at timestamp, value int",
            {},
            {},
            r"by: driver\['key'\] is string, but columns\['new'\]\['key'\] is int",
        ),
        (
            "key string, at date, value int",
            {},
            {},
            r"the column of driver is of type timestamp, but that of columns\['new'\] is of type date; cast",
        ),
        ("key string, at timestamp, value string", {}, {"rule": "linear"}, "must contain integers or floats for rule"),
        (PLAIN, {}, {"tolerance": 5}, r"columns\['new'\]: tolerance must be a duration .*, not 5"),
        (PLAIN, {"order": "nothing"}, {}, "order: no table of a column has a column 'nothing'"),
        (PLAIN, {"buckets": 0}, {}, "buckets must be an integer from 1 to .*, not 0"),
    ],
)
def test_an_argument_that_cannot_be_used_is_named(
    spark: SparkSession, schema: str, options: dict[str, Any], of_column: dict[str, Any], text: str
) -> None:
    columns = {"new": column(empty(spark, schema), **of_column)}
    with pytest.raises(AnalysisException, match=text):
        align(empty(spark), columns, **({"by": "key", "time": "at"} | options))


def test_columns_that_cannot_be_added_are_named(spark: SparkSession) -> None:
    frame = empty(spark)
    cases: list[tuple[Any, Any, str]] = [
        (frame, {}, "columns must be a non-empty mapping from new names to columns"),
        (frame, [column(frame)], "columns must be a non-empty mapping from new names to columns"),
        (frame, {1: column(frame)}, "columns: the name 1 must be a str"),
        (frame, {"new": frame}, r"columns\['new'\] must be a joiner.column\(…\), not DataFrame"),
        (frame, {"new": column(pd.DataFrame())}, r"columns\['new'\] must be a Spark DataFrame, .* use joiner.align"),
        (pd.DataFrame(), {"new": column(frame)}, "driver must be a Spark DataFrame"),
        (frame, {"VALUE": column(frame)}, "the result would have two columns named 'VALUE'; choose another name"),
        (frame, {"a": column(frame), "A": column(frame)}, "the result would have two columns named 'A'"),
        (empty(spark, "at timestamp, a int, A int"), {"new": column(frame, "value")}, "driver has 2 columns named 'a'"),
    ]
    for driver, columns, text in cases:
        with pytest.raises(AnalysisException, match=text):
            align(driver, columns, time="at", by="key" if driver is frame else ())
