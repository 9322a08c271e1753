"""Manages the units that a runner has been assigned but is not serving.

Such a unit is waiting to be claimed, has been lost to another runner, or has failed. After a claim or a batch fails,
the runner does one of three things: it claims the unit again after a back-off, it checks who owns the unit before
claiming it again, or it marks the unit as failed and keeps the reason. `retry_policy` lists the transient causes.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import replace
from random import Random
from typing import NamedTuple, TypeVar

from confluent_kafka import KafkaException

from joiner.runtime.clock import Clock
from joiner.runtime.kafka.checkpoint_log import read_checkpoint
from joiner.runtime.kafka.clients import describe
from joiner.runtime.kafka.readers import ClaimCancelled, Readers
from joiner.runtime.kafka.transaction import Aborted, Fenced, OwnershipInDoubt, UnitTransactions
from joiner.runtime.model import RESET_RUN, Checkpoint, UnitStopped
from joiner.runtime.ownership.claim import Claimer, ClaimLost
from joiner.runtime.ownership.eligibility import Claimant, OwnedElsewhere, ownership_of
from joiner.runtime.ownership.retry_policy import Obstacle, RetryTracker, cause_of
from joiner.runtime.ownership.warmup import Warm
from joiner.runtime.settings import JoinerSettings

_Claimed = TypeVar("_Claimed")


class _Action(NamedTuple):
    """Log wording for a failed action and for what happens next."""

    failed: str
    follows: str
    note: str = ""
    """Appended to the error message."""


_BATCH = _Action("a batch failed", "going back to its last commit", "; none of it was written")
# Unlike a failed batch, a failed claim may have been written.
_CLAIM = _Action("its claim failed", "cannot be claimed now")

_log = logging.getLogger(__name__)


class _Lost(UnitStopped):
    """Another run has claimed the unit, or the unit has been reset."""

    def __init__(self, text: str, checkpoint: Checkpoint) -> None:
        super().__init__(text)
        self.checkpoint = checkpoint


class _Next(NamedTuple):
    """When to claim a unit next. If ``runs`` is set, claim it only if its checkpoint still names one of them."""

    not_before_s: float
    runs: frozenset[str] | None = None


class AssignmentManager:
    """Decides when units are claimed. Any thread may call `claim`, but not two threads at once for the same unit."""

    def __init__(
        self,
        settings: JoinerSettings,
        claimant: Claimant,
        claimer: Claimer,
        found_elsewhere: Callable[[int, Checkpoint], bool],
        clock: Clock,
        *,
        fenced: Callable[[], None] = lambda: None,
    ) -> None:
        """``found_elsewhere`` is called with a unit of another site and its checkpoint, and must return whether this
        runner should wait for the unit. ``fenced`` is called when another runner has claimed a unit of this runner.
        """
        self._claimer, self._found_elsewhere = claimer, found_elsewhere
        self._note_fenced = fenced
        self._settings, self._clock = settings, clock
        self._claimant = claimant
        # Units whose claim may be forced: those assigned at startup. A unit assigned later must not be claimed away
        # from the site it was moved to. None until units have been assigned.
        self._by_force: set[int] | None = None
        # Units waiting for their first claim or for another one.
        self._waiting: dict[int, _Next] = {}
        # Errors from claims in other threads, for the runner's loop to handle.
        self._claim_errors: deque[tuple[int, Exception]] = deque()
        self.failed: dict[int, str] = {}
        """Units that cannot continue on this runner, and why."""
        # Back-offs are random, seeded with the run id: runners differ, but simulated histories are reproducible.
        self._troubles = RetryTracker(Random(claimant.run), clock)  # noqa: S311 - no secret
        # Failed units that another process has claimed, and when to check if they are still assigned to us.
        self._lost: dict[int, float] = {}

    @property
    def failed_units(self) -> set[int]:
        """Units that cannot continue on this runner, except those that another process has claimed."""
        return self.failed.keys() - self._lost.keys()

    @property
    def in_doubt(self) -> set[int]:
        """Units that another runner may have claimed, and that are to be claimed again if none has."""
        return {number for number, then in self._waiting.items() if then.runs is not None}

    def due(
        self,
        units: AbstractSet[int],
        busy: AbstractSet[int],
        claimed: AbstractSet[int] = frozenset(),
        *,
        is_current: bool = True,
    ) -> list[int]:
        """Return which of ``units`` to claim now.

        ``busy``: units to skip, because they are being served or other code is handling them. ``claimed``: units that
        other runners are claiming. A fenced runner waits for these claims to end. ``is_current``: whether ``units`` is
        known to be the current assignment.
        """
        now_s = self._clock.monotonic_s()
        if units and self._by_force is None:
            self._by_force = set(units)
        for number in [number for number, look_s in list(self._lost.items()) if is_current and look_s <= now_s]:
            # By now, every member has received its assignment. If the unit is still assigned to us, the process that
            # claimed it had not yet learnt that the unit was no longer its own, and nobody is serving the unit.
            del self._lost[number]
            if self.failed.pop(number, None) is not None:
                _log.info("unit %s: still assigned to this process; claiming it again", number)
        for number in units - (self._waiting.keys() | self.failed.keys() | busy):
            self._waiting[number] = _Next(now_s)
        waiting = {
            number
            for number, then in self._waiting.items()
            if then.not_before_s <= now_s and (then.runs is None or number not in claimed)
        }
        return sorted((waiting & units) - busy)

    def claim(
        self,
        number: int,
        claimant: Claimant | None,
        warm: Warm | None,
        readers: Readers,
        restore: Callable[[UnitTransactions, Checkpoint, Readers], _Claimed],
    ) -> _Claimed | None:
        """Claim and restore a unit. Return None if this fails or is cancelled.

        After a failure, `plan_retries` decides what to do next.

        ``claimant``: the claimant to use during a move; None for the runner's own. ``restore``: builds the task.
        """
        try:
            then = self._waiting.get(number)
            if then is not None and then.runs is not None:
                self._check_still_ours(number, then.runs, readers)
            claimed = self._claimer.claim(number, claimant or self._claimant_of(number), warm, readers)
            task = restore(*claimed, readers)
        except ClaimCancelled:
            _log.info("unit %s: claim cancelled, because the unit was revoked or this process is stopping", number)
            return None
        except Exception as error:  # noqa: BLE001 - no error may affect the other units
            self._claim_errors.append((number, error))
            return None
        _log.info("unit %s: claimed", number)
        return task

    def plan_retries(self, units: AbstractSet[int]) -> None:
        """Decide what to do about failed claims. ``units``: the units assigned to this runner."""
        while self._claim_errors:
            number, error = self._claim_errors.popleft()
            if number in units:
                self._plan(number, error, _CLAIM)

    def handle_failure(self, number: int, error: Exception) -> None:
        """Handle a batch failure that stopped its unit: schedule another claim if a retry may help."""
        self._plan(number, error, _BATCH)

    def verify_owner(self, number: int) -> None:
        """Schedule an ownership check, then another claim if the unit is still ours. The first check is due at once."""
        self._verify_first(number, OwnershipInDoubt(), first_s=0.0)

    def schedule_claim(self, number: int) -> None:
        """Schedule an ordinary claim, one that is not part of a move."""
        self.failed.pop(number, None)
        self._waiting[number] = _Next(self._clock.monotonic_s())

    def retry(self, number: int) -> bool:
        """Forget a unit's failures, and claim it at once if it has failed or is waiting for a claim.

        Return whether it had failed. A unit that another process has claimed is left to that process: see `due`.
        """
        then, has_failed = self._waiting.get(number), number in self.failed_units
        if has_failed or then is not None:
            # Only the claim at startup may be forced.
            self._end_force(number)
            self._troubles.forget(number)
            self.failed.pop(number, None)
            self._waiting[number] = _Next(self._clock.monotonic_s(), None if then is None else then.runs)
        return has_failed

    def claimed(self, number: int) -> None:
        """Record that the unit is being served."""
        self._end_force(number)
        self._waiting.pop(number, None)
        self.failed.pop(number, None)
        self._troubles.served(number)

    def forget(self, number: int) -> None:
        """Discard everything known about a unit that was revoked from this runner."""
        self._end_force(number)
        self._waiting.pop(number, None)
        self.failed.pop(number, None)
        self._lost.pop(number, None)
        self._troubles.forget(number)

    def is_pending(self, number: int) -> bool:
        """Return whether a unit is waiting to be claimed, now or later."""
        return number in self._waiting

    def obstacles(self) -> dict[int, Obstacle]:
        """Return why units that have failed or are waiting for a retry are not being served."""
        numbers = sorted({*self.failed, *self._waiting})
        found = {number: self._troubles.obstacle(number, self._tried_at_s(number)) for number in numbers}
        return {number: obstacle for number, obstacle in found.items() if obstacle is not None}

    def _tried_at_s(self, number: int) -> float | None:
        then = self._waiting.get(number)
        return then.not_before_s if then is not None else self._lost.get(number)

    def _claimant_of(self, number: int) -> Claimant:
        return self._claimant if number in (self._by_force or ()) else replace(self._claimant, force=False)

    def _end_force(self, number: int) -> None:
        (self._by_force or set()).discard(number)

    def _check_still_ours(self, number: int, runs: AbstractSet[str], readers: Readers) -> None:
        """Check that the checkpoint still names one of ``runs``. Raises `UnitStopped` if it does not."""
        checkpoint = read_checkpoint(readers, number)
        # If there is no checkpoint, our own transaction is dangling (see `dangling`) and no other runner has written
        # one.
        if checkpoint is None or checkpoint.run in runs:
            _log.info("unit %s: no other runner has claimed it; claiming it again", number)
            return
        why = f"unit {number}: now {ownership_of(checkpoint, with_run=True)}; given up"
        if not self._claimant_of(number).may_continue(checkpoint):
            raise OwnedElsewhere(why, checkpoint)
        raise _Lost(why, checkpoint)

    def _plan(self, number: int, error: Exception, action: _Action) -> None:
        """Decide what to do about a unit that is not being served because of ``error``."""
        if isinstance(error, OwnedElsewhere):
            self._leave_elsewhere(number, error)
            return
        if isinstance(error, OwnershipInDoubt):
            if isinstance(error, Fenced):
                self._note_fenced()
            self._verify_first(number, error)
            return
        retry = self._settings.application.command(f"retry {number} --at {self._claimant.site}")
        why = _why(number, error, action, retry)
        wait_s = self._troubles.wait_s(number, cause_of(error), why)
        if wait_s is None:
            _log.debug("unit %s", number, exc_info=error)
            self._mark_failed(number, why)
        else:
            _log.warning("unit %s: %s, retrying in %.1f s: %s", number, action.follows, wait_s, why)
            then = self._waiting.get(number)
            runs = then.runs if then is not None and action is _CLAIM else None
            self._waiting[number] = _Next(self._clock.monotonic_s() + wait_s, runs)
        if isinstance(error, _Lost) and error.checkpoint.run != RESET_RUN:
            self._lost[number] = self._clock.monotonic_s() + self._settings.application.session_timeout / 1e9

    def _verify_first(self, number: int, doubt: OwnershipInDoubt, first_s: float | None = None) -> None:
        """Schedule a claim that first reads the checkpoint, because another runner may have claimed the unit.

        The unit is still ours if the checkpoint names our run or, after a lost claim, the previous owner's run.
        """
        runs = {self._claimant.run}
        if isinstance(doubt, ClaimLost):
            runs.add(doubt.before)
            if not doubt.before and self._settings.application.replica:
                # The other runner may have founded the unit (see `foundation`) and not claimed it yet.
                runs.add(RESET_RUN)
        is_first = not self._troubles.has(number)
        is_fenced = isinstance(doubt, Fenced)
        why = "another runner may have claimed it" if is_fenced else "its input is not as expected"
        wait_s = self._troubles.wait_s(number, cause_of(doubt), f"unit {number}: {why}; verifying its owner")
        wait_s = first_s if is_first and first_s is not None else wait_s or 0.0
        _log.warning("unit %s: another runner may have claimed it; checking in %.1f s", number, wait_s)
        self._waiting[number] = _Next(self._clock.monotonic_s() + wait_s, frozenset(runs))

    def _leave_elsewhere(self, number: int, found: OwnedElsewhere) -> None:
        """Handle a unit that belongs to another site."""
        if self._found_elsewhere(number, found.checkpoint):
            self._waiting.pop(number, None)
        else:
            self._troubles.wait_s(number, cause_of(found), str(found))
            self._mark_failed(number, str(found))

    def _mark_failed(self, number: int, why: str) -> None:
        _log.error("%s", why)
        self.failed[number] = why
        self._waiting.pop(number, None)


def _why(number: int, error: Exception, action: _Action, retry: str) -> str:
    """Return the message for an error. If the error may be a bug, the message says what to do.

    ``retry``: the command that retries the unit.
    """
    if isinstance(error, UnitStopped):
        return str(error)
    if isinstance(error, Aborted | KafkaException):
        return describe(error)
    what = f"unit {number}: {action.failed} with {type(error).__name__}: {describe(error)}{action.note}"
    if cause_of(error).is_transient:
        return what
    again = "if this happens again, report it as a bug (--log-level debug shows where it occurred)"
    return f"{what}. Run {retry}, or restart the joiner if it has ended; {again}"
