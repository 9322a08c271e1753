"""Is every pair written exactly once, in thousands of histories with every kind of fault?

``LSB_SIMULATION_SEEDS="1-10000"`` runs that many; ``python -m tests.simulation --seeds 7 --timeline`` shows one.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from tests.seed_text import parse_seeds
from tests.simulation.history import History, play
from tests.simulation.incidents import Incidents
from tests.simulation.seeds import Tally, play_all

SEEDS = tuple(parse_seeds(os.environ.get("LSB_SIMULATION_SEEDS") or "1-100"))
"""A hundred histories show most defects, and take a minute. `make simulation` plays ten thousand."""

_BLOCK: Final = 50
_EVERYTHING_WITHIN: Final = 500
"""Everything that can go wrong does within so many histories. The rarest of it happens in one of forty."""


@functools.cache
def played(seeds: tuple[int, ...]) -> Tally:
    """Run the histories of the seeds, once for all tests: a seed always gives the same history."""
    return play_all(seeds)


@pytest.mark.slow
@pytest.mark.timeout(3600)  # enough for a large LSB_SIMULATION_SEEDS
def test_every_history_ends_with_each_result_exactly_once() -> None:
    tally = Tally()
    for at in range(0, len(SEEDS), _BLOCK):
        tally.add(played(SEEDS[at : at + _BLOCK]))
    assert not tally.different, "\n".join(tally.texts[:2])
    assert tally.seeds == len(SEEDS)


def test_everything_that_can_go_wrong_does() -> None:
    wanted = {f"killed at {call}" for call in ("init", "begin", "produce", "flush", "send_offsets", "commit")}
    wanted |= {"lost answer of commit", "lost request of commit", "lost late of commit", "frozen at produce", "stops"}
    wanted |= {"retention", "compaction", "offsets reset", "outsider", "clock jump", "aborted transactions", "outputs"}
    wanted |= {"markers forgotten", "errors inside a batch", "topics unknown", "strangers", "watermarks written"}
    wanted |= {f"order {order}" for order in ("Pin", "Standbys", "Drain", "Retry")}
    for first in range(1, _EVERYTHING_WITHIN, _BLOCK):
        counts = played(tuple(range(first, first + _BLOCK))).counts
        wanted = {name for name in wanted if not counts[name]}
        if not wanted:
            break
    assert wanted == set()


def test_a_seed_gives_the_same_history_in_every_process() -> None:
    command = [sys.executable, "-m", "tests.simulation", "--timeline", "--seeds", "5 12 31"]
    root = Path(__file__).resolve().parents[2]
    told = subprocess.run(command, cwd=root, env={**os.environ, "PYTHONHASHSEED": "7"}, capture_output=True, check=True)
    here = "\n".join(play(seed).text(lines=100_000) for seed in (5, 12, 31))
    assert told.stdout.decode() == here + "\n"


def test_if_a_history_may_have_one_incident_alone_no_other_happens() -> None:
    counts = sum((play(seed, Incidents.reset_offsets).counts for seed in range(1, 9)), Counter[str]())
    others = {"retention", "compaction", "outsider", "clock jump", "markers forgotten", "topics unknown", "strangers"}
    assert counts["offsets reset"]
    assert not others & counts.keys()


def test_nothing_goes_wrong_any_more_once_a_history_heals() -> None:
    history = History(1)
    kafka = history.world.kafka
    history.begin_healing()
    kafka.damaged, kafka.forgets = 3, lambda _log: True
    history.step()
    assert not kafka.damaged
    assert kafka.forgets is None
