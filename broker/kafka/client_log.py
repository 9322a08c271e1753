"""The log of the Kafka client library, with repeated lines suppressed.

While a broker is unavailable, every client logs errors several times a second. With this filter, a service logs at most
two lines per outage: one when it begins, with the reason given by the client, and one when a client hears from Kafka
again (`answered`), with the duration of the outage. The client's own lines are demoted to debug. Of each other kind
(librdkafka's log facility, such as FATAL or CONFWARN), at most one line is logged every ten seconds.
"""

from __future__ import annotations

import logging
import re
import time
from typing import Final

_REPEAT_EVERY_S: Final = 10.0

_REPORT_EVERY_S: Final = 60.0
"""The minimum interval between two outage reports. Without it, a broker that fails repeatedly would flood the log."""

_TRANSIENT: Final = frozenset({"FAIL", "ERROR", "REQTMOUT", "METADATA", "METADATAUPDATE", "ADDRS"})
"""Kinds of log lines about failed connections, requests or metadata updates, all of which the client retries."""

_RETRIED: Final = frozenset({"GETPID", "COORDQUERY"})
"""Kinds of log lines about failed requests that the client always retries. They do not indicate an outage: they also
occur while Kafka is available but still loading, and during an outage the client logs other lines too."""

_CONSEQUENCES: Final = frozenset({"SESSTMOUT"})
"""Kinds of log lines that an outage causes. If there is no outage, such a line means that this process was stalled."""

_THREAD: Final = re.compile(r"^\[thrd:[^\]]*\]: ")


def client_logger(name: str) -> logging.Logger:
    """Return the logger ``name``, with a filter for repeated lines, to pass to Kafka clients as ``logger``."""
    log = logging.getLogger(name)
    if not log.filters:
        log.addFilter(_OutageFilter(log))
    return log


def answered(log: logging.Logger) -> None:
    """Record that a client with this logger has heard from Kafka. If there was an outage, log that it has ended."""
    for one in log.filters:
        if isinstance(one, _OutageFilter):
            one.answered()


class _OutageFilter(logging.Filter):
    """Lets through the first line about an outage and, of each other kind, at most one line every ten seconds."""

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
        # Only warnings and errors begin an outage: lines about closed idle connections have a lower level.
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
