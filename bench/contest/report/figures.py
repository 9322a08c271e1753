"""Judges the recorded runs, and formats their figures."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from bench.contest import engine
from bench.contest.contenders import CONTENDERS, OURS
from bench.contest.kept import read
from bench.contest.plan import BASES, KINDS

NONE: Final = "-"
ROUGH_S: Final = 3.0
"""A rate measured over a shorter time than this is marked as approximate, because that time has too few batches."""
DISTURBED: Final = 0.05
"""A run is marked as disturbed if other programs and the host took more than this share of the machine."""
CUT_OFF: Final = "cut off"
STUCK: Final = "went quiet early"
VERDICTS: Final = {
    CUT_OFF: (
        "A run that was *cut off* had not read its input to the end when it reached its time limit. The results that "
        "it had not written by then do not count as missing, and the run is not compared for completeness."
    ),
    STUCK: (
        "A run that *went quiet early* stopped writing and was idle for a while before it had written the last pairs "
        "that it could have found. It is not compared for completeness either."
    ),
}

Found = dict[str, Any]
Shown = Callable[[float], str]


def read_figures(results: Path) -> tuple[Found, dict[str, list[Found]]]:
    """Return the contents of all result files, and the judged measurements of each kind, sorted by contender."""
    found = {kind: read(results, kind) for kind in KINDS}
    order = {name: number for number, name in enumerate([*CONTENDERS, engine.NAME])}

    def place(run: Found) -> int:
        name: str = run["contender"]
        return order.get(BASES.get(name, name), len(order))

    return found, {kind: sorted(map(judged, one["measurements"]), key=place) for kind, one in found.items()}


def judged(one: Found) -> Found:
    """Judge a measurement. Clear the figures that it cannot support.

    ``withheld`` is set to the reason why the run is not compared for completeness, or to an empty string if it is.

    Whether the run has finished depends on which results it found, not on how many.
    """
    if "reason" in one or one["kind"] in {"latency", "steady"}:
        return one
    if is_through(one):
        return one | {"withheld": ""}
    return one | {"withheld": STUCK if one.get("is_quiet") else CUT_OFF, "complete": None, "missing": None}


def is_through(one: Found) -> bool:
    """Return whether a run has read its input to the end.

    A run without ``is_quiet`` was recorded by an earlier version; only its results show whether it finished.
    """
    if "is_quiet" in one:
        return bool(one["is_through"])
    return "missing" not in one or (one["reached"] == 1 and not one["missing"]) or _has_all_of_window(one)


def _has_all_of_window(one: Found) -> bool:
    """Return whether a run found all pairs within its window, and no others."""
    return "held" in one and one["results"] - one["double"] == one["held"]


def is_ours(name: str) -> bool:
    """Return whether a contender is the joiner."""
    return name in {one.name for one in OURS}


def by(measurements: Iterable[Found], *names: str) -> dict[tuple[Any, ...], list[Found]]:
    """Group successful measurements by the values of the fields ``names``, in the order of first occurrence."""
    groups: dict[tuple[Any, ...], list[Found]] = {}
    for one in measurements:
        if "reason" not in one:
            groups.setdefault(tuple(one.get(name) for name in names), []).append(one)
    return groups


SAME_TURN: Final = ("turn", "broker_start", "commit")
"""Measurements that agree in these fields were made in one turn, with the same broker and the same code, which may be
different after a run is resumed. Older files record neither, so all of their measurements are treated as made with the
same ones."""


def values(runs: Iterable[Found], name: str) -> list[float]:
    """Return the values of a figure from all runs that have it."""
    return [one[name] for one in runs if one.get(name) is not None]


def shown(runs: Iterable[Found], name: str, form: Shown) -> str:
    """Return ``minimum / median / maximum`` of a figure over all runs, or a single number if all three are equal."""
    return spread(values(runs, name), form)


def spread(found: list[float], form: Shown) -> str:
    """Return ``minimum / median / maximum`` as a string, or a single number if all three are equal."""
    if not found:
        return NONE
    three = [form(value) for value in (min(found), statistics.median(found), max(found))]
    return three[0] if len(set(three)) == 1 else " / ".join(three)


def rate(runs: list[Found]) -> str:
    """Return the rate of the runs in thousand records per second, with marks if it is approximate or disturbed."""
    is_rough = min(values(runs, "steady_s"), default=ROUGH_S) < ROUGH_S
    marks = (" ~" if is_rough else "") + (" !" if is_disturbed(runs) else "")
    return shown(runs, "records_per_s", thousands) + marks


def is_disturbed(runs: list[Found]) -> bool:
    """Return whether other programs disturbed one of the runs. Older runs, which did not record it, are not marked."""
    return max(values(runs, "foreign_share"), default=0.0) > DISTURBED


def reached(runs: list[Found]) -> str:
    """Return the share of the input that the runs processed, and why they did not process the rest."""
    withheld = sorted({one["withheld"] for one in runs if one.get("withheld")})
    return ", ".join([shown(runs, "reached", percent), *withheld])


def excess(runs: list[Found]) -> str:
    """Return the share of the results that are not pairs of neighbours."""
    return spread([one["excess"] / max(1, one["results"]) for one in runs if "excess" in one], percent)


def thousands(value: float) -> str:
    """Format a rate in thousands."""
    return three_digits(value / 1000)


def percent(value: float) -> str:
    """Format a share; only exact values are shown as 0% or 100%."""
    if value in {0.0, 1.0}:
        return f"{value:.0%}"
    return f"{min(max(value, 0.00001), 0.99999):.3%}"


def whole(value: float) -> str:
    """Format a number without decimals."""
    return f"{value:,.0f}"


def short(value: float) -> str:
    """Format a number with one decimal."""
    return f"{value:,.1f}"


def mega(value: float) -> str:
    """Format a number in millions."""
    return three_digits(value / 1e6)


def three_digits(value: float) -> str:
    """Format a number with three significant digits."""
    digits = 2 - len(f"{value:.0f}") + (value >= 1)
    return f"{value:,.{max(0, digits)}f}"
