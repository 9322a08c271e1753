"""A clock that stands still until a test moves it, or somebody waits."""

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
        """See `Clock`: moves the time."""
        self.now_s += seconds

    def wait_for(self, event: Event, seconds: float) -> None:
        """See `Clock`: moves the time, unless the event is set."""
        if not event.is_set():
            self.now_s += seconds

    def wait_until_done(self, futures: Collection[Future[Any]], until_s: float | None = None) -> None:
        """See `Clock`: moves the time, unless all are done."""
        if all(future.done() for future in futures):
            return
        assert until_s is not None, "nobody completes them meanwhile"
        self.now_s = max(self.now_s, until_s)
