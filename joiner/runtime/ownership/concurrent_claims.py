"""Runs claims in the threads of the runner's pool, while the other units keep running.

Claiming and restoring a unit may take minutes if there is a lot of input to replay. If the unit is assigned to another
process in the meantime, or the runner is stopped, the claim is cancelled and its outcome is discarded.
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
    """A function that claims and restores a unit, called in a thread of the pool.

    Returns None if this fails or is cancelled. ``is_over``: returns whether the claim has been cancelled.
    """

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
    """Manages the claims in progress. Must be used only by the runner's own thread."""

    def __init__(
        self,
        claim: ClaimFunction[_Claimed],
        pool: Executor,
        clock: Clock,
        note_end: Callable[[], None] = lambda: None,
    ) -> None:
        """``note_end`` is called in a thread of the pool when a claim has ended."""
        self._claim, self._pool, self._clock, self._note_end = claim, pool, clock, note_end
        self._units: dict[int, _ClaimUnderWay[_Claimed]] = {}

    @property
    def busy(self) -> set[int]:
        """Units with a claim in progress, even if the claim has been cancelled but has not ended yet."""
        return set(self._units)

    def begin(self, number: int, claimant: Claimant | None = None, warm: Warm | None = None) -> bool:
        """Begin to claim a unit. Return False if it is already being claimed.

        ``claimant``, ``warm``: the claimant and the prepared state, if the claim is part of a move.
        """
        if number in self._units:
            return False
        over = threading.Event()
        outcome = self._pool.submit(self._claim, number, claimant, warm, over.is_set)
        self._units[number] = _ClaimUnderWay(outcome, over)
        outcome.add_done_callback(lambda _: self._note_end())
        return True

    def finished(self, units: AbstractSet[int]) -> list[tuple[int, _Claimed | None]]:
        """Return the units whose claims have ended since the last call, each with its outcome.

        ``units``: the units assigned to this runner. The outcome is None if the claim failed or was cancelled, or if
        the unit is no longer in ``units``.
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
