"""The Spark stage in a simulated history: the production driver and worker, with `MemoryQuery` in place of Spark.

Like Spark, it fetches plans, has the worker execute them in any order and some of them twice, and passes the outcomes
to the driver. At any moment it may lose workers or batches, or end.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from joiner.runtime.runners.runner import Parts, Runner
from joiner.runtime.runners.spark.driver import Driver
from joiner.runtime.runners.spark.plans import Plan, Turn, decode_outcome, encode_outcome
from joiner.runtime.runners.spark.worker import StateCopy, WorkerMemory, execute
from joiner.runtime.settings import JoinerSettings

if TYPE_CHECKING:
    from joiner.runtime.clock import Clock
    from joiner.runtime.runners.spark.units import Units

_WORKER_DIES: Final = 0.04
_TASK_IS_REPEATED: Final = 0.05
_STORE_IS_OLD: Final = 0.03
"""The probability that Spark's copy of a state is one batch old."""
_QUERY_ENDS: Final = 0.02
"""The probability that the query ends in the middle of a batch, so that only some outcomes reach the driver."""


class MemoryCopy(StateCopy):
    """Stands in for Spark's state store, for one unit."""

    def __init__(self) -> None:
        self.kept: list[tuple[dict[str, int], dict[str, int], bytes]] = []

    def read(self, start: Mapping[str, int], offsets: Mapping[str, int]) -> bytes | None:
        """See `StateCopy`."""
        begun, at, data = self.kept[-1] if self.kept else ({}, {}, b"")
        return data if (begun, at) == (start, offsets) and self.kept else None

    def write(self, start: Mapping[str, int], offsets: Mapping[str, int], data: bytes) -> None:
        """See `StateCopy`."""
        self.kept = [*self.kept[-1:], (dict(start), dict(offsets), data)]


class MemoryQuery:
    """See `driver.RunningQuery`. Runs a batch at each turn of the driver's loop."""

    def __init__(self, settings: JoinerSettings, units: Units, draw: random.Random, clock: Clock) -> None:
        self._settings, self._units, self._draw, self._clock = settings, units, draw, clock
        self._is_running = False
        self._begin()

    def _begin(self) -> None:
        self._turn = Turn()
        self._memory = WorkerMemory(self._clock)
        self._copies: dict[int, MemoryCopy] = {}

    def keep_running(self, wait: Callable[[float], object]) -> None:
        """See `driver.RunningQuery`."""
        if not self._is_running:
            self._begin()
            self._units.query_started()
            self._is_running = True
        turn = self._units.next_turn(self._turn)
        if turn == self._turn:
            return
        self._turn = turn
        plans = list(turn.plans)
        self._draw.shuffle(plans)
        outcomes = [self._execute(plan) for plan in plans]
        ends = self._draw.random() < _QUERY_ENDS
        for outcome in outcomes[: self._draw.randrange(len(outcomes) + 1)] if ends else outcomes:
            self._units.accept(decode_outcome(memoryview(outcome)))
        if ends:
            self._is_running = False
            wait(1.0)

    def _execute(self, plan: Plan) -> bytes:
        if self._draw.random() < _WORKER_DIES:
            self._memory = WorkerMemory(self._clock)
        copy = self._copies.setdefault(plan.unit, MemoryCopy())
        if self._draw.random() < _STORE_IS_OLD:
            del copy.kept[1:]
        if self._draw.random() < _TASK_IS_REPEATED:
            execute(self._settings, plan, copy, self._memory)
        return encode_outcome(execute(self._settings, plan, copy, self._memory))


class SimulatedStage(Runner[Driver]):
    """A `SparkStage` without Spark."""

    def _make(self, parts: Parts) -> Driver:
        return Driver(parts)

    def _work(self, loop: Driver) -> int:
        # Draws from the history's generator would be made in an order that depends on threads of the production code.
        draw = random.Random(self._claimant.run)
        query = MemoryQuery(self._settings, loop.units, draw, self._clock)
        return loop.run(query, self._is_over, self._wait)
