"""Compares how fast `joiner.join` and the as-of joins in pandas, polars and DuckDB process whole tables.

``python -m bench.library.tables --report docs/evidence/bench_tables`` writes ``.json`` and ``.md``. One call of
`joiner.join` finds the previous and next neighbours of the rows on both sides. The other libraries need four as-of
joins for this, whose union contains each mutual pair twice. All contenders are given the same tables in their own
formats, sorted by time as the other libraries require, and run in one thread.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

# polars reads this variable on import.
os.environ["POLARS_MAX_THREADS"] = "1"

import duckdb
import numpy as np
import pandas as pd
import polars as pl

from bench.harness.report import machine, seconds_of, spread, table, write
from joiner import join

SIZES: Final = (10_000, 100_000, 1_000_000)
KEYS: Final = (8, 1_000)
_REFERENCE: Final = "pandas, four merge_asof"

Tables = tuple[dict[str, Any], dict[str, Any]]


def tables_of(rows: int, keys: int) -> Tables:
    """Return two tables of ``rows / 2`` rows each, with alternating times and a payload column."""
    draw = np.random.default_rng(1)
    sides = []
    for phase in (0, 1):
        ts = 1_000_000 * (2 * np.arange(rows // 2) + phase) + draw.integers(0, 1_000_000, rows // 2)
        sides.append({"key": draw.integers(0, keys, rows // 2), "ts": ts, f"value_{phase}": draw.random(rows // 2)})
    return sides[0], sides[1]


def contenders(tables: Tables) -> dict[str, Callable[[], object]]:
    """Return a function for each contender, by name, which joins the tables in the contender's own format."""
    of_pandas = pd.DataFrame(tables[0]), pd.DataFrame(tables[1])
    of_polars = pl.DataFrame(tables[0]), pl.DataFrame(tables[1])
    return {
        "joiner.join, arrays": lambda: join(*tables, time="ts", by="key"),
        "joiner.join, pandas": lambda: join(*of_pandas, time="ts", by="key"),
        "joiner.join, polars": lambda: join(*of_polars, time="ts", by="key"),
        _REFERENCE: lambda: _by_pandas(*of_pandas),
        "polars, four join_asof": lambda: _by_polars(*of_polars),
        "DuckDB, four ASOF JOIN": _by_duckdb(*of_pandas),
    }


def _by_pandas(left: Any, right: Any) -> list[Any]:
    return [
        pd.merge_asof(one, other, on="ts", by="key", direction=direction)
        for one, other in ((left, right), (right, left))
        for direction in ("backward", "forward")
    ]


def _by_polars(left: pl.DataFrame, right: pl.DataFrame) -> list[Any]:
    return [
        one.join_asof(other, on="ts", by="key", strategy=direction, check_sortedness=False)
        for one, other in ((left, right), (right, left))
        for direction in ("backward", "forward")
    ]


def _by_duckdb(left: Any, right: Any) -> Callable[[], object]:
    base = duckdb.connect(config={"threads": 1})
    base.register("left_frame", left)
    base.register("right_frame", right)
    base.execute("CREATE TABLE l AS SELECT *, value_0 AS value FROM left_frame")
    base.execute("CREATE TABLE r AS SELECT *, value_1 AS value FROM right_frame")

    def run() -> None:
        for one, other in (("l", "r"), ("r", "l")):
            for sign in (">=", "<="):
                base.execute(
                    f"CREATE OR REPLACE TEMP TABLE found AS "  # noqa: S608 - of names from this file
                    f"SELECT {one}.key, {one}.ts, {one}.value, {other}.ts AS other_ts, {other}.value AS other_value "
                    f"FROM {one} ASOF LEFT JOIN {other} ON {one}.key = {other}.key AND {one}.ts {sign} {other}.ts"
                )

    return run


def measure(rows: int, keys: int, runs: int) -> dict[str, Any]:
    """Run all contenders on one case, turn by turn. Return the durations of all runs, in s."""
    found: dict[str, list[float]] = {}
    everyone = contenders(tables_of(rows, keys))
    for turn in range(runs + 1):
        for name, run in everyone.items():
            took_s = seconds_of(run)
            # The first turn is a warm-up.
            found.setdefault(name, []).extend([took_s] if turn else [])
    return {"rows": rows, "keys": keys, "seconds": found}


def main() -> int:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="runs of each contender and case (default 5)")
    parser.add_argument(
        "--report", type=Path, default=Path(".lsb/bench_tables"), help="path of the .json and .md files"
    )
    options = parser.parse_args()
    figures, lines = [], ["Minimum / median / maximum of the runs, in ms; the ratio is that of the medians."]
    for keys in KEYS:
        for rows in SIZES:
            case = measure(rows, keys, options.runs)
            figures.append(case)
            reference_s = statistics.median(case["seconds"][_REFERENCE])
            lines += ["", f"## {rows:,} rows, {keys:,} keys"]
            lines += table(
                ["", "ms", f"quicker than {_REFERENCE}"],
                [
                    (name, spread([1000 * one for one in times]), f"{reference_s / statistics.median(times):.2f}")
                    for name, times in case["seconds"].items()
                ],
            )
            print("\n".join(lines[-9:]), flush=True)
    about = machine("numpy", "pandas", "polars", "duckdb")
    write(options.report, "Whole tables: joiner.join compared with four as-of joins", about, figures, lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
