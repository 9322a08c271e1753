"""Compares the speed of the in-memory join with four `pandas.merge_asof` calls, which find the same pairs.

``python -m bench.library.engine --report docs/evidence/bench_engine`` writes ``.json``, ``.md`` and ``.png``. Both
contenders process the same data in the same run, in one thread. Each figure is the median of several runs, which
alternate between the two contenders; every run is in the JSON. pandas is given whole tables, sorted by time before the
clock starts; the engine is given batches in log order.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd

from bench.harness.plot import plot_panels
from bench.harness.report import machine, seconds_of, spread, table, write
from joiner import LocalStreamBuffer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

_MS: Final = 1_000_000
_TICK_NS: Final = 2 * _MS
_RECORDS_MIN: Final = 500_000
"""Minimum number of records in a timed section."""


@dataclass(frozen=True)
class Case:
    """The properties of two streams to join, whose records alternate between left and right within each key.

    ``disorder`` is the share of records that are up to 100 positions late in the log; the lateness of both sides is set
    accordingly. ``ties`` is the share of right records that have the same time as their left counterpart. ``ahead`` is
    the number of records by which the right side runs ahead of the left one; the engine has to hold them.
    """

    records: int = 1_000_000
    keys: int = 8
    batch: int = 10_000
    disorder: float = 0.0
    ties: float = 0.0
    ahead: int = 0


@dataclass(frozen=True)
class Stream:
    """Keys and times in ns, in log order."""

    key: Ints
    ts: Ints


def streams_of(case: Case, seed: int) -> tuple[Stream, Stream]:
    """Return the left and the right stream."""
    draw = np.random.default_rng(seed)
    at = np.arange(case.records // 2)
    left, right = at * _TICK_NS, at * _TICK_NS + np.where(draw.random(len(at)) < case.ties, 0, _MS)
    key = (at % case.keys).astype(np.int64)
    return _disordered(key, left, case, draw), _disordered(key, right, case, draw)


def _disordered(key: Ints, ts: Ints, case: Case, draw: np.random.Generator) -> Stream:
    place = np.arange(len(ts)) + np.where(draw.random(len(ts)) < case.disorder, draw.integers(1, 100, len(ts)), 0)
    order = np.argsort(place, kind="stable")
    return Stream(key[order], ts[order])


def run_engine(case: Case, left: Stream, right: Stream) -> int:
    """Push all batches of a case into the engine and return the number of pairs."""
    lateness_ns = 100 * _TICK_NS if case.disorder else 0
    buffer = LocalStreamBuffer(lateness_ns=lateness_ns)
    half, seq, pairs = case.batch // 2, np.arange(len(left.key)), 0
    for begin in range(0, len(seq) + case.ahead, half):
        behind, part = slice(max(0, begin - case.ahead), max(0, begin - case.ahead + half)), slice(begin, begin + half)
        step = buffer.push(
            left=(left.key[behind], left.ts[behind], seq[behind]), right=(right.key[part], right.ts[part], seq[part])
        )
        pairs += len(step.left_seq)
    return pairs + len(buffer.close().left_seq)


def run_pandas(left: pd.DataFrame, right: pd.DataFrame) -> None:
    """Run the four as-of joins, which find the previous and the next neighbour of each record on either side."""
    for one, other in ((left, right), (right, left)):
        for direction in ("backward", "forward"):
            pd.merge_asof(one, other, on="ts", by="key", direction=direction)


def frame_of(stream: Stream, name: str) -> pd.DataFrame:
    """Return the table for pandas, sorted by time."""
    order = np.argsort(stream.ts, kind="stable")
    return pd.DataFrame({"key": stream.key[order], "ts": stream.ts[order], name: order})


def measure(case: Case, runs: int) -> dict[str, Any]:
    """Run both contenders on one case, turn by turn, and return the figures of all runs."""
    left, right = streams_of(case, seed=1)
    frames = frame_of(left, "left"), frame_of(right, "right")
    warm = replace(case, records=min(case.records, 2 * case.batch))
    run_engine(warm, *streams_of(warm, seed=1))
    seconds: dict[str, list[float]] = {"engine": [], "pandas": []}
    pairs: set[int] = set()
    # Short cases are repeated, because otherwise the first access to newly allocated memory would dominate.
    turns = max(1, _RECORDS_MIN // case.records)

    def engine() -> None:
        for _ in range(turns):
            pairs.add(run_engine(case, left, right))

    def four_joins() -> None:
        for _ in range(turns):
            run_pandas(*frames)

    for _ in range(runs):
        seconds["engine"].append(seconds_of(engine) / turns)
        seconds["pandas"].append(seconds_of(four_joins) / turns)
    (count,) = pairs
    rate = {name: case.records / statistics.median(times) / 1e6 for name, times in seconds.items()}
    return {
        "case": asdict(case),
        "pairs": count,
        "seconds": seconds,
        "million_records_a_second": rate,
        "ratio": rate["engine"] / rate["pandas"],
    }


CURVES: Final[dict[str, list[Case]]] = {
    "keys": [Case(keys=keys) for keys in (1, 8, 100, 1_000, 10_000, 100_000)],
    "records in a batch": [Case(batch=batch, records=50 * batch) for batch in (100, 1_000, 10_000, 100_000)],
    "records in all": [Case(records=10**power) for power in (4, 5, 6, 7)],
    "disorder": [Case(disorder=share) for share in (0.0, 0.01, 0.1, 0.5)],
    "equal times on both sides": [Case(ties=share) for share in (0.0, 0.01, 0.1, 0.5, 1.0)],
    "records that one side runs ahead": [
        Case(records=4_000_000, ahead=ahead) for ahead in (0, 1_000, 10_000, 100_000, 1_000_000)
    ],
}
_VARIED: Final = {
    "keys": "keys",
    "records in a batch": "batch",
    "records in all": "records",
    "disorder": "disorder",
    "equal times on both sides": "ties",
    "records that one side runs ahead": "ahead",
}


def main() -> int:
    """Measure all curves and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="runs of each contender and case (default 5)")
    parser.add_argument("--curves", nargs="+", choices=CURVES, default=list(CURVES))
    parser.add_argument(
        "--report", type=Path, default=Path(".lsb/bench_engine"), help="path of the .json and .md files"
    )
    options = parser.parse_args()
    curves: dict[str, list[dict[str, Any]]] = {}
    for name in options.curves:
        curves[name] = []
        for case in CURVES[name]:
            found = measure(case, options.runs)
            curves[name].append(found)
            rate = found["million_records_a_second"]
            print(
                f"{name} {getattr(case, _VARIED[name]):,}: engine {rate['engine']:.2f} million records/s, "
                f"pandas {rate['pandas']:.2f}, ratio {found['ratio']:.2f}",
                flush=True,
            )
    lines = _lines(curves)
    write(
        options.report, "The in-memory join and four pandas.merge_asof calls", machine("numpy", "pandas"), curves, lines
    )
    plot_panels(options.report, {name: _panel(name, found) for name, found in curves.items()}, "million records/s")
    return 0


def _panel(name: str, found: list[dict[str, Any]]) -> dict[str, list[tuple[float, list[float]]]]:
    """Return each contender's line in a plot, which maps every varied value to the rates of all runs."""
    return {
        contender: [(float(one["case"][_VARIED[name]]), _rates(one, contender)) for one in found]
        for contender in ("engine", "pandas")
    }


def _rates(one: dict[str, Any], contender: str) -> list[float]:
    """Return the rates of a contender in all runs of a case, in million records per second."""
    return [one["case"]["records"] / duration / 1e6 for duration in one["seconds"][contender]]


def _lines(curves: dict[str, list[dict[str, Any]]]) -> list[str]:
    standard = ", ".join(f"{name} {value:,}" for name, value in asdict(Case()).items())
    lines = [
        f"Unless stated otherwise: {standard}. One core. Rates are in million records per second: the minimum /",
        "median / maximum of the engine, and the median of pandas.",
    ]
    for name, found in curves.items():
        lines += ["", f"## {name}"]
        lines += table(
            [name, "engine", "pandas", "ratio"],
            [
                (
                    f"{one['case'][_VARIED[name]]:,}",
                    spread(_rates(one, "engine")),
                    f"{one['million_records_a_second']['pandas']:.2f}",
                    f"{one['ratio']:.2f}",
                )
                for one in found
            ],
        )
    return lines


if __name__ == "__main__":
    sys.exit(main())
