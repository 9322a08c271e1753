"""Computes a bucket's aligned rows from whole tables. For streams, `ReorderedAlign` computes them.

The rows of a DataFrame have no order, so rows with equal key and time in a column's table are ordered by their content
(`Side.order`) before they are passed to the library's `align`. This module does not depend on Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from joiner.library.align import align, column
from joiner.spark import rows as arrow

if TYPE_CHECKING:
    from joiner.spark.aligning.rules import AlignRules
    from joiner.spark.rows import Side


def align_whole(rules: AlignRules, tables: list[pa.Table]) -> pa.Table:
    """Return the driver's rows, in any order, each with the value of every column at its time.

    ``tables``: for each side, a table with all rows for the keys in this bucket. The columns of the result are named by
    position (``c0``, ``c1``, …). Raises `ArgumentError` if a time is outside the range that the buffer supports.
    """
    complete = [arrow.complete(table, side) for table, side in zip(tables, rules.sides, strict=True)]
    with_times = [table.filter(which) for table, which in zip(tables, complete, strict=True)]
    driver, *others = _keys_and_times(rules, with_times)
    driver = driver.append_column("row", pa.array(complete[0].nonzero()[0]))
    in_order = [
        _in_order(side, table, key_and_time)
        for side, table, key_and_time in zip(rules.sides[1:], with_times[1:], others, strict=True)
    ]
    columns = {
        f"value{number}": column(
            in_order[one.side - 1],
            f"c{one.value}",
            rule=one.rule.rule,
            tolerance=one.rule.tolerance_ns,
            period=one.rule.period,
            on_missing=one.rule.on_missing,
        )
        for number, one in enumerate(rules.columns)
    }
    aligned = align(driver, columns, time="time", by="key")
    values = aligned.select(list(columns)).columns
    found = pa.table(tables[0].take(aligned["row"]).columns + values, schema=rules.result)
    return pa.concat_tables([found, rules.without_values(tables[0].filter(~complete[0]))])


def _keys_and_times(rules: AlignRules, tables: list[pa.Table]) -> list[pa.Table]:
    """Return each table's columns ``key`` (a number, the same for equal keys in all tables) and ``time``."""
    keys = [arrow.keys_of(table, side).cast(rules.keys) for table, side in zip(tables, rules.sides, strict=True)]
    counts = [table.num_rows for table in tables]
    codes = arrow.codes(pa.concat_tables(keys)) if rules.sides[0].by else np.zeros(sum(counts), dtype=np.int64)
    return [
        pa.table({"key": of_one, "time": arrow.times(table, side)})
        for of_one, table, side in zip(np.split(codes, np.cumsum(counts)[:-1]), tables, rules.sides, strict=True)
    ]


def _in_order(side: Side, table: pa.Table, key_and_time: pa.Table) -> pa.Table:
    """Return a column's table, with its keys and times, ordered by time and content."""
    key, time = (key_and_time.column(name).to_numpy() for name in ("key", "time"))
    order = arrow.ordered(table, key, time, side)
    return pa.table([*table.columns, key, time], names=[*table.column_names, "key", "time"]).take(order)
