"""Each row at the end of a chain of three applications exists exactly once, whichever joiner dies at whichever step."""

from __future__ import annotations

import logging
import random
import subprocess
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final

import pytest

from tests.chaos.dying import POINTS
from tests.chaos.schedule import seeds
from tests.integration.chain import chain
from tests.integration.joiner_application import seeded_entries

_log = logging.getLogger(__name__)

KILLS: Final = 5
PIECE: Final = 60
"""The number of records sent at a time."""
PIECES_MAX: Final = 15
PIECE_S: Final = 0.3


@pytest.mark.long
@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", seeds())
def test_every_row_at_the_end_of_a_chain_comes_out_once_whatever_dies(kafka: str, tmp_path: Path, seed: int) -> None:
    draw = random.Random(f"chain {seed}")
    entries = iter(seeded_entries(seed, KILLS * PIECES_MAX * PIECE))
    with chain(kafka, tmp_path) as made:
        joiners = [app.start() for app in made]
        for _ in range(KILLS):
            doomed = draw.randrange(len(made))
            death = f"{draw.choice(sorted(POINTS['joiner']))}:{draw.randint(1, 4)}"
            _log.warning("seed %s: the joiner of application %s dies at %s", seed, doomed + 1, death)
            joiners[doomed].kill()
            dying = made[doomed].start(module="tests.integration.dying_joiner", LSB_CHAOS_DIE=death)
            for _ in range(PIECES_MAX):
                made.first.produce(islice(entries, PIECE))
                with suppress(subprocess.TimeoutExpired):
                    dying.process.wait(PIECE_S)
                    break
            # Not every step is taken in so short a time.
            dying.kill()
            joiners[doomed] = made[doomed].start()
        rows = made.release()
        assert [joiner.stop() for joiner in joiners] == [0, 0, 0]
        made.verify()
        _log.warning("seed %s: %s rows", seed, rows)
