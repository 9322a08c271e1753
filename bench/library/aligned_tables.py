"""Compares how fast `joiner.align` and as-of joins in pandas and polars process whole tables.

``python -m bench.library.aligned_tables --report docs/evidence/bench_aligned_tables`` writes ``.json`` and ``.md``.
Three columns are added to a driver table, each from a table of its own. In pandas and polars, a column of previous or
nearest values requires one as-of join, and an interpolated column requires two as-of joins and arithmetic on whole
columns. All contenders are given the same tables in their own formats, sorted by time as pandas and polars require.
They run in one thread and must compute the same values.
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

import numpy as np
import pandas as pd
import polars as pl

from bench.harness.report import machine, seconds_of, spread, table, write
from joiner import align, column

SIZES: Final = (10_000, 100_000, 1_000_000)
KEYS: Final = (8, 1_000)
CASES: Final = {
    "three interpolated columns": ("linear", "linear", "linear"),
    "a previous, a nearest and an interpolated column": ("previous", "nearest", "linear"),
    "three previous columns": ("previous", "previous", "previous"),
}
_OURS: Final = "joiner.align, pandas"
_REFERENCE: Final = "pandas, merge_asof"
_STRATEGY: Final = {"previous": "backward", "nearest": "nearest"}

Tables = list[dict[str, Any]]


def tables_of(rows: int, keys: int) -> Tables:
    """Return a driver table and three other tables with ``rows`` rows each. No two tables have a time in common."""
    draw = np.random.default_rng(1)
    found = []
    for number in range(4):
        ts = 4 * np.sort(draw.choice(500_000 * 4, rows, replace=False)).astype(np.int64) * 1_000 + number
        found.append({"key": draw.integers(0, keys, rows), "ts": ts, f"value_{number}": draw.random(rows)})
    return found


def contenders(tables: Tables, rules: tuple[str, ...]) -> dict[str, Callable[[], Any]]:
    """Return a function for each contender, by name, which aligns the tables in the contender's own format."""
    of_pandas = [pd.DataFrame(one) for one in tables]
    of_polars = [pl.DataFrame(one) for one in tables]

    def ours(driver: Any, others: list[Any]) -> Any:
        columns = {
            f"c{number}": column(other, rule=rule)
            for number, (other, rule) in enumerate(zip(others, rules, strict=True))
        }
        return align(driver, columns, time="ts", by="key")

    return {
        "joiner.align, arrays": lambda: ours(tables[0], tables[1:]),
        _OURS: lambda: ours(of_pandas[0], of_pandas[1:]),
        "joiner.align, polars": lambda: ours(of_polars[0], of_polars[1:]),
        _REFERENCE: lambda: _by_pandas(of_pandas[0], of_pandas[1:], rules),
        "polars, join_asof": lambda: _by_polars(of_polars[0], of_polars[1:], rules),
    }


def _by_pandas(driver: Any, others: list[Any], rules: tuple[str, ...]) -> Any:
    result = driver
    for number, (other, rule) in enumerate(zip(others, rules, strict=True)):
        value, name = f"value_{number + 1}", f"c{number}"
        if rule != "linear":
            found = pd.merge_asof(driver, other, on="ts", by="key", direction=_STRATEGY[rule])
            result = result.assign(**{name: found[value]})
            continue
        timed = other.assign(at=other["ts"])
        before, after = (
            pd.merge_asof(driver, timed, on="ts", by="key", direction=direction)
            for direction in ("backward", "forward")
        )
        weight = (driver["ts"] - before["at"]) / (after["at"] - before["at"])
        result = result.assign(**{name: before[value] + weight * (after[value] - before[value])})
    return result


def _by_polars(driver: pl.DataFrame, others: list[pl.DataFrame], rules: tuple[str, ...]) -> Any:
    result = driver
    for number, (other, rule) in enumerate(zip(others, rules, strict=True)):
        value, name = f"value_{number + 1}", f"c{number}"

        def joined(strategy: Any, table: pl.DataFrame) -> pl.DataFrame:
            return driver.join_asof(table, on="ts", by="key", strategy=strategy, check_sortedness=False)

        if rule != "linear":
            result = result.with_columns(joined(_STRATEGY[rule], other)[value].alias(name))
            continue
        timed = other.with_columns(at=pl.col("ts"))
        before, after = joined("backward", timed), joined("forward", timed)
        weight = (driver["ts"] - before["at"]) / (after["at"] - before["at"])
        result = result.with_columns((before[value] + weight * (after[value] - before[value])).alias(name))
    return result


def check(everyone: dict[str, Callable[[], Any]]) -> None:
    """Raise RuntimeError unless all contenders compute the same values."""
    reference = everyone[_REFERENCE]()
    for name, run in everyone.items():
        found = run()
        for number in range(3):
            values = np.ma.filled(np.ma.asarray(found[f"c{number}"], dtype=np.float64), np.nan)
            wanted = reference[f"c{number}"].to_numpy()
            if not np.allclose(values, wanted, rtol=1e-9, atol=0, equal_nan=True):
                raise RuntimeError(f"{name} computes different values from {_REFERENCE} in column {number}")


def main() -> int:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="runs of each contender and case (default 5)")
    parser.add_argument(
        "--report", type=Path, default=Path(".lsb/bench_aligned_tables"), help="path of the .json and .md files"
    )
    options = parser.parse_args()
    figures, lines = [], ["Minimum / median / maximum of the runs, in ms; the ratio is that of the medians."]
    for keys in KEYS:
        for rows in SIZES:
            tables = tables_of(rows, keys)
            for what, rules in CASES.items():
                everyone = contenders(tables, rules)
                check(everyone)  # also serves as a warm-up
                times = {name: [seconds_of(run) for _ in range(options.runs)] for name, run in everyone.items()}
                figures.append({"rows": rows, "keys": keys, "columns": what, "seconds": times})
                reference_s = statistics.median(times[_REFERENCE])
                lines += ["", f"## {rows:,} rows, {keys:,} keys, {what}"]
                lines += table(
                    ["", "ms", f"faster than {_REFERENCE}"],
                    [
                        (name, spread([1000 * one for one in of_one]), f"{reference_s / statistics.median(of_one):.2f}")
                        for name, of_one in times.items()
                    ],
                )
                print("\n".join(lines[-8:]), flush=True)
    about = machine("numpy", "pandas", "polars")
    write(options.report, "Whole tables: joiner.align compared with as-of joins", about, figures, lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
