"""Is invalid use of the operator refused before anything runs, with a message that says what to correct, and where?"""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from joiner import column
from joiner.spark import align, neighbour_join
from joiner.spark.buckets import group_keys

PLAIN = "key string, at timestamp, value double"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"


def table(spark: SparkSession, schema: str = PLAIN) -> DataFrame:
    return spark.createDataFrame([], schema)


def stream(spark: SparkSession) -> DataFrame:
    rate = spark.readStream.format("rate").load()
    return rate.selectExpr("'k' as key", "timestamp as at", "value", "timestamp as seen")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"by": "thing"}, "by: left has no column 'thing'; it has 'key', 'at', 'value'"),
        ({"time": ("at", "when")}, "time: right has no column 'when'"),
        ({"time": ("at", "at", "at")}, "time must be one column name or"),
        ({"time": "value"}, "time: left.'value'. is double; it must be a timestamp"),
        ({"order": "nothing"}, "order: neither left nor right has a column 'nothing'"),
        ({"direction": "sideways"}, "direction must be one of 'both', .*, not 'sideways'"),
        ({"driver": "me"}, "driver must be one of 'both', .*, not 'me'"),
        ({"emit_unmatched": True}, "emit_unmatched must be one of 'none', .*, not True"),
        ({"tolerance": 5}, "tolerance must be a duration .*, not 5"),
        ({"tolerance": "five"}, "tolerance = 'five'"),
        ({"tolerance": timedelta(seconds=-1)}, "it must not be negative"),
        ({"lateness": ("1 s", "-1 s")}, "lateness = '-1 s': it must not be negative"),
        ({"lateness": ("1 s",)}, "lateness must be one duration or"),
        ({"suffixes": ("_only",)}, "suffixes must be .left, right., not .'_only',."),
        ({"suffixes": "_l"}, "suffixes must be .left, right., not '_l'"),
        ({"suffixes": ("", "")}, "the result would have two columns named 'at'; choose other suffixes, or rename"),
        ({"buckets": 0}, "buckets must be an integer from 1 to .*, not 0"),
    ],
)
def test_an_argument_that_cannot_be_used_is_named(spark: SparkSession, options: dict[str, Any], text: str) -> None:
    with pytest.raises(AnalysisException, match=text):
        neighbour_join(table(spark), table(spark), **({"by": "key", "time": "at"} | options))


@pytest.mark.parametrize(
    ("left", "right", "text"),
    [
        ("key string, at timestamp", "key int, at timestamp", "left.'key'. is string, but right.'key'. is int"),
        (
            "key string, at timestamp",
            "key string, at timestamp_ntz",
            "the column of left is of type timestamp, but that of right is of type timestamp_ntz",
        ),
        ("key string, at date", "key string, at int", "left is of type date, but that of right is of type int; cast"),
        ("key array<int>, at int", "key array<int>, at int", "is array<int>, which is not supported"),
        ("key string collate UTF8_LCASE, at int", "key string collate UTF8_LCASE, at int", "not supported as a key"),
        ("key string, KEY string, at int", "key string, at int", "left has 2 columns named 'key'; rename or drop one"),
        ("key string, at string", "key string, at string", "is string; it must be a timestamp"),
    ],
)
def test_frames_that_do_not_fit_are_named(spark: SparkSession, left: str, right: str, text: str) -> None:
    with pytest.raises(AnalysisException, match=text):
        neighbour_join(table(spark, left), table(spark, right), by="key", time="at")


def test_streams_that_could_never_answer_are_refused(spark: SparkSession) -> None:
    watermarked, plain = stream(spark).withWatermark("at", "1 second"), stream(spark)
    cases: list[tuple[DataFrame, DataFrame, dict[str, Any], str]] = [
        (watermarked, table(spark), {}, "left is a stream and right is a table"),
        (table(spark), watermarked, {}, "right is a stream and left is a table"),
        (watermarked, plain, {}, "right is a stream with neither watermark nor lateness"),
        (plain, watermarked, {"lateness": (None, "1 s")}, "left is a stream with neither watermark nor lateness"),
        (
            watermarked,
            stream(spark).withWatermark("seen", "1 second"),
            {},
            "right has its watermark on 'seen', not on its time",
        ),
    ]
    for left, right, options, text in cases:
        with pytest.raises(AnalysisException, match=text):
            neighbour_join(left, right, by="key", time="at", **options)
    assert neighbour_join(watermarked, plain, by="key", time="at", lateness=(None, "1 s")).isStreaming
    assert not neighbour_join(table(spark), table(spark), by="key", time="at").isStreaming


def test_a_state_store_that_cannot_hold_the_state_is_refused_with_the_setting(spark: SparkSession) -> None:
    watermarked = stream(spark).withWatermark("at", "1 second")
    rocksdb = spark.conf.get(PROVIDER)
    spark.conf.unset(PROVIDER)
    try:
        spark.conf.set(PROVIDER, "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider")
        with pytest.raises(AnalysisException, match=r"spark.conf.set\(.*RocksDBStateStoreProvider"):
            neighbour_join(watermarked, watermarked, by="key", time="at")
        with pytest.raises(AnalysisException, match="align of streams requires the RocksDB state store"):
            align(watermarked, {"new": column(watermarked, "value")}, by="key", time="at")
    finally:
        spark.conf.set(PROVIDER, str(rocksdb))


def test_each_bucket_has_a_partition_of_its_own(spark: SparkSession) -> None:
    for buckets in (1, 5, 200):
        keys = ", ".join(f"({key})" for key in group_keys(buckets))
        rows = spark.sql(f"select pmod(hash(cast(col1 as int)), {buckets}) p from values {keys}").collect()  # noqa: S608 - numbers
        assert [row.p for row in rows] == list(range(buckets))


def test_the_library_does_not_ask_for_spark() -> None:
    code = "import sys, joiner; sys.exit('pyspark' in sys.modules or 'pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
