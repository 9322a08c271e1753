"""Does the simulation find defects? Each planted defect must be found within ``SEEDS_MAX`` histories."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Final

import pytest

from tests.simulation.align_bugs import ALIGN_BUGS
from tests.simulation.bugs import BUGS
from tests.simulation.history import play
from tests.simulation.incidents import Incident, Incidents
from tests.simulation.watermark_bugs import WATERMARK_BUGS

SEEDS_MAX = 3000
PLANTED = BUGS | ALIGN_BUGS | WATERMARK_BUGS

_OF_THE_STUB: Final = re.compile(r"failed with (TypeError|AttributeError|KeyError|NameError)")

FINDERS: Final = {
    "a_manifest_outlives_its_chunks": 182,
    "claim_before_init": 68,
    "dangling_counts_as_rolled_back": 73,
    "failed_commit_is_ignored": 73,
    "fenced_state_goes_on": 4,
    "group_offsets_are_believed": 110,
    "hanging_is_not_looked_for": 26,
    "keys_are_not_in_the_snapshot": 24,
    "lost_answer_is_sent_again": 90,
    "offsets_before_results": 22,
    "own_run_is_not_checked": 265,
    "progress_is_cached": 392,
    "progress_that_was_rolled_back_is_not_read": 236,
    "records_of_other_applications_are_taken_for_ours": 230,
    "results_before_offsets": 4,
    "snapshot_of_a_later_state": 37,
    "ticks_start_over_after_a_restore": 576,
    "uncommitted_is_read": 12,
    "what_hangs_is_rolled_back_without_a_note": 63,
    "who_was_fenced_does_not_wait": 2063,
}
"""For defects that few histories find, one that did when it was last looked for. It is tried first, to save minutes."""


ONLY: Final = {"group_offsets_are_believed": Incidents.reset_offsets}
"""For defects that show only after a certain incident, that incident. Histories without any other find them sooner."""


LONG: Final = frozenset({"nobody_looks_behind_a_commit"})
"""Defects that only one of thousands of histories shows, so that searching for them takes ten minutes. Unit tests find
them too."""


def histories(name: str) -> Iterator[tuple[int, Incident | None]]:
    """Yield the seeds of the histories in which to look for a defect, with the only incident that happens in each."""
    seeds = range(1, SEEDS_MAX + 1)
    if name in FINDERS:
        yield FINDERS[name], ONLY.get(name)
    if name in ONLY:
        yield from ((seed, ONLY[name]) for seed in seeds)
    yield from ((seed, None) for seed in seeds)


@pytest.mark.slow
@pytest.mark.timeout(3600)  # some defects take thousands of histories
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if name in LONG else []) for name in PLANTED]
)
def test_a_planted_defect_is_found(name: str) -> None:
    with PLANTED[name]():
        for seed, only in histories(name):
            outcome = play(seed, only)
            if outcome.difference:
                # A stub that no longer fits the code it replaces proves nothing.
                assert not _OF_THE_STUB.search(outcome.difference), outcome.difference
                sys.stdout.write(f"{name}: found in history {seed}: {outcome.difference}\n")
                return
    pytest.fail(f"{name} is not found in {SEEDS_MAX} histories")
