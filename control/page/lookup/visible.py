"""Reads what a page shows every few seconds, while the page is visible."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

from nicegui import background_tasks, ui

_PERIOD_S: Final = 3.0
_VISIBILITY: Final = "lsb_visibility"

_WATCH_VISIBILITY: Final = f"""
document.addEventListener("visibilitychange", () => emitEvent("{_VISIBILITY}", document.visibilityState === "visible"));
"""


class WhileVisible:
    """Calls a coroutine function at intervals, but not while the page is in the background or the last call runs."""

    def __init__(self, what: str, read: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """``what``: what it does, for the name of its task."""
        self._what, self._read = what, read
        self._is_visible = True
        self._due_s = 0.0
        self._reading: asyncio.Task[Any] | None = None

    def build(self) -> None:
        """Have the browser report whether the page is visible."""
        ui.on(_VISIBILITY, lambda event: self._note_visibility(is_visible=bool(event.args)))
        ui.run_javascript(_WATCH_VISIBILITY)

    def refresh(self) -> None:
        """Begin to read if it is due. Call this once a second."""
        is_reading = self._reading is not None and not self._reading.done()
        if is_reading or not self._is_visible or time.monotonic() < self._due_s:
            return
        self._due_s = time.monotonic() + _PERIOD_S
        self._reading = background_tasks.create(self._read(), name=self._what)

    def hurry(self) -> None:
        """Read again as soon as possible."""
        self._due_s = 0.0

    def _note_visibility(self, *, is_visible: bool) -> None:
        self._is_visible = is_visible
        self.hurry()
