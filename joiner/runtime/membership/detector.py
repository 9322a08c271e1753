"""Detects instances that have stopped sending heartbeats. Reads no clock: callers pass in their own monotonic time.

The timeout adapts to the gaps observed, so that a loaded machine or a long garbage collection is not mistaken for a
crash. A reader that was itself suspended may suspect every instance, but an assignment that declares an instance gone
is ignored if the log has a later heartbeat from that instance.
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
"""The longest timeout, however long the observed gaps. Consumer groups wait at least this long."""


@dataclass
class _Heard:
    at_s: float
    longest_s: float = 0.0


class FailureDetector:
    """Watches the members that `hear` reports. ``timeout_s``: the shortest silence considered a failure."""

    def __init__(self, timeout_s: float) -> None:
        self.shortest_s = timeout_s
        """The shortest silence considered a failure."""
        self._heard: dict[str, _Heard] = {}

    def hear(self, instance: str, now_s: float) -> None:
        """Note a heartbeat from an instance."""
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
        """Stop watching all instances except these."""
        for instance in self._heard.keys() - set(instances):
            del self._heard[instance]

    def forgive(self, for_s: float, until_s: float) -> None:
        """Ignore ``for_s`` of each instance's silence, because the log was silent or the reader was suspended.

        ``until_s``: silence after this time is not ignored.
        """
        for heard in self._heard.values():
            heard.at_s = min(heard.at_s + for_s, until_s)

    def silent(self, now_s: float) -> set[str]:
        """Return the instances that have not been heard from for too long."""
        return {name for name, heard in self._heard.items() if now_s - heard.at_s > self.timeout_s(name)}

    def timeout_s(self, instance: str) -> float:
        """Return the silence after which an instance is considered gone, in seconds."""
        heard = self._heard.get(instance)
        longest_s = heard.longest_s if heard is not None else 0.0
        return min(max(self.shortest_s, _GAPS * longest_s), max(self.shortest_s, LIMIT_S))
