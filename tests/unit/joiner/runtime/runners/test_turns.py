"""How often does a process serve its units?"""

# ruff: noqa: SLF001 - the tests replace the input of a loop

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from joiner.runtime.kafka.batches.messages import Read
from joiner.runtime.kafka.transaction import Aborted
from joiner.runtime.task.decoding.messages import Messages
from tests.manual_clock import ManualClock
from tests.unit.joiner.runtime.arrow_inputs import settings_of
from tests.unit.joiner.runtime.joiner_inputs import POWER
from tests.unit.joiner.runtime.runner_parts import idle_loop


class FakeInput:
    """Waits like a client library: for a whole number of milliseconds, unless ``arrives`` messages are there.

    At most ``at_once`` of them arrive in a read.
    """

    records_max = messages_max = 100

    def __init__(self, clock: ManualClock) -> None:
        self._clock, self.arrives, self.at_once = clock, 0, 10**6

    def read(self, count_max: int, wait_s: float) -> Read:
        count = min(count_max, self.arrives, self.at_once)
        self.arrives -= count
        if count < count_max:
            self._clock.now_s += int(wait_s * 1000) / 1000 + 1e-4
        return Read({0: {"data": Messages.of(range(count), [0] * count, [b""] * count)}} if count else {}, {}, [])


class IdleTask:
    """A unit that has nothing to commit."""

    is_held_up = False
    waiting = None
    paused: frozenset[str] = frozenset()
    commit: Any = None

    def to_pause(self) -> frozenset[str]:
        return self.paused


class Turns:
    """The turns of a process with four units that serves each of them once per second."""

    def __init__(self, data_format: str = "json") -> None:
        self.times_s: list[float] = []
        self.batches: list[int] = []
        """The number of messages in each batch."""
        self.clock = ManualClock(1000.0004)
        settings = settings_of(data_format, POWER, commit_interval="1s")
        loop: Any = idle_loop(settings)
        self.tasks = loop.tasks
        self.input = FakeInput(self.clock)
        self.tasks._clock, self.tasks._input = self.clock, self.input
        self.tasks.tasks = {number: IdleTask() for number in range(4)}
        self.tasks._commits._tasks, self.tasks._commits._clock = self.tasks.tasks, self.clock
        self.tasks._turn = self._note

    def _note(self, number: int, _task: IdleTask) -> None:
        self.times_s.append(self.clock.now_s)
        batches, _ = self.tasks._pending.take(number)
        self.batches += [len(messages) for messages in batches.values()]

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


@pytest.mark.parametrize(("arrives", "is_early"), [(99, False), (100, True)])
def test_units_are_served_early_if_a_batch_is_full(arrives: int, *, is_early: bool) -> None:
    turns = Turns()
    turns.run(0.01)
    turns.input.arrives = arrives
    turns.tasks.turn()
    assert bool(turns.batches) == is_early


def test_several_reads_together_are_no_more_than_a_batch() -> None:
    turns = Turns()
    turns.run(0.01)
    turns.input.arrives, turns.input.at_once = 1_000, 60
    turns.run(5)
    assert max(turns.batches) == 100
    assert sum(turns.batches) == 1_000


def test_the_last_read_before_a_turn_has_only_the_room_that_is_left() -> None:
    turns = Turns()
    turns.run(0.01)
    turns.input.arrives = 99
    turns.tasks.turn()
    turns.clock.now_s += 0.24
    turns.input.arrives = 100
    turns.run(0.6)
    assert max(turns.batches) == 100
    assert sum(turns.batches) == 199


def test_messages_with_many_records_are_joined_at_once() -> None:
    turns = Turns(data_format="arrow")
    turns.run(0.01)
    turns.input.arrives = 1
    turns.tasks.turn()
    assert turns.batches == [1]


def test_a_commit_that_fails_is_noticed_before_the_turn_of_its_unit() -> None:
    turns = Turns()
    turns.run(0.01)
    failed: Any = IdleTask()
    failed.commit = SimpleNamespace(written=SimpleNamespace(done=lambda: True))
    failed.finish_commit = lambda: Aborted("away")
    failed.unit = SimpleNamespace(offsets={})
    turns.tasks.tasks[0] = failed
    turns.tasks._input.remove = lambda *_given: None
    turns.tasks.turn()
    assert [failure.unit for failure in turns.tasks.failures] == [0]
