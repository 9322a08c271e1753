"""The time of a runner, and waiting: passed in, so that tests and the simulation can supply their own.

`SystemClock` is the real one. No other module of the runtime imports `time`.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from concurrent.futures import Future, wait
from threading import Event
from typing import Any, Protocol


class Clock(Protocol):
    """Tells the time and waits. Thread-safe."""

    def monotonic_s(self) -> float:
        """Seconds since an arbitrary moment; never goes back. For intervals and deadlines."""
        ...

    def wall_s(self) -> float:
        """Seconds since the epoch. For moments that others read, and for comparisons with theirs."""
        ...

    def sleep(self, seconds: float) -> None:
        """Return after so many seconds."""
        ...

    def wait_for(self, event: Event, seconds: float) -> None:
        """Return once the event is set, after ``seconds`` at the latest."""
        ...

    def wait_until_done(self, futures: Collection[Future[Any]], until_s: float | None = None) -> None:
        """Return once all futures are done, at ``until_s`` (monotonic) at the latest."""
        ...


class SystemClock:
    """The clock of this machine."""

    def monotonic_s(self) -> float:
        """See `Clock`."""
        return time.monotonic()

    def wall_s(self) -> float:
        """See `Clock`."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """See `Clock`."""
        time.sleep(seconds)

    def wait_for(self, event: Event, seconds: float) -> None:
        """See `Clock`."""
        event.wait(seconds)

    def wait_until_done(self, futures: Collection[Future[Any]], until_s: float | None = None) -> None:
        """See `Clock`."""
        wait(futures, timeout=None if until_s is None else max(0.0, until_s - time.monotonic()))
