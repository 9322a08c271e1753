"""The threads of the simulated processes. Only one of them runs at a time, and it chooses the next one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.world import SimulatedProcess


class Dead(BaseException):
    """The process has ended: none of its further calls has any effect."""


class Actor:
    """A thread that runs only when it has the turn: the loop of a process, or work in its pool."""

    def __init__(self, process: SimulatedProcess, live: Callable[[], None]) -> None:
        self.process = process
        self.ready: Callable[[], bool] = lambda: True
        """Returns whether the thread can continue. Not called once its process is dead."""
        self._gate = threading.Lock()
        self._gate.acquire()
        self._live = live
        self._thread = threading.Thread(target=self._run, name=process.run, daemon=True)
        self._thread.__dict__["process"] = process
        self._thread.start()

    def go(self) -> None:
        """Give the turn to this thread."""
        self._gate.release()

    def stay(self) -> None:
        """Wait until this thread is given the turn."""
        self._gate.acquire()

    def join(self) -> None:
        """Wait until the thread ends."""
        self._thread.join()

    def _run(self) -> None:
        self.stay()
        self._live()
