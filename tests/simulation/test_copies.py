"""Is each message of a topic that is repartitioned copied exactly once and in order, in histories with every fault?

``LSB_SIMULATION_SEEDS="1-10000"`` runs that many.
"""

from __future__ import annotations

import functools
import os
import sys
from collections import Counter
from typing import Final

import pytest

from tests.seed_text import parse_seeds
from tests.simulation.copy_bugs import COPY_BUGS
from tests.simulation.copy_history import play
from tests.simulation.outcome import Outcome

FIRST = tuple(range(1, 91))
SEEDS = tuple(parse_seeds(os.environ.get("LSB_SIMULATION_SEEDS") or "1-90"))
SEEDS_MAX: Final = 400

FINDERS: Final[dict[str, int]] = {
    "an_added_partition_begins_at_its_end": 139,
    "copies_are_not_looked_for": 15,
    "offsets_outside_the_transaction": 6,
    "revoked_partitions_are_still_copied": 575,
    "the_generation_is_not_checked": 28,
    "the_id_in_the_copies_is_not_checked": 48,
    "the_id_of_the_copied_topic_is_not_checked": 10,
    "the_id_of_the_repartition_topic_is_not_checked": 8,
    "the_scan_ends_at_an_open_transaction": 70,
}
"""For defects that few histories find, one that did when it was last looked for. It is tried first, to save seconds."""


@functools.cache
def played(seed: int) -> Outcome:
    """Run the history of a seed, once for all tests: a seed always gives the same history."""
    return play(seed)


@pytest.mark.timeout(3600)  # enough for a large LSB_SIMULATION_SEEDS
def test_every_history_ends_with_each_message_copied_once_and_in_order() -> None:
    different = [outcome for seed in SEEDS if (outcome := played(seed)).difference]
    assert not different, f"{[outcome.seed for outcome in different]}\n" + "\n".join(
        one.text() for one in different[:2]
    )


def test_everything_that_can_go_wrong_with_copies_does() -> None:
    counts: Counter[str] = sum((played(seed).counts for seed in FIRST), Counter())
    wanted = {f"killed at {call}" for call in ("init", "begin", "produce", "flush", "send_offsets", "commit")}
    wanted |= {"lost answer of commit", "lost request of commit", "lost late of commit", "frozen at produce", "stops"}
    wanted |= {"offsets expired", "source recreated", "target recreated", "partition added", "refusals"}
    wanted |= {"retention of originals", "retention of copies", "errors inside a batch", "aborted transactions"}
    wanted |= {"copies", "judged"}
    assert {name for name in wanted if not counts[name]} == set()


def test_a_seed_gives_the_same_history_of_copies_again() -> None:
    assert play(7).text(100_000) == played(7).text(100_000)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", COPY_BUGS)
def test_a_planted_defect_of_copying_is_found(name: str) -> None:
    known = [FINDERS[name]] if name in FINDERS else []
    with COPY_BUGS[name]():
        for seed in (*known, *range(1, SEEDS_MAX + 1)):
            outcome = play(seed)
            if outcome.difference:
                # A stub that no longer fits the code it replaces proves nothing.
                assert "unexpected error" not in outcome.difference, outcome.text()
                sys.stdout.write(f"{name}: found in history {seed}: {outcome.difference}\n")
                return
    pytest.fail(f"{name} is not found in {SEEDS_MAX} histories")
