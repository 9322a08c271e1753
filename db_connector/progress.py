"""What the connector tells while it runs: progress in the log, and the journal of acknowledgements."""

from __future__ import annotations

import contextlib
import logging
import time
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PROGRESS_S: Final = 10.0
"""Seconds between two lines of progress."""

log = logging.getLogger(__name__)


class Seldom:
    """Lets something happen at most once in ``interval_s``."""

    def __init__(self, interval_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval_s, self._clock = interval_s, clock
        self._last_s: float | None = None

    def due(self) -> bool:
        """Whether it may happen now; if so, the interval begins anew."""
        now_s = self._clock()
        if self._last_s is not None and now_s - self._last_s < self._interval_s:
            return False
        self._last_s = now_s
        return True


class Progress:
    """Points and dead letters, counted and logged."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began_s = self._last_s = clock()
        self._last_points = 0
        self.results = 0
        """Read from Kafka, those that were read again too."""
        self.points = 0
        self.dead_letters = 0

    def count(self, points: int, dead_letters: int) -> None:
        """Add what a batch came to."""
        self.points += points
        self.dead_letters += dead_letters

    def say_now_and_then(self, lag: Callable[[], int]) -> None:
        """One line of log every `PROGRESS_S` seconds."""
        now_s = self._clock()
        if now_s - self._last_s < PROGRESS_S:
            return
        rate = (self.points - self._last_points) / (now_s - self._last_s)
        self._last_s, self._last_points = now_s, self.points
        log.info("%d points, %.0f/s, %d dead letters, lag %d records", self.points, rate, self.dead_letters, lag())

    def say_at_the_end(self) -> None:
        """The last line of log."""
        took_s = max(self._clock() - self._began_s, 1e-9)
        log.info(
            "ended: %d points in %.1f s, %.0f/s, %d dead letters",
            self.points, took_s, self.points / took_s, self.dead_letters,
        )  # fmt: skip


class Journal:
    """A file with one line for each partition of each acknowledged write, to measure latency with.

    ``acknowledged_ns<TAB>partition<TAB>first offset<TAB>last offset``, wall clock in ns since the epoch. It
    is no part of any guarantee: lines of the last moments before a kill may be missing.
    """

    def __init__(self, path: Path) -> None:
        """Appends to ``path``. Raises OSError."""
        self._file = path.open("a", encoding="ascii")
        self._is_broken = False

    def write(self, acknowledged_ns: int, spans: list[tuple[int, int, int]]) -> None:
        """Note an acknowledged write: partition, first and last offset of each span."""
        if self._is_broken:
            return
        try:
            self._file.write("".join(f"{acknowledged_ns}\t{p}\t{first}\t{last}\n" for p, first, last in spans))
            self._file.flush()
        except OSError as error:
            self._is_broken = True
            log.warning("the journal %s ends here: %s", self._file.name, error.strerror)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        # What could not be written is tried again here.
        with contextlib.suppress(OSError):
            self._file.close()
