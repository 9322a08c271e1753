"""Work that a simulated process hands to its pool: done at once, later, or by turns with everything else."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, Protocol, TypeVar

Result = TypeVar("Result")

_BESIDE: Final = 0.1
_CLAIM_BESIDE: Final = 0.7
_LATER: Final = 0.6
"""Shares of the work: of all work and of claims, what a thread beside the process does; what waits until it is asked
for."""


class Turns(Protocol):
    """What a pool needs of the world."""

    draw: random.Random

    def beside(self, work: Callable[[], None]) -> Callable[[Callable[[], bool]], None]:
        """Do work in a thread of the process that runs; returns how that one waits until something holds."""
        ...


class Later(Future[Any]):
    """Work that is done when its future is asked for the second time, or waited for."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__()
        self._work: Callable[[], Any] | None = work
        self._asked = 0

    def run(self) -> None:
        """Do it, unless it is done."""
        work, self._work = self._work, None
        if work is None:
            return
        try:
            self.set_result(work())
        except Exception as error:  # noqa: BLE001 - as a pool does, whatever it is
            self.set_exception(error)

    def done(self) -> bool:
        """See `Future.done`."""
        self._asked += 1
        if self._asked > 1:
            self.run()
        return super().done()

    def result(self, timeout: float | None = None) -> Any:
        """See `Future.result`."""
        self.run()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """See `Future.exception`."""
        self.run()
        return super().exception(timeout)


class Beside(Future[Any]):
    """Work in a thread of its own, which takes turns with all others."""

    def __init__(self, world: Turns, work: Callable[[], Any]) -> None:
        super().__init__()

        def live() -> None:
            try:
                found = work()
            except Exception as error:  # noqa: BLE001 - as a pool does, whatever it is
                self.set_exception(error)
            else:
                self.set_result(found)

        self._stay_until = world.beside(live)

    def result(self, timeout: float | None = None) -> Any:
        """See `Future.result`."""
        if not self.done():
            self._stay_until(self.done)
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """See `Future.exception`."""
        if not self.done():
            self._stay_until(self.done)
        return super().exception(timeout)

    def wait(self, until: Callable[[], bool]) -> None:
        """Until it is done, or something else holds."""
        self._stay_until(lambda: self.done() or until())


class SimulatedPool:
    """Replaces a thread pool: work is done at once, when its future is asked for, or in a thread beside the caller.

    `Dead` is not caught, so that the process ends.
    """

    def __init__(self, world: Turns, *_arguments: Any) -> None:
        self._world = world

    def submit(self, work: Callable[..., Result], *arguments: Any, **named: Any) -> Future[Result]:
        """Do it: now, later, or beside."""
        todo = partial(work, *arguments, **named)
        chance = self._world.draw.random()
        if chance < _BESIDE or (chance < _CLAIM_BESIDE and work.__name__ == "_claim"):
            return Beside(self._world, todo)
        future = Later(todo)
        if chance > _LATER:
            future.run()
        return future

    def shutdown(self, *, wait: bool) -> None:
        """Nothing is left to do."""
