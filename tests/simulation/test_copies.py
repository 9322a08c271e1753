"""Is each message of a topic that is repartitioned copied exactly once and in order, in histories with every fault?

``LSB_SIMULATION_SEEDS="1-10000"`` runs that many.
"""

from __future__ import annotations

import functools
import os
from collections import Counter

import pytest

from tests.seed_text import parse_seeds
from tests.simulation.copy_history import play
from tests.simulation.finders import Recorder, require_found
from tests.simulation.outcome import Outcome
from tests.simulation.searches import COPIES

FIRST = tuple(range(1, 91))
SEEDS = tuple(parse_seeds(os.environ.get("LSB_SIMULATION_SEEDS") or "1-90"))


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


@pytest.mark.timeout(900)  # with a stale finder
@pytest.mark.parametrize("name", COPIES.defects)
def test_a_planted_defect_of_copying_is_found(name: str, record_property: Recorder) -> None:
    require_found(COPIES, name, record_property)
