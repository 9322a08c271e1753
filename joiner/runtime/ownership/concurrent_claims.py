"""Claims in progress, each in a thread of the runner's pool, while the other units keep running.

Claiming and restoring a unit may take minutes if there is a lot to replay. If the unit is assigned to another process
in the meantime, or the runner is stopped, the claim is cancelled and its outcome is discarded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from collections.abc import Set as AbstractSet
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from joiner.runtime.clock import Clock
from joiner.runtime.ownership.eligibility import Claimant
from joiner.runtime.ownership.warmup import Warm

_Claimed = TypeVar("_Claimed")
_Made_co = TypeVar("_Made_co", covariant=True)


class ClaimFunction(Protocol[_Made_co]):
    """Claims and restores a unit, in the pool. Returns None on failure. ``is_over`` returns whether it is cancelled."""

    def __call__(
        self, number: int, claimant: Claimant | None, warm: Warm | None, is_over: Callable[[], bool], /
    ) -> _Made_co | None:
        """See the class."""
        ...


@dataclass
class _ClaimUnderWay(Generic[_Claimed]):
    outcome: Future[_Claimed | None]
    over: threading.Event


class ConcurrentClaims(Generic[_Claimed]):
    """The claims in progress. Used only by the runner's thread."""

    def __init__(self, claim: ClaimFunction[_Claimed], pool: Executor, clock: Clock) -> None:
        self._claim, self._pool, self._clock = claim, pool, clock
        self._units: dict[int, _ClaimUnderWay[_Claimed]] = {}

    @property
    def busy(self) -> set[int]:
        """Units with a claim in progress, including cancelled claims that have not ended."""
        return set(self._units)

    def begin(self, number: int, claimant: Claimant | None = None, warm: Warm | None = None) -> bool:
        """Begin to claim a unit; in a move, with its claimant and state. Return False if a claim is in progress."""
        if number in self._units:
            return False
        over = threading.Event()
        self._units[number] = _ClaimUnderWay(self._pool.submit(self._claim, number, claimant, warm, over.is_set), over)
        return True

    def finished(self, units: AbstractSet[int]) -> list[tuple[int, _Claimed | None]]:
        """Return the outcomes of ended claims. None: it failed or was cancelled, or the unit is not in ``units``.

        ``units``: those assigned to this runner.
        """
        found: list[tuple[int, _Claimed | None]] = []
        for number, one in [(number, one) for number, one in self._units.items() if one.outcome.done()]:
            del self._units[number]
            outcome = one.outcome.result()
            found.append((number, outcome if number in units and not one.over.is_set() else None))
        return found

    def cancel(self, units: Collection[int], until_s: float) -> None:
        """Cancel the claims of these units, and wait until they end or the monotonic time ``until_s`` is reached.

        A claim that is still running after that may fence the unit's next owner.
        """
        ending = [self._units[number] for number in units if number in self._units]
        for one in ending:
            one.over.set()
        self._clock.wait_until_done([one.outcome for one in ending], until_s)
