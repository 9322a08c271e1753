"""Defines `align`, which adds the values of other frames to each row of a Spark DataFrame.

The frames are either all tables or all streams. They are combined into one: their rows are packed by bucket, tagged
with the number of their frame, and unioned. A single shuffle then brings the rows of each bucket together. Spark's
cogroup accepts only two frames, so it would have to be called once for each column's frame, and each call would shuffle
the driver's rows again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import DataFrame

from joiner.spark import rows as arrow
from joiner.spark.aligning.reordered_align import OPERATOR, ReorderedAlign
from joiner.spark.aligning.request import AlignOptions, AlignRequest
from joiner.spark.aligning.whole import align_whole
from joiner.spark.plans import as_stream, in_buckets, packed_rows
from joiner.spark.processor import Operator

if TYPE_CHECKING:
    from joiner.library.align import TableColumn
    from joiner.spark.aligning.rules import AlignRules


def align(
    driver: DataFrame,
    columns: Mapping[str, TableColumn],
    *,
    time: str,
    by: str | Sequence[str] = (),
    order: str | Sequence[str] | None = None,
    lateness: object = None,
    buckets: int | None = None,
    name: str = "align",
) -> DataFrame:
    """Return the rows of ``driver``, each with the values of other frames at its time.

    For tables, the result is the same as that of `joiner.align`, with two differences. Rows with equal keys and times
    in a column's frame are ordered by ``order``, because the rows of a DataFrame have no order. A row without a time,
    or with a null in its key, has no neighbours; if it belongs to the driver, its new columns are null, as in Spark's
    own outer joins. For streams, the same rows are appended over time: a row is emitted once no further input can
    change its values. A stream's frontier for a key is its watermark, or the key's largest time minus ``lateness``,
    whichever is larger. Streams require the RocksDB state store.

    Args:
        driver: a DataFrame, streaming or not.
        columns: the columns to add, by name. Each is a `joiner.column` of a DataFrame that is streaming if and only if
            ``driver`` is. A frame that several columns use is read only once.
        time: the time column. Its values are timestamps with or without time zone, dates, or integers in any unit.
        by: the key columns. By default all rows have the same key.
        order: the columns by which rows with equal keys and times are ordered, ascending, with nulls first. Columns
            that a frame lacks are skipped. A frame's remaining columns follow in the order they have in the frame.
        lateness: for streams, how far a row may be behind the largest time of its frame and key in earlier
            micro-batches; a row further behind is late. If None, only watermarks make rows late.
        buckets: the number of groups into which the keys are divided, each with its own state. The default is
            ``spark.sql.shuffle.partitions``. The number must not change while a checkpoint is in use.
        name: the name of this align in the ``observedMetrics`` of a streaming query's progress reports. The metric
            ``late_driver`` counts the driver's late rows, which are left out of the result. For each column,
            ``late_column_<name>`` counts the late rows of its frame, which provide no values.

    Returns:
        A DataFrame with the columns of ``driver``, then one per entry of ``columns``. New columns have the type of
        their values; those with rule ``"linear"`` are doubles. The order of rows is unspecified.

    Raises:
        AnalysisException: an argument is invalid. The message names it and, where relevant, the frame, and says what is
            wrong or how to correct it.

    This example adds the speed at the time of each torque. It works for streams and for tables::

        from joiner import column
        from joiner.spark import align

        rows = align(torque, {"rpm": column(speed, rule="linear", tolerance="2s")}, time="at", by="machine")

    """
    request = AlignRequest.of(driver, columns, AlignOptions(time, by, order, lateness, buckets))
    rules = request.rules
    packed = []
    for at, (frame, side) in enumerate(zip(request.frames, rules.sides, strict=True)):
        # Keep driver rows without a key or a time. Such rows in a column's table cannot provide a value.
        placed = in_buckets(frame, side, request.key_types, rules.buckets, keeps_incomplete=at == 0)
        packed.append(packed_rows(placed, side, at))
    if request.is_streaming:
        operator = Operator(OPERATOR, ReorderedAlign, rules, rules.has_watermark)
        late = {"late_driver": 0} | {f"late_column_{one.name}": one.side for one in rules.columns}
        return as_stream(packed, operator, request.result, name, late)
    united = reduce(DataFrame.unionAll, packed)
    return united.groupBy("bucket").applyInArrow(_whole_aligner(rules, request.result.names), request.result)


def _whole_aligner(rules: AlignRules, names: list[str]) -> Callable[[pa.Table], pa.Table]:
    """Return a function for ``groupBy(…).applyInArrow`` that aligns the packed tables of a bucket (see `PACKED`)."""

    def align_bucket(rows: pa.Table) -> pa.Table:
        parts: list[list[pa.Table]] = [[side.schema.empty_table()] for side in rules.sides]
        for at, packed in zip(rows.column("side").to_pylist(), rows.column("packed"), strict=True):
            parts[at].append(arrow.from_bytes(packed.as_buffer()))
        return align_whole(rules, [pa.concat_tables(tables) for tables in parts]).rename_columns(names)

    return align_bucket
