"""Measures by how much a replica was first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Final

_EVERY: Final = 16
_AWAITED_MAX: Final = 1_000


class Leads:
    """Compares when replicas wrote the same id, for one in 16 ids, so that this costs little.

    ``counts``: by replica, how often it was first, and another one was known to be second. ``lead_ms``: how much later
    the second ones were in total, by the timestamps of the messages: the times at which Kafka appended them.
    """

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()
        self.lead_ms: Counter[int] = Counter()
        self._awaited: dict[Hashable, tuple[int, int]] = {}
        """The replica that was first, and when, by the ids that no second one has written yet. The oldest is first."""

    def note_first(self, number: int, replica: int, identity: Hashable, time_ms: int) -> None:
        """Note that a replica was the first to write an id. ``number`` is that of the message."""
        if number % _EVERY:
            return
        if len(self._awaited) >= _AWAITED_MAX:
            del self._awaited[next(iter(self._awaited))]
        self._awaited[identity] = replica, time_ms

    def note_later(self, replica: int, identity: Hashable, time_ms: int) -> None:
        """Note that a replica has written an id that was delivered before."""
        first, first_ms = self._awaited.get(identity, (replica, 0))
        if first != replica:
            del self._awaited[identity]
            self.counts[first] += 1
            # The topics may be on different brokers.
            self.lead_ms[first] += max(0, time_ms - first_ms)
