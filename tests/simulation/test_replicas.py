"""Do two replicas write the same output, each exactly once, whatever dies while one of them is founded?

``LSB_REPLICA_SEEDS="1-3000"`` runs that many histories.
"""

from __future__ import annotations

import functools
import os
from collections import Counter
from typing import Final

import pytest

from tests.seed_text import parse_seeds
from tests.simulation.finders import Recorder, require_found
from tests.simulation.outcome import Outcome
from tests.simulation.replica_history import play
from tests.simulation.searches import REPLICAS

SEEDS: Final = tuple(parse_seeds(os.environ.get("LSB_REPLICA_SEEDS") or "1-8"))


@functools.cache
def played(seed: int) -> Outcome:
    return play(seed)


@pytest.mark.slow
@pytest.mark.timeout(3600)  # enough for a large LSB_REPLICA_SEEDS
def test_replicas_write_the_same_and_their_start_records_hold() -> None:
    different = [outcome.text() for outcome in map(played, SEEDS) if outcome.difference]
    assert not different, "\n".join(different[:2])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_everything_that_can_go_wrong_does() -> None:
    counts = Counter[str]()
    for seed in range(1, 31):
        counts.update(played(seed).counts)
    wanted = {"markers forgotten", "founded on a snapshot", "reset", "outputs of sim", "outputs of sim.r1"}
    wanted |= {"founded in several transactions", "strangers", "resolved, continued and wrote"}
    wanted.add("killed at a commit that loses markers")
    assert {name for name in wanted if not counts[name]} == set()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", REPLICAS.defects)
def test_a_planted_defect_is_found(name: str, record_property: Recorder) -> None:
    require_found(REPLICAS, name, record_property)
