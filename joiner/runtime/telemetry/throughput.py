"""The joiner's progress lines in the log."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from joiner.runtime.clock import Clock
    from joiner.runtime.task.function_failures import Failures

_INTERVAL_S: Final = 10.0
_log = logging.getLogger(__name__)


class Throughput:
    """Counts the records and results of this process, and logs them periodically."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._reported_s = clock.monotonic_s()
        self._records = self._results = self._failed = self._records_before = 0

    def count(self, records: int, results: int, failed: Mapping[str, Failures]) -> None:
        """Add a batch to the counts. ``failed``: the pairs or rows whose function failed, by join or align."""
        self._records += records
        self._results += results
        self._failed += sum(one.count for one in failed.values())

    def report(self, held: Mapping[int, int], *, last: bool = False) -> None:
        """Log a progress line if one is due. ``held``: records held, by unit. ``last``: log the final line now."""
        now_s = self._clock.monotonic_s()
        passed_s = now_s - self._reported_s
        if passed_s < _INTERVAL_S and not last:
            return
        failed = f", functions failed for {self._failed} pairs or rows" if self._failed else ""
        totals = f"{self._records} records in, {self._results} results out{failed}"
        if last:
            rest = f"units {sorted(held)} continue from Kafka on the next start, with {sum(held.values())} records held"
            _log.info("ended: %s; %s", totals, rest if held else "no units were served here at the end")
            return
        _log.info(
            "%s, %.0f records/s, units %s, %s records held",
            totals,
            (self._records - self._records_before) / max(passed_s, 1e-9),
            sorted(held),
            sum(held.values()),
        )
        self._reported_s, self._records_before = now_s, self._records
