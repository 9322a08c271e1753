"""Other programs that write to the result topics. One of their transactions is always open in every partition.

They write results of other joins, or records about the same input under another application's name. Some of their
transactions are short, and some last longer than a claim waits.
"""

from __future__ import annotations

import random
from typing import Final

import msgspec

from tests.simulation.memory_groups import Place
from tests.simulation.memory_log import ABORTED, COMMITTED, Transaction
from tests.simulation.world import World

_TURN: Final = 0.1
"""The probability of an action, per client call."""
_LASTS_S: Final = (0.01, 0.2, 0.2, 2.0, 8.0, 45.0)
_BRIEF_S: Final = 0.2


class Strangers:
    """Writes to ``places`` from the moment it is created."""

    def __init__(self, world: World, places: list[Place]) -> None:
        self._world, self._places = world, places
        self._lasts_s: tuple[float, ...] = _LASTS_S
        # The open transactions of each partition, with their end times.
        self._open: dict[Place, list[tuple[Transaction, float]]] = {place: [] for place in places}
        for place in places:
            self._begin(place)

    def step(self) -> None:
        """Act with some probability: end the transactions that are due in a partition."""
        draw = self._world.draw
        if draw.random() >= _TURN:
            return
        place = draw.choice(self._places)
        due = [known for known in self._open[place] if known[1] <= self._world.clock_s]
        if due and len(due) == len(self._open[place]):
            # The next transaction begins before the last one ends.
            self._begin(place)
        for known in due:
            self._open[place].remove(known)
            self._end(known[0], draw)

    def be_brief(self) -> None:
        """Keep all transactions short from now on, including those already open."""
        if self._lasts_s == (_BRIEF_S,):
            return
        self._lasts_s, until_s = (_BRIEF_S,), self._world.clock_s + _BRIEF_S
        self._open = {
            place: [(transaction, min(end_s, until_s)) for transaction, end_s in known]
            for place, known in self._open.items()
        }

    def end(self) -> None:
        """End all transactions."""
        for known in self._open.values():
            for transaction, _ in known:
                self._end(transaction, self._world.draw)

    def _begin(self, place: Place) -> None:
        kafka, draw = self._world.kafka, self._world.draw
        transaction = kafka.begin_source()
        for _ in range(draw.choice([1, 1, 3])):
            kafka.append(*place, b"R1", self._value(place, draw), transaction)
        self._open[place].append((transaction, self._world.clock_s + draw.choice(self._lasts_s)))

    def _end(self, transaction: Transaction, draw: random.Random) -> None:
        self._world.kafka.end_source(transaction, draw.choice([COMMITTED, COMMITTED, ABORTED]))

    def _value(self, place: Place, draw: random.Random) -> bytes:
        """Return a result of another join, or the unit's output about a record, renamed to another application."""
        entries = self._world.kafka.log(*place).archive
        for name in ("application", "source"):
            told = [
                entry.value
                for entry in entries
                if entry.value is not None and f'"{name}":"sim"'.encode() in entry.value
            ]
            if told and draw.random() < 0.5:
                return msgspec.json.encode(msgspec.json.decode(draw.choice(told)) | {name: "another"})
        return b'{"id":"another:%d:%d:%d"}' % (place[1], draw.randrange(50), draw.randrange(50))
