"""Each message of a topic that is repartitioned is copied and joined once, however often the processes are killed."""

from __future__ import annotations

import logging
import os
import random
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from tests.chaos.schedule import seeds
from tests.integration.joiner_application import found_of
from tests.integration.joiner_process import Joiner
from tests.integration.repartitioned import PARTITIONS, Repartitioned, entries_of, repartitioned

_log = logging.getLogger(__name__)

KILLS: Final = 20 if os.environ.get("LSB_CHAOS_FULL") else 5
PIECE: Final = 60
"""The number of messages sent at a time."""
PIECES_MAX: Final = 12
"""The maximum number of pieces between two kills."""
PIECE_S: Final = 0.3

COMMANDS: Final = {"one": "run", "two": "repartition", "three": "repartition"}
"""The processes, by instance. The joiner repartitions as well."""


@pytest.fixture
def pipeline(kafka: str, tmp_path: Path) -> Iterator[Repartitioned]:
    yield from repartitioned(kafka, tmp_path, partitions=4)


@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", seeds())
def test_every_message_is_copied_and_joined_once_whatever_dies(pipeline: Repartitioned, seed: int) -> None:
    draw, app = random.Random(f"repartition {seed}"), pipeline.app
    entries = entries_of(seed, (KILLS + 1) * PIECES_MAX * PIECE)
    sent = 0
    running: dict[str, Joiner] = {name: app.start(instance=name, command=command) for name, command in COMMANDS.items()}
    for number in range(KILLS):
        # The first kill is of a process that has partitions.
        name = draw.choice(sorted(running)) if number else "one"
        if not number:
            running[name].wait_for_units(4)
        for _ in range(draw.randint(1, PIECES_MAX)):
            pipeline.send(entries[sent : sent + PIECE])
            sent += PIECE
            with suppress(subprocess.TimeoutExpired):
                running[name].process.wait(draw.uniform(0, PIECE_S))
        _log.warning("seed %s: after %s messages, %s is killed", seed, sent, name)
        running[name].kill()
        running[name] = app.start(instance=name, command=COMMANDS[name])
    # A frozen process loses its partitions while it may have a transaction open, and then wants to commit it.
    name = draw.choice(["two", "three"])
    pipeline.send(entries[sent : sent + PIECE])
    sent += PIECE
    running[name].process.send_signal(signal.SIGSTOP)
    pipeline.send(entries[sent : sent + PIECE])
    sent += PIECE
    pipeline.wait_until_copied()
    running[name].process.send_signal(signal.SIGCONT)
    pipeline.send(entries[sent : sent + PIECE])
    sent += PIECE
    findings = pipeline.finish()
    assert sum(found_of(findings, "copies", app.topic(topic)) for topic in PARTITIONS) == sent
    assert found_of(findings, "results", "power") + found_of(findings, "results", "gap") > 0
    assert [joiner.stop() for joiner in running.values()] == [0, 0, 0]
