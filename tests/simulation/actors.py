"""The threads of simulated processes: one of all runs at a time, and hands the baton on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.world import SimulatedProcess


class Dead(BaseException):
    """The process is gone: whatever it still tries has no effect."""


class Actor:
    """A thread that waits for the baton: the loop of a process, or work in its pool."""

    def __init__(self, process: SimulatedProcess, live: Callable[[], None]) -> None:
        self.process = process
        self.ready: Callable[[], bool] = lambda: True
        """Whether it has something to do, unless its process is dead."""
        self._gate = threading.Lock()
        self._gate.acquire()
        self._live = live
        self._thread = threading.Thread(target=self._run, name=process.run, daemon=True)
        self._thread.__dict__["process"] = process
        self._thread.start()

    def go(self) -> None:
        """Give it the baton."""
        self._gate.release()

    def stay(self) -> None:
        """Wait until it is given the baton."""
        self._gate.acquire()

    def join(self) -> None:
        """Wait for the end of its thread."""
        self._thread.join()

    def _run(self) -> None:
        self.stay()
        self._live()
