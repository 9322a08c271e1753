"""Merges the partitions of a topic by the times of their messages, so that catching up does not make records late.

If one partition were copied before another, the records of a thing that are in both would be out of order by as much as
has piled up. Messages are therefore held back until no earlier ones can arrive from the other partitions: each of them
has either delivered later messages or has been read to its end. A partition that delivers nothing, for example because
its broker is down, is waited for only so long. One that was read to its end before its broker went down is not waited
for, because it looks like one to which nothing is written.

A time in the future, which a wrong clock has set, counts as the time of reading. So a message is held back only until
the other partitions have caught up to the time at which it was read.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from joiner.runtime.task.decoding.messages import Messages

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from joiner.runtime.clock import Clock

Place = tuple[str, int]
"""A topic and a partition."""

PATIENCE_S: Final = 5.0
"""How long to wait for a partition that delivers nothing and has not been read to its end."""

HELD_BYTES_MAX: Final = 16 * 1024 * 1024
"""The approximate size of the messages that are held back, shared equally by the partitions. They may all be released
at once, so this also limits the size of a transaction, which has to end in time."""

_MESSAGE_BYTES: Final = 1_000
"""What a message counts in addition to its value, so that the number of messages is limited as well."""


class Part(NamedTuple):
    """Messages of one partition to copy."""

    topic: str
    partition: int
    messages: Messages


class _Held:
    """The messages of a partition that are held back."""

    def __init__(self, now_s: float) -> None:
        self.messages: list[Messages] = []
        self.times_ms: list[NDArray[np.int64]] = []
        """The times of the messages. None is in the future or less than the one before."""
        self.last_ms = -math.inf
        """The latest time so far. Later messages are hardly ever earlier, because Kafka sets their times."""
        self.size = 0
        self.is_at_end = False
        self.heard_s = now_s


class TimeMerger:
    """Holds messages back until they are the earliest of their topic."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._held: dict[Place, _Held] = {}

    def begin(self, place: Place) -> None:
        """Wait for the messages of a partition from now on."""
        self._held[place] = _Held(self._clock.monotonic_s())

    def remove(self, place: Place) -> None:
        """Forget a partition and its messages."""
        self._held.pop(place, None)

    def add(self, place: Place, messages: Messages) -> None:
        """Add the next messages of a partition."""
        held = self._held[place]
        held.messages.append(messages)
        times_ms = np.maximum.accumulate(np.minimum(messages.append_ms, int(self._clock.wall_s() * 1000)))
        held.times_ms.append(times_ms if math.isinf(held.last_ms) else np.maximum(times_ms, int(held.last_ms)))
        held.last_ms = int(held.times_ms[-1][-1])
        held.size += _size(messages)
        held.is_at_end = False
        held.heard_s = self._clock.monotonic_s()

    def end(self, place: Place) -> None:
        """Note that a partition has been read to its end."""
        held = self._held[place]
        held.is_at_end = True
        held.heard_s = self._clock.monotonic_s()

    def resume(self, place: Place) -> None:
        """Note that a partition is read again that was paused, because it was full."""
        self._held[place].heard_s = self._clock.monotonic_s()

    def holds(self, place: Place) -> bool:
        """Return whether messages of a partition are held back."""
        return bool(self._held[place].messages)

    def full(self) -> Collection[Place]:
        """Return the partitions that hold as much as they may, so that no more should be read from them."""
        share = HELD_BYTES_MAX // max(1, len(self._held))
        return {place for place, held in self._held.items() if held.size >= share}

    def take(self) -> list[Part]:
        """Return and forget the messages that need not be held back any more, by partition and in order."""
        parts = []
        for topic in sorted({topic for topic, _ in self._held}):
            places = {place: held for place, held in self._held.items() if place[0] == topic}
            until_ms = min(map(self._bound, places.values()))
            for place, held in sorted(places.items()):
                if held.messages and (part := self._split(held, until_ms)) is not None:
                    parts.append(Part(*place, part))
        return parts

    def _bound(self, held: _Held) -> float:
        """Return a time before which no more messages of a partition are expected."""
        is_silent = not held.messages and self._clock.monotonic_s() - held.heard_s > PATIENCE_S
        return math.inf if held.is_at_end or is_silent else held.last_ms

    @staticmethod
    def _split(held: _Held, until_ms: float) -> Messages | None:
        messages, times_ms = Messages.concat(held.messages), np.concatenate(held.times_ms)
        count = int(times_ms.searchsorted(until_ms, side="right"))
        rest = messages.part(count, len(messages))
        held.messages, held.times_ms, held.size = [], [], 0
        if len(rest):
            held.messages, held.times_ms, held.size = [rest], [times_ms[count:]], _size(rest)
        return messages.part(0, count) if count else None


def merged_order(parts: Collection[Part]) -> list[tuple[int, int]]:
    """Return the number of the part and the row of each message in ``parts``, by time and in order within each part."""
    times = [np.maximum.accumulate(part.messages.append_ms) for part in parts]
    numbers = np.repeat(np.arange(len(times)), [len(one) for one in times])
    rows = np.concatenate([np.arange(len(one)) for one in times])
    order = np.concatenate(times).argsort(kind="stable")
    return list(zip(numbers.take(order).tolist(), rows.take(order).tolist(), strict=True))


def _size(messages: Messages) -> int:
    return int(messages.value.lengths().sum()) + _MESSAGE_BYTES * len(messages)
