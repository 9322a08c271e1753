"""A finder saves time, and proves nothing: whatever it says, a defect must be found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.simulation import finders
from tests.simulation.finders import STALE, Case, Search, find, known_finders, require_found, write_finders
from tests.simulation.searches import LONG, SEARCHES


class Simulation:
    """A simulation whose only history that shows the defect is the fifth, if the defect is planted."""

    def __init__(self) -> None:
        self.is_planted = False
        self.played: list[int] = []
        self.search = Search("sim", {"defect": self._plant}, lambda _: map(Case, range(1, 9)), self._play)

    @contextmanager
    def _plant(self) -> Iterator[None]:
        self.is_planted = True
        yield
        self.is_planted = False

    def _play(self, case: Case) -> str:
        self.played.append(case.seed)
        return "wrong" if self.is_planted and case.seed == 5 else ""


@pytest.fixture(autouse=True)
def _file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(finders, "FILE", tmp_path / "finders.json")


@pytest.mark.parametrize(("finder", "played"), [(5, [5]), (7, [7, 1, 2, 3, 4, 5]), (None, [1, 2, 3, 4, 5])])
def test_a_defect_is_found_whatever_its_finder_is_and_a_stale_one_is_told(
    finder: int | None, played: list[int]
) -> None:
    simulation, recorded = Simulation(), list[tuple[str, object]]()
    write_finders({"sim": {} if finder is None else {"defect": Case(finder)}})
    require_found(simulation.search, "defect", lambda name, text: recorded.append((name, text)))
    assert simulation.played == played
    told = [] if finder == 5 else [(STALE, f"sim defect: {finder} does not find it, 5 does")]
    assert recorded == told


def test_a_defect_that_no_history_shows_fails() -> None:
    simulation = Simulation()
    write_finders({})
    empty = simulation.search._replace(cases=lambda _: map(Case, range(1, 5)))
    assert find(empty, "defect", Case(1)) is None
    with pytest.raises(pytest.fail.Exception, match="defect is not found in 4 histories"):
        require_found(empty, "defect", lambda *_: None)


def test_finders_are_read_as_they_were_written() -> None:
    found = {"a": Case(7), "b": Case(29, "pins in vain")}
    write_finders({"sim": found})
    assert known_finders(Simulation().search) == found


def test_every_finder_is_that_of_a_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for search in SEARCHES.values():
        assert known_finders(search).keys() <= search.defects.keys() - LONG
