"""Defines `neighbour_join`, which joins two Spark DataFrames, either both streaming or both batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - Spark's convention

from joiner.spark.joining.reordered_join import OPERATOR, ReorderedJoin, Rules, join_whole
from joiner.spark.joining.request import Options, Request
from joiner.spark.plans import as_stream, in_buckets, packed_rows
from joiner.spark.processor import Operator

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


def neighbour_join(  # noqa: PLR0913 - the options of the join, keyword-only
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
        AnalysisException: an argument is invalid. The message names it and, where relevant, the frame, and says what is
            wrong or how to correct it.

    This example works for streams and for tables::

        from joiner.spark import neighbour_join

        speed = speed.withWatermark("at", "10 seconds")
        torque = torque.withWatermark("at", "10 seconds")
        power = neighbour_join(speed, torque, by="machine", time="at", tolerance="1 minute")

    """
    options = Options(by, time, order, tolerance, direction, driver, lateness, emit_unmatched, suffixes, buckets)
    request = Request.of(left, right, options)
    sides = _in_buckets(left, request, 0), _in_buckets(right, request, 1)
    if not request.is_streaming:
        return _table(sides, request)
    operator = Operator(OPERATOR, ReorderedJoin, request.rules, request.rules.has_watermark)
    packed = [
        packed_rows(side, of_side, at)
        for at, (side, of_side) in enumerate(zip(sides, request.rules.sides, strict=True))
    ]
    return as_stream(packed, operator, request.result, name, {"late_left": 0, "late_right": 1})


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


def _table(sides: tuple[DataFrame, DataFrame], request: Request) -> DataFrame:
    left, right = (side.groupBy("bucket") for side in sides)
    return left.cogroup(right).applyInArrow(_whole_joiner(request.rules, request.result.names), request.result)


def _whole_joiner(rules: Rules, names: list[str]) -> Callable[[pa.Table, pa.Table], pa.Table]:
    """Return a function for ``cogroup(...).applyInArrow`` that joins the left and right tables of a bucket.

    The first column of both tables must be the value by which Spark grouped the bucket; it is ignored.
    """

    def join_bucket(left: pa.Table, right: pa.Table) -> pa.Table:
        return join_whole(rules, left.remove_column(0), right.remove_column(0)).rename_columns(names)

    return join_bucket
