"""The outcome of one seed: whether the result is correct, and the timeline that led to it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Outcome:
    """The outcome of a seed. ``difference`` is empty if the result is correct."""

    seed: int
    difference: str = ""
    counts: Counter[str] = field(default_factory=Counter)
    timeline: list[tuple[Any, ...]] = field(default_factory=list)

    def text(self, lines: int = 400) -> str:
        """Return the last lines of the timeline, followed by the difference."""
        told = [_line(entry) for entry in self.timeline[-lines:]]
        return "\n".join([f"seed {self.seed}", *told, f"seed {self.seed}: {self.difference}"])


def _line(entry: tuple[Any, ...]) -> str:
    step, clock_s, who, text, *arguments = entry
    return f"{step:6} {clock_s:9.3f} s  {who:8} {text % tuple(arguments) if arguments else text}"
