"""A long commit interval delays commits, and nothing else."""

from __future__ import annotations

import json
from typing import Any

from broker.partitioner import partition_of
from joiner.runtime.settings import JoinerSettings
from tests.simulation.feed import BASE_MS
from tests.simulation.stage import on_stage
from tests.simulation.test_forgotten import SETTINGS
from tests.simulation.verdict import committed_checkpoint, judge, stable_ends
from tests.simulation.world import SimulatedProcess, World

UNITS = 2
BATCHES = 100
INTERVAL_S = 120
JOINS_S = 1030.0


class Patient:
    """Feeds two units, a batch each second, and starts a second process after 30 s."""

    def __init__(self) -> None:
        both = SETTINGS.topics.model_copy(update={"partitions": UNITS})
        rarely = SETTINGS.application.model_copy(update={"commit_interval": INTERVAL_S * 1_000_000_000})
        self.settings: JoinerSettings = SETTINGS.model_copy(update={"topics": both, "application": rarely})
        self.world = World(1)
        self.world.director = self
        topics = self.settings.topics
        outputs = (topics.out, topics.late, topics.rejected, topics.unmatched)
        for name in (*self.settings.input_topics, *outputs, self.settings.state_topic):
            self.world.kafka.create_topic(name, UNITS)
        self.world.kafka.create_topic(self.settings.control_topic, 1)
        self._things = [next(str(n) for n in range(99) if partition_of(b"%d" % n, UNITS) == u) for u in range(UNITS)]
        self._processes: list[SimulatedProcess] = []
        self._batches = 0
        self.shared_s: float | None = None
        """When the second process has claimed a unit."""
        self.difference = "not through"

    def step(self) -> None:
        """See `Director`."""
        clock_s = self.world.clock_s
        if not self._processes or (len(self._processes) == 1 and clock_s >= JOINS_S):
            self._start()
        if self._batches < BATCHES and clock_s >= 1000 + self._batches:
            self._feed()
        found = [committed_checkpoint(self.world.kafka, self.settings, unit) for unit in range(UNITS)]
        runs = {one.run for one in found if one is not None}
        if self.shared_s is None and len(runs) == UNITS:
            self.shared_s = clock_s
        ends = [stable_ends(self.world.kafka, self.settings, unit) for unit in range(UNITS)]
        if self._batches == BATCHES and [one.offsets for one in found if one is not None] == ends:
            self.difference = judge(self.world.kafka, self.settings)[0]
            self.world.end()

    def _start(self) -> None:
        name = f"process-{len(self._processes)}"
        named = self.settings.application.model_copy(update={"instance": name})
        self._processes.append(self.world.start(self.settings.model_copy(update={"application": named})))

    def _feed(self) -> None:
        self._batches += 1
        for unit, thing in enumerate(self._things):
            for quantity in ("speed", "torque"):
                content = {"thing": thing, "quantity": quantity, "id": f"{quantity}{self._batches}", "result": 2.0}
                content["phenomenonTime"] = BASE_MS + 10 * self._batches
                self.world.kafka.append("machine.data", unit, thing.encode(), json.dumps(content).encode())

    def ended(self, process: SimulatedProcess, status: int | BaseException) -> None:
        """See `Director`."""
        raise AssertionError(f"{process.run} ended with {status!r}")

    def complain(self, text: str) -> None:
        """See `Director`."""
        raise AssertionError(text)


def played() -> Patient:
    director: Any = Patient()
    with on_stage(director.world):
        director.world.play()
    found: Patient = director
    return found


def test_an_instance_that_joins_gets_its_units_long_before_the_next_commit() -> None:
    director = played()
    assert director.difference == ""
    assert director.shared_s is not None
    assert director.shared_s - JOINS_S < INTERVAL_S / 2
