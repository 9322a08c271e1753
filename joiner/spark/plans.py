"""The parts of query plans that both operators share: rows in buckets, and the stateful operator of streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's convention

from joiner.spark.buckets import PACKED, group_keys, packer, unpacker
from joiner.spark.processor import Operator, late_columns, processor

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType

    from joiner.spark.rows import Side


def in_buckets(
    frame: DataFrame, side: Side, key_types: Sequence[DataType], buckets: int, *, keeps_incomplete: bool
) -> DataFrame:
    """Return the frame's columns as ``c0``, ``c1``, …, preceded by a column that groups its rows by bucket.

    ``key_types``: the types to which keys are converted for comparison. ``keeps_incomplete``: whether rows without a
    time, or with a null in their key, are kept.
    """
    placed = frame.toDF(*side.schema.names)
    keys = [F.col(side.schema.names[place]).cast(kind) for place, kind in zip(side.by, key_types, strict=True)]
    if not keeps_incomplete:
        for place in (*side.by, side.time):
            placed = placed.where(F.col(side.schema.names[place]).isNotNull())
    return placed.select(_group(keys, buckets).alias("bucket"), *side.schema.names)


def _group(keys: list[Column], buckets: int) -> Column:
    values = F.array(*map(F.lit, group_keys(buckets)))
    return F.get(values, F.pmod(F.hash(*keys), F.lit(buckets)) if keys else F.lit(0))


def packed_rows(placed: DataFrame, side: Side, at: int) -> DataFrame:
    """Return the rows of side number ``at``, which `in_buckets` has placed, as packed tables."""
    return placed.mapInArrow(packer(side, at), PACKED)


def as_stream(
    packed: Sequence[DataFrame], operator: Operator, result: StructType, name: str, late: Mapping[str, int]
) -> DataFrame:
    """Return the output of a stateful operator on streams.

    ``packed``: the packed rows of each side. ``name``: the name under which late rows are observed. ``late``: the
    metrics, each with the number of the side whose late rows it counts.
    """
    found = (
        reduce(DataFrame.unionAll, packed)
        .groupBy("bucket")
        .transformWithStateInPandas(
            statefulProcessor=processor(operator),
            outputStructType=operator.output(),
            outputMode="Append",
            timeMode="EventTime" if any(operator.has_watermark) else "None",
        )
    )
    counts = late_columns(len(packed))
    metrics = [F.coalesce(F.sum(counts[side]), F.lit(0)).alias(metric) for metric, side in late.items()]
    return found.observe(name, *metrics).select("packed").mapInArrow(unpacker(result.names), result)
