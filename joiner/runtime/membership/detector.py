"""Detects instances that have stopped sending heartbeats. Uses the reader's own monotonic time, and no clock.

The time limit adapts to the gaps that were observed, so that a loaded machine or a long garbage collection is not
mistaken for a crash. A reader that was itself suspended may suspect everybody, but an assignment that declares an
instance gone is ignored if the log has a later heartbeat of that instance.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

_GAPS: Final = 2.5
"""An instance is silent if a gap is this many times as long as the longest recent gap, and longer than the timeout."""

_FORGETTING: Final = 0.98
"""The longest gap is multiplied by this factor at each heartbeat, so that it is forgotten over time."""

LIMIT_S: Final = 6.0
"""The longest time limit, however long the observed gaps: what consumer groups wait at least."""


@dataclass
class _Heard:
    at_s: float
    longest_s: float = 0.0


class FailureDetector:
    """Watches the members that `hear` reports. ``timeout_s``: the shortest silence that counts as a failure."""

    def __init__(self, timeout_s: float) -> None:
        self.shortest_s = timeout_s
        """The shortest silence that counts as a failure."""
        self._heard: dict[str, _Heard] = {}

    def hear(self, instance: str, now_s: float) -> None:
        """Note a heartbeat of an instance."""
        heard = self._heard.get(instance)
        if heard is None:
            self._heard[instance] = _Heard(now_s)
            return
        heard.longest_s = max(heard.longest_s * _FORGETTING, now_s - heard.at_s, 0.0)
        heard.at_s = now_s

    def forget(self, instance: str) -> None:
        """Stop watching an instance."""
        self._heard.pop(instance, None)

    def watch_only(self, instances: Collection[str]) -> None:
        """Stop watching all others."""
        for instance in self._heard.keys() - set(instances):
            del self._heard[instance]

    def forgive(self, for_s: float, until_s: float) -> None:
        """Do not count ``for_s`` of the silence of each instance: the log was silent, or the reader was suspended.

        ``until_s``: silence after this time counts.
        """
        for heard in self._heard.values():
            heard.at_s = min(heard.at_s + for_s, until_s)

    def silent(self, now_s: float) -> set[str]:
        """Return the instances that have not been heard of for too long."""
        return {name for name, heard in self._heard.items() if now_s - heard.at_s > self.timeout_s(name)}

    def timeout_s(self, instance: str) -> float:
        """Return the silence after which an instance counts as gone, in seconds."""
        heard = self._heard.get(instance)
        longest_s = heard.longest_s if heard is not None else 0.0
        return min(max(self.shortest_s, _GAPS * longest_s), max(self.shortest_s, LIMIT_S))
