"""The simulations in which defects are planted, and the histories in which each looks for them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Final

from tests.simulation import copy_history, history, membership_bugs, membership_history, replica_history
from tests.simulation.align_bugs import ALIGN_BUGS
from tests.simulation.bugs import BUGS
from tests.simulation.copy_bugs import COPY_BUGS
from tests.simulation.finders import Case, Search, find, known_finders, write_finders
from tests.simulation.incidents import Incident, Incidents
from tests.simulation.outcome import Outcome
from tests.simulation.replica_bugs import REPLICA_BUGS
from tests.simulation.seeds import keep_to_one_core
from tests.simulation.watermark_bugs import WATERMARK_BUGS

PLANTED: Final = BUGS | ALIGN_BUGS | WATERMARK_BUGS
"""The defects of the runner."""

LONG: Final = frozenset({"nobody_looks_behind_a_commit"})
"""Defects that only one of thousands of histories shows, so that searching for them takes ten minutes. Unit tests find
them too."""

_OF_THE_STUB: Final = re.compile(r"failed with (TypeError|AttributeError|KeyError|NameError)|unexpected error")
"""What a history tells whose planted defect no longer fits the code that it replaces. That proves nothing."""

_INCIDENTS: Final[dict[str, Incident]] = {"offsets reset": Incidents.reset_offsets}
"""The kinds of histories of the runner in which only a certain incident happens."""

_ONLY: Final = {"group_offsets_are_believed": "offsets reset"}
"""Defects that show only after a certain incident, and the histories without any other, which find them sooner."""

_RARE: Final = {
    "a_standby_does_not_take_over_from_a_server_that_is_not_the_owner": "handovers",
    "whoever_is_to_take_a_unit_over_claims_it_before_a_warm_standby": "handovers",
    "units_of_a_server_that_has_ended_are_not_noted": "handovers",
    "a_summary_loses_the_number_of_standbys": "orders",
    "a_summary_undoes_newer_orders": "orders",
    "who_was_heard_is_declared_gone": "blinks",
    "records_after_a_summary_are_skipped": "upgrade",
}
"""Defects of the membership that few histories find, and the kind of history that finds them soonest."""


def _runner_cases(name: str) -> Iterator[Case]:
    seeds = range(1, 3_001)
    if name in _ONLY:
        yield from (Case(seed, _ONLY[name]) for seed in seeds)
    yield from map(Case, seeds)


def _membership_cases(name: str) -> Iterator[Case]:
    seeds = range(1, 401)
    if name in _RARE:
        yield from (Case(seed, _RARE[name]) for seed in seeds)
    yield from (Case(seed, kind) for seed in seeds for kind in membership_history.PLAYS)


def _fault(outcome: Outcome) -> str:
    assert not _OF_THE_STUB.search(outcome.difference), outcome.difference
    return outcome.difference


RUNNER: Final = Search(
    "runner", PLANTED, _runner_cases, lambda case: _fault(history.play(case.seed, _INCIDENTS.get(case.kind)))
)
REPLICAS: Final = Search(
    "replicas", REPLICA_BUGS, lambda _: map(Case, range(1, 401)), lambda case: _fault(replica_history.play(case.seed))
)
COPIES: Final = Search(
    "copies", COPY_BUGS, lambda _: map(Case, range(1, 1_001)), lambda case: _fault(copy_history.play(case.seed))
)
MEMBERSHIP: Final = Search(
    "membership",
    membership_bugs.BUGS,
    _membership_cases,
    lambda case: membership_history.PLAYS[case.kind](case.seed),
)
SEARCHES: Final = {search.name: search for search in (RUNNER, REPLICAS, COPIES, MEMBERSHIP)}


def renew_finders(jobs: int, say: Callable[[str], None]) -> int:
    """Replace stale and missing finders, in ``jobs`` worker processes. Return how many defects were not found.

    They are written one by one, so that those found so far remain if this is interrupted.
    """
    found = {name: known_finders(search) for name, search in SEARCHES.items()}
    names = {name: search.defects.keys() - LONG for name, search in SEARCHES.items()}
    finders = {place: {name: found[place].get(name) for name in names[place]} for place in SEARCHES}
    missed = 0
    with ProcessPoolExecutor(jobs, initializer=keep_to_one_core) as pool:
        works = [pool.submit(_find, place, *one) for place, known in finders.items() for one in known.items()]
        for work in as_completed(works):
            place, name, case, took_s = work.result()
            missed += case is None
            if case is None or case != finders[place][name]:
                say(f"{place} {name}: {finders[place][name]} -> {case or 'NOT FOUND'}, after {took_s:.0f} s")
            found[place] = {known: one for known, one in found[place].items() if known in names[place] - {name}}
            if case is not None:
                found[place][name] = case
            write_finders(found)
    return missed


def _find(place: str, name: str, finder: Case | None) -> tuple[str, str, Case | None, float]:
    """Look for a defect. Return its simulation, its name, the history that shows it, and how long that took."""
    began_s = time.monotonic()
    found = find(SEARCHES[place], name, finder)
    return place, name, None if found is None else found.case, time.monotonic() - began_s
