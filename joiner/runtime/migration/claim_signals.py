"""Claims that take long: a runner says that it is in the middle of one, and whoever waits for the unit waits on.

Without that, two who want a unit would fence each other again and again where a claim takes longer than either of them
waits. It is said in the control topic, and nothing rests on it. No Kafka here, no clock.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Final

from joiner.runtime.control import Claiming

REPEAT_S: Final = 0.5
"""A claim that takes longer is told, again and again after so long. Most take some ten milliseconds."""

LASTS_S: Final = 5.0
"""Who was not heard of for so long is not claiming any more."""


class Claims:
    """What one runner claims, and what it hears of others. Moments are of any clock that rises."""

    def __init__(self, site: str, run: str) -> None:
        self._site, self._run = site, run
        self._heard_s: dict[int, float] = {}
        self._since_s: dict[int, float] = {}
        self._said_s = float("-inf")

    def hear(self, record: Claiming, now_s: float) -> None:
        """Take a record of the control topic."""
        if record.run != self._run:
            self._heard_s.update(dict.fromkeys(record.units, now_s))

    def of_others(self, now_s: float) -> set[int]:
        """Units that another run is claiming."""
        return {unit for unit, heard_s in self._heard_s.items() if now_s - heard_s < LASTS_S}

    def due(self, units: AbstractSet[int], now_s: float) -> Claiming | None:
        """What is to be said now; ``units``: those that are being claimed here."""
        self._since_s = {unit: self._since_s.get(unit, now_s) for unit in units}
        slow = sorted(unit for unit, since_s in self._since_s.items() if now_s - since_s >= REPEAT_S)
        if not slow or now_s - self._said_s < REPEAT_S:
            return None
        self._said_s = now_s
        return Claiming(units=slow, to=self._site, run=self._run)
