"""A transaction whose markers Kafka forgot is aborted together with the next one, before a claimant can check for it.

Results that retention has removed are not mistaken for aborted ones.
"""

from __future__ import annotations

import json
from typing import Final

import pytest

from joiner.runtime.model import dangling_key
from joiner.runtime.settings import JoinerSettings
from tests.simulation.bugs import what_was_ended_wrongly_is_not_looked_for
from tests.simulation.feed import APPLICATION, BASE_MS
from tests.simulation.memory_kafka import MemoryKafka
from tests.simulation.memory_log import COMMITTED, OPEN, Log, Transaction
from tests.simulation.stage import on_stage, running
from tests.simulation.verdict import committed_checkpoint, judge, stable_ends
from tests.simulation.world import SimulatedProcess, World

STEPS_MAX: Final = 4000
FORGOTTEN: Final = 2
"""The number of the batch whose markers are forgotten in one topic."""

BATCHES: Final = 4

JOIN: Final = {"name": "power", "left": "speed", "right": "torque", "function": "product", "output": "p"}
SETTINGS: Final = JoinerSettings.model_validate(
    {
        "topics": {"partitions": 1},
        "application": {"name": APPLICATION, "commit_interval": "200ms", "snapshot_interval": "1h"},
        "join": [JOIN],
    }
)


def create_topics(kafka: MemoryKafka) -> None:
    """Create all topics of the application, with one partition each."""
    outputs = (SETTINGS.topics.out, SETTINGS.topics.late, SETTINGS.topics.rejected, SETTINGS.topics.unmatched)
    for name in (*SETTINGS.input_topics, *outputs, SETTINGS.state_topic, SETTINGS.control_topic):
        kafka.create_topic(name, 1)


def feed(kafka: MemoryKafka, batch: int) -> None:
    """Write a record to each side, which makes the pairs of the previous batch certain."""
    for quantity in ("speed", "torque"):
        content = {"thing": "0", "quantity": quantity, "phenomenonTime": BASE_MS + 10 * batch, "result": 2.0}
        kafka.append("machine.data", 0, b"0", json.dumps(content | {"id": f"{quantity}{batch}"}).encode())


class Forgetful:
    """Feeds batch after batch. One topic never gets the markers of one batch. The owner dies during the next."""

    def __init__(self, forgets: str) -> None:
        self.world = World(1)
        self.world.director = self
        self.kafka, self._forgets = self.world.kafka, forgets
        create_topics(self.kafka)
        self._log: Log = self.kafka.log(forgets, 0)
        self.process: SimulatedProcess | None = None
        self.batches = 0
        self.has_forgotten = self.has_died = False
        self.difference = "not through"

    def step(self) -> None:
        """See `Director`."""
        if self.process is None:
            self.process = self.world.start(SETTINGS)
        checkpoint = committed_checkpoint(self.kafka, SETTINGS, 0)
        is_through = checkpoint is not None and checkpoint.offsets == stable_ends(self.kafka, SETTINGS, 0)
        if self.batches == FORGOTTEN and not self.has_forgotten:
            self.kafka.forgets = self._forget
        elif self.has_forgotten and not self.has_died and self.batches > FORGOTTEN:
            within = self.kafka.identities[f"{APPLICATION}-0"].transaction
            if within is not None and self._log in within.logs:
                self.has_died = self.process.is_dead = True
        elif self.batches <= FORGOTTEN and (is_through or self.has_forgotten):
            self.batches += 1
            feed(self.kafka, self.batches)
        elif is_through and self.has_died and not self.process.is_dead:
            self.difference = judge(self.kafka, SETTINGS)[0]
            self.world.end()
        if self.world.steps > STEPS_MAX:
            self.world.end()

    def ended(self, _process: SimulatedProcess, _status: int | BaseException) -> None:
        """See `Director`."""
        self.process = None

    def complain(self, text: str) -> None:
        """See `Director`."""
        raise AssertionError(text)

    def _forget(self, log: Log) -> bool:
        """Forget the markers only for a transaction with results, in one topic."""
        results = self.kafka.log(SETTINGS.topics.out, 0).entries
        within = results[-1].transaction if results else None
        is_it = log is self._log and within is not None and within.state == OPEN
        self.has_forgotten = self.has_forgotten or is_it
        return is_it


def difference(topic: str) -> str:
    """Return the verdict's difference at the end of a history in which markers were forgotten in this topic."""
    play = Forgetful(topic)
    with on_stage(play.world):
        play.world.play()
    assert play.has_died
    return play.difference


@pytest.mark.parametrize("topic", [SETTINGS.topics.out, SETTINGS.state_topic])
def test_what_the_rollback_of_the_next_transaction_has_taken_along_is_written_again_and_nothing_else(
    topic: str,
) -> None:
    assert difference(topic) == ""


@pytest.mark.parametrize("topic", [SETTINGS.topics.out, SETTINGS.state_topic])
def test_it_is_missing_or_doubled_where_a_claimant_does_not_compare(topic: str) -> None:
    with what_was_ended_wrongly_is_not_looked_for():
        assert "total" in difference(topic)


class Removed:
    """Kills the joiner after some batches, and removes all but the last ``keeps`` results before it restarts.

    ``foreign``: another program then has an open transaction in the result topic, until the claimant has recorded it.
    """

    def __init__(self, *, keeps: int, foreign: bool) -> None:
        self.world = World(1)
        self.world.director = self
        self.kafka, self._keeps, self._foreign = self.world.kafka, keeps, foreign
        create_topics(self.kafka)
        self._transaction: Transaction | None = None
        self._process: SimulatedProcess | None = None
        self._batches = 0
        self._has_died = False
        self.removed = 0
        self.difference = "not through"

    def step(self) -> None:
        """See `Director`."""
        if self._process is None:
            self._process = self.world.start(SETTINGS)
        checkpoint = committed_checkpoint(self.kafka, SETTINGS, 0)
        is_through = checkpoint is not None and checkpoint.offsets == stable_ends(self.kafka, SETTINGS, 0)
        if self._transaction is not None and self._is_settling():
            self.kafka.end_source(self._transaction, COMMITTED)
            self._transaction = None
        elif is_through and self._batches < BATCHES:
            self._batches += 1
            feed(self.kafka, self._batches)
        elif is_through and not self._has_died:
            self._has_died = self._process.is_dead = True
        elif is_through and not self._process.is_dead and 0 in running(self._process.joiner):
            self.difference = judge(self.kafka, SETTINGS)[0]
            self.world.end()
        if self.world.steps > STEPS_MAX:
            self.world.end()

    def ended(self, _process: SimulatedProcess, _status: int | BaseException) -> None:
        """See `Director`."""
        self._process = None
        log = self.kafka.log(SETTINGS.topics.out, 0)
        results = [entry.offset for entry in log.entries if entry.is_committed and entry.value]
        log.remove_before(results[-self._keeps] if self._keeps else log.end)
        self.removed = len(results) - self._keeps
        if self._foreign:
            self._transaction = self.kafka.begin_source()
            self.kafka.append(SETTINGS.topics.out, 0, b"0", b'{"id":"another:0:0"}', self._transaction)

    def complain(self, text: str) -> None:
        """See `Director`."""
        raise AssertionError(text)

    def _is_settling(self) -> bool:
        """Return whether the claimant has recorded that transactions must be resolved."""
        return any(entry.key == dangling_key(0).encode() for entry in self.kafka.log(SETTINGS.state_topic, 0).entries)


@pytest.mark.parametrize("foreign", [False, True])
@pytest.mark.parametrize("keeps", [0, 1])
def test_results_that_retention_has_removed_are_not_written_again(keeps: int, *, foreign: bool) -> None:
    play = Removed(keeps=keeps, foreign=foreign)
    with on_stage(play.world):
        play.world.play()
    assert play.removed > 1
    assert play.difference == ""
