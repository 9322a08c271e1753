"""The runner's clock. It is injected, so that tests and the simulation can supply their own.

In production it is a `SystemClock`.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, Protocol


class Clock(Protocol):
    """Tells the time and waits. Thread-safe."""

    def monotonic_s(self) -> float:
        """Return the seconds since an arbitrary start. Never goes backwards. Used for intervals and deadlines."""
        ...

    def wall_s(self) -> float:
        """Return the time in seconds since the Unix epoch. Used for timestamps exchanged with other programs."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait for ``seconds``."""
        ...

    def wait_until_done(self, futures: Collection[Future[Any]], until_s: float | None = None) -> None:
        """Wait until all futures are done or the monotonic time ``until_s`` is reached (None: no limit)."""
        ...

    def wait_until_any_done(self, futures: Collection[Future[Any]], until_s: float) -> None:
        """Wait until at least one future is done or the monotonic time ``until_s`` is reached."""
        ...


class SystemClock:
    """The system clock."""

    def monotonic_s(self) -> float:
        """See `Clock`."""
        return time.monotonic()

    def wall_s(self) -> float:
        """See `Clock`."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """See `Clock`."""
        time.sleep(seconds)

    def wait_until_done(self, futures: Collection[Future[Any]], until_s: float | None = None) -> None:
        """See `Clock`."""
        wait(futures, timeout=None if until_s is None else max(0.0, until_s - time.monotonic()))

    def wait_until_any_done(self, futures: Collection[Future[Any]], until_s: float) -> None:
        """See `Clock`."""
        wait(futures, timeout=max(0.0, until_s - time.monotonic()), return_when=FIRST_COMPLETED)
