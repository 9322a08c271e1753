"""Messages that have been read but not joined yet, and the units whose turn it is to join theirs.

The units of a process are served in rotation within each commit interval, not all at its end. Their commits are thus
spread over the interval, and the records of one unit do not wait until those of all others are joined.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping
from typing import Final, NamedTuple

from joiner.runtime.kafka.batches.messages import Read
from joiner.runtime.task.decode import Messages

_TURNS_MAX: Final = 4
"""Turns per commit interval. Each turn polls the input once, which costs about as much as joining a few records."""


class UnitInput(NamedTuple):
    """What was read for one unit: its next messages, and the log ends that were reached, by topic."""

    batches: Mapping[str, Messages]
    ends: Mapping[str, int]


class PendingInput:
    """The pending input of all units of a process.

    Args:
        records_max: the number of records in a full batch of all units together.
        turns_max: into how many turns a commit interval is divided, at most. There are never more turns than units.

    """

    def __init__(self, records_max: int, turns_max: int = _TURNS_MAX) -> None:
        self._records_max, self._turns_max = records_max, turns_max
        self._batches: dict[int, dict[str, list[Messages]]] = {}
        self._ends: dict[int, dict[str, int]] = {}
        self._served_in: dict[int, int] = {}
        """The last turn of each unit."""
        self._turn = 0

    def turns(self, units: int) -> int:
        """Return the number of turns per commit interval for this many units."""
        return max(1, min(units, self._turns_max))

    def add(self, read: Read, running: Container[int]) -> None:
        """Add what one poll has returned for units that are running, except its errors."""
        for unit, batches in read.batches.items():
            if unit in running:
                parts = self._batches.setdefault(unit, {})
                for topic, messages in batches.items():
                    parts.setdefault(topic, []).append(messages)
        for unit, ends in read.ends.items():
            if unit in running:
                self._ends.setdefault(unit, {}).update(ends)

    def begin_turn(self, units: Iterable[int]) -> list[int]:
        """Return the units to serve in this turn, of those that are running, in the order in which to serve them.

        These are the units that have waited longest, as many as it takes to serve all of them once per commit interval,
        and those whose share of a full batch has arrived.
        """
        self._turn += 1
        waiting = sorted(units, key=lambda unit: (self._served_in.get(unit, 0), unit))
        if not waiting:
            return []
        quota = math.ceil(len(waiting) / self.turns(len(waiting)))
        share = self._records_max / len(waiting)
        due = waiting[:quota] + [unit for unit in waiting[quota:] if self._count(unit) >= share]
        self._served_in |= dict.fromkeys(due, self._turn)
        return due

    def take(self, unit: int) -> UnitInput:
        """Return and remove the pending input of a unit."""
        batches = {topic: Messages.concat(parts) for topic, parts in self._batches.pop(unit, {}).items()}
        return UnitInput(batches, self._ends.pop(unit, {}))

    def drop(self, unit: int) -> None:
        """Discard the pending input of a unit that is no longer running."""
        self._batches.pop(unit, None)
        self._ends.pop(unit, None)
        self._served_in.pop(unit, None)

    def _count(self, unit: int) -> int:
        return sum(len(part) for parts in self._batches.get(unit, {}).values() for part in parts)
