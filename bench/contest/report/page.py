"""Writes the figures of the benchmark page and its plots, using only the result files."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Final

from bench.contest import engine
from bench.contest.contenders import CONTENDERS, HEADLINE
from bench.contest.report import latencies, tables
from bench.contest.report.figures import DISTURBED, ROUGH_S, VERDICTS, Found, by, is_disturbed, rate, read_figures
from bench.contest.report.plots import draw
from bench.harness.pipeline import KAFKAS_OWN, changed_settings
from bench.harness.report import table
from bench.peers import environments
from bench.peers.jvm.programs import AVRO_LIBRARY

BEGIN: Final = "<!-- figures: written by python -m bench.contest, which overwrites them -->"
END: Final = "<!-- end of the figures -->"
_NEW_PAGE: Final = f"# Benchmarks\n\n{BEGIN}\n{END}\n"
_ROUGH: Final = (
    f"A rate marked ~ is approximate: in at least one run, the steady part lasted less than {ROUGH_S:.0f} s."
)
_OLDER: Final = {
    "throughput": (
        "The steady part of every contender began at the end of a pause in its results, if there was one. The time to "
        "the first result includes installing and compiling the contender. Spark by hand in Java was expected to "
        "produce results that its watermark could not release, so it counts as having gone quiet early. The sinks of "
        "Kafka Streams and of Flink by hand collected smaller batches for longer, and that of Spark by hand in Java "
        "had Kafka's default batch size. The peers in Java and in bytewax converted JSON more slowly, and bytewax by "
        "hand found all neighbours only because the sides alternate. The state folder of Flink by hand contained "
        "copies of its jars. Other programs used the machine during the first turn and part of the second; these runs "
        "are not marked. The contenders with a single run ran only during that time: their rates are too low by an "
        "unknown factor, and must not be compared with medians of five turns. Parts of the fourth and fifth turns ran "
        "hours later, with a different broker."
    ),
    "latency": (
        "The clock started when a record was sent, not when it was due. Three rates were measured, with the "
        "contenders in a fixed order. The warm-up lasted 8 s at 1,000 records/s, which is short for a JVM. Only Flink "
        "had latency settings (a checkpoint every 200 ms). Spark and bytewax used their throughput settings, and Quix "
        "Streams committed once a second."
    ),
    "workloads": (
        "The time limits were shorter, which cut off most peers. The contenders ran in a fixed order, and the sinks "
        "of Spark and Flink collected smaller batches. The number of records held was recorded only at the end of the "
        "input. The Nexmark-like workload had a simpler generator."
    ),
    "widths": "The time limits, the order and the sinks were the same as for the other workloads.",
    "recovery": "The time limits, the order and the sinks were the same as for the other workloads.",
}
"""What was different about the recorded runs, for each kind of measurement. Shown until they are repeated."""
_GUARANTEES: Final = (
    "The *guarantee* is what the engine documents for these settings. In this benchmark, only the contenders under "
    "Recovery were killed. The Flink programs here do not resume from a checkpoint after their whole process has been "
    "killed: they reread the topic from the beginning and write its results again."
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
    """Return the plots not already shown on the page outside the markers."""
    before, _, rest = text.partition(BEGIN)
    own = before + rest.partition(END)[2]
    return {name: path for name, path in drawn.items() if f"]({path})" not in own}


def with_figures(text: str, lines: list[str], name: str) -> str:
    """Return the text of a page with the part between its markers replaced by ``lines``."""
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
        "Three figures are the minimum / median / maximum of the runs; a single figure means that all runs agree.",
        _ROUGH,
        *([_DISTURBED] if is_disturbed([one for runs in figures.values() for one in runs]) else []),
        *(f"\n{text}" for verdict, text in VERDICTS.items() if verdict in withheld),
        *_machine(found),
        *_older(figures),
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
        ("Avro input", "", _avro(found, figures)),
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
    # Older files do not record the versions of the peers. A recorded version takes precedence.
    recorded = heads[0]["machine"]
    about = recorded | environments.versions() | recorded | {"data seed": settings["seed"]}
    if "order_seed" in settings:
        about["order of the contenders"] = f"drawn at random in each turn, with seed {settings['order_seed']}"
    dates = sorted(one["date"] for kind in found.values() for one in kind["measurements"])
    about["date"] = f"{dates[0]} to {dates[-1]}"
    return ["", *(f"- {name}: {value}" for name, value in about.items())]


def _older(figures: dict[str, list[Found]]) -> list[str]:
    """Return what was different about each kind of run that records no commit, to which earlier rules applied."""
    kinds = {kind for kind, runs in figures.items() for one in runs if "commit" not in one and "reason" not in one}
    words = [f"- {kind}: {text}" for kind, text in _OLDER.items() if kind in kinds]
    intro = (
        "**Older runs.** Runs that record no commit predate some of the rules under Method. In all such runs, the "
        "Spark stage is the former one, a Structured Streaming query. In addition:"
    )
    return ["", intro, "", *words] if words else []


def _avro(found: Found, figures: dict[str, list[Found]]) -> list[str]:
    return tables.avro(figures["avro"], found["avro"].get("machine", {}).get(AVRO_LIBRARY, "of an unknown version"))


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
        (
            f"For throughput and for latency, the joiner uses its default settings, except for {ours} and what the "
            "workload needs: its lateness and watermark scope."
        ),
        f"Kafka is the local stack's broker, with replication factors of 1, append-time timestamps, and {kafkas}.",
    )
    named = f"Named in a headline, and therefore run more often than the others: {'; '.join(HEADLINE)}."
    contenders = table(["", "description", "guarantee", "limitations"], rows)
    return ["", _GUARANTEES, *contenders, *(f"\n{remark}" for remark in (named, *remarks))]


def _reasons(figures: dict[str, list[Found]]) -> list[str]:
    found = {
        (one["contender"], kind, one["reason"]): None
        for kind, measurements in figures.items()
        for one in measurements
        if "reason" in one
    }
    rows = [(name, kind, reason.replace("|", "/")) for name, kind, reason in found]
    return table(["", "in", "reason"], rows) if rows else []
