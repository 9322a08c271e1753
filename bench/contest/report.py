"""Writes the benchmark page and its plots, from the result files alone."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from bench.contest import engine
from bench.contest.contenders import CONTENDERS, CORE, OURS, SPARK_BEST, SPARK_DEFAULT, SPARK_TUNED
from bench.contest.latency import QUANTILES
from bench.contest.plan import KEYS, KINDS, read
from bench.contest.workload.expected import has_all
from bench.harness.pipeline import BUFFER_BYTES_MAX, BUFFER_RECORDS_MAX
from bench.harness.plot import Line, Panel, plot_dots, plot_lines
from bench.harness.report import table
from joiner.runtime.settings import ApplicationSettings

BEGIN: Final = "<!-- figures: written by python -m bench.contest, which overwrites them -->"
END: Final = "<!-- end of the figures -->"
_NEW_PAGE: Final = f"# Benchmarks\n\n{BEGIN}\n{END}\n"

_NONE: Final = "-"
_ROUGH_S: Final = 3.0
"""A rate is approximate if its steady part is shorter than this, because it then contains too few batches."""

_LOOKS: Final = (*CORE, "Spark tumbling window", "Flink interval join", "pass-through", engine.NAME)
"""The contenders that are in several plots."""

_ROUGH: Final = f"A rate with ~ is approximate: its steady part was shorter than {_ROUGH_S:.0f} s in at least one run."
_CUT_OFF: Final = "cut off"
_NOT_JUDGED: Final = "not judged"
_VERDICTS: Final = {
    _CUT_OFF: (
        "A run that was *cut off* had not read its input to the end at the time limit. Results that were not written "
        "by then do not count as missing. If a neighbour is missing in the part that it processed, the share of "
        "neighbours is not shown."
    ),
    _NOT_JUDGED: (
        "A run that is *not judged* was ended too early: by its number of results, most of which were not neighbours, "
        "or before its first result was possible. Its figures are withheld until it is measured again."
    ),
}
_OF_ITS_RATE: Final = ("records_per_s", "results_per_s", "steady_s", "cpu_s_per_million", "kafka_cpu_s_per_million")

Found = dict[str, Any]
Shown = Callable[[float], str]


def write_report(results: Path, page: Path, plots: Path) -> None:
    """Write the plots, and the part of the page between its markers; keep the rest of the page."""
    found, figures = read_figures(results)
    drawn = {name: _relative(path, page) for name, path in draw(figures, plots).items()}
    text = page.read_text() if page.is_file() else _NEW_PAGE
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(with_figures(text, figure_lines(found, figures, drawn), str(page)))


def read_figures(results: Path) -> tuple[Found, dict[str, list[Found]]]:
    """Return the result files and their measurements, judged and in the order of the contenders."""
    found = {kind: read(results, kind) for kind in KINDS}
    order = {name: number for number, name in enumerate([*CONTENDERS, engine.NAME])}

    def place(run: Found) -> int:
        # The names of trials begin with those of the contenders.
        return order.get(run["contender"].partition(": ")[0], len(order))

    return found, {kind: sorted(map(judged, one["measurements"]), key=place) for kind, one in found.items()}


def with_figures(text: str, lines: list[str], name: str) -> str:
    """Return the page with these lines between its markers."""
    before, _, rest = text.partition(BEGIN)
    if not rest or END not in rest:
        raise ValueError(f"{name} has no place for the figures: a line {BEGIN!r}, and later a line {END!r}")
    return "\n".join([f"{before}{BEGIN}", *lines, f"{END}{rest.partition(END)[2]}"])


def judged(one: Found) -> Found:
    """Return a measurement without the figures that it does not support, and with the verdict ``withheld``.

    Runs without ``is_quiet`` were recorded before that criterion existed. Only their results decide whether they are
    complete, as some of them were ended by their number of results. Spark reports 0 rows of state if it does not count
    them.
    """
    if "reason" in one:
        return one
    unknown: Found = {"state_rows": None} if one.get("state_rows") == 0 else {}
    withheld = ""
    if one["kind"] == "latency":
        withheld = "" if one["results"] or "listened_s" in one else _NOT_JUDGED
    elif not (has_all(one) or (one.get("is_through", True) and ("is_quiet" in one or "missing" not in one))):
        withheld = _NOT_JUDGED if one.get("is_through") else _CUT_OFF
        unknown |= {"complete": None, "missing": None} if one["missing"] else {}
        unknown |= dict.fromkeys(_OF_ITS_RATE) if withheld == _NOT_JUDGED else {}
    return one | unknown | {"withheld": withheld}


def _relative(path: Path, page: Path) -> str:
    return Path(os.path.relpath(path, page.parent)).as_posix()


def figure_lines(found: Found, figures: dict[str, list[Found]], drawn: dict[str, str]) -> list[str]:
    """Return the lines between the markers."""
    withheld = {one.get("withheld") for measurements in figures.values() for one in measurements}
    lines = [
        "",
        "Three figures are the minimum / median / maximum of the runs; a single figure applies to all runs.",
        _ROUGH,
        *(f"\n{text}" for verdict, text in _VERDICTS.items() if verdict in withheld),
        *_machine(found),
    ]
    throughput = figures["throughput"]
    sections: list[tuple[str, str, list[str]]] = [
        ("Throughput", "throughput", _throughput(throughput)),
        ("Ratios", "", _ratios(figures)),
        ("Results and costs", "", _costs(throughput)),
        ("Other workloads", "keys", _workloads(figures["workloads"])),
        ("Width of the window", "widths", _widths(figures["widths"])),
        ("Latency", "latency", _latency(figures["latency"])),
        ("Recovery", "", _recovery(figures["recovery"])),
        ("Settings tried", "", _trials(figures["trials"], throughput)),
        ("Contenders", "", _contenders()),
        ("Failed runs", "", _reasons(figures)),
    ]
    for title, plot, rows in sections:
        if rows:
            lines += ["", f"## {title}"]
            lines += ["", f"![{title}]({drawn[plot]})"] if plot in drawn else []
            lines += rows
    return [*lines, ""]


def by(measurements: Iterable[Found], *names: str) -> dict[tuple[Any, ...], list[Found]]:
    """Group successful measurements by some of their values, in the order of first occurrence."""
    groups: dict[tuple[Any, ...], list[Found]] = {}
    for one in measurements:
        if "reason" not in one:
            groups.setdefault(tuple(one[name] for name in names), []).append(one)
    return groups


def values(runs: Iterable[Found], name: str) -> list[float]:
    """Return the values of a figure of all runs that have it."""
    return [one[name] for one in runs if one.get(name) is not None]


def shown(runs: Iterable[Found], name: str, form: Shown) -> str:
    """Return ``minimum / median / maximum`` of a figure; a single number if they are equal."""
    found = values(runs, name)
    if not found:
        return _NONE
    three = [form(value) for value in (min(found), statistics.median(found), max(found))]
    return three[0] if len(set(three)) == 1 else " / ".join(three)


def rate(runs: list[Found]) -> str:
    """Return a rate in thousand records per second, marked if it is approximate."""
    is_rough = min(values(runs, "steady_s"), default=_ROUGH_S) < _ROUGH_S
    return shown(runs, "records_per_s", thousands) + (" ~" if is_rough else "")


def _reached(runs: list[Found]) -> str:
    """Return the share of the input that was processed, and the verdicts."""
    withheld = sorted({one["withheld"] for one in runs if one.get("withheld")})
    return ", ".join([shown(runs, "reached", percent), *withheld])


def _excess(runs: list[Found]) -> str:
    """Return the share of the results that are not neighbours."""
    shares = [one | {"excess": one["excess"] / max(1, one["results"])} for one in runs if "excess" in one]
    return shown(shares, "excess", percent)


def thousands(value: float) -> str:
    """Format a rate in thousands."""
    return _three_digits(value / 1000)


def percent(value: float) -> str:
    """Format a share; only exact values are shown as 0% or 100%."""
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
    about = heads[0]["machine"] | {"data seed": heads[0]["settings"]["seed"]}
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
                _reached(runs),
                shown(runs, "start_s", _short),
            )
        )
    heads = ["", "runs", "thousand records/s in", "thousand results/s out", "input processed within the time limit"]
    lines = _about("alternating", measurements)
    return [*lines, *table([*heads, "s from start to first result"], rows)] if rows else []


def _about(workload: str, measurements: list[Found]) -> list[str]:
    about = next((one["about"] for one in measurements if "about" in one), "")
    rows = max((one.get("rows", 0) for one in measurements), default=0)
    return ["", f"Workload: {workload}: {about}; {rows:,} records."]


def _costs(measurements: list[Found]) -> list[str]:
    rows = []
    for (name,), runs in by(measurements, "contender").items():
        ours, theirs = (runs, []) if _is_ours(name) else ([], runs)
        rows.append(
            (
                name,
                shown(runs, "complete", percent),
                _excess(runs),
                shown(runs, "double", _whole),
                shown(runs, "cpu_s_per_million", _short),
                shown(runs, "kafka_cpu_s_per_million", _short),
                shown(runs, "memory_bytes", _mega),
                shown(ours, "state_rows", _whole),
                shown(ours, "state_bytes", thousands),
                shown(theirs, "state_rows", _whole),
                shown(theirs, "state_bytes", thousands),
                shown(runs, "kafka_bytes", _mega),
            )
        )
    heads = [
        "",
        "neighbours found",
        "results that are not neighbours",
        "duplicate results",
        "CPU s/million records",
        "Kafka CPU s",
    ]
    heads += ["memory, MB", "records held at the end", "newest snapshots, kB"]
    heads += ["largest state, records", "largest state on disk, kB", "written to Kafka, MB"]
    return [*table(heads, rows), "", _TWO_STATES] if rows else []


_TWO_STATES: Final = (
    "The joiner's state is counted at the end of a run and a peer's at its largest, so no ratio is given. Spark "
    "counts the rows of its current batch, which has up to 200,000 records."
)


def _is_ours(name: str) -> bool:
    return name in {one.name for one in OURS}


RATIOS: Final = (
    ("plain process", SPARK_TUNED.name, 12),
    ("plain process", SPARK_BEST.name, None),
    ("plain process", SPARK_DEFAULT.name, 80),
    ("Spark stage", SPARK_TUNED.name, 5),
    ("Spark stage", SPARK_BEST.name, None),
    ("plain process", "Flink interval join", None),
    ("plain process", "pass-through", None),
)
"""The rates to compare, and the target ratio."""
_LATE_RATE: Final = 5_000


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
    rows.append(_late_ratio(figures["latency"]))
    cells = [
        (what, shown([{"x": ratio} for ratio in ratios], "x", _short), hoped or _NONE, _met(ratios, hoped))
        for what, ratios, hoped in rows
        if ratios
    ]
    return table(["ratio of each turn", "ratio", "target", "reached"], cells) if cells else []


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


def _workloads(measurements: list[Found]) -> list[str]:
    rows = []
    for (workload, name, _, width_ms), runs in by(measurements, "workload", "contender", "share", "width_ms").items():
        rows.append(
            (
                workload,
                name,
                f"{width_ms:,}" if width_ms else _NONE,
                rate(runs),
                shown(runs, "complete", percent),
                _excess(runs),
                shown(runs if _is_ours(name) else [], "state_rows", _whole),
                _reached(runs),
            )
        )
    heads = ["workload", "", "window, ms", "thousand records/s", "neighbours found", "results that are not neighbours"]
    descriptions = {one["workload"]: one["about"] for one in measurements if "about" in one}
    words = [f"- {name}: {about}." for name, about in descriptions.items()]
    wide = "Each window is just wide enough to find 99 % of the neighbours."
    return ["", *words, "", wide, *table([*heads, "records held at the end", "input processed"], rows)] if rows else []


def _widths(measurements: list[Found]) -> list[str]:
    rows = []
    for (name, width_ms), runs in by(measurements, "contender", "width_ms").items():
        rows.append(
            (
                name,
                f"{width_ms:,}" if width_ms else "none",
                rate(runs),
                shown(runs, "complete", percent),
                _excess(runs),
                _reached(runs),
            )
        )
    heads = ["", "window, ms", "thousand records/s", "neighbours found", "results that are not neighbours"]
    return [*_about("varying gaps", measurements), *table([*heads, "input processed"], rows)] if rows else []


def _latency(measurements: list[Found]) -> list[str]:
    rows = []
    for (rate, name), runs in sorted(by(measurements, "rate", "contender").items(), key=lambda item: item[0][0]):
        columns = [[{"ms": one["ms"][number]} for one in runs if one["ms"]] for number in range(len(QUANTILES))]
        rows.append((f"{rate:,}", name, *(shown(column, "ms", _whole) for column in columns), _keeps_up(runs)))
    heads = ["records/s", "", *(f"p{quantile:g}, ms" for quantile in QUANTILES), "keeps up"]
    return table(heads, rows) if rows else []


def _keeps_up(runs: list[Found]) -> str:
    seen = [one["keeps_up"] for one in runs if not one["withheld"]]
    if not seen:
        return _NOT_JUDGED
    return "yes" if all(seen) else f"{sum(seen)} of {len(seen)} times"


def _recovery(measurements: list[Found]) -> list[str]:
    rows = [
        (
            name,
            shown(runs, "recovery_s", _short),
            shown(runs, "missing", _whole),
            shown(runs, "double", _whole),
            _reached(runs),
        )
        for (name,), runs in by(measurements, "contender").items()
    ]
    intro = "All processes are killed with SIGKILL at a third of the results, and restarted."
    heads = ["", "s from restart to next new result", "neighbours missing", "duplicate results", "input processed"]
    return ["", intro, *table(heads, rows)] if rows else []


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
    rows.append((engine.NAME, "the engine only, from columns to positions", "does not read or write"))
    of_default = [
        f"`{name} = {value:,}` ({value / ApplicationSettings.model_fields[name].default:.3g} times the default)"
        for name, value in (("buffer_records_max", BUFFER_RECORDS_MAX), ("buffer_bytes_max", BUFFER_BYTES_MAX))
    ]
    remark = f"The joiner runs with {' and '.join(of_default)}; lateness and watermark scope are those of the workload."
    return [*table(["", "description", "limitations"], rows), "", remark]


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
    """Draw the plots for which there are figures; return their paths by name."""
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
    """Return a point for each group that has the figure."""
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
            # Contenders without a window are the same at every width.
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
