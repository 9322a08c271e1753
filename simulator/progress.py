"""Shows the progress of a replay or an import to the user: a progress bar on a terminal, otherwise plain lines.

All output goes to one text stream (standard error), so that standard output contains only the result.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable

BAR_EVERY_NS = 100_000_000
LINE_EVERY_NS = 5_000_000_000
BAR_WIDTH = 30


class Progress:
    """Shows how many messages were sent and acknowledged.

    `total`: the final count, or None if endless. `command`: what each line begins with.
    """

    def __init__(
        self,
        stream: TextIO,
        total: int | None,
        command: str = "simulator",
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._stream = stream
        self._command = command
        self._total = total
        self._clock_ns = clock_ns
        self._terminal = stream.isatty()
        self._every_ns = BAR_EVERY_NS if self._terminal else LINE_EVERY_NS
        self._start_ns = self._shown_ns = clock_ns()
        self._bar_shown = False

    def show(self, sent: int, acknowledged: int) -> None:
        """Show the current counts, unless they were last shown too recently."""
        now_ns = self._clock_ns()
        if now_ns - self._shown_ns < self._every_ns:
            return
        self._shown_ns = now_ns
        text = self._text(sent, acknowledged, now_ns - self._start_ns)
        if self._terminal:
            self._stream.write(f"\r\x1b[K{text}")
            self._bar_shown = True
        else:
            self._stream.write(f"{self._command}: {text}\n")
        self._stream.flush()

    def write_line(self, text: str) -> None:
        """Write a line. It replaces the bar, if there is one."""
        self.end()
        self._stream.write(f"{self._command}: {text}\n")
        self._stream.flush()

    def end(self) -> None:
        """Remove the bar, if there is one."""
        if self._bar_shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._bar_shown = False

    def _text(self, sent: int, acknowledged: int, elapsed_ns: int) -> str:
        rate = sent * 1_000_000_000 // max(1, elapsed_ns)
        counts = f"{sent:,} sent, {acknowledged:,} acknowledged, {rate:,}/s"
        if not self._total:
            return counts
        filled = min(BAR_WIDTH, sent * BAR_WIDTH // self._total)
        bar = f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}] " if self._terminal else ""
        return f"{bar}{min(100, sent * 100 // self._total)} % of {self._total:,}: {counts}"
