"""The log of a service: on the standard error, one line for each event, nothing of what records contain.

For a person at a terminal a line of text; elsewhere a JSON object with ``timestamp``, ``level``, ``logger``, ``event``
and, of an exception, ``exception``. ``LSB_LOG=text`` or ``json`` chooses. What a program says when it cannot begin, or
ends by a fault, is for the one who started it, and stays plain text.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Final

import structlog

_TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def set_up_logs(level: str) -> None:
    """For the whole process; libraries' own lines come the same way."""
    handler = logging.StreamHandler(sys.stderr)
    wanted = os.environ.get("LSB_LOG") or ("text" if sys.stderr.isatty() else "json")
    handler.setFormatter(logging.Formatter(_TEXT) if wanted == "text" else _json_lines())
    logging.basicConfig(level=level.upper(), handlers=[handler])


def _json_lines() -> logging.Formatter:
    known: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=known,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, structlog.processors.JSONRenderer()],
    )
