"""The page of figures and its plots, from the files of results alone."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from bench.contest import engine
from bench.contest.contenders import CONTENDERS, CORE, SPARK_BEST, SPARK_DEFAULT, SPARK_TUNED
from bench.contest.latency import QUANTILES
from bench.contest.plan import KEYS, KINDS, read
from bench.plot import Line, Panel, plot_dots, plot_lines
from bench.report import table

BEGIN: Final = "<!-- figures: written by python -m bench.contest, which writes them anew -->"
END: Final = "<!-- end of the figures -->"
_NEW_PAGE: Final = f"# Benchmarks\n\n{BEGIN}\n{END}\n"

_NONE: Final = "-"
_ROUGH_S: Final = 3.0
"""A steady part that is shorter holds too few batches of whoever works in batches."""

_LOOKS: Final = (*CORE, "Spark tumbling window", "Flink interval join", "pass-through", engine.NAME)
"""The lines that are in several plots."""

_NEARLY: Final = 0.95
"""Of the input."""

_ROUGH: Final = f"A rate with ~ is rough: its steady part was shorter than {_ROUGH_S:.0f} s in some run."

Found = dict[str, Any]
Shown = Callable[[float], str]


def write_report(results: Path, page: Path, plots: Path) -> None:
    """The plots, and the page between its markers; what stands around them stays."""
    found = {kind: read(results, kind) for kind in KINDS}
    order = {name: number for number, name in enumerate([*CONTENDERS, engine.NAME])}

    def place(run: Found) -> int:
        # Trials have names of their own, behind those of the contenders.
        return order.get(run["contender"].partition(": ")[0], len(order))

    figures = {kind: sorted(map(_judged, one["measurements"]), key=place) for kind, one in found.items()}
    drawn = draw(figures, plots)
    text = page.read_text() if page.is_file() else _NEW_PAGE
    before, _, rest = text.partition(BEGIN)
    if not rest or END not in rest:
        raise ValueError(f"{page} has no place for the figures: a line {BEGIN!r}, and later a line {END!r}")
    lines = figure_lines(found, figures, {name: _relative(path, page) for name, path in drawn.items()})
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text("\n".join([f"{before}{BEGIN}", *lines, f"{END}{rest.partition(END)[2]}"]))


def _judged(one: Found) -> Found:
    """Without what cannot be known.

    What a run lacks that was cut short long before its end may have been on its way; Spark's stores hold no rows, as it
    tells it, where it is not to count them.
    """
    is_judged = one.get("is_through", True) or one.get("complete") == 1 or one.get("reached", 0.0) > _NEARLY
    unknown = {} if is_judged else {"complete": None}
    return one | unknown | ({"state_rows": None} if one.get("state_rows") == 0 else {})


def _relative(path: Path, page: Path) -> str:
    return Path(os.path.relpath(path, page.parent)).as_posix()


def figure_lines(found: Found, figures: dict[str, list[Found]], drawn: dict[str, str]) -> list[str]:
    """All that stands between the markers."""
    lines = [
        "",
        "Three figures with strokes between them are minimum / median / maximum of the runs; one is all of them.",
        *_machine(found),
    ]
    throughput = figures["throughput"]
    sections: list[tuple[str, str, list[str]]] = [
        ("Throughput", "throughput", _throughput(throughput)),
        ("Ratios", "", _ratios(figures)),
        ("What was found, and what it cost", "", _costs(throughput)),
        ("Other workloads", "keys", _workloads(figures["workloads"])),
        ("Width of the window", "widths", _widths(figures["widths"])),
        ("Latency", "latency", _latency(figures["latency"])),
        ("Recovery", "", _recovery(figures["recovery"])),
        ("Settings that were tried", "", _trials(figures["trials"], throughput)),
        ("What the contenders are", "", _contenders()),
        ("What did not run", "", _reasons(figures)),
    ]
    for title, plot, rows in sections:
        if rows:
            lines += ["", f"## {title}"]
            lines += ["", f"![{title}]({drawn[plot]})"] if plot in drawn else []
            lines += rows
    return [*lines, ""]


def by(measurements: Iterable[Found], *names: str) -> dict[tuple[Any, ...], list[Found]]:
    """Those that have run, by some of their values, in the order in which these first came."""
    groups: dict[tuple[Any, ...], list[Found]] = {}
    for one in measurements:
        if "reason" not in one:
            groups.setdefault(tuple(one[name] for name in names), []).append(one)
    return groups


def values(runs: Iterable[Found], name: str) -> list[float]:
    """A figure of all runs that have it."""
    return [one[name] for one in runs if one.get(name) is not None]


def shown(runs: Iterable[Found], name: str, form: Shown) -> str:
    """``minimum / median / maximum`` of a figure; one number where they are the same."""
    found = values(runs, name)
    if not found:
        return _NONE
    three = [form(value) for value in (min(found), statistics.median(found), max(found))]
    return three[0] if len(set(three)) == 1 else " / ".join(three)


def rate(runs: list[Found]) -> str:
    """Thousand records a second; with a mark where that is rough."""
    is_rough = min(values(runs, "steady_s"), default=_ROUGH_S) < _ROUGH_S
    return shown(runs, "records_per_s", thousands) + (" ~" if is_rough else "")


def thousands(value: float) -> str:
    """Of a rate."""
    return _three_digits(value / 1000)


def percent(value: float) -> str:
    """A share; nothing is rounded to all or to nothing."""
    if value in {0.0, 1.0}:
        return f"{value:.0%}"
    return f"{min(max(value, 0.00001), 0.99999):.3%}"


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def _short(value: float) -> str:
    return f"{value:,.1f}"


def _mega(value: float) -> str:
    return _three_digits(value / 1e6)


def _three_digits(value: float) -> str:
    digits = 2 - len(f"{value:.0f}") + (value >= 1)
    return f"{value:,.{max(0, digits)}f}"


def _machine(found: Found) -> list[str]:
    heads = [one for one in found.values() if "machine" in one]
    if not heads:
        return []
    about = heads[0]["machine"] | {"seed of the data": heads[0]["settings"]["seed"]}
    dates = sorted(one["date"] for kind in found.values() for one in kind["measurements"])
    about["date"] = f"{dates[0]} to {dates[-1]}"
    return ["", *(f"- {name}: {value}" for name, value in about.items())]


def _throughput(measurements: list[Found]) -> list[str]:
    rows = []
    for (name,), runs in by(measurements, "contender").items():
        rows.append(
            (
                name,
                len(runs),
                rate(runs),
                shown(runs, "results_per_s", thousands),
                shown(runs, "reached", percent),
                shown(runs, "start_s", _short),
            )
        )
    heads = ["", "runs", "thousand records/s in", "thousand results/s out", "of the input within its time"]
    lines = _about("alternating", measurements)
    return [*lines, *table([*heads, "s from the start to the first result"], rows)] if rows else []


def _about(workload: str, measurements: list[Found]) -> list[str]:
    told = next((one["about"] for one in measurements if "about" in one), "")
    rows = max((one.get("rows", 0) for one in measurements), default=0)
    return ["", f"Workload: {workload}: {told}; {rows:,} records."]


def _costs(measurements: list[Found]) -> list[str]:
    rows = []
    for (name,), runs in by(measurements, "contender").items():
        excess = [one | {"excess": one["excess"] / max(1, one["results"])} for one in runs if "excess" in one]
        rows.append(
            (
                name,
                shown(runs, "complete", percent),
                shown(excess, "excess", percent),
                shown(runs, "double", _whole),
                shown(runs, "cpu_s_per_million", _short),
                shown(runs, "kafka_cpu_s_per_million", _short),
                shown(runs, "memory_bytes", _mega),
                shown(runs, "state_bytes", thousands),
                shown(runs, "state_rows", _whole),
                shown(runs, "kafka_bytes", _mega),
            )
        )
    heads = [
        "",
        "neighbours found",
        "results that are no neighbours",
        "doubles",
        "CPU s/million records",
        "CPU s of Kafka",
    ]
    heads += ["memory, MB", "state on disk, kB", "records in the state", "written to Kafka, MB"]
    return table(heads, rows) if rows else []


RATIOS: Final = (
    ("plain process", SPARK_TUNED.name, 12),
    ("plain process", SPARK_BEST.name, None),
    ("plain process", SPARK_DEFAULT.name, 80),
    ("Spark stage", SPARK_TUNED.name, 5),
    ("Spark stage", SPARK_BEST.name, None),
    ("plain process", "Flink interval join", None),
    ("plain process", "pass-through", None),
)
"""Whose rate, to whose, and what was hoped for."""
_LATE_RATE: Final = 5_000
_LITTLE_MISSED: Final = 0.99


def _ratios(figures: dict[str, list[Found]]) -> list[str]:
    rows: list[tuple[str, list[float], float | None]] = []
    for one, other, hoped in RATIOS:
        rates = by(figures["throughput"], "contender", "turn")
        turns = sorted({turn for _, turn in rates})
        ratios = [
            rates[one, turn][0]["records_per_s"] / rates[other, turn][0]["records_per_s"]
            for turn in turns
            if all(values(rates.get((name, turn), []), "records_per_s") for name in (one, other))
        ]
        rows.append((f"{one} : {other}, records/s", ratios, hoped))
    rows += [_late_ratio(figures["latency"]), _state_ratio(figures["widths"])]
    cells = [
        (what, shown([{"x": ratio} for ratio in ratios], "x", _short), hoped or _NONE, _met(ratios, hoped))
        for what, ratios, hoped in rows
        if ratios
    ]
    return table(["of each turn", "ratio", "hoped for", "reached"], cells) if cells else []


def _met(ratios: list[float], hoped: float | None) -> str:
    if hoped is None:
        return _NONE
    return "yes" if min(ratios) >= hoped else "no" if max(ratios) < hoped else "in some turns"


def _late_ratio(measurements: list[Found]) -> tuple[str, list[float], float]:
    at = by((one for one in measurements if one.get("rate") == _LATE_RATE and one.get("ms")), "contender", "turn")
    ratios = [
        runs[0]["ms"][1] / at["plain process", turn][0]["ms"][1]
        for (name, turn), runs in at.items()
        if name == SPARK_BEST.name and ("plain process", turn) in at
    ]
    return f"p99 at {_LATE_RATE:,}/s, {SPARK_BEST.name} : plain process", ratios, 10


def _state_ratio(measurements: list[Found]) -> tuple[str, list[float], float]:
    ours = values((one for one in measurements if one["contender"] == "plain process"), "state_rows")
    enough = [
        one
        for one in measurements
        if one["contender"] == SPARK_BEST.name
        and round(one.get("complete") or 0, 2) >= _LITTLE_MISSED
        and "state_rows" in one
    ]
    narrow = min(enough, key=lambda one: one["width_ms"], default=None)
    what = f"records in the state where 1 % are missed, {SPARK_BEST.name} : plain process"
    return what, [narrow["state_rows"] / max(1, ours[0])] if narrow and ours else [], 10


def _workloads(measurements: list[Found]) -> list[str]:
    rows = []
    for (workload, name, _, width_ms), runs in by(measurements, "workload", "contender", "share", "width_ms").items():
        excess = [one | {"excess": one["excess"] / max(1, one["results"])} for one in runs if "excess" in one]
        rows.append(
            (
                workload,
                name,
                f"{width_ms:,}" if width_ms else _NONE,
                rate(runs),
                shown(runs, "complete", percent),
                shown(excess, "excess", percent),
                shown(runs, "state_rows", _whole),
                shown(runs, "reached", percent),
            )
        )
    heads = ["workload", "", "window, ms", "thousand records/s", "neighbours found", "results that are no neighbours"]
    told = {one["workload"]: one["about"] for one in measurements if "about" in one}
    words = [f"- {name}: {about}." for name, about in told.items()]
    wide = "A window is as wide as it must be to find 99 % of the neighbours."
    return ["", *words, "", wide, *table([*heads, "records in the state", "of the input"], rows)] if rows else []


def _widths(measurements: list[Found]) -> list[str]:
    rows = []
    for (name, width_ms), runs in by(measurements, "contender", "width_ms").items():
        excess = [one | {"excess": one["excess"] / max(1, one["results"])} for one in runs]
        rows.append(
            (
                name,
                f"{width_ms:,}" if width_ms else "none",
                rate(runs),
                shown(runs, "complete", percent),
                shown(excess, "excess", percent),
                shown(runs, "state_rows", _whole),
                shown(runs, "state_bytes", thousands),
                shown(runs, "reached", percent),
            )
        )
    heads = ["", "window, ms", "thousand records/s", "neighbours found", "results that are no neighbours"]
    heads += ["records in the state", "state on disk, kB", "of the input"]
    return [*_about("varying gaps", measurements), *table(heads, rows)] if rows else []


def _latency(measurements: list[Found]) -> list[str]:
    rows = []
    for (rate, name), runs in sorted(by(measurements, "rate", "contender").items(), key=lambda item: item[0][0]):
        columns = [[{"ms": one["ms"][number]} for one in runs if one["ms"]] for number in range(len(QUANTILES))]
        keeps = sum(one["keeps_up"] for one in runs)
        keeps_up = "yes" if keeps == len(runs) else f"{keeps} of {len(runs)} times"
        rows.append((f"{rate:,}", name, *(shown(column, "ms", _whole) for column in columns), keeps_up))
    heads = ["records/s", "", *(f"p{quantile:g}, ms" for quantile in QUANTILES), "keeps up"]
    return table(heads, rows) if rows else []


def _recovery(measurements: list[Found]) -> list[str]:
    rows = [
        (name, shown(runs, "recovery_s", _short), shown(runs, "missing", _whole), shown(runs, "double", _whole))
        for (name,), runs in by(measurements, "contender").items()
    ]
    told = "All processes are killed with SIGKILL at a third of the results, and started again."
    heads = ["", "s from the new start to the next new result", "neighbours missing in the end", "doubles"]
    return ["", told, *table(heads, rows)] if rows else []


def _trials(measurements: list[Found], best: list[Found]) -> list[str]:
    rows = []
    tried = by(measurements, "contender")
    for one in CONTENDERS.values():
        names = [variant.name for variant in one.variants if (variant.name,) in tried]
        if names:
            runs = by(best, "contender").get((one.name,), [])
            rows.append((one.name, "as used", rate(runs)))
        rows += [(one.name, name.partition(": ")[2], rate(tried[name,])) for name in names]
    return table(["", "settings", "thousand records/s"], rows) if rows else []


def _contenders() -> list[str]:
    rows = [(one.name, one.what, one.lacks or "nothing") for one in CONTENDERS.values()]
    rows.append((engine.NAME, "the engine alone, from columns to positions", "reading and writing"))
    return table(["", "what it is", "what it cannot express, or does not do"], rows)


def _reasons(figures: dict[str, list[Found]]) -> list[str]:
    found = {
        (one["contender"], kind, one["reason"]): None
        for kind, measurements in figures.items()
        for one in measurements
        if "reason" in one
    }
    rows = [(name, kind, reason.replace("|", "/")) for name, kind, reason in found]
    return table(["", "in", "reason"], rows) if rows else []


def draw(figures: dict[str, list[Found]], folder: Path) -> dict[str, Path]:
    """The plots that there are figures for, by name."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {name: folder / f"bench_{name}.png" for name in ("throughput", "keys", "widths", "latency")}
    rates = {name: values(runs, "records_per_s") for (name,), runs in by(figures["throughput"], "contender").items()}
    rates = {name: [value / 1000 for value in found] for name, found in rates.items() if found}
    if rates:
        plot_dots(drawn["throughput"], rates, "thousand records/s, alternating workload")
    panels = {"keys": _keys_panels(figures), "widths": _widths_panels(figures["widths"])}
    panels["latency"] = _latency_panels(figures["latency"])
    for name, found in panels.items():
        if any(panel.lines for panel in found):
            plot_lines(drawn[name], found, _LOOKS)
    has = {"throughput": bool(rates)} | {name: any(panel.lines for panel in found) for name, found in panels.items()}
    return {name: path for name, path in drawn.items() if has[name]}


def _line(groups: dict[Any, list[Found]], name: str, scale: float = 1.0) -> Line:
    """A point for each group that has the figure."""
    points = [(float(place), [value * scale for value in values(runs, name)]) for place, runs in groups.items()]
    return sorted(((place, found) for place, found in points if found), key=lambda point: point[0])


def _keys_panels(figures: dict[str, list[Found]]) -> list[Panel]:
    measurements = [one for one in figures["workloads"] if one["workload"] in KEYS]
    measurements += [one for one in figures["throughput"] if one["contender"] in {*CORE, "pass-through", engine.NAME}]
    lines: dict[str, Line] = {}
    for name in dict.fromkeys(one["contender"] for one in measurements):
        groups = by((one for one in measurements if one["contender"] == name and "keys" in one), "keys")
        line = _line({keys: runs for (keys,), runs in groups.items()}, "records_per_s", 1e-3)
        if len(line) > 1:
            lines[name] = line
    return [Panel("keys", "thousand records/s", lines, y_scale="log")]


def _widths_panels(measurements: list[Found]) -> list[Panel]:
    windowed = [one for one in measurements if one["width_ms"]]
    flat = [one for one in measurements if not one["width_ms"]]
    places = sorted({one["width_ms"] for one in windowed if "reason" not in one})
    shapes: Sequence[tuple[str, str, float, str]] = (
        ("records_per_s", "thousand records/s", 1e-3, "log"),
        ("state_rows", "records in the state", 1.0, "log"),
        ("complete", "neighbours found, %", 100.0, "linear"),
        ("excess_share", "results that are no neighbours, %", 100.0, "linear"),
    )
    panels = []
    for figure, label, scale, y_scale in shapes:
        lines: dict[str, Line] = {}
        for name in dict.fromkeys(one["contender"] for one in measurements):
            given = [
                one | {"excess_share": one["excess"] / max(1, one["results"])}
                for one in [*flat, *windowed]
                if one["contender"] == name and "excess" in one
            ]
            groups = {width: runs for (width,), runs in by(given, "width_ms").items()}
            # What knows no window is the same at every width.
            groups = dict.fromkeys(places, groups[0]) if 0 in groups else groups
            if line := _line(groups, figure, scale):
                lines[name] = line
        panels.append(Panel("width of the window, ms", label, lines, y_scale=y_scale))
    return panels


def _latency_panels(measurements: list[Found]) -> list[Panel]:
    panels = []
    for number, quantile in enumerate(QUANTILES[:2]):
        lines: dict[str, Line] = {}
        for name in dict.fromkeys(one["contender"] for one in measurements):
            runs = [
                one | {"at": one["ms"][number]} for one in measurements if one["contender"] == name and one.get("ms")
            ]
            if line := _line({rate: found for (rate,), found in by(runs, "rate").items()}, "at"):
                lines[name] = line
        panels.append(Panel("records/s", f"p{quantile:g} of the latency, ms", lines, y_scale="log"))
    return panels
