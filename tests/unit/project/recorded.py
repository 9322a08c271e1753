"""Reads figures from the JSON files of the recorded runs, for `tests.unit.project.figures`."""

from __future__ import annotations

import json
from functools import cache
from typing import Any, Final, NamedTuple

from bench.contest.report.figures import read_figures
from tests.unit.project.documents import DOCS, ROOT

RESULTS: Final = ROOT / "bench" / "results"


class Figure(NamedTuple):
    """A passage that occurs once on the page, with ``{:…}`` for each figure, and the values from the recorded runs."""

    page: str
    text: str
    values: tuple[float, ...]


@cache
def evidence(name: str) -> Any:
    """Return the figures of a file in docs/evidence."""
    return json.loads((DOCS / "evidence" / f"{name}.json").read_text())


@cache
def contests() -> dict[str, list[dict[str, Any]]]:
    return read_figures(RESULTS)[1]


def trials(peer: str, variant: str) -> list[float]:
    """Return the rates of all trials of a peer with a variant of its settings that no other load disturbed."""
    found = json.loads((ROOT / "bench" / "peers" / "trials" / f"{peer}.json").read_text())
    return [one["records/s"] for one in found if one["variant"] == variant and "other load" not in one.get("note", "")]


def contest(kind: str, contender: str, figure: str, **where: Any) -> list[float]:
    """Return a figure from all runs of a contender, ordered by turn. ``ms 2`` is the value at index 2 of ``ms``."""
    name, _, place = figure.partition(" ")
    runs = [
        one
        for one in contests()[kind]
        if one["contender"] == contender and all(one[key] == value for key, value in where.items())
    ]
    found = [one[name][int(place)] if place else one[name] for one in sorted(runs, key=lambda one: one["turn"])]
    if not found or None in found:
        raise LookupError(f"no {figure} of {contender} is recorded in {kind}, {where}")
    return found
