"""The same histories with a Spark stage instead of plain processes. Results are written once; defects are found.

``LSB_SIMULATION_SEEDS="1-10000"`` runs that many.
"""

from __future__ import annotations

import os
import sys

import pytest

from tests.seed_text import parse_seeds
from tests.simulation.history import play
from tests.simulation.seeds import play_all
from tests.simulation.spark_bugs import SPARK_BUGS

SEEDS = parse_seeds(os.environ.get("LSB_SIMULATION_SEEDS") or "1-100")
SEEDS_MAX = 600


@pytest.mark.timeout(3600)  # enough for a large LSB_SIMULATION_SEEDS
def test_every_history_of_a_stage_ends_with_each_result_exactly_once() -> None:
    tally = play_all(SEEDS, in_spark=True)
    assert not tally.different, "\n".join(tally.texts[:2])
    assert tally.seeds == len(SEEDS)


def test_everything_that_can_go_wrong_with_a_stage_does() -> None:
    counts = play_all(range(1, 101), in_spark=True).counts
    wanted = {f"killed at {call}" for call in ("begin", "produce", "flush", "send_offsets", "commit")}
    wanted |= {"stops", "aborted transactions", "outputs", "markers forgotten", "errors inside a batch", "strangers"}
    assert {name for name in wanted if not counts[name]} == set()


def test_a_seed_gives_the_same_history_of_a_stage_again() -> None:
    for seed in (3, 12):
        assert play(seed, in_spark=True).timeline == play(seed, in_spark=True).timeline


@pytest.mark.parametrize("name", SPARK_BUGS)
def test_a_defect_that_is_planted_in_a_stage_is_found(name: str) -> None:
    with SPARK_BUGS[name]():
        for seed in range(1, SEEDS_MAX + 1):
            outcome = play(seed, in_spark=True)
            if outcome.difference:
                sys.stdout.write(f"{name}: found in history {seed}: {outcome.difference}\n")
                return
    pytest.fail(f"{name} is not found in {SEEDS_MAX} histories")
