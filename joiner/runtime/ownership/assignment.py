"""The units that a runner wants and does not serve: to be taken, lost to another, or set aside for they cannot go on.

What becomes of a unit when taking or serving it has failed is decided here, the same for every runner: it is taken
again from its last commit after a while, it is looked who has it, or it is set aside with the reason. Which causes pass
is said in `retry_policy`.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import replace
from random import Random
from typing import NamedTuple, TypeVar

from confluent_kafka import KafkaException

from joiner.runtime.kafka.checkpoint_log import read_checkpoint
from joiner.runtime.kafka.clients import describe
from joiner.runtime.kafka.readers import ClaimCancelled, Readers
from joiner.runtime.kafka.transaction import Aborted, Fenced, UnitTransactions
from joiner.runtime.model import RESET_RUN, Checkpoint, UnitStopped
from joiner.runtime.ownership.claim import Claimer, ClaimLost
from joiner.runtime.ownership.eligibility import Claimant, OwnedElsewhere
from joiner.runtime.ownership.retry_policy import Obstacle, RetryTracker, cause_of
from joiner.runtime.ownership.warmup import Warm
from joiner.runtime.settings import JoinerSettings

_Claimed = TypeVar("_Claimed")


class _Doing(NamedTuple):
    """What was being done when it failed, for messages."""

    failed: str
    again: str


_BATCH = _Doing("a batch failed", "going back to its last commit")
_CLAIM = _Doing("taking it failed", "cannot be taken now")

_log = logging.getLogger(__name__)


class _Lost(UnitStopped):
    """Another run has claimed the unit."""

    def __init__(self, text: str, checkpoint: Checkpoint) -> None:
        super().__init__(text)
        self.checkpoint = checkpoint


class _Next(NamedTuple):
    """When a unit is to be taken, and whether it is looked first whose it is: it is not ours to take any more where its
    checkpoint names a run other than these.
    """

    not_before_s: float
    runs: frozenset[str] | None = None


class AssignmentManager:
    """Of which units what is to be done next. `take` may be called by any thread, for one unit by one at a time."""

    def __init__(
        self,
        settings: JoinerSettings,
        claimant: Claimant,
        claimer: Claimer,
        found_elsewhere: Callable[[int, Checkpoint], bool],
        *,
        in_group: bool,
        fenced: Callable[[], None] = lambda: None,
    ) -> None:
        """``in_group``: a group tells which units this runner is to have, so that one may come back to it.

        ``found_elsewhere`` is told of units of other sites, and says whether they are waited for. ``fenced`` is told,
        by any thread, when a unit is found to be claimed by another.
        """
        self._claimer, self._found_elsewhere = claimer, found_elsewhere
        self._note_fenced = fenced
        self._settings = settings
        self._claimant = claimant
        self._in_group = in_group
        # Force is for the start: a unit that comes later is not taken from where somebody has moved it, nor from whom
        # it was overcome and who comes back by force. None: no unit is wanted yet.
        self._by_force: set[int] | None = None
        # Units to be taken (again).
        self._waiting: dict[int, _Next] = {}
        # What has gone wrong in other threads, and is arranged by the loop.
        self._claim_errors: deque[tuple[int, Exception]] = deque()
        self.failed: dict[int, str] = {}
        """Units that do not go on here, with the reason."""
        # Seeded with the run, so that runners differ and a simulated history can be repeated.
        self._troubles = RetryTracker(Random(claimant.run))  # noqa: S311 - no secret
        # Of those set aside because another process has claimed them: when it is looked whether they are still ours.
        self._lost: dict[int, float] = {}

    @property
    def failed_units(self) -> set[int]:
        """Units that cannot go on. Those that another process has claimed do: there, or here again after a while."""
        return self.failed.keys() - self._lost.keys()

    def due(
        self, units: AbstractSet[int], busy: AbstractSet[int], claimed: AbstractSet[int] = frozenset()
    ) -> list[int]:
        """Which of ``units`` are to be taken now; ``busy``: those that are served, or somebody else's concern.

        ``claimed``: those that others are claiming. Who was fenced waits for them.
        """
        now_s = time.monotonic()
        if units and self._by_force is None:
            self._by_force = set(units)
        for number in [number for number, look_s in list(self._lost.items()) if look_s <= now_s]:
            # By now the group has told everyone. If it still gives us the unit, it was claimed by a process that
            # did not know yet that it had lost it, and nobody serves it.
            del self._lost[number]
            if self.failed.pop(number, None) is not None:
                _log.info("unit %s: the group still gives it to us; taking it again", number)
        for number in units - (self._waiting.keys() | self.failed.keys() | busy):
            self._waiting[number] = _Next(now_s)
        # Listed, for another thread may be giving one up.
        waiting = {
            number
            for number, then in list(self._waiting.items())
            if then.not_before_s <= now_s and (then.runs is None or number not in claimed)
        }
        return sorted((waiting & units) - busy)

    def take(
        self,
        number: int,
        claimant: Claimant | None,
        warm: Warm | None,
        readers: Readers,
        serving: Callable[[UnitTransactions, Checkpoint, Readers], _Claimed],
    ) -> _Claimed | None:
        """Claim a unit; None: not now, and `plan_retries` says what comes next.

        ``claimant``: for a move; by default ourselves. ``serving`` makes of what was claimed what the runner serves.
        """
        try:
            then = self._waiting.get(number)
            if then is not None and then.runs is not None:
                self._check_still_ours(number, then.runs)
            claimed = self._claimer.claim(number, claimant or self._claimant_of(number), warm, readers)
            taken = serving(*claimed, readers)
        except ClaimCancelled:
            _log.info("unit %s: is not taken, for it is not wanted here any more", number)
            return None
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not touch the other units
            self._claim_errors.append((number, error))
            return None
        _log.info("unit %s: taken", number)
        return taken

    def plan_retries(self, units: AbstractSet[int]) -> None:
        """Arrange what comes next for units that could not be taken; ``units``: those that are ours to serve."""
        while self._claim_errors:
            number, error = self._claim_errors.popleft()
            if number in units:
                self._arrange(number, error, _CLAIM)

    def give_up(self, number: int, error: Exception) -> None:
        """A batch failed, and the unit is not served any more: begin it anew at its last commit where that may help."""
        self._arrange(number, error, _BATCH)

    def verify_owner(self, number: int, wait_s: float | None = None) -> None:
        """Before it is taken again, see whether it is still ours. ``wait_s``: how long to wait the first time."""
        self._look_first(number, Fenced(), wait_s)

    def schedule_claim(self, number: int) -> None:
        """It may be taken by the ordinary procedure."""
        self.failed.pop(number, None)
        self._waiting[number] = _Next(time.monotonic())

    def taken(self, number: int) -> None:
        """It is served from now on."""
        self._end_force(number)
        self._waiting.pop(number, None)
        self.failed.pop(number, None)
        self._troubles.served(number)

    def forget(self, number: int) -> None:
        """It is others' to serve now."""
        self._end_force(number)
        self._waiting.pop(number, None)
        self.failed.pop(number, None)
        self._lost.pop(number, None)
        self._troubles.forget(number)

    def is_pending(self, number: int) -> bool:
        """Whether it is to be claimed, now or later."""
        return number in self._waiting

    def obstacles(self) -> dict[int, Obstacle]:
        """What the units wait for that could not be served, or why they were set aside."""
        numbers = sorted({*self.failed, *self._waiting})
        found = {number: self._troubles.obstacle(number, self._tried_at_s(number)) for number in numbers}
        return {number: obstacle for number, obstacle in found.items() if obstacle is not None}

    def _tried_at_s(self, number: int) -> float | None:
        then = self._waiting.get(number)
        return then.not_before_s if then is not None else self._lost.get(number)

    def _claimant_of(self, number: int) -> Claimant:
        return self._claimant if number in (self._by_force or ()) else replace(self._claimant, take=False)

    def _end_force(self, number: int) -> None:
        (self._by_force or set()).discard(number)

    def _check_still_ours(self, number: int, runs: AbstractSet[str]) -> None:
        """After being fenced: does the checkpoint still name one of ``runs``? Raises where the unit is lost."""
        checkpoint = read_checkpoint(
            self._settings.kafka, self._settings.application.name, self._settings.state_topic, number
        )
        # None: what we wrote hangs (see `dangling`), and nobody else has written anything.
        if checkpoint is None or checkpoint.run in runs:
            _log.info("unit %s: the one that fenced us never claimed it; taking it back", number)
            return
        why = f"unit {number}: now owned by {checkpoint.owner} (run {checkpoint.run}); given up"
        if not self._claimant_of(number).may_continue(checkpoint):
            raise OwnedElsewhere(why, checkpoint)
        raise _Lost(why, checkpoint)

    def _arrange(self, number: int, error: Exception, doing: _Doing) -> None:
        """What comes next for a unit that is not served because of ``error``."""
        if isinstance(error, OwnedElsewhere):
            self._leave_elsewhere(number, error)
            return
        if isinstance(error, Fenced):
            self._note_fenced()
            self._look_first(number, error)
            return
        why = _why(number, error, doing)
        wait_s = self._troubles.wait_s(number, cause_of(error), why)
        if wait_s is None:
            _log.debug("unit %s", number, exc_info=error)
            self._mark_failed(number, why)
        else:
            _log.warning("unit %s: %s, trying again in %.1f s: %s", number, doing.again, wait_s, why)
            then = self._waiting.get(number)
            runs = then.runs if then is not None and doing is _CLAIM else None
            self._waiting[number] = _Next(time.monotonic() + wait_s, runs)
        if isinstance(error, _Lost) and self._in_group and error.checkpoint.run != RESET_RUN:
            self._lost[number] = time.monotonic() + self._settings.application.session_timeout / 1e9

    def _look_first(self, number: int, fenced: Fenced, first_s: float | None = None) -> None:
        """Somebody has initialised the unit's transactional id, or may have: wait, and see whether it has claimed it.

        An owner is named by the checkpoint itself; for one that was overtaken in its claim, its predecessor is.
        """
        runs = {self._claimant.run, *([fenced.before] if isinstance(fenced, ClaimLost) else [])}
        is_first = not self._troubles.has(number)
        wait_s = self._troubles.wait_s(number, cause_of(fenced), f"unit {number}: another runner claims it as well")
        wait_s = first_s if is_first and first_s is not None else wait_s or 0.0
        _log.warning("unit %s: somebody else may have it; looking who in %.1f s", number, wait_s)
        self._waiting[number] = _Next(time.monotonic() + wait_s, frozenset(runs))

    def _leave_elsewhere(self, number: int, found: OwnedElsewhere) -> None:
        """The unit belongs to another site."""
        if self._found_elsewhere(number, found.checkpoint):
            self._waiting.pop(number, None)
        else:
            self._troubles.wait_s(number, cause_of(found), str(found))
            self._mark_failed(number, str(found))

    def _mark_failed(self, number: int, why: str) -> None:
        _log.error("%s", why)
        self.failed[number] = why
        self._waiting.pop(number, None)


def _why(number: int, error: Exception, doing: _Doing) -> str:
    """What an error says to people; of a defect also what to do."""
    if isinstance(error, UnitStopped):
        return str(error)
    if isinstance(error, Aborted | KafkaException):
        return describe(error)
    what = f"unit {number}: {doing.failed} with {type(error).__name__}: {describe(error)}; nothing of it was written"
    if cause_of(error).passes:
        return what
    again = "Restart the joiner; if it happens again, this is a defect to report (--log-level debug shows where)"
    return f"{what}. {again}"
