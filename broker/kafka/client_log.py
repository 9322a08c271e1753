"""The log of the Kafka client library, with repeated lines suppressed.

While a broker is unavailable, every client logs so several times a second. A service logs an outage twice: that Kafka
is unavailable, with the client's reason, and its end and duration once a client hears from Kafka again (`answered`).
The client's own lines are logged at level debug. Every other kind of line (the client calls it facility: FATAL,
CONFWARN, …) is logged at most once in a while.
"""

from __future__ import annotations

import logging
import re
import time
from typing import Final

_REPEAT_EVERY_S: Final = 10.0

_REPORT_EVERY_S: Final = 60.0
"""Interval between two reports of outages, as one of several brokers may come and go all the time."""

_TRANSIENT: Final = frozenset({"FAIL", "ERROR", "REQTMOUT", "METADATA", "METADATAUPDATE", "ADDRS"})
"""Kinds of lines about faults that the client retries without limit: of a connection, a request, a metadata update."""

_RETRIED: Final = frozenset({"GETPID", "COORDQUERY"})
"""Also retried without limit, even by a Kafka that answers that it is still loading: an outage has other lines, too."""

_CONSEQUENCES: Final = frozenset({"SESSTMOUT"})
"""Consequences of an outage. Without an outage, such a line says that this process was stalled."""

_THREAD: Final = re.compile(r"^\[thrd:[^\]]*\]: ")


def client_logger(name: str) -> logging.Logger:
    """The logger ``name``, for the ``logger`` of Kafka clients."""
    log = logging.getLogger(name)
    if not log.filters:
        log.addFilter(_OutageFilter(log))
    return log


def answered(log: logging.Logger) -> None:
    """A client of this logger has heard from Kafka: logs the end of an outage."""
    for one in log.filters:
        if isinstance(one, _OutageFilter):
            one.answered()


class _OutageFilter(logging.Filter):
    """Passes the first line of an outage, and other kinds of lines at most every ten seconds each."""

    def __init__(self, log: logging.Logger) -> None:
        super().__init__()
        self._log = log
        self._passed_s: dict[object, float] = {}
        self._unavailable_since_s: float | None = None
        self._is_reported = False
        self._reported_s = float("-inf")

    def answered(self) -> None:
        since_s, self._unavailable_since_s = self._unavailable_since_s, None
        if since_s is not None and self._is_reported:
            self._log.info("Kafka is available again, after %.0f s", time.monotonic() - since_s)

    def filter(self, record: logging.LogRecord) -> bool:
        arguments = record.args if isinstance(record.args, tuple) else ()
        kind = arguments[0] if arguments else record.msg
        if kind in _RETRIED:
            return self._demote(record)
        if kind in _TRANSIENT or (kind in _CONSEQUENCES and self._unavailable_since_s is not None):
            return self._pass_outage(record, str(arguments[-1]) if arguments else str(record.msg))
        now_s = time.monotonic()
        if now_s - self._passed_s.get(kind, -_REPEAT_EVERY_S) < _REPEAT_EVERY_S:
            return False
        self._passed_s[kind] = now_s
        return True

    def _pass_outage(self, record: logging.LogRecord, text: str) -> bool:
        now_s = time.monotonic()
        # Idle connections that were closed are below a warning.
        begins = self._unavailable_since_s is None and record.levelno >= logging.WARNING
        if begins:
            self._unavailable_since_s, self._is_reported = now_s, now_s - self._reported_s >= _REPORT_EVERY_S
        if not begins or not self._is_reported:
            return self._demote(record)
        self._reported_s = now_s
        record.levelno, record.levelname = logging.WARNING, logging.getLevelName(logging.WARNING)
        record.msg, record.args = "Kafka is unavailable, retrying: %s", (_THREAD.sub("", text),)
        return True

    def _demote(self, record: logging.LogRecord) -> bool:
        record.levelno, record.levelname = logging.DEBUG, logging.getLevelName(logging.DEBUG)
        return self._log.isEnabledFor(logging.DEBUG)
