"""Defines `neighbour_join`, which joins two Spark DataFrames, either both streaming or both batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - Spark's convention

from joiner.spark.buckets import PACKED, group_keys, packer, unpacker, whole_joiner
from joiner.spark.processor import JOINED, processor
from joiner.spark.request import Options, Request

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

    from joiner.spark.rows import Side


def neighbour_join(  # noqa: PLR0913 - the options of the join, by name only
    left: DataFrame,
    right: DataFrame,
    *,
    by: str | Sequence[str],
    time: str | tuple[str, str],
    order: str | Sequence[str] | None = None,
    tolerance: object = None,
    direction: str = "both",
    driver: str = "both",
    lateness: object = None,
    emit_unmatched: str = "none",
    suffixes: tuple[str, str] = ("_left", "_right"),
    buckets: int | None = None,
    name: str = "neighbour_join",
) -> DataFrame:
    """Return all pairs of rows with equal keys in which one row is the previous or next neighbour of the other.

    Each pair is returned once. For tables, the result is the same as that of `joiner.join`. For streams, the same pairs
    are appended over time: a pair is emitted once no further input can change it, that is, once the frontiers of both
    streams have passed both rows. A stream's frontier for a key is its watermark, or the key's largest time minus
    ``lateness``, whichever is larger. Streams require the RocksDB state store.

    Args:
        left: a DataFrame, streaming or not.
        right: another DataFrame, streaming if and only if ``left`` is.
        by: the key columns, which both frames must have. If it is ``()``, all rows have the same key. As in Spark's own
            joins, a row with a null in its key matches nothing. A row without a time matches nothing either.
        time: the event-time column, as one name or (left, right). Its values are timestamps with or without time zone,
            dates, or integers in any unit.
        order: the columns by which rows with equal keys and times are ordered, ascending, with nulls first. Columns
            that a frame lacks are skipped. A frame's remaining columns follow in the order they have in the frame.
        tolerance: the maximum distance in time between the two rows of a pair; None means no limit. Must be an integer
            if the times are integers, otherwise a duration (``"10 seconds"``, `datetime.timedelta`).
        direction: which neighbours a row looks for: ``"backward"`` (previous), ``"forward"`` (next), ``"both"``, or
            ``"nearest"`` (the nearer of the two, and the previous one if the distances are equal).
        driver: the side whose rows look for neighbours: ``"left"``, ``"right"`` or ``"both"``.
            ``driver="left", direction="backward"`` is the as-of join.
        lateness: for streams, how far a row may be behind the largest time of its side and key in earlier
            micro-batches; a row further behind is late. One value or (left, right). If None, only watermarks make rows
            late.
        emit_unmatched: ``"none"``, or the side whose rows are also emitted if they are in no pair, with nulls for the
            other side: ``"left"``, ``"right"`` or ``"both"``. A stream emits them once no further input can match them.
        suffixes: the suffixes (left, right) for column names that occur in both frames.
        buckets: the number of groups into which the keys are divided, each with its own state. The default is
            ``spark.sql.shuffle.partitions``. The number must not change while a checkpoint is in use.
        name: the name of this join in the ``observedMetrics`` of a streaming query's progress reports. The metrics
            ``late_left`` and ``late_right`` count late rows, which are not joined.

    Returns:
        A DataFrame with the key columns, the other columns of ``left``, and those of ``right``. The order of rows is
        unspecified.

    Raises:
        AnalysisException: an argument is invalid. The message names it and the frame, and says how to correct it.

    This example works for streams and for tables::

        from joiner.spark import neighbour_join

        speed = speed.withWatermark("at", "10 seconds")
        torque = torque.withWatermark("at", "10 seconds")
        power = neighbour_join(speed, torque, by="machine", time="at", tolerance="1 minute")

    """
    options = Options(by, time, order, tolerance, direction, driver, lateness, emit_unmatched, suffixes, buckets)
    request = Request.of(left, right, options)
    sides = _in_buckets(left, request, 0), _in_buckets(right, request, 1)
    return _stream(sides, request, name) if request.is_streaming else _table(sides, request)


def _in_buckets(frame: DataFrame, request: Request, at: int) -> DataFrame:
    rules, types = request.rules, request.types[at]
    side = rules.sides[at]
    cast = frame.toDF(*side.schema.names).select(
        [
            F.col(name) if kind == field.dataType else F.col(name).cast(kind).alias(name)
            for name, kind, field in zip(side.schema.names, types, frame.schema.fields, strict=True)
        ]
    )
    keys = [types[place] for place in side.by]
    return in_buckets(cast, side, keys, rules.buckets, keeps_incomplete=rules.emits_unmatched(at))


def in_buckets(
    frame: DataFrame, side: Side, key_types: Sequence[DataType], buckets: int, *, keeps_incomplete: bool
) -> DataFrame:
    """Return the frame with a first column that groups its rows by bucket, and its own columns as ``c0``, ``c1``, …

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


def _table(sides: tuple[DataFrame, DataFrame], request: Request) -> DataFrame:
    left, right = (side.groupBy("bucket") for side in sides)
    names = request.result.names
    return left.cogroup(right).applyInArrow(whole_joiner(request.rules, names), request.result)


def _stream(sides: tuple[DataFrame, DataFrame], request: Request, name: str) -> DataFrame:
    left, right = (side.mapInArrow(packer(request.rules.sides[at], at), PACKED) for at, side in enumerate(sides))
    joined = (
        left.unionAll(right)
        .groupBy("bucket")
        .transformWithStateInPandas(
            statefulProcessor=processor(request.rules),
            outputStructType=JOINED,
            outputMode="Append",
            timeMode="EventTime" if any(request.rules.has_watermark) else "None",
        )
    )
    late = [F.coalesce(F.sum(side), F.lit(0)).alias(side) for side in ("late_left", "late_right")]
    observed = joined.observe(name, *late)
    return observed.select("packed").mapInArrow(unpacker(request.result.names), request.result)
