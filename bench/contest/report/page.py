"""Writes the figures of the benchmark page and its plots, using only the result files."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Final

from bench.contest import engine
from bench.contest.contenders import CONTENDERS
from bench.contest.report import latencies, tables
from bench.contest.report.figures import DISTURBED, ROUGH_S, VERDICTS, Found, by, is_disturbed, rate, read_figures
from bench.contest.report.plots import draw
from bench.harness.pipeline import KAFKAS_OWN, changed_settings
from bench.harness.report import table

BEGIN: Final = "<!-- figures: written by python -m bench.contest, which overwrites them -->"
END: Final = "<!-- end of the figures -->"
_NEW_PAGE: Final = f"# Benchmarks\n\n{BEGIN}\n{END}\n"
_ROUGH: Final = (
    f"A rate marked ~ is approximate: in at least one run, the steady part lasted less than {ROUGH_S:.0f} s."
)
_DISTURBED: Final = (
    "A figure marked ! was disturbed: in at least one run, other programs and the host took more than "
    f"{DISTURBED:.0%} of the machine."
)


def write_report(results: Path, page: Path, plots: Path) -> None:
    """Write the plots, and replace the part of the page between the markers."""
    found, figures = read_figures(results)
    drawn = {name: _relative(path, page) for name, path in draw(figures, plots).items()}
    text = page.read_text() if page.is_file() else _NEW_PAGE
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(with_figures(text, figure_lines(found, figures, not_shown(text, drawn)), str(page)))


def not_shown(text: str, drawn: dict[str, str]) -> dict[str, str]:
    """Return the plots that the page does not already show outside the markers."""
    before, _, rest = text.partition(BEGIN)
    own = before + rest.partition(END)[2]
    return {name: path for name, path in drawn.items() if f"]({path})" not in own}


def with_figures(text: str, lines: list[str], name: str) -> str:
    """Return the text of a page, with the part between its markers replaced by ``lines``."""
    before, _, rest = text.partition(BEGIN)
    if not rest or END not in rest:
        raise ValueError(f"{name} has no markers for the figures; add a line {BEGIN!r} and, below it, a line {END!r}")
    return "\n".join([f"{before}{BEGIN}", *lines, f"{END}{rest.partition(END)[2]}"])


def _relative(path: Path, page: Path) -> str:
    return Path(os.path.relpath(path, page.parent)).as_posix()


def figure_lines(found: Found, figures: dict[str, list[Found]], drawn: dict[str, str]) -> list[str]:
    """Return the lines between the markers."""
    withheld = {one.get("withheld") for measurements in figures.values() for one in measurements}
    lines = [
        "",
        "Where there are three figures, they are the minimum / median / maximum of the runs; otherwise all runs agree.",
        _ROUGH,
        *([_DISTURBED] if is_disturbed([one for runs in figures.values() for one in runs]) else []),
        *(f"\n{text}" for verdict, text in VERDICTS.items() if verdict in withheld),
        *_machine(found),
    ]
    throughput = figures["throughput"]
    sections: list[tuple[str, str, list[str]]] = [
        ("Throughput", "throughput", tables.throughput(throughput)),
        ("Ratios", "", tables.ratios(figures)),
        ("Results and costs", "", tables.costs(throughput)),
        ("State", "", tables.states(throughput)),
        ("Latency", "latency", latencies.latency(figures["latency"])),
        ("Steady load", "", latencies.steady(figures["steady"])),
        ("Width of the window", "widths", tables.widths(figures["widths"])),
        ("Other workloads", "keys", tables.workloads(figures["workloads"])),
        ("Aligned rows", "", tables.rows(figures["rows"])),
        ("Curves", "curves", tables.curves(figures["curves"])),
        ("Recovery", "", latencies.recovery(figures["recovery"])),
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


def _machine(found: Found) -> list[str]:
    heads = [one for one in found.values() if "machine" in one]
    if not heads:
        return []
    settings = heads[0]["settings"]
    about = heads[0]["machine"] | {"data seed": settings["seed"]}
    if "order_seed" in settings:
        about["order of the contenders"] = f"drawn at random in each turn, with seed {settings['order_seed']}"
    dates = sorted(one["date"] for kind in found.values() for one in kind["measurements"])
    about["date"] = f"{dates[0]} to {dates[-1]}"
    return ["", *(f"- {name}: {value}" for name, value in about.items())]


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
    rows = [(one.name, one.what, one.guarantee, one.lacks or "nothing") for one in CONTENDERS.values()]
    rows.append((engine.NAME, "the engine only, from columns to positions", "-", "does not read or write"))
    with tempfile.TemporaryDirectory() as folder:
        changed = changed_settings(Path(folder))
    ours = ", ".join(f"`{name} = {value}` (default `{default}`)" for name, value, default in changed)
    kafkas = ", ".join(f"`{name} = {value}`" for name, value in KAFKAS_OWN.items())
    remarks = (
        f"The joiner has its default settings, except for {ours} and the workload's lateness and watermark scope.",
        f"Kafka is the local stack's broker, with replication factors of 1, append times as timestamps, and {kafkas}.",
    )
    return [*table(["", "description", "guarantee", "limitations"], rows), *(f"\n{remark}" for remark in remarks)]


def _reasons(figures: dict[str, list[Found]]) -> list[str]:
    found = {
        (one["contender"], kind, one["reason"]): None
        for kind, measurements in figures.items()
        for one in measurements
        if "reason" in one
    }
    rows = [(name, kind, reason.replace("|", "/")) for name, kind, reason in found]
    return table(["", "in", "reason"], rows) if rows else []
