"""Signals for long claims: the claiming runner writes to the control topic, so that other runners wait for the unit.

Without these signals, two runners that try to claim the same unit would keep fencing each other if a claim took longer
than their back-off. Correctness does not depend on the signals. This module uses neither Kafka nor a clock.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Final

from joiner.runtime.control import Claiming

REPEAT_S: Final = 0.5
"""A claim that takes longer than this is signalled repeatedly, at this interval. Most claims take about 10 ms."""

LASTS_S: Final = 5.0
"""A claim is assumed to have ended if it has not been signalled for this long."""


class Claims:
    """Tracks a runner's own claims and the claims signalled by other runners. Times may use any monotonic clock."""

    def __init__(self, site: str, run: str) -> None:
        self._site, self._run = site, run
        self._heard_s: dict[int, float] = {}
        self._since_s: dict[int, float] = {}
        self._said_s = float("-inf")

    def hear(self, record: Claiming, now_s: float) -> None:
        """Process a record from the control topic."""
        if record.run != self._run:
            self._heard_s.update(dict.fromkeys(record.units, now_s))

    def of_others(self, now_s: float) -> set[int]:
        """Return the units that other runs are claiming, according to their signals."""
        return {unit for unit, heard_s in self._heard_s.items() if now_s - heard_s < LASTS_S}

    def due(self, units: AbstractSet[int], now_s: float) -> Claiming | None:
        """Return the signal to write now, or None. ``units``: the units that this runner is claiming."""
        self._since_s = {unit: self._since_s.get(unit, now_s) for unit in units}
        slow = sorted(unit for unit, since_s in self._since_s.items() if now_s - since_s >= REPEAT_S)
        if not slow or now_s - self._said_s < REPEAT_S:
            return None
        self._said_s = now_s
        return Claiming(units=slow, to=self._site, run=self._run)
