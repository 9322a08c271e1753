"""Stores the measurements in JSON files, one for each kind of measurement."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.harness.report import json_text


@dataclass(frozen=True)
class Measurement:
    """One run of a contender on a workload.

    ``width_ms`` is the width of the contender's window, or 0 for a contender without a window. It is also 0 if
    ``share`` is set; the contender then uses the narrowest window that finds this share of the neighbours. ``curve``
    names the property varied in a series of runs, and ``at`` is its value in this run.
    """

    kind: str
    contender: str
    workload: str
    turn: int
    width_ms: int = 0
    share: float = 0.0
    curve: str = ""
    at: int = 0

    def __str__(self) -> str:
        width = f", {self.width_ms} ms" if self.width_ms else f", for {self.share:.0%}" if self.share else ""
        return f"{self.kind} {self.turn}: {self.contender} on {self.workload}{width}"


class Kept:
    """The result files, one per kind of measurement. Each measurement is saved as soon as it is added."""

    def __init__(self, folder: Path, about: dict[str, Any], settings: dict[str, Any], *, resume: bool) -> None:
        self._folder = folder
        self._head = {"machine": about, "settings": settings}
        self._resume = resume
        self._begun: set[str] = set()

    def has(self, one: Measurement) -> bool:
        """Return whether the resumed run already contains this measurement. Failed measurements are retried."""
        kept = read(self._folder, one.kind)["measurements"] if self._resume else []
        return any(_is_of(found, one) and "reason" not in found for found in kept)

    def add(self, one: Measurement, figures: list[dict[str, Any]]) -> None:
        """Append the figures of a measurement to its file.

        Unless a run is being resumed, the first measurement of each kind overwrites the file from the previous run.
        """
        kept = read(self._folder, one.kind) if self._resume or one.kind in self._begun else {"measurements": []}
        self._begun.add(one.kind)
        before = [found for found in kept["measurements"] if not (_is_of(found, one) and "reason" in found)]
        at = {"date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"}
        kept = self._head | {"measurements": before + [asdict(one) | at | found for found in figures]}
        self._folder.mkdir(parents=True, exist_ok=True)
        draft = self._folder / f".{one.kind}.json"
        draft.write_text(json_text(kept) + "\n")
        draft.replace(self._folder / f"{one.kind}.json")


def read(folder: Path, kind: str) -> dict[str, Any]:
    """Return the contents of a result file. If there is no such file, the list of measurements is empty."""
    path = folder / f"{kind}.json"
    return json.loads(path.read_text()) if path.is_file() else {"measurements": []}


def _is_of(found: dict[str, Any], one: Measurement) -> bool:
    # A width computed from ``share`` is not in the plan, only in the stored figures. Older files lack fields that were
    # added later.
    wanted, empty = asdict(one), asdict(Measurement("", "", "", 0))
    if one.share:
        wanted.pop("width_ms")
    return all(found.get(name, empty[name]) == value for name, value in wanted.items())
