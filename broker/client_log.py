"""The log of the Kafka library's own lines, without its floods.

A broker that is away is told of several times a second by every client. Each kind of line (the library calls it
facility: FAIL, METADATAUPDATE, …) is passed once in a while; what matters to a service it says in its own words.
"""

from __future__ import annotations

import logging
import time
from typing import Final

_QUIET_S: Final = 10.0


def client_logger(name: str) -> logging.Logger:
    """The logger ``name``, to be given to Kafka clients as their ``logger``."""
    log = logging.getLogger(name)
    if not log.filters:
        log.addFilter(_Sparing())
    return log


class _Sparing(logging.Filter):
    """Passes each kind of line at most every ten seconds."""

    def __init__(self) -> None:
        super().__init__()
        self._passed_s: dict[object, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        kind = record.args[0] if isinstance(record.args, tuple) and record.args else record.msg
        now_s = time.monotonic()
        if now_s - self._passed_s.get(kind, -_QUIET_S) < _QUIET_S:
            return False
        self._passed_s[kind] = now_s
        return True
