"""A unit whose commit is slow does not hold up the other units, and loses nothing that was joined in the meantime."""

from __future__ import annotations

from typing import Any

import pytest

from joiner.runtime.kafka.unit_producer import UnitProducer
from joiner.runtime.runners.active_task import ActiveTask
from tests.simulation import pool
from tests.simulation.stage import on_stage
from tests.simulation.two_units import TwoUnits
from tests.simulation.verdict import committed_checkpoint
from tests.simulation.world import SimulatedProcess

BATCHES = 40
SLOW_S, WAIT_S = 20.0, 0.02
"""How long the slow commit takes, and in which steps: half of the batches arrive in the meantime."""


class Slow(TwoUnits):
    """Runs one process, one of whose commits is slow."""

    def __init__(self) -> None:
        super().__init__(BATCHES)
        self._process: SimulatedProcess | None = None
        self.others: list[int] = []
        """The offset of unit 1 before and after the slow commit of unit 0."""

    def step(self) -> None:
        """See `Director`."""
        if self._process is None:
            self._process = self.world.start(self.settings)
        super().step()

    def offset(self, unit: int) -> int:
        """Return the number of records of a unit that its last committed checkpoint covers."""
        checkpoint = committed_checkpoint(self.world.kafka, self.settings, unit)
        return 0 if checkpoint is None else checkpoint.offsets["machine.data"]


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
