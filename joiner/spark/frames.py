"""`neighbour_join`: the neighbour join of two Spark DataFrames, streaming or batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - Spark's convention

from joiner.spark.buckets import PACKED, group_keys, packer, unpacker, whole_joiner
from joiner.spark.processor import JOINED, processor
from joiner.spark.request import Options, Request

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


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
    """All pairs of rows of one key in which one is the previous or the next neighbour of the other, each pair once.

    For tables, the result is that of `joiner.join`. For streams it is the same, in append mode. A pair is emitted as
    soon as no continuation of the streams can change it: once the frontiers of both streams have passed both rows. The
    frontier of a side and key is the larger of the watermark of the side and the largest time of the key minus
    ``lateness``. Streams need the RocksDB state store.

    Args:
        left: a DataFrame, streaming or not.
        right: another DataFrame, streaming if and only if ``left`` is.
        by: the columns of the key, in both frames; none (``()``): all rows have one key. As in every join of Spark,
            rows with a null in the key, or without a time, have no neighbours.
        time: the column of event times, one name or (left, right): timestamps, timestamps without time zone, dates, or
            integers in any unit.
        order: the columns that order rows with equal key and time, ascending, nulls first. Each side uses those that it
            has, then all its other columns.
        tolerance: the largest distance in time between the rows of a pair; None: unlimited. A duration
            (``"10 seconds"``, `datetime.timedelta`), or an integer if times are integers.
        direction: which neighbours a row looks for: ``"backward"`` (previous), ``"forward"`` (next), ``"both"``, or
            ``"nearest"`` (the nearer of the two; the previous one at equal distance).
        driver: whose rows look for neighbours: those of the ``"left"``, of the ``"right"``, or of ``"both"``.
            ``driver="left", direction="backward"`` is the as-of join.
        lateness: for streams, how far a row may lie behind the largest time of its side and key in earlier
            micro-batches before it is late; one value or (left, right). None: only the watermark advances that side.
        emit_unmatched: ``"left"``, ``"right"`` or ``"both"``: rows of these sides that are in no pair are added, with
            nulls on the other side. In a stream, a row is added once no continuation can put it into a pair.
        suffixes: appended to names that both frames have.
        buckets: the number of groups of keys, each with its own state; by default
            ``spark.sql.shuffle.partitions``. It cannot change while a checkpoint is in use.
        name: the name of this join in the ``observedMetrics`` of each progress report of a streaming query. They hold
            the numbers of late rows, ``late_left`` and ``late_right``. Late rows are not joined.

    Returns:
        The columns of the key, the others of ``left``, the others of ``right``. The order of rows is unspecified.

    Raises:
        AnalysisException: naming the argument and the frame, and saying how to correct it.

    Example, for streams and tables alike::

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
    """The columns by position, named ``c0`` and so on, behind the group value of their bucket."""
    rules = request.rules
    side = rules.sides[at]
    placed = frame.toDF(*side.schema.names)
    columns = [
        F.col(name) if kind == field.dataType else F.col(name).cast(kind)
        for name, kind, field in zip(side.schema.names, request.types[at], frame.schema.fields, strict=True)
    ]
    keys = [columns[place] for place in side.by]
    if not rules.emits_unmatched(at):
        for place in (*side.by, side.time):
            placed = placed.where(F.col(side.schema.names[place]).isNotNull())
    return placed.select(_group(keys, rules.buckets).alias("bucket"), *columns)


def _group(keys: list[Column], buckets: int) -> Column:
    values = F.array(*map(F.lit, group_keys(buckets)))
    return F.get(values, F.pmod(F.hash(*keys), F.lit(buckets)) if keys else F.lit(0))


def _table(sides: tuple[DataFrame, DataFrame], request: Request) -> DataFrame:
    left, right = (side.groupBy("bucket") for side in sides)
    names = request.result.names
    return left.cogroup(right).applyInArrow(whole_joiner(request.rules, names), request.result)


def _stream(sides: tuple[DataFrame, DataFrame], request: Request, name: str) -> DataFrame:
    left, right = (side.mapInArrow(packer(request.rules, at), PACKED) for at, side in enumerate(sides))
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
