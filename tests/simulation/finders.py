"""Looks for planted defects, each first in the history that found it before.

Some defects show in one of hundreds of histories, and looking for them takes minutes. ``finders.json`` names a history
for each, its *finder*. It saves time and proves nothing: if it has become stale, because a change to the code has given
the seed another history, the defect is looked for from the first seed on, as if it had no finder. The summary of the
tests lists stale finders, and ``python -m tests.simulation --finders`` replaces them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple, Self

import pytest

from tests.simulation.bugs import Bug

FILE: Final = Path(__file__).with_suffix(".json")
STALE: Final = "stale finder"
"""The name of the property that a test has if it could be faster (see tests/conftest.py)."""

Recorder = Callable[[str, object], None]
"""What pytest calls ``record_property``."""


class Case(NamedTuple):
    """A history: its seed, and its kind if the simulation has several. As text: ``"29"`` or ``"orders 29"``."""

    seed: int
    kind: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the case with this text."""
        kind, _, seed = text.rpartition(" ")
        return cls(int(seed), kind)

    def __str__(self) -> str:
        return f"{self.kind} {self.seed}".strip()


class Search(NamedTuple):
    """Where a simulation looks for the defects that are planted in it."""

    name: str
    defects: Mapping[str, Bug]
    cases: Callable[[str], Iterable[Case]]
    """Returns the histories in which to look for a defect, in this order."""
    play: Callable[[Case], str]
    """Plays a history. Returns what is wrong with it, or an empty text. Raises AssertionError if that shows only that
    the defect does not fit the code in which it is planted."""


class Found(NamedTuple):
    """The history in which a defect was found, and what is wrong with it."""

    case: Case
    fault: str


def known_finders(search: Search) -> dict[str, Case]:
    """Return the finders of a simulation, by the names of the defects."""
    texts: dict[str, str] = json.loads(FILE.read_text()).get(search.name, {})
    return {name: Case.parse(text) for name, text in texts.items()}


def find(search: Search, name: str, finder: Case | None) -> Found | None:
    """Look for a defect. ``finder``: the history to play first. Return None if no history shows the defect."""
    first = () if finder is None else (finder,)
    with search.defects[name]():
        for case in chain(first, search.cases(name)):
            if fault := search.play(case):
                return Found(case, fault)
    return None


def require_found(search: Search, name: str, record: Recorder) -> None:
    """Fail if no history shows a defect. Record as a property of the test that its finder is stale or missing."""
    finder = known_finders(search).get(name)
    found = find(search, name, finder)
    if found is None:
        pytest.fail(f"{name} is not found in {sum(1 for _ in search.cases(name))} histories")
    sys.stdout.write(f"{name}: found in history {found.case}: {found.fault}\n")
    if found.case != finder:
        record(STALE, f"{search.name} {name}: {finder} does not find it, {found.case} does")


def write_finders(found: Mapping[str, Mapping[str, Case]]) -> None:
    """Replace the finders of all simulations. Defects of which none was found have no finder."""
    texts = {name: {defect: str(case) for defect, case in sorted(cases.items())} for name, cases in found.items()}
    FILE.write_text(json.dumps(texts, indent=2) + "\n")
