"""Builds the tables for latency (at each rate, at saturation and under steady load) and for recovery after a kill."""

from __future__ import annotations

import statistics

from bench.contest.contenders import CONTENDERS
from bench.contest.load.latency import QUANTILES
from bench.contest.plan import BASES
from bench.contest.report.figures import (
    NONE,
    Found,
    by,
    is_disturbed,
    mega,
    percent,
    reached,
    short,
    shown,
    spread,
    values,
    whole,
)
from bench.harness.report import table


def latency(measurements: list[Found]) -> list[str]:
    """Return a table of the latency at each rate, and a table of the rates that saturate the contenders."""
    rows = []
    for (rate, name), runs in sorted(by(measurements, "rate", "contender").items(), key=lambda item: item[0][0]):
        rows.append(
            (
                f"{rate:,}",
                name,
                *(_quantile(runs, number) for number in range(len(QUANTILES))),
                _keeps_up(runs),
                shown(runs, "contender_cores", "{:.2f}".format),
                shown(runs, "kafka_cores", "{:.2f}".format),
            )
        )
    heads = ["records/s", "", *(f"p{quantile:g}, ms" for quantile in QUANTILES), "keeps up", "cores", "Kafka's cores"]
    return [*_about(measurements), *table(heads, rows), *_saturation(measurements)] if rows else []


def _about(measurements: list[Found]) -> list[str]:
    """Return the highest rate, the contenders with latency settings of their own, and those not measured."""
    names = {name for (name,) in by(measurements, "contender")}
    bases = {BASES.get(name, name) for name in names}
    chosen = [one.name for one in CONTENDERS.values() if one.name in bases - names]
    lacking = [name for name in CONTENDERS if name not in bases]
    highest = max(one["rate"] for one in measurements if "rate" in one)
    return [
        "",
        f"No live load above {highest:,} records/s was measured.",
        *([f"Only these contenders have latency settings of their own: {'; '.join(chosen)}."] if chosen else []),
        *([f"The latency of these contenders was not measured: {'; '.join(lacking)}."] if lacking else []),
    ]


def _quantile(runs: list[Found], number: int) -> str:
    """Return a latency quantile over all runs, with "never" where it falls on a record without a result."""
    found = [one["ms"][number] for one in runs if one["ms"]]
    if None in found:
        return "never" if len(found) == 1 else f"never in {found.count(None)} of {len(found)} runs"
    return spread(found, whole)


def _keeps_up(runs: list[Found]) -> str:
    kept = [one["keeps_up"] for one in runs]
    by_sender = ", limited by the sender" if any(one.get("is_limited_by_sender") for one in runs) else ""
    marks = by_sender + (" !" if is_disturbed(runs) else "")
    return ("yes" if all(kept) else f"{sum(kept)} of {len(kept)} times") + marks


def _saturation(measurements: list[Found]) -> list[str]:
    rows = []
    for (name,), runs in by(measurements, "contender").items():
        kept = [one["rate"] for one in runs if one["keeps_up"]]
        failed = [one["rate"] for one in runs if not one["keeps_up"]]
        best = [one for one in runs if one["rate"] == max(kept, default=0)]
        beyond = f"{min(failed):,}" if failed else f"above {max(kept):,}"
        cores = shown(best, "contender_cores", "{:.2f}".format)
        rows.append((name, f"{max(kept):,}" if kept else NONE, beyond, _quantile(best, 1) if best else NONE, cores))
    heads = ["", "keeps up with, records/s", "saturated at, records/s", "p99 at the last rate it keeps up with, ms"]
    return table([*heads, "cores there"], rows)


def steady(measurements: list[Found]) -> list[str]:
    """Return the steady-load table."""
    rows = []
    for (name, rate), runs in by(measurements, "contender", "rate").items():
        for one in runs:
            p99 = [part["ms"][1] if part["ms"] else None for part in one["parts"]]
            times = [value for value in p99 if value is not None]
            missing = "" if len(times) == len(p99) else f", never in {len(p99) - len(times)} minutes"
            memory = [part["memory_bytes"] for part in one["parts"]]
            rows.append(
                (
                    name,
                    f"{rate:,}",
                    f"{one['steady_s']:,.0f}",
                    spread(times, whole) + missing,
                    f"{mega(memory[0])} / {mega(memory[-1])}",
                    ("yes" if one["keeps_up"] else "no") + (" !" if is_disturbed([one, *one["parts"]]) else ""),
                )
            )
    heads = ["", "records/s", "for, s", "p99 of a minute, ms", "memory in the first / last minute, MB", "keeps up"]
    return table(heads, rows) if rows else []


def recovery(measurements: list[Found]) -> list[str]:
    """Return a table of how the contenders recover after all of their processes are killed."""
    rows = [
        (
            name,
            shown(runs, "recovery_s", short),
            shown(runs, "missing", whole),
            shown(runs, "double", whole),
            reached(runs),
        )
        for (name,), runs in by(measurements, "contender").items()
    ]
    intro = "All processes of a contender are killed with SIGKILL after a third of the results, and are then restarted."
    heads = ["", "s from restart to next new result", "neighbours missing", "duplicate results", "input processed"]
    return ["", intro, *table(heads, rows)] if rows else []


def found_share(runs: list[Found]) -> str:
    """Return the share of neighbours that a contender found, or why the share is unknown."""
    found = values(runs, "complete")
    if found:
        return f"{percent(min(found))} found"
    withheld = sorted({one["withheld"] for one in runs if one.get("withheld")})
    if not withheld:
        return "joins nothing"
    return f"{' or '.join(withheld)} at {percent(statistics.median(values(runs, 'reached')))} of the input"
