"""The thread pool of a simulated process. Work runs at once, later, or in a separate thread."""

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
"""Thresholds for a random number that decides how work runs. Below the first (for claims, the second): in a separate
thread. Below the third: deferred. Otherwise: at once.
"""


class Turns(Protocol):
    """The part of the world that a pool uses."""

    draw: random.Random

    def beside(self, work: Callable[[], None]) -> Callable[[Callable[[], bool]], None]:
        """Run work in a new thread of the running process. Return a function that waits for a condition."""
        ...


class Later(Future[Any]):
    """Deferred work. It runs at the second call of `done`, or when something waits for its result."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__()
        self._work: Callable[[], Any] | None = work
        self._asked = 0

    def run(self) -> None:
        """Run the work, unless it has already run."""
        work, self._work = self._work, None
        if work is None or not self.set_running_or_notify_cancel():
            return
        try:
            self.set_result(work())
        except Exception as error:  # noqa: BLE001 - a pool stores any exception
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
    """Work in a separate thread, which takes turns with all other threads."""

    def __init__(self, world: Turns, work: Callable[[], Any]) -> None:
        super().__init__()

        def live() -> None:
            if not self.set_running_or_notify_cancel():
                return
            try:
                found = work()
            except Exception as error:  # noqa: BLE001 - a pool stores any exception
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
        """Wait until the work is done or ``until`` returns true."""
        self._stay_until(lambda: self.done() or until())


class SimulatedPool:
    """Replaces a thread pool. Work runs at once, when its future is queried, or in a separate thread.

    `Dead` is not caught, so that the process ends.
    """

    def __init__(self, world: Turns, *_arguments: Any) -> None:
        self._world = world

    def submit(self, work: Callable[..., Result], *arguments: Any, **named: Any) -> Future[Result]:
        """Run the work now, later, or in a separate thread."""
        todo = partial(work, *arguments, **named)
        chance = self._world.draw.random()
        if chance < _BESIDE or (chance < _CLAIM_BESIDE and work.__name__ == "_claim"):
            return Beside(self._world, todo)
        future = Later(todo)
        if chance > _LATER:
            future.run()
        return future

    def shutdown(self, *, wait: bool) -> None:
        """Do nothing: there are no threads to wait for."""
