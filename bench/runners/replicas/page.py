"""Writes the report: the lines of the page, and the picture."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench.harness.plot import plot_over_time
from bench.harness.report import spread, table
from bench.runners.replicas.analysis import ALL, MERGED, READER, SHARES, joiner_s
from bench.runners.replicas.faults import BEFORE_MS, CUT_OFF, KILLED, KINDS, LASTING_S, RESTART_S, STOPPED, WINDOW_MS

_BEFORE_S, _AFTER_S, _WINDOW_S = BEFORE_MS / 1000, (WINDOW_MS - BEFORE_MS) / 1000, WINDOW_MS / 1000
_COUNTS: Final = ("expected", "found", "missing", "doubled", "unexpected", "altered")
_NONE: Final = "-"

_EXPLAINED: Final = (
    "The latency of a result counts from when its later record was due until the result was appended, in ms. Around a",
    f"fault: of the records that were due from {_BEFORE_S:g} s before it to {_AFTER_S:g} s after it. In quiet periods:",
    f"for {_WINDOW_S:g} s after each fault, once everything was at work again. In parentheses: the middle 95 % of the",
    f"bootstrap over faults. *{KILLED}*: with SIGKILL, and started again {RESTART_S:g} s later. *{STOPPED}*: for",
    f"{LASTING_S:g} s, with SIGSTOP.",
    f"*{CUT_OFF}*: for {LASTING_S:g} s, its connections to Kafka are broken and refused.",
    "",
    f"*{MERGED}*: what `joiner merge` wrote. *{READER}*: of each result, the copy that was appended first to the",
    "topic of any replica, as in a program that merges by itself. Both are of the same run. The process that merges is",
    "not disturbed.",
)


def lines(figures: Mapping[str, Any], path: Path) -> list[str]:
    """Return the lines of the page. ``path``: that of the report."""
    found = [*_of_runs(figures["runs"])]
    if figures["faults"]:
        found += ["## Around faults", "", *_EXPLAINED, *_of_faults(figures["faults"]), ""]
        found += [f"![Latency over time around each kind of fault]({path.name}.png)", ""]
        found += ["## In quiet periods", *_of_quiet(figures["quiet"]), ""]
    if figures["costs"]:
        found += ["## Cost", "", "Per million records, minimum / median / maximum of the turns:"]
        found += [*_of_costs(figures["costs"]), ""]
    return found


def draw(figures: Mapping[str, Any], path: Path) -> None:
    """Draw the latency around each kind of fault, with a row of panels per kind and a panel per percentile."""
    of_views = figures["over_time"]
    panels = {
        f"s ({kind}), p{share:g}": {
            view: [(since_ms / 1000, float(ms[number])) for since_ms, ms in of_kinds[kind]]
            for view, of_kinds in of_views.items()
            if kind in of_kinds
        }
        for kind in KINDS
        for number, share in enumerate(SHARES)
        if any(kind in of_kinds for of_kinds in of_views.values())
    }
    if panels:
        plot_over_time(path, panels, "latency, ms")


def _of_runs(runs: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield what was done, what the tester found, and whether other programs disturbed it."""
    heads = ["run", "output", *_COUNTS]
    judged = [
        (name, output, *([verdict] if isinstance(verdict, str) else [f"{verdict[one]:,}" for one in _COUNTS]))
        for name, run in runs.items()
        for output, verdict in run["verdicts"].items()
    ]
    if not judged:
        return
    yield "What the tester found:"
    yield from table(heads, judged)
    yield ""
    yield "How many cores were used while faults happened, and the greatest delay of a record at the sender:"
    who = ("joiner", "Kafka", "measuring", "foreign", "stolen")
    used = [
        (
            name,
            len(run["faults"]),
            *(f"{run['cores'][one]:.2f}" for one in who),
            f"{run['sender_late_ms']:.0f}",
            run["problem"] or _NONE,
        )
        for name, run in runs.items()
    ]
    yield from table(["run", "faults", *who, "late ms", "stopped early"], used)
    yield ""


def _of_faults(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    shares = [f"p{share:g}" for share in SHARES]
    heads = ["reader", "fault", "times", f"{' / '.join(shares)} around it, ms", "in quiet periods, ms"]
    heads += [f"{share}, ratio" for share in shares]
    heads += ["slowest result of a fault, median / max ms"]
    found = [
        (
            row["view"],
            row["kind"],
            row["faults"],
            _ms(row["fault_ms"]),
            _ms(row["quiet_ms"]),
            *_ratios(row["ratio"], row["interval"]),
            _ms([_median(row["slowest_ms"]), _greatest(row["slowest_ms"])]),
        )
        for row in rows
    ]
    return table(heads, found)


def _of_quiet(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    shares = [f"p{share:g}" for share in SHARES]
    heads = ["reader", "periods", f"{' / '.join(shares)}, ms", *(f"{share} / that of replica 0" for share in shares)]
    found = [
        (
            row["view"],
            row["periods"],
            _ms(row["ms"]),
            *(_ratios(row["ratio"], row["interval"]) if "ratio" in row else [_NONE] * len(shares)),
        )
        for row in rows
    ]
    return table(heads, found)


def _of_costs(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    heads = ["", "records/s", "CPU s of the joiner", "of `joiner merge`", "of Kafka", "MB written", "MB in Kafka's own"]
    heads += ["CPU of the joiner / alone", "written / alone"]
    found = []
    for row in sorted(rows, key=lambda row: float(row["rate"])):
        sizes = (spread([size / 1e6 for size in row[name]], 0) for name in ("written", "kafkas_own"))
        ratios = [f"{ratio:.2f}" for ratio in row.get("of_alone", ())] or [_NONE, _NONE]
        all_s = [sum(both) for both in zip(row["joiner_s"], row["merger_s"], strict=True)]
        cells = (spread(all_s, 1), f"{median(row['merger_s']):.1f}", f"{median(row['kafka_s']):.1f}", *sizes, *ratios)
        found.append((row["setup"], f"{row['rate']:,}", *cells))
    return table(heads, found)


def summary(figures: Mapping[str, Any]) -> list[str]:
    """Return the main figures in a few lines."""
    found = [
        f"{row['view']}: {_ms(row['fault_ms'])} ms around faults, {_ms(row['quiet_ms'])} ms otherwise"
        for row in figures["faults"]
        if row["kind"] == ALL
    ]
    found += [f"{row['setup']} at {row['rate']:,}/s: {joiner_s(row):.1f} CPU s a million" for row in figures["costs"]]
    return found


def _ms(values: Sequence[float | None]) -> str:
    return " / ".join("never" if value is None else f"{value:,.0f}" for value in values)


def _ratios(ratios: Sequence[float | None], intervals: Sequence[Sequence[float] | None]) -> list[str]:
    return [_ratio(*one) for one in zip(ratios, intervals, strict=True)]


def _ratio(ratio: float | None, interval: Sequence[float] | None) -> str:
    if ratio is None:
        return _NONE
    return f"{ratio:.2f}" if interval is None else f"{ratio:.2f} ({interval[0]:.2f} to {interval[1]:.2f})"


def _median(values: Sequence[float | None]) -> float | None:
    found = median(math.inf if value is None else value for value in values)
    return found if math.isfinite(found) else None


def _greatest(values: Sequence[float | None]) -> float | None:
    return None if None in values else max(value for value in values if value is not None)
