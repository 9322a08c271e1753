"""The things of a unit, as numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from broker.partitioner import partition_of
from broker.wire.columns import StringColumn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


class Keys:
    """Maps the things of a unit to numbers. A thing keeps its number for as long as an operator refers to it."""

    def __init__(self, unit: int, partitions: int, things: Sequence[str] = ()) -> None:
        self._unit = unit
        self._partitions = partitions
        self.things = list(things)
        """The things by number, with an empty string for each free number."""
        self._number = {thing: number for number, thing in enumerate(things) if thing}
        self._free = [number for number, thing in enumerate(things) if not thing]
        self._in_use = np.empty(0, dtype=np.int64)

    def number(self, thing: str) -> int | None:
        """Return a thing's number, assigning one if it is new, or None if the thing belongs to another partition."""
        number = self._number.get(thing)
        if number is None:
            if partition_of(thing.encode(), self._partitions) != self._unit:
                return None
            if self._free:
                number = self._free.pop()
                self.things[number] = thing
            else:
                number = len(self.things)
                self.things.append(thing)
            self._number[thing] = number
        return number

    def numbers(self, things: StringColumn) -> Ints | None:
        """Return the numbers of these things, or None if any of them belongs to another partition."""
        which, first = things.distinct()
        found = [self.number(thing.decode()) for thing in things.take(first).each()]
        return None if None in found else np.array(found, dtype=np.int64).take(which)

    def keep(self, known: Ints) -> None:
        """Keep only the things with these numbers. Forget all other things, and free their numbers."""
        kept = set(known.tolist())
        self._number = {thing: number for thing, number in self._number.items() if number in kept}
        self.things = [thing if number in kept else "" for number, thing in enumerate(self.things)]
        del self.things[max(self._number.values(), default=-1) + 1 :]
        self._free = [number for number, thing in enumerate(self.things) if not thing]
        self._in_use = np.empty(0, dtype=np.int64)

    def numbers_in_use(self) -> Ints:
        """Return all numbers in use. Cached, because every commit uses them and they rarely change."""
        if len(self._in_use) != len(self._number):
            self._in_use = np.fromiter(self._number.values(), dtype=np.int64, count=len(self._number))
        return self._in_use

    def __len__(self) -> int:
        return len(self._number)
