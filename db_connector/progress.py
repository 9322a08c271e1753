"""Logs the service's progress periodically, and writes the journal of acknowledged writes."""

from __future__ import annotations

import contextlib
import logging
import time
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PROGRESS_S: Final = 10.0
"""Seconds between progress lines."""

log = logging.getLogger(__name__)


class RateLimit:
    """Allows an action at most once per ``interval_s``."""

    def __init__(self, interval_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval_s, self._clock = interval_s, clock
        self._last_s: float | None = None

    def allows(self) -> bool:
        """Return whether the action is allowed now; if so, restart the interval."""
        now_s = self._clock()
        if self._last_s is not None and now_s - self._last_s < self._interval_s:
            return False
        self._last_s = now_s
        return True


class Progress:
    """Counts results, points and dead letters, and logs the counts periodically."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began_s = self._last_s = clock()
        self._last_points = 0
        self.results = 0
        """Results read from Kafka, including those read again."""
        self.points = 0
        self.dead_letters = 0

    def count(self, points: int, dead_letters: int) -> None:
        """Add the counts of a batch."""
        self.points += points
        self.dead_letters += dead_letters

    def report_when_due(self, lag: Callable[[], int]) -> None:
        """Log the counts and the lag if they were last logged at least `PROGRESS_S` seconds ago."""
        now_s = self._clock()
        if now_s - self._last_s < PROGRESS_S:
            return
        rate = (self.points - self._last_points) / (now_s - self._last_s)
        self._last_s, self._last_points = now_s, self.points
        log.info(
            "%d results written, %.0f/s, %d dead letters, lag %d records", self.points, rate, self.dead_letters, lag()
        )

    def report_end(self) -> None:
        """Log the totals."""
        took_s = max(self._clock() - self._began_s, 1e-9)
        log.info(
            "ended: %d results written in %.1f s, %.0f/s, %d dead letters",
            self.points, took_s, self.points / took_s, self.dead_letters,
        )  # fmt: skip


class Journal:
    """A file with one line for each partition of each acknowledged write, for latency measurements.

    The format is ``acknowledged_ns<TAB>partition<TAB>first offset<TAB>last offset``, with the wall-clock time in ns
    since the epoch. The file is not synced, so its last lines may be lost if the process is killed.
    """

    def __init__(self, path: Path) -> None:
        """Open ``path`` for appending. Raises OSError."""
        self._file = path.open("a", encoding="ascii")
        self._is_broken = False

    def write(self, acknowledged_ns: int, spans: list[tuple[int, int, int]]) -> None:
        """Append an acknowledged write. Each span is (partition, first offset, last offset).

        If the file cannot be written, a warning is logged, and this and all later calls have no effect.
        """
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
        # Closing also tries to flush buffered lines, which may fail.
        with contextlib.suppress(OSError):
            self._file.close()
