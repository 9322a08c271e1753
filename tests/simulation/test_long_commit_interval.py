"""A long commit interval delays commits, and nothing else."""

from __future__ import annotations

from tests.simulation.stage import on_stage
from tests.simulation.two_units import UNITS, TwoUnits
from tests.simulation.verdict import committed_checkpoint
from tests.simulation.world import SimulatedProcess

BATCHES = 100
INTERVAL_S = 120
JOINS_S = 1030.0


class Patient(TwoUnits):
    """Starts a process, and a second one after 30 s."""

    def __init__(self) -> None:
        super().__init__(BATCHES, commit_interval=INTERVAL_S * 1_000_000_000)
        self._processes: list[SimulatedProcess] = []
        self.shared_s: float | None = None
        """When the second process has claimed a unit."""

    def step(self) -> None:
        """See `Director`."""
        clock_s = self.world.clock_s
        if not self._processes or (len(self._processes) == 1 and clock_s >= JOINS_S):
            self._start()
        found = [committed_checkpoint(self.world.kafka, self.settings, unit) for unit in range(UNITS)]
        runs = {one.run for one in found if one is not None}
        if self.shared_s is None and len(runs) == UNITS:
            self.shared_s = clock_s
        super().step()

    def _start(self) -> None:
        name = f"process-{len(self._processes)}"
        named = self.settings.application.model_copy(update={"instance": name})
        self._processes.append(self.world.start(self.settings.model_copy(update={"application": named})))


def test_an_instance_that_joins_gets_its_units_long_before_the_next_commit() -> None:
    director = Patient()
    with on_stage(director.world):
        director.world.play()
    assert director.difference == ""
    assert director.shared_s is not None
    assert director.shared_s - JOINS_S < INTERVAL_S / 2
