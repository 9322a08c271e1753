"""A unit whose commit is slow does not hold up the other units, and loses nothing that was joined in the meantime."""

from __future__ import annotations

import json
from typing import Any

import pytest

from broker.partitioner import partition_of
from joiner.runtime.kafka.unit_producer import UnitProducer
from joiner.runtime.runners.active_task import ActiveTask
from joiner.runtime.settings import JoinerSettings
from tests.simulation import pool
from tests.simulation.feed import BASE_MS
from tests.simulation.stage import on_stage
from tests.simulation.test_forgotten import SETTINGS
from tests.simulation.verdict import committed_checkpoint, judge, stable_ends
from tests.simulation.world import SimulatedProcess, World

UNITS = 2
BATCHES = 40
SLOW_S, WAIT_S = 20.0, 0.02
"""How long the slow commit takes, and in which steps: half of the batches arrive in the meantime."""


class Slow:
    """Feeds two units, a batch each second."""

    def __init__(self) -> None:
        both = SETTINGS.topics.model_copy(update={"partitions": UNITS})
        self.settings: JoinerSettings = SETTINGS.model_copy(update={"topics": both})
        self.world = World(1)
        self.world.director = self
        topics = self.settings.topics
        outputs = (topics.out, topics.late, topics.rejected, topics.unmatched)
        for name in (*self.settings.input_topics, *outputs, self.settings.state_topic):
            self.world.kafka.create_topic(name, UNITS)
        self.world.kafka.create_topic(self.settings.control_topic, 1)
        self._things = [next(str(n) for n in range(99) if partition_of(b"%d" % n, UNITS) == u) for u in range(UNITS)]
        self._process: SimulatedProcess | None = None
        self.batches = 0
        self.others: list[int] = []
        """The offset of unit 1 before and after the slow commit of unit 0."""
        self.difference = "not through"

    def step(self) -> None:
        """See `Director`."""
        kafka = self.world.kafka
        if self._process is None:
            self._process = self.world.start(self.settings)
        if self.batches < BATCHES and self.world.clock_s >= 1000 + self.batches:
            self.batches += 1
            for unit, thing in enumerate(self._things):
                for quantity in ("speed", "torque"):
                    content = {"thing": thing, "quantity": quantity, "id": f"{quantity}{self.batches}", "result": 2.0}
                    content["phenomenonTime"] = BASE_MS + 10 * self.batches
                    kafka.append("machine.data", unit, thing.encode(), json.dumps(content).encode())
        if self.batches == BATCHES and all(map(self._is_through, range(UNITS))):
            self.difference = judge(kafka, self.settings)[0]
            self.world.end()

    def offset(self, unit: int) -> int:
        """Return the number of records of a unit that its last committed checkpoint covers."""
        checkpoint = committed_checkpoint(self.world.kafka, self.settings, unit)
        return 0 if checkpoint is None else checkpoint.offsets["machine.data"]

    def _is_through(self, unit: int) -> bool:
        checkpoint = committed_checkpoint(self.world.kafka, self.settings, unit)
        return checkpoint is not None and checkpoint.offsets == stable_ends(self.world.kafka, self.settings, unit)

    def ended(self, process: SimulatedProcess, status: int | BaseException) -> None:
        """See `Director`."""
        raise AssertionError(f"{process.run} ended with {status!r}")

    def complain(self, text: str) -> None:
        """See `Director`."""
        raise AssertionError(text)


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Slow:
    """A history in which one commit of unit 0 is slow."""
    history, commit = Slow(), UnitProducer.commit

    def slowly(producer: Any) -> None:
        if producer._unit == 0 and history.batches >= BATCHES // 4 and not history.others:  # noqa: SLF001 - which one it is
            history.others.append(history.offset(1))
            until_s = history.world.clock_s + SLOW_S
            while history.world.clock_s < until_s:
                history.world.link.pass_time(WAIT_S)
            history.others.append(history.offset(1))
        commit(producer)

    # All work of a pool runs in separate threads.
    monkeypatch.setattr(pool, "_BESIDE", 1.0)
    monkeypatch.setattr(UnitProducer, "commit", slowly)
    return history


def test_a_slow_commit_of_one_unit_does_not_hold_up_the_others(play: Slow) -> None:
    with on_stage(play.world):
        play.world.play()
    before, after = play.others
    assert after - before > 30, "of the 40 records that arrived during the commit"
    assert play.difference == ""


def test_a_batch_that_replaces_the_one_before_it_is_found(play: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ActiveTask, "add_waiting", lambda task, batch: setattr(task, "waiting", batch))
    with on_stage(play.world):
        play.world.play()
    assert "missing" in play.difference
