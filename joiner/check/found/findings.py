"""The counts and differences that a check found, with examples."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Final

DIFFERENCES: Final = ("missing", "doubled", "unexpected", "altered")
"""The kinds of differences. A single difference fails the check."""


@dataclass
class Tally:
    """The counts for one kind of output, with ``expected`` = ``found`` + ``missing``.

    ``doubled``: extra copies of expected outputs. ``unexpected``: outputs that must not exist. ``altered``: outputs
    with the wrong content. ``after``: outputs that a running joiner emitted after C was read.
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
        """Whether this kind of output has no differences."""
        return not any(getattr(self, kind) for kind in DIFFERENCES)


@dataclass
class Findings:
    """The contents of a report.

    ``tallies``: keyed by (kind of output, join or ''). ``counts``: other numbers, which are not differences.
    """

    examples_max: int = 5
    tallies: dict[tuple[str, str], Tally] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)
    sides: list[dict[str, Any]] = field(default_factory=list)
    units: list[dict[str, Any]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    events: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def tally(self, what: str, join: str = "") -> Tally:
        """Return the tally for the kind of output ``what`` of ``join``, creating it if necessary."""
        return self.tallies.setdefault((what, join), Tally())

    def differ(self, kind: str, what: str, join: str, text: str, count: int = 1) -> None:
        """Count ``count`` differences of ``kind``, one of `DIFFERENCES`, and keep ``text`` as an example."""
        tally = self.tally(what, join)
        setattr(tally, kind, getattr(tally, kind) + count)
        self.example(f"{kind} {what}", text)

    def example(self, heading: str, text: str) -> None:
        """Keep an example under ``heading``, unless there are already ``examples_max`` examples."""
        kept = self.examples.setdefault(heading, [])
        if len(kept) < self.examples_max:
            kept.append(text)

    def count(self, what: str, number: int = 1) -> None:
        """Add ``number`` to the count ``what``, which is not a difference."""
        self.counts[what] = self.counts.get(what, 0) + number

    @property
    def total(self) -> Tally:
        """The sum of all tallies."""
        total = Tally()
        for tally in self.tallies.values():
            for name, value in asdict(tally).items():
                setattr(total, name, getattr(total, name) + value)
        return total

    @property
    def is_right(self) -> bool:
        """Whether no kind of output has any differences."""
        return self.total.is_right

    def as_json(self) -> dict[str, Any]:
        """Return the findings as JSON values."""
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
