"""Every pair and every aligned row exists exactly once, whichever part of the Spark stage dies and whenever it dies."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.chaos.dying import POINTS
from tests.chaos.dying_stage import WHO
from tests.chaos.schedule import seeds
from tests.integration.joiner_application import (
    ALIGNS,
    SPARK_STARTS_S,
    Application,
    application,
    found_of,
    seeded_entries,
)
from tests.integration.joiner_process import Joiner
from tests.integration.services import wait_until

_log = logging.getLogger(__name__)

IS_FULL: Final = "LSB_CHAOS_FULL" in os.environ
KILLS: Final = 3
"""The number of kills per seed. Daily runs play the first one of a single seed, because each starts Spark again."""
PIECE: Final = 400
"""The number of records sent at a time."""

PER_CLAIM: Final = {"initialised", "replaying"}
"""The points that may be reached only once for each unit that an instance claims."""
INSTANCES: Final = 2
"""Of so many instances, one claims at least two of the three units."""

DEATHS: Final = [(who, point) for point in POINTS["joiner"] for who in WHO]


@pytest.fixture
def app(kafka: str, tmp_path: Path) -> Iterator[Application]:
    yield from application(kafka, tmp_path, runner="spark", aligns=ALIGNS)


def deaths(seed: int) -> list[tuple[str, str]]:
    """Return the kills of a seed: what dies, and at which point. Consecutive seeds cover all combinations."""
    order = DEATHS.copy()
    random.Random(0).shuffle(order)
    return [order[(seed * KILLS + number) % len(order)] for number in range(KILLS)]


@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", seeds()[: None if IS_FULL else 1])
def test_every_pair_comes_out_once_whatever_dies_of_the_stage(app: Application, tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    app.create_topics()
    app.produce(seeded_entries(draw.randrange(10**6), PIECE))
    for number, (who, point) in enumerate(deaths(seed)[: None if IS_FULL else 1]):
        count = draw.randint(1, 3)
        if point in PER_CLAIM:
            count = min(count, 2)
        if point == "replaying":
            leave_input_to_replay(app, draw)
        died = tmp_path / f"died-{number}"
        _log.warning("seed %s: %s dies at %s, arrival %s", seed, who, point, count)
        armed = {"LSB_CHAOS_DIE": f"{who}:{point}:{count}", "LSB_CHAOS_DIED": str(died)}
        armed["LSB_SPARK__INSTANCES"] = str(INSTANCES)
        joiner = app.start(module="tests.chaos.dying_stage", **armed)
        feed_until_dead(app, joiner, died, draw)
        if who == "instance":
            app.wait_until_through(SPARK_STARTS_S)
            joiner.kill()
        assert joiner.ends() == -9
    last = app.start()
    app.produce(seeded_entries(draw.randrange(10**6), PIECE))
    app.wait_until_through(SPARK_STARTS_S)
    assert last.stop() == 0
    assert found_of(app.verify(), "aligned rows", "table") > 0


def leave_input_to_replay(app: Application, draw: random.Random) -> None:
    """Let a stage commit input in every unit without a snapshot behind it, and kill the stage."""
    before, app.application = app.application, 'snapshot_interval = "1h"'
    joiner = app.start()
    app.produce(seeded_entries(draw.randrange(10**6), PIECE))
    app.wait_until_through(SPARK_STARTS_S)
    joiner.kill()
    app.application = before


def feed_until_dead(app: Application, joiner: Joiner, died: Path, draw: random.Random) -> None:
    """Send records until the stage is dead."""

    def is_dead() -> bool:
        if not died.exists():
            has_ended = joiner.process.poll() is not None
            # The stage may have died since the first look.
            assert died.exists() or not has_ended, joiner.text()[-3000:]
            app.produce(seeded_entries(draw.randrange(10**6), PIECE // 8))
        return died.exists()

    wait_until(is_dead, f"{died.name} is there", SPARK_STARTS_S)
