"""The log of the Kafka library's own lines, without its floods.

A broker that is away is told of several times a second by every client. Of that a service says two things: that Kafka
cannot be reached, with the library's reason, and, as soon as it hears from it again (`answered`), for how long it did
not. The lines themselves are of level debug. Every other kind of line (the library calls it facility: FATAL,
CONFWARN, …) is passed once in a while; what matters to a service it says in its own words.
"""

from __future__ import annotations

import logging
import re
import time
from typing import Final

_QUIET_S: Final = 10.0

_REPORT_EVERY_S: Final = 60.0
"""So seldom an outage is told of: one of several brokers may come and go all the time."""

_TRANSIENT: Final = frozenset({"FAIL", "ERROR", "REQTMOUT", "METADATA", "METADATAUPDATE", "ADDRS"})
"""What is tried again without end: the library's names for faults of a connection, of a request, of a look at the
cluster."""

_PATIENCE: Final = frozenset({"GETPID", "COORDQUERY"})
"""Asked again without end, also of a Kafka that answers that it has only just begun: an outage has other lines, too."""

_CONSEQUENCES: Final = frozenset({"SESSTMOUT"})
"""What an outage brings about; without one it says something else: that this process hung."""

_THREAD: Final = re.compile(r"^\[thrd:[^\]]*\]: ")


def client_logger(name: str) -> logging.Logger:
    """The logger ``name``, to be given to Kafka clients as their ``logger``."""
    log = logging.getLogger(name)
    if not log.filters:
        log.addFilter(_Sparing(log))
    return log


def answered(log: logging.Logger) -> None:
    """A client of this logger has heard from Kafka: if it was away, it is said that it is back."""
    for one in log.filters:
        if isinstance(one, _Sparing):
            one.answered()


class _Sparing(logging.Filter):
    """Passes the first line of an outage, and any other kind of line at most every ten seconds."""

    def __init__(self, log: logging.Logger) -> None:
        super().__init__()
        self._log = log
        self._passed_s: dict[object, float] = {}
        self._away_since_s: float | None = None
        self._is_told = False
        self._told_s = float("-inf")

    def answered(self) -> None:
        since_s, self._away_since_s = self._away_since_s, None
        if since_s is not None and self._is_told:
            self._log.info("Kafka answers again; nothing was heard of it for %.0f s", time.monotonic() - since_s)

    def filter(self, record: logging.LogRecord) -> bool:
        arguments = record.args if isinstance(record.args, tuple) else ()
        kind = arguments[0] if arguments else record.msg
        if kind in _PATIENCE:
            return self._hush(record)
        if kind in _TRANSIENT or (kind in _CONSEQUENCES and self._away_since_s is not None):
            return self._pass_outage(record, str(arguments[-1]) if arguments else str(record.msg))
        now_s = time.monotonic()
        if now_s - self._passed_s.get(kind, -_QUIET_S) < _QUIET_S:
            return False
        self._passed_s[kind] = now_s
        return True

    def _pass_outage(self, record: logging.LogRecord, text: str) -> bool:
        now_s = time.monotonic()
        # Below a warning are connections that were closed because nothing was asked for.
        begins = self._away_since_s is None and record.levelno >= logging.WARNING
        if begins:
            self._away_since_s, self._is_told = now_s, now_s - self._told_s >= _REPORT_EVERY_S
        if not begins or not self._is_told:
            return self._hush(record)
        self._told_s = now_s
        record.levelno, record.levelname = logging.WARNING, logging.getLevelName(logging.WARNING)
        record.msg, record.args = "Kafka cannot be reached, trying again: %s", (_THREAD.sub("", text),)
        return True

    def _hush(self, record: logging.LogRecord) -> bool:
        record.levelno, record.levelname = logging.DEBUG, logging.getLevelName(logging.DEBUG)
        return self._log.isEnabledFor(logging.DEBUG)
