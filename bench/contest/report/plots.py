"""Draws the plots of the benchmark page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bench.contest import engine
from bench.contest.contenders import CONTENDERS, CORE
from bench.contest.load.latency import QUANTILES
from bench.contest.plan import KEYS
from bench.contest.report.figures import Found, by, is_ours, values
from bench.contest.report.latencies import found_share
from bench.harness.bars import Bar, Share, plot_bars, plot_shares
from bench.harness.plot import Line, Panel, plot_lines

PLOTS: Final = ("throughput", "latency", "widths", "keys", "curves")
_LOOKS: Final = (*CORE, "Flink interval join", "pass-through", engine.NAME)
"""The contenders that appear in several plots."""


def draw(figures: dict[str, list[Found]], folder: Path) -> dict[str, Path]:
    """Draw the plots for which there are figures; return their paths by name."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {name: folder / f"bench_{name}.png" for name in PLOTS}
    has: dict[str, bool] = {}
    bars = bars_of(figures["throughput"])
    if bars:
        plot_bars(drawn["throughput"], bars, "thousand records/s, alternating workload")
    shares = _shares(figures["widths"])
    if shares:
        plot_shares(drawn["widths"], shares, "neighbours found and missed, %; varying gaps, by width of the window")
    has |= {"throughput": bool(bars), "widths": bool(shares)}
    panels = {
        "keys": _keys_panels(figures),
        "latency": _latency_panels(figures["latency"]),
        "curves": _curve_panels(figures["curves"]),
    }
    for name, found in panels.items():
        has[name] = any(panel.lines for panel in found)
        if has[name]:
            plot_lines(drawn[name], found, _LOOKS)
    return {name: path for name, path in drawn.items() if has[name]}


def bars_of(measurements: list[Found]) -> list[Bar]:
    """Return a bar per contender, except for the engine in memory, which neither reads from nor writes to Kafka."""
    bars = []
    for (name,), runs in by(measurements, "contender").items():
        rates = [value / 1000 for value in values(runs, "records_per_s")]
        if rates and name != engine.NAME:
            guarantee = CONTENDERS[name].guarantee if name in CONTENDERS else ""
            bars.append(Bar(name, rates, f"n={len(rates)}, {guarantee}, {found_share(runs)}", is_ours=is_ours(name)))
    return bars


def _shares(measurements: list[Found]) -> list[Share]:
    """Return the share of the neighbours that each contender found, for each width of its window."""
    found = []
    for (name, width_ms), runs in by(measurements, "contender", "width_ms").items():
        complete = values(runs, "complete")
        excess = [one["excess"] / max(1, one["results"]) for one in runs if "excess" in one]
        words = f"{max(excess, default=0):.0%} of its results are not neighbours"
        label = f"{name}, {width_ms:,} ms" if width_ms else f"{name}, no window"
        share = min(complete) if complete else None
        found.append(Share(label, share, words if complete else found_share(runs), is_ours=is_ours(name)))
    return found


def _line(groups: Mapping[Any, list[Found]], name: str, scale: float = 1.0) -> Line:
    """Return a line with a point for each group of runs for which the figure ``name`` was recorded."""
    points = [(float(place), [value * scale for value in values(runs, name)]) for place, runs in groups.items()]
    return sorted(((place, found) for place, found in points if found), key=lambda point: point[0])


def of_one_recording(figures: dict[str, list[Found]]) -> list[Found]:
    """Return the measurements at different numbers of keys that were made with the newest code.

    The measurements with 8 keys are the throughput measurements. They are left out if they were made with different
    code or do not record their commit, because a line through points of different versions would not show the effect of
    the number of keys.
    """
    kept = [one for one in figures["workloads"] if one["workload"] in KEYS]
    newest = max(kept, key=lambda one: str(one["date"]), default={}).get("commit")
    kept = [one for one in kept if one.get("commit") == newest]
    names = {*CORE, "pass-through", engine.NAME}
    ours = [one for one in figures["throughput"] if one["contender"] in names]
    return kept + [one for one in ours if newest and one.get("commit") == newest]


def _keys_panels(figures: dict[str, list[Found]]) -> list[Panel]:
    measurements = of_one_recording(figures)
    lines: dict[str, Line] = {}
    for name in dict.fromkeys(one["contender"] for one in measurements):
        groups = by((one for one in measurements if one["contender"] == name and "keys" in one), "keys")
        line = _line({keys: runs for (keys,), runs in groups.items()}, "records_per_s", 1e-3)
        if len(line) > 1:
            lines[name] = line
    return [Panel("keys", "thousand records/s", lines, y_scale="log")]


def _latency_panels(measurements: list[Found]) -> list[Panel]:
    """Return a panel for p50 and one for p99.

    Each shows the latency at the rates that a contender keeps up with, and the rate at which it is saturated.
    """
    panels = []
    for number, quantile in enumerate(QUANTILES[:2]):
        lines: dict[str, Line] = {}
        ends: dict[str, float] = {}
        for name in dict.fromkeys(one["contender"] for one in measurements):
            runs = [one for one in measurements if one["contender"] == name and "rate" in one]
            kept = [one | {"at": one["ms"][number]} for one in runs if one["keeps_up"] and one["ms"]]
            if line := _line({rate: found for (rate,), found in by(kept, "rate").items()}, "at"):
                lines[name] = line
                failed = [one["rate"] for one in runs if not one["keeps_up"]]
                ends |= {name: float(min(failed))} if failed else {}
        label = f"p{quantile:g} of the latency, ms"
        panels.append(Panel("records/s (a cross: saturated)", label, lines, y_scale="log", ends=ends))
    return panels


def _curve_panels(measurements: list[Found]) -> list[Panel]:
    panels = []
    for (curve,), of_curve in by(measurements, "curve").items():
        lines: dict[str, Line] = {}
        for name in dict.fromkeys(one["contender"] for one in of_curve):
            # The axis is logarithmic, so 0 is drawn at 1.
            groups = by((one | {"at": max(1, one["at"])} for one in of_curve if one["contender"] == name), "at")
            if line := _line({at: runs for (at,), runs in groups.items()}, "records_per_s", 1e-3):
                lines[name] = line
        panels.append(Panel(curve, "thousand records/s", lines, y_scale="log"))
    return panels
