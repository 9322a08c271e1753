"""Units that are being taken, each in a thread of the runner's pool: the others go on meanwhile.

Taking may last minutes, where much has to be replayed. A unit may be given to another process in that time, or the
runner be asked to end: then the taking is called off, and what comes of it is thrown away.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from collections.abc import Set as AbstractSet
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from joiner.runtime.ownership.eligibility import Claimant
from joiner.runtime.ownership.warmup import Warm

_Claimed = TypeVar("_Claimed")
_Made_co = TypeVar("_Made_co", covariant=True)


class Take(Protocol[_Made_co]):
    """Claims and recovers a unit, in the pool; None: not now. ``is_over`` is asked now and then."""

    def __call__(
        self, number: int, claimant: Claimant | None, warm: Warm | None, is_over: Callable[[], bool], /
    ) -> _Made_co | None:
        """See above."""
        ...


@dataclass
class _ClaimUnderWay(Generic[_Claimed]):
    outcome: Future[_Claimed | None]
    over: threading.Event


class ConcurrentClaims(Generic[_Claimed]):
    """What is being taken; for the thread of the runner."""

    def __init__(self, take: Take[_Claimed], pool: Executor) -> None:
        self._take, self._pool = take, pool
        self._units: dict[int, _ClaimUnderWay[_Claimed]] = {}

    @property
    def busy(self) -> set[int]:
        """Units that are being taken; also those of which it was called off, until they are let go."""
        return set(self._units)

    def begin(self, number: int, claimant: Claimant | None = None, warm: Warm | None = None) -> bool:
        """Take a unit, for a move with its claimant and what is prepared; False: it is being taken already."""
        if number in self._units:
            return False
        over = threading.Event()
        self._units[number] = _ClaimUnderWay(self._pool.submit(self._take, number, claimant, warm, over.is_set), over)
        return True

    def finished(self, units: AbstractSet[int]) -> list[tuple[int, _Claimed | None]]:
        """What the attempts that have ended came to; None: it was not taken, or for nobody.

        ``units``: those that are ours to serve.
        """
        found: list[tuple[int, _Claimed | None]] = []
        for number, one in [(number, one) for number, one in self._units.items() if one.outcome.done()]:
            del self._units[number]
            taken = one.outcome.result()
            found.append((number, taken if number in units and not one.over.is_set() else None))
        return found

    def call_off(self, units: Collection[int], until_s: float) -> None:
        """Take these no more, and wait for it until a moment (monotonic): one that is in the middle of its claim
        would fence whoever has the unit next.
        """
        ending = [self._units[number] for number in units if number in self._units]
        for one in ending:
            one.over.set()
        wait([one.outcome for one in ending], timeout=max(0.0, until_s - time.monotonic()))
