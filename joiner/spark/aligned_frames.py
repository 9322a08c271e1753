"""Defines `align`, which adds the values of other tables to each row of a Spark DataFrame.

All frames are combined into one: their rows are packed by bucket, tagged with the number of their frame, and united. A
single shuffle then brings the rows of each bucket together. Spark's cogroup accepts only two frames, so it would have
to be called once for each column's frame, and each call would shuffle the driver's rows again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

from joiner.spark.aligned_request import AlignRequest
from joiner.spark.buckets import PACKED, packer, whole_aligner
from joiner.spark.frames import in_buckets

if TYPE_CHECKING:
    from joiner.library.align import TableColumn


def align(
    driver: DataFrame,
    columns: Mapping[str, TableColumn],
    *,
    time: str,
    by: str | Sequence[str] = (),
    order: str | Sequence[str] | None = None,
    buckets: int | None = None,
) -> DataFrame:
    """Return the rows of ``driver``, each with the values of other tables at its time.

    The result is the same as that of `joiner.align`, with two differences. Rows with equal keys and times in a column's
    table are ordered by ``order``, because the rows of a DataFrame have no order. A row without a time, or with a null
    in its key, has no neighbours; if it belongs to the driver, its new columns are null, as in Spark's own outer joins.

    Args:
        driver: a DataFrame. Streams are not supported.
        columns: by name, the columns to add, each a `joiner.column` of a DataFrame. A frame that several columns use is
            read only once.
        time: the time column. Its values are timestamps with or without time zone, dates, or integers in any unit.
        by: the key columns. By default all rows have the same key.
        order: the columns by which rows with equal keys and times are ordered, ascending, with nulls first. Columns
            that a frame lacks are skipped. A frame's remaining columns follow in the order they have in the frame.
        buckets: the number of groups into which the keys are divided. The default is
            ``spark.sql.shuffle.partitions``.

    Returns:
        A DataFrame with the columns of ``driver``, then one per entry of ``columns``. New columns have the type of
        their values; those of rule ``"linear"`` are doubles. The order of rows is unspecified.

    Raises:
        AnalysisException: an argument is invalid. The message names it and the frame, and says how to correct it.

    This example adds the speed at the time of each torque::

        from joiner import column
        from joiner.spark import align

        rows = align(torque, {"rpm": column(speed, rule="linear", tolerance="2s")}, time="at", by="machine")

    """
    request = AlignRequest.of(driver, columns, time=time, by=by, order=order, buckets=buckets)
    rules = request.rules
    packed = []
    for at, (frame, side) in enumerate(zip(request.frames, rules.sides, strict=True)):
        # Keep driver rows without a key or a time. Rows like that in a column's table cannot provide a value.
        placed = in_buckets(frame, side, request.key_types, rules.buckets, keeps_incomplete=at == 0)
        packed.append(placed.mapInArrow(packer(side, at), PACKED))
    united = reduce(DataFrame.unionAll, packed)
    return united.groupBy("bucket").applyInArrow(whole_aligner(rules, request.result.names), request.result)
