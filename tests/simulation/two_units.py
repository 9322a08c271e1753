"""A director that feeds two units, and is the base of those that look at one process or two."""

from __future__ import annotations

import json

from broker.partitioner import partition_of
from joiner.runtime.settings import JoinerSettings
from tests.simulation.feed import BASE_MS
from tests.simulation.test_forgotten import SETTINGS
from tests.simulation.verdict import committed_checkpoint, judge, stable_ends
from tests.simulation.world import SimulatedProcess, World

UNITS = 2


class TwoUnits:
    """Feeds two units, a batch each second, and ends the history once all ``most`` batches are joined."""

    def __init__(self, most: int, **application: int) -> None:
        """``application``: settings that differ."""
        topics = SETTINGS.topics.model_copy(update={"partitions": UNITS})
        changed = SETTINGS.application.model_copy(update=application)
        self.settings: JoinerSettings = SETTINGS.model_copy(update={"topics": topics, "application": changed})
        self.world = World(1)
        self.world.director = self
        outputs = (topics.out, topics.late, topics.rejected, topics.unmatched)
        for name in (*self.settings.input_topics, *outputs, self.settings.state_topic):
            self.world.kafka.create_topic(name, UNITS)
        self.world.kafka.create_topic(self.settings.control_topic, 1)
        self._things = [next(str(n) for n in range(99) if partition_of(b"%d" % n, UNITS) == u) for u in range(UNITS)]
        self._most = most
        self.batches = 0
        self.difference = "not through"

    def step(self) -> None:
        """See `Director`."""
        if self.batches < self._most and self.world.clock_s >= 1000 + self.batches:
            self.batches += 1
            for unit, thing in enumerate(self._things):
                for quantity in ("speed", "torque"):
                    content = {"thing": thing, "quantity": quantity, "id": f"{quantity}{self.batches}", "result": 2.0}
                    content["phenomenonTime"] = BASE_MS + 10 * self.batches
                    self.world.kafka.append("machine.data", unit, thing.encode(), json.dumps(content).encode())
        if self.batches == self._most and all(map(self._is_through, range(UNITS))):
            self.difference = judge(self.world.kafka, self.settings)[0]
            self.world.end()

    def _is_through(self, unit: int) -> bool:
        checkpoint = committed_checkpoint(self.world.kafka, self.settings, unit)
        return checkpoint is not None and checkpoint.offsets == stable_ends(self.world.kafka, self.settings, unit)

    def ended(self, process: SimulatedProcess, status: int | BaseException) -> None:
        """See `Director`."""
        raise AssertionError(f"{process.run} ended with {status!r}")

    def complain(self, text: str) -> None:
        """See `Director`."""
        raise AssertionError(text)
