"""Configures logging for a service: one line per event on standard error, never including record contents.

On a terminal, lines are plain text. Otherwise each line is a JSON object with ``timestamp``, ``level``, ``logger``,
``event`` and, for an exception, ``exception``. ``LSB_LOG=text`` or ``LSB_LOG=json`` overrides this. If a program fails
or cannot start, its final message is always plain text, because it is meant for the person who started the program.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Final

import structlog

_ESCAPED: Final = {code: repr(chr(code))[1:-1] for code in (*range(32), *range(127, 160), 0x2028, 0x2029)}
_TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def set_up_logs(level: str) -> None:
    """Configure logging for the whole process, including its libraries. ``level`` is the name of a log level."""
    handler = logging.StreamHandler(sys.stderr)
    wanted = os.environ.get("LSB_LOG") or ("text" if sys.stderr.isatty() else "json")
    handler.setFormatter(_OneLine(_TEXT) if wanted == "text" else _json_lines())
    logging.basicConfig(level=level.upper(), handlers=[handler])


class _OneLine(logging.Formatter):
    """Writes each message on one line, whatever it quotes, so that quoted text cannot forge log lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name in logging
        """Escape control characters. A traceback follows the message and keeps its line breaks."""
        return super().formatMessage(record).translate(_ESCAPED)


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
