"""Finds the offset at which messages of a merged topic are, by their serials, the numbers of the messages."""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Final

_LENGTH_MAX: Final = 10_000
"""If there are more offsets, every second one is dropped."""


class SerialIndex:
    """Some serials, and the offsets from which on the messages with these or higher serials are."""

    def __init__(self) -> None:
        self._known: list[tuple[int, int]] = []

    def add(self, serial: int, offset: int) -> None:
        """Note that lower serials are before an offset, and the others are not. Both must not decrease."""
        if self._known and self._known[-1][0] == serial:
            return
        self._known.append((serial, offset))
        if len(self._known) > _LENGTH_MAX:
            del self._known[1::2]

    def find(self, serial: int) -> tuple[int, int]:
        """Return the highest offset that is known before which there are only lower serials, and its serial.

        Forget those before it: they must not be needed any more.
        """
        at = max(0, bisect_right(self._known, (serial, math.inf)) - 1)
        del self._known[:at]
        first, offset = self._known[0]
        return offset, first
