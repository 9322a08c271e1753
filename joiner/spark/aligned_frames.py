"""Defines `align`, which adds the values of other tables to each row of a Spark DataFrame.

All frames become one: their rows are packed by bucket, tagged with the number of their frame, and united. One shuffle
then brings the rows of a bucket together. Spark's cogroup takes two frames, so the alternative would be one cogroup per
frame of columns; each would shuffle the rows of the driver again.
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

    The result is the same as that of `joiner.align`, with two differences. Rows of a column's table with equal keys and
    times are ordered by ``order``, because the rows of a DataFrame have no order. A row without a time, or with a null
    in its key, has no neighbours: in the driver, all of its values are missing, as in Spark's own outer joins.

    Args:
        driver: a DataFrame. Streams are not supported.
        columns: by name, the columns to add, each a `joiner.column` of a DataFrame. Columns that name the same frame
            read it once.
        time: the time column. Its values are timestamps with or without time zone, dates, or integers in any unit.
        by: the key columns. By default all rows have the same key.
        order: the columns that order rows of a column's table with equal keys and times, ascending, with nulls first. A
            frame that lacks some of them uses the others. All its remaining columns follow.
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
        # A row of the driver without a key or a time stays; one of a column's table can give no value.
        placed = in_buckets(frame, side, request.key_types, rules.buckets, keeps_incomplete=at == 0)
        packed.append(placed.mapInArrow(packer(side, at), PACKED))
    united = reduce(DataFrame.unionAll, packed)
    return united.groupBy("bucket").applyInArrow(whole_aligner(rules, request.result.names), request.result)
