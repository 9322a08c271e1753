"""The joiner's progress lines; what it tells over HTTP is in `meters`."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Final

_INTERVAL_S: Final = 10.0
_log = logging.getLogger(__name__)


class Metrics:
    """Counts records and pairs of this process, and says so now and then."""

    def __init__(self) -> None:
        self._started_s = self._reported_s = time.monotonic()
        self._records = self._pairs = self._records_before = 0

    def count(self, records: int, pairs: int) -> None:
        """Add a batch."""
        self._records += records
        self._pairs += pairs

    def report(self, held: Mapping[int, int], *, last: bool = False) -> None:
        """Log a line if it is time; ``held`` are the records held by unit."""
        now = time.monotonic()
        passed = now - self._reported_s
        if passed < _INTERVAL_S and not last:
            return
        _log.info(
            "%s records in, %s pairs out, %.0f records/s, units %s, %s records held",
            self._records,
            self._pairs,
            (self._records - self._records_before) / max(passed, 1e-9),
            sorted(held),
            sum(held.values()),
        )
        self._reported_s, self._records_before = now, self._records
