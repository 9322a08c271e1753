"""Signals of long claims: a claiming runner says so in the control topic, and others keep waiting for the unit.

Otherwise two runners that want a unit would fence each other again and again if a claim takes longer than their
back-off. Nothing depends on the signals. No Kafka here, no clock.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Final

from joiner.runtime.control import Claiming

REPEAT_S: Final = 0.5
"""A longer claim is signalled, repeatedly at this interval. Most claims take some ten milliseconds."""

LASTS_S: Final = 5.0
"""A claim that was not signalled for so long is over."""


class Claims:
    """The claims of a runner, and those it hears of. Times are of any monotonic clock."""

    def __init__(self, site: str, run: str) -> None:
        self._site, self._run = site, run
        self._heard_s: dict[int, float] = {}
        self._since_s: dict[int, float] = {}
        self._said_s = float("-inf")

    def hear(self, record: Claiming, now_s: float) -> None:
        """Process a record of the control topic."""
        if record.run != self._run:
            self._heard_s.update(dict.fromkeys(record.units, now_s))

    def of_others(self, now_s: float) -> set[int]:
        """Units that another run is claiming."""
        return {unit for unit, heard_s in self._heard_s.items() if now_s - heard_s < LASTS_S}

    def due(self, units: AbstractSet[int], now_s: float) -> Claiming | None:
        """The signal to write now, if any; ``units``: those being claimed here."""
        self._since_s = {unit: self._since_s.get(unit, now_s) for unit in units}
        slow = sorted(unit for unit, since_s in self._since_s.items() if now_s - since_s >= REPEAT_S)
        if not slow or now_s - self._said_s < REPEAT_S:
            return None
        self._said_s = now_s
        return Claiming(units=slow, to=self._site, run=self._run)
