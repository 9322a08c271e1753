"""The clock of a simulated world. It advances only when a process makes a call or waits."""

from __future__ import annotations

import math
from collections.abc import Collection
from concurrent.futures import Future
from typing import Any, Final, Protocol

from tests.simulation.feed import BASE_MS
from tests.simulation.memory_clients import Link
from tests.simulation.pool import Beside, Later

BEGIN_S: Final = 1000.0
"""The monotonic time at which a world begins."""


class Timeline(Protocol):
    """The part of the world that the clock uses."""

    clock_s: float

    @property
    def link(self) -> Link:
        """The link of the running process."""
        ...


class SimulatedClock:
    """See `joiner.runtime.clock.Clock`. A wait is a wait of the running process."""

    def __init__(self, world: Timeline) -> None:
        self._world = world

    def monotonic_s(self) -> float:
        """See `Clock`."""
        return self._world.clock_s

    def wall_s(self) -> float:
        """See `Clock`."""
        return self._world.clock_s - BEGIN_S + BASE_MS / 1000

    def sleep(self, seconds: float) -> None:
        """See `Clock`."""
        self._world.link.pass_time(seconds)

    def wait_until_done(self, futures: Collection[Future[Any]], until_s: float | None = None) -> None:
        """See `Clock`. Deferred work is run now."""
        end_s = math.inf if until_s is None else max(until_s, self._world.clock_s)
        for future in futures:
            if isinstance(future, Beside):
                future.wait(lambda: self._world.clock_s >= end_s)
            elif isinstance(future, Later):
                future.run()

    def wait_until_any_done(self, futures: Collection[Future[Any]], until_s: float) -> None:
        """See `Clock`. Deferred work is run now."""
        for future in futures:
            if isinstance(future, Beside):
                future.wait(lambda: self._world.clock_s >= until_s or any(one.done() for one in futures))
            elif isinstance(future, Later):
                future.run()
            if future.done():
                return
