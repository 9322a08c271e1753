"""Stores the append times of an input topic's records, by offset. They are used only to measure latency.

Append times are a step function of the offset, because all records in a producer's batch are appended together. Only
the newest steps are kept. Older records get the time of the oldest step, so very long latencies are underreported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joiner.runtime.task.decoding.messages import Messages

    Ints = NDArray[np.int64]

STEPS_MAX: Final = 16_384
"""At least this many of the newest steps are kept, and at most twice as many. A step takes 16 bytes."""


class AppendTimes:
    """Append times as steps, each with its first offset and its time, in offset order."""

    def __init__(self) -> None:
        self._offset = np.zeros(2 * STEPS_MAX, dtype=np.int64)
        self._append_ms = np.zeros(2 * STEPS_MAX, dtype=np.int64)
        self._used = 0

    def add(self, messages: Messages) -> None:
        """Add the append times of the next messages, which follow all earlier ones."""
        append_ms = messages.append_ms
        last_ms = self._append_ms[self._used - 1] if self._used else -1
        steps = np.flatnonzero(np.diff(append_ms, prepend=last_ms))
        if len(steps) > STEPS_MAX:
            steps, self._used = steps[-STEPS_MAX:], 0
        if self._used + len(steps) > len(self._offset):
            for column in (self._offset, self._append_ms):
                column[:STEPS_MAX] = column[self._used - STEPS_MAX : self._used]
            self._used = STEPS_MAX
        new = slice(self._used, self._used + len(steps))
        self._offset[new] = messages.offset[steps]
        self._append_ms[new] = append_ms[steps]
        self._used = new.stop

    def of(self, offset: Ints) -> Ints:
        """Return the append times (ms) of the records at these offsets; 0 if none are known yet."""
        step = self._offset[: self._used].searchsorted(offset, "right") - 1
        return self._append_ms.take(np.maximum(step, 0))
