"""How often does a process serve its units?"""

# ruff: noqa: SLF001 - the tests replace the input of a loop

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from joiner.runtime.kafka.batches.messages import Read
from joiner.runtime.task.decoding.messages import Messages
from tests.manual_clock import ManualClock
from tests.unit.joiner.runtime.joiner_inputs import make_settings
from tests.unit.joiner.runtime.runner_parts import idle_loop


class FakeInput:
    """Waits like a client library: for a whole number of milliseconds, unless ``arrives`` messages are there."""

    records_max = messages_max = 100

    def __init__(self, clock: ManualClock) -> None:
        self._clock, self.arrives, self.has_rest = clock, 0, False

    def read(self, wait_s: float) -> Read:
        if self.arrives < self.messages_max and not self.has_rest:
            self._clock.now_s += int(wait_s * 1000) / 1000 + 1e-4
        messages = Messages.of(range(self.arrives), [0] * self.arrives, [b""] * self.arrives)
        return Read({0: {"data": messages}} if self.arrives else {}, {}, [])


class IdleTask:
    """A unit that has nothing to commit."""

    is_held_up = False
    waiting = None
    paused: frozenset[str] = frozenset()

    def to_pause(self) -> frozenset[str]:
        return self.paused


class Turns:
    """The turns of a process with four units that serves each of them once per second."""

    def __init__(self) -> None:
        self.times_s: list[float] = []
        self.clock = ManualClock(1000.0004)
        self.tasks: Any = idle_loop(make_settings(application={"name": "joiner", "commit_interval": "1s"})).tasks
        self.input = FakeInput(self.clock)
        self.tasks._clock, self.tasks._input = self.clock, self.input
        self.tasks.tasks = {number: IdleTask() for number in range(4)}
        self.tasks._commits._tasks, self.tasks._commits._clock = self.tasks.tasks, self.clock
        self.tasks._turn = self._note

    def _note(self, number: int, _task: IdleTask) -> None:
        self.times_s.append(self.clock.now_s)
        self.tasks._pending.take(number)

    def run(self, seconds: float) -> list[float]:
        """Return the times of the turns within this many seconds, counted from now."""
        began_s = self.clock.now_s
        self.times_s.clear()
        while self.clock.now_s < began_s + seconds:
            self.tasks.turn()
        return [at_s - began_s for at_s in self.times_s]


def test_the_units_are_served_once_per_commit_interval_however_the_client_rounds_its_waiting_time() -> None:
    turns = Turns()
    turns.run(0.01)
    times_s = turns.run(10)
    assert [later - sooner for sooner, later in pairwise(times_s)] == pytest.approx([0.25] * 39, abs=0.01)


@pytest.mark.parametrize(("arrives", "has_rest", "early"), [(24, False, False), (100, False, True), (1, True, True)])
def test_units_are_served_early_if_a_batch_is_full_or_was_divided(
    arrives: int,
    has_rest: bool,  # noqa: FBT001 - a parameter of a table
    early: bool,  # noqa: FBT001 - a parameter of a table
) -> None:
    turns = Turns()
    turns.run(0.01)
    turns.input.arrives, turns.input.has_rest = arrives, has_rest
    turns.times_s.clear()
    turns.tasks.turn()
    assert bool(turns.times_s) == early
