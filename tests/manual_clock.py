"""A clock that advances only when a test sets it, or when code sleeps or waits on it."""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import Future
from threading import Event
from typing import Any


class ManualClock:
    """See `joiner.runtime.clock.Clock`. ``now_s`` is both its monotonic and its wall-clock time."""

    def __init__(self, now_s: float = 1000.0) -> None:
        self.now_s = now_s

    def monotonic_s(self) -> float:
        """See `Clock`."""
        return self.now_s

    def wall_s(self) -> float:
        """See `Clock`."""
        return self.now_s

    def sleep(self, seconds: float) -> None:
        """See `Clock`. Advances the time."""
        self.now_s += seconds

    def wait_for(self, event: Event, seconds: float) -> None:
        """See `Clock`. Advances the time unless the event is set."""
        if not event.is_set():
            self.now_s += seconds

    def wait_until_done(self, futures: Collection[Future[Any]], until_s: float | None = None) -> None:
        """See `Clock`. Advances the time unless all futures are done."""
        if all(future.done() for future in futures):
            return
        assert until_s is not None, "no other thread completes these futures"
        self.now_s = max(self.now_s, until_s)

    def wait_until_any_done(self, futures: Collection[Future[Any]], until_s: float) -> None:
        """See `Clock`. Advances the time unless a future is done."""
        if not any(future.done() for future in futures):
            self.now_s = max(self.now_s, until_s)
