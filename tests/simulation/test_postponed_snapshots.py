"""A snapshot must not replace the older one while a foreign transaction hides which of the joiner's have ended.

In this history, another program has an open transaction in the result topic. Once it is open, Kafka forgets the markers
of a transaction of the joiner. Commits without results follow, each with a snapshot. Then the owner dies during a
commit with results, whose abort also ends the forgotten transaction. Its results must be written again, from an earlier
snapshot.
"""

from __future__ import annotations

import json
from typing import Final

from tests.simulation.bugs import a_snapshot_does_not_wait
from tests.simulation.feed import APPLICATION, BASE_MS
from tests.simulation.memory_log import COMMITTED, OPEN, Log, Transaction
from tests.simulation.stage import on_stage
from tests.simulation.test_forgotten import SETTINGS, STEPS_MAX, create_topics, feed
from tests.simulation.verdict import committed_checkpoint, judge, stable_ends
from tests.simulation.world import SimulatedProcess, World

FORGOTTEN: Final = 3
"""The batch whose markers are forgotten in the result topic."""
QUIET: Final = 2
"""The number of batches without results that follow it: as many as there are snapshot slots."""


class Hidden:
    """Feeds batch after batch, and kills the owner during the last one."""

    def __init__(self) -> None:
        application = SETTINGS.application.model_copy(update={"snapshot_interval": 1})
        self._settings = SETTINGS.model_copy(update={"application": application})
        self.world = World(1)
        self.world.director = self
        self._kafka = self.world.kafka
        create_topics(self._kafka)
        self._log: Log = self._kafka.log(SETTINGS.topics.out, 0)
        self._foreign: Transaction | None = None
        self._process: SimulatedProcess | None = None
        self._batches = 0
        self.has_forgotten = self.has_died = False
        self.difference = "not through"

    def step(self) -> None:
        """See `Director`."""
        if self.world.steps > STEPS_MAX:
            self.world.end()
        if self._process is None:
            self._process = self.world.start(self._settings)
        checkpoint = committed_checkpoint(self._kafka, self._settings, 0)
        is_through = checkpoint is not None and checkpoint.offsets == stable_ends(self._kafka, self._settings, 0)
        if self._batches == FORGOTTEN and not self.has_forgotten:
            self._kafka.forgets = self._forget
        elif self._batches > FORGOTTEN + QUIET and not self.has_died:
            self._kill_within_a_commit(self._process)
        elif is_through and self.has_died and not self._process.is_dead:
            self.difference = judge(self._kafka, self._settings)[0]
            self.world.end()
        elif is_through and not self.has_died:
            self._feed_next()

    def ended(self, _process: SimulatedProcess, _status: int | BaseException) -> None:
        """See `Director`."""
        self._process = None

    def complain(self, text: str) -> None:
        """See `Director`."""
        raise AssertionError(text)

    def _feed_next(self) -> None:
        self._batches += 1
        if self._batches == FORGOTTEN:
            self._foreign = self._kafka.begin_source()
            self._kafka.append(SETTINGS.topics.out, 0, b"0", b'{"id":"another:0:0"}', self._foreign)
        if FORGOTTEN < self._batches <= FORGOTTEN + QUIET:
            record = {"thing": "1", "quantity": "speed", "phenomenonTime": BASE_MS, "result": 1.0}
            content = json.dumps(record | {"id": f"alone{self._batches}"})
            self._kafka.append("machine.data", 0, b"1", content.encode())
            return
        if self._foreign is not None and self._foreign.state == OPEN and self._batches > FORGOTTEN:
            self._kafka.end_source(self._foreign, COMMITTED)
        feed(self._kafka, self._batches)

    def _forget(self, log: Log) -> bool:
        self.has_forgotten = self.has_forgotten or log is self._log
        return log is self._log

    def _kill_within_a_commit(self, process: SimulatedProcess) -> None:
        within = self._kafka.identities[f"{APPLICATION}-0"].transaction
        if within is not None and self._log in within.logs:
            self.has_died = process.is_dead = True


def difference() -> str:
    """Return the verdict's difference at the end of the history."""
    play = Hidden()
    with on_stage(play.world):
        play.world.play()
    assert play.has_forgotten
    assert play.has_died
    return play.difference


def test_results_behind_an_open_transaction_are_written_again() -> None:
    assert difference() == ""


def test_they_are_missing_if_a_snapshot_replaces_the_older_one_meanwhile() -> None:
    with a_snapshot_does_not_wait():
        assert "total" in difference()
