"""The connector's counters and their periodic log line."""

from __future__ import annotations

import logging
import time
from collections import Counter
from typing import Final

from connector.formats.contents import SKIP_REASONS

_PROGRESS_S: Final = 10.0

_log = logging.getLogger(__name__)


class Progress:
    """Counts messages and records, and logs the counts periodically."""

    def __init__(self) -> None:
        self.messages = self.records = self.rejected = self.watermarks = self.losses = 0
        self.skipped: Counter[str] = Counter(dict.fromkeys(SKIP_REASONS, 0))
        """How many messages and values were skipped, by reason."""
        self._reported_s = time.monotonic()
        self._reported_messages = 0

    def count(self, messages: int, records: int, rejected: int) -> None:
        """Add the counts of a block of messages: ``records`` includes messages that were forwarded unchanged."""
        self.messages += messages
        self.records += records
        self.rejected += rejected

    def report_when_due(self, unacknowledged: int) -> None:
        """Log the counts if they were last logged at least ten seconds ago."""
        if time.monotonic() - self._reported_s >= _PROGRESS_S:
            self.report(unacknowledged, "progress")

    def report(self, unacknowledged: int, what: str) -> None:
        """Log the counts in a line that starts with ``what``."""
        now_s = time.monotonic()
        rate = (self.messages - self._reported_messages) / max(now_s - self._reported_s, 1e-3)
        _log.info(
            "%s: %d messages, %d records, %d rejected, %d skipped, %d watermarks, %.0f messages/s, %d unacknowledged",
            what, self.messages, self.records, self.rejected, self.skipped.total(), self.watermarks, rate,
            unacknowledged,
        )  # fmt: skip
        self._reported_s, self._reported_messages = now_s, self.messages
