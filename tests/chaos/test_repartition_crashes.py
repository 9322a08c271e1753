"""Each message of a topic that is repartitioned is copied and joined once, whatever happens to the processes and Kafka.

Kafka 4.3.1 may leave a transaction open for ever if it is killed while it ends it, and copying then waits for an
operator (docs/recovery.md). Therefore it is killed only while nothing is being copied.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Final

import pytest

from broker.stack import LocalStack
from broker.stack.servers import Server
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

OUTAGE_EVERY: Final = 5
"""After how many kills of processes Kafka has an outage."""
OUTAGES: Final = {"freeze": (12.0, 12.0), "kill": (0.0, 4.0), "stop": (0.0, 4.0)}
"""The kinds of outages of Kafka, with their durations in seconds. A frozen broker finds all sessions and transactions
expired."""

COMMANDS: Final = {"one": "run", "two": "repartition", "three": "repartition"}
"""The processes, by instance. The joiner repartitions as well."""


@pytest.fixture
def pipeline(kafka: str, tmp_path: Path) -> Iterator[Repartitioned]:
    yield from repartitioned(kafka, tmp_path, partitions=4)


@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", seeds())
def test_every_message_is_copied_and_joined_once_whatever_dies(
    pipeline: Repartitioned, stack: LocalStack, seed: int
) -> None:
    draw, app = random.Random(f"repartition {seed}"), pipeline.app
    entries = entries_of(seed, (KILLS + 1) * (PIECES_MAX + 1) * PIECE)
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
        if number % OUTAGE_EVERY == OUTAGE_EVERY // 2:
            pipeline.send(entries[sent : sent + PIECE])
            sent += PIECE
            _let_kafka_fail(pipeline, stack.kafka, [*OUTAGES][(seed + number // OUTAGE_EVERY) % len(OUTAGES)], draw)
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


def _let_kafka_fail(pipeline: Repartitioned, kafka: Server, outage: str, draw: random.Random) -> None:
    """Let Kafka have an outage, and wait until it is there again."""
    _log.warning("Kafka has an outage: %s", outage)
    if outage == "kill":
        pipeline.wait_until_copied()
    end: dict[str, Callable[[], object]] = {"freeze": kafka.pause, "kill": kafka.kill, "stop": kafka.stop}
    end[outage]()
    # The length of the outage: nothing is waited for.
    Event().wait(draw.uniform(*OUTAGES[outage]))
    if outage == "freeze":
        kafka.resume()
    kafka.start()
    kafka.wait_ready()
