"""What a check counted and which differences it found, with examples of where to look."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Final

DIFFERENCES: Final = ("missing", "doubled", "unexpected", "altered")
"""The kinds of a difference, any of which fails the check."""


@dataclass
class Tally:
    """One kind of output, compared: ``expected`` = ``found`` + ``missing``.

    ``doubled`` are further copies of one that was found, ``unexpected`` those that should not be there,
    ``altered`` those whose content is wrong. ``after`` became due after C was read, while the joiner ran on.
    """

    expected: int = 0
    found: int = 0
    missing: int = 0
    doubled: int = 0
    unexpected: int = 0
    altered: int = 0
    after: int = 0

    @property
    def is_right(self) -> bool:
        """Whether there is no difference."""
        return not any(getattr(self, kind) for kind in DIFFERENCES)


@dataclass
class Findings:
    """All that is reported. ``tallies`` by (what, of which join or ''); ``counts`` are for information."""

    examples_max: int = 5
    tallies: dict[tuple[str, str], Tally] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)
    sides: list[dict[str, Any]] = field(default_factory=list)
    units: list[dict[str, Any]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    events: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def tally(self, what: str, join: str = "") -> Tally:
        """The tally of ``what`` for ``join``, made where there is none yet."""
        return self.tallies.setdefault((what, join), Tally())

    def differ(self, kind: str, what: str, join: str, text: str, count: int = 1) -> None:
        """Count a difference of ``kind`` (of `DIFFERENCES`) and keep ``text`` while examples are few."""
        tally = self.tally(what, join)
        setattr(tally, kind, getattr(tally, kind) + count)
        self.example(f"{kind} {what}", text)

    def example(self, heading: str, text: str) -> None:
        """Keep an example under a heading."""
        kept = self.examples.setdefault(heading, [])
        if len(kept) < self.examples_max:
            kept.append(text)

    def count(self, what: str, number: int = 1) -> None:
        """Add to a count that is only for information."""
        self.counts[what] = self.counts.get(what, 0) + number

    @property
    def total(self) -> Tally:
        """All tallies together."""
        total = Tally()
        for tally in self.tallies.values():
            for name, value in asdict(tally).items():
                setattr(total, name, getattr(total, name) + value)
        return total

    @property
    def is_right(self) -> bool:
        """The verdict."""
        return self.total.is_right

    def as_json(self) -> dict[str, Any]:
        """All of it as plain JSON values."""
        rows = [{"what": what, "join": join, **asdict(tally)} for (what, join), tally in self.tallies.items()]
        return {
            "verdict": "right" if self.is_right else "wrong",
            "total": asdict(self.total),
            "compared": rows,
            "sides": self.sides,
            "units": self.units,
            "counts": self.counts,
            "events": self.events,
            "examples": self.examples,
            "notes": self.notes,
        }
