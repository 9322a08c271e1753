"""Stores the measurements in result files, one for each kind."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.harness.report import json_text


@dataclass(frozen=True)
class Measurement:
    """One run. ``width_ms`` is 0 for no window, or if the narrowest that finds ``share`` of the neighbours is used.

    ``curve`` names the quantity that changes along a curve, and ``at`` is its value.
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
    """The result files, one per kind. Each measurement is saved immediately."""

    def __init__(self, folder: Path, about: dict[str, Any], settings: dict[str, Any], *, resume: bool) -> None:
        self._folder = folder
        self._head = {"machine": about, "settings": settings}
        self._resume = resume
        self._begun: set[str] = set()

    def has(self, one: Measurement) -> bool:
        """Return whether a resumed run already has this measurement. Failed ones are retried."""
        kept = read(self._folder, one.kind)["measurements"] if self._resume else []
        return any(_is_of(found, one) and "reason" not in found for found in kept)

    def add(self, one: Measurement, figures: list[dict[str, Any]]) -> None:
        """Append figures. Unless the run is resumed, the first figures of a kind replace those of earlier runs."""
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
    """Return the content of a result file, without measurements if the file does not exist."""
    path = folder / f"{kind}.json"
    return json.loads(path.read_text()) if path.is_file() else {"measurements": []}


def _is_of(found: dict[str, Any], one: Measurement) -> bool:
    # A computed width appears only in the figures. Older files lack the members that had no meaning then.
    wanted, empty = asdict(one), asdict(Measurement("", "", "", 0))
    if one.share:
        wanted.pop("width_ms")
    return all(found.get(name, empty[name]) == value for name, value in wanted.items())
