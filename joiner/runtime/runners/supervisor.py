"""Takes a runner's units through their lifecycle: they are claimed, restored, run and released, or they fail.

A runner supplies the code that executes a unit (`Execution`). The supervisor decides when to claim a unit, what to do
after a failure, and how moves proceed. Only two methods block: `cancel_claims`, and `release`, which may wait for the
unit's in-flight commit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from collections.abc import Set as AbstractSet
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

from joiner.runtime.kafka.readers import Readers
from joiner.runtime.migration.handover import Handover, Serving
from joiner.runtime.ownership.assignment import AssignmentManager
from joiner.runtime.ownership.claim import Claimer
from joiner.runtime.ownership.concurrent_claims import ConcurrentClaims
from joiner.runtime.ownership.unit_reports import UnitReports
from joiner.runtime.runners.lifecycle import OWNING, Lifecycle, UnitState

if TYPE_CHECKING:
    from joiner.runtime.kafka.transaction import UnitTransactions
    from joiner.runtime.migration.protocol import Release
    from joiner.runtime.model import Checkpoint
    from joiner.runtime.ownership.eligibility import Claimant
    from joiner.runtime.ownership.services import Services
    from joiner.runtime.ownership.warmup import Warm
    from joiner.runtime.settings import JoinerSettings
    from joiner.runtime.task.unit import Unit
    from joiner.runtime.telemetry.metrics import JoinerMetrics


class Claimed(NamedTuple):
    """A unit that this runner has claimed but not yet restored. ``warm``: the state built before the claim, if any."""

    unit: int
    transactions: UnitTransactions
    checkpoint: Checkpoint
    readers: Readers
    warm: Unit | None


class Failure(NamedTuple):
    """A unit that stopped running.

    ``error``: the reason, or None if another runner may have claimed the unit; the supervisor then verifies the owner.
    """

    unit: int
    error: Exception | None


_Task = TypeVar("_Task", bound=Serving)


class Execution(Protocol[_Task]):
    """How a runner executes units. `prepare` and `restore` run in the pool, the rest in the runner's thread."""

    failures: deque[Failure]
    """Units that have stopped running but that the supervisor has not handled yet. Add a unit here before removing it
    from ``tasks``."""

    @property
    def tasks(self) -> Mapping[int, _Task]:
        """The running units."""
        ...

    def prepare(self, unit: int) -> None:
        """Prepare to run a unit, before its state is built. It may already have been claimed."""
        ...

    def restore(self, claimed: Claimed) -> _Task:
        """Build the task of a claimed unit. Raises the same errors as `ownership.restore.recover`."""
        ...

    def start(self, unit: int, task: _Task) -> None:
        """Start running a restored unit."""
        ...

    def release(self, action: Release, then: Callable[[], None]) -> Future[None] | None:
        """Stop running a unit, and begin to write its last transaction, with a snapshot if the state has changed.

        ``then`` is called once the transaction is written. Return a future that completes after that call, or None if
        the unit keeps running or has failed. May wait for the unit's in-flight commit.
        """
        ...


class Supervisor(Generic[_Task]):
    """Drives the units of a runner through their lifecycle. Used only by the runner's thread."""

    def __init__(
        self,
        settings: JoinerSettings,
        claimant: Claimant,
        execution: Execution[_Task],
        services: Services,
        metrics: JoinerMetrics,
        *,
        standby: bool,
        take_warm: Callable[[int], Warm | None] = lambda _: None,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        """``standby``: whether to wait for units that belong to other sites. ``take_warm``: see `Followers.take`.

        ``wake`` is called, in another thread, when `poll` should be called again soon.
        """
        self._take_warm = take_warm
        self._settings = settings
        self._execution = execution
        self._metrics, self._clock = metrics, services.clock
        self._lifecycle = Lifecycle()
        # The units assigned to this runner at the last poll.
        self._ours: set[int] = set()
        # Units to retry once the claim in progress has ended.
        self._to_retry: set[int] = set()
        # Only claims at startup may be forced; moves do not need force.
        self._moves = Handover(settings, replace(claimant, force=False), self, services, standby=standby)
        claimer = Claimer(settings, services)
        self._assignment = AssignmentManager(
            settings,
            claimant,
            claimer,
            self._moves.found_elsewhere,
            services.clock,
            fenced=metrics.fenced,
        )
        self._claims: ConcurrentClaims[_Task] = ConcurrentClaims(self._claim, services.pool, services.clock, wake)
        self._reports = UnitReports(claimant, services.pool, services.control.write, services.clock)

    def poll(self, units: AbstractSet[int], *, is_current: bool = True, hold: AbstractSet[int] = frozenset()) -> None:
        """Perform all actions that are due. ``units``: the units assigned to this runner.

        ``is_current``: whether this is known to be the current assignment. If not, units lost to another runner
        are not claimed back. ``hold``: units not to claim yet.

        Raises `IllegalTransition` if there is a bug in this program.
        """
        self._ours = set(units)
        self.collect_failures()
        self._moves.poll(units)
        finished = self._claims.finished(units)
        for number, task in finished:
            if task is not None:
                self._run(number, task)
        self._assignment.plan_retries(units)
        for number, _ in finished:
            if number in self._to_retry:
                self._retry(number)
            self._note_state(number)
        busy = self._lifecycle.units(*OWNING) | self._moves.busy | hold
        for number in self._assignment.due(units, busy, self._moves.claimed_by_others, is_current=is_current):
            self.begin_claim(number, warm=self._take_warm(number))
        self._note_states(units)
        self._reports.poll(self._assignment.obstacles())

    @property
    def states(self) -> Mapping[int, UnitState]:
        """The state of each unit. Missing units are `UnitState.UNASSIGNED`."""
        return self._lifecycle.states()

    @property
    def failed_units(self) -> set[int]:
        """Units that cannot continue here, except those that another process has claimed."""
        return self._assignment.failed_units

    @property
    def in_doubt(self) -> AbstractSet[int]:
        """Units that have stopped running, or could not be claimed, because another runner may have claimed them."""
        return self._assignment.in_doubt

    @property
    def elsewhere(self) -> AbstractSet[int]:
        """Units of other sites that this runner is waiting for."""
        return self._moves.elsewhere

    def cancel_claims(self, units: Collection[int] | None, until_s: float) -> None:
        """Cancel the claims of the given units (None: all), and wait until ``until_s`` (monotonic) for them to end."""
        self._claims.cancel(self._claims.busy if units is None else units, until_s)

    def forget(self, units: list[int]) -> None:
        """Forget units that have stopped running here because they were revoked from this runner."""
        # Collect the failures first: a commit that has just failed would otherwise schedule a new claim of its unit
        # later.
        self.collect_failures()
        self._ours -= set(units)
        for number in units:
            self._assignment.forget(number)
        self._moves.give_back(units)
        for number in units:
            self._note_state(number)

    def retry(self, units: AbstractSet[int]) -> None:
        """Forget why these units could not be served, and claim again those assigned to this runner."""
        self.collect_failures()
        self._assignment.plan_retries(self._ours)
        # A claim in progress may still fail for the old reason.
        self._to_retry |= units & self._claims.busy
        for number in units - self._to_retry:
            self._retry(number)
            self._note_state(number)

    def _retry(self, number: int) -> None:
        self._to_retry.discard(number)
        if self._assignment.retry(number):
            self._moves.claim_anew(number)

    # The interface that moves use, see `handover.Host`

    @property
    def tasks(self) -> Mapping[int, _Task]:
        """See `Execution.tasks`."""
        return self._execution.tasks

    @property
    def claiming(self) -> AbstractSet[int]:
        """The units being claimed or restored."""
        return self._claims.busy

    def prepare(self, unit: int) -> None:
        """See `Execution.prepare`."""
        self._execution.prepare(unit)

    def begin_claim(self, unit: int, claimant: Claimant | None = None, warm: Warm | None = None) -> bool:
        """Begin to claim and restore a unit. Return False if it is already being claimed.

        ``claimant``: who claims the unit in a move; the default is the runner itself. ``warm`` is closed when the claim
        ends.
        """
        if unit in self._claims.busy:
            return False
        self._note_state(unit)
        self._lifecycle.enter(unit, UnitState.CLAIMING)
        return self._claims.begin(unit, claimant, warm)

    def release(self, action: Release, then: Callable[[], None]) -> Future[None] | None:
        """See `Execution.release`."""
        released = self._execution.release(action, then)
        self.collect_failures()
        if released is not None:
            self._lifecycle.enter(action.unit, UnitState.RELEASING)
        return released

    def handle_failure(self, unit: int, error: Exception) -> None:
        """Record that a unit stopped running because of ``error``, and schedule a retry if that may help."""
        if unit in self._ours:
            self._assignment.handle_failure(unit, error)
        self._note_state(unit)

    def schedule_claim(self, unit: int) -> None:
        """Schedule an ordinary claim, one that is not part of a move."""
        self._assignment.schedule_claim(unit)

    def why_failed(self, unit: int) -> str:
        """Return why a unit cannot continue here, or an empty string if it can."""
        return self._assignment.failed.get(unit, "")

    # Steps

    def _claim(
        self, number: int, claimant: Claimant | None, warm: Warm | None, is_over: Callable[[], bool]
    ) -> _Task | None:
        """Claim and restore a unit, in a thread of the pool. Return None if this fails or is cancelled."""
        began_s = self._clock.monotonic_s()

        def restore(transactions: UnitTransactions, checkpoint: Checkpoint, readers: Readers) -> _Task:
            self._lifecycle.enter(number, UnitState.RESTORING)
            if warm is None:
                self._execution.prepare(number)
            claimed = Claimed(number, transactions, checkpoint, readers, warm.unit if warm else None)
            task = self._execution.restore(claimed)
            self._metrics.claimed(checkpoint, self._clock.monotonic_s() - began_s)
            return task

        with closing(warm.readers if warm else Readers(self._settings, self._clock)) as readers:
            readers.is_over = is_over
            return self._assignment.claim(number, claimant, warm, readers, restore)

    def _run(self, number: int, task: _Task) -> None:
        self._assignment.claimed(number)
        self._lifecycle.enter(number, UnitState.RUNNING)
        self._execution.start(number, task)
        self._moves.adopted(number)

    def collect_failures(self) -> None:
        """Decide what to do with units that have stopped running."""
        failures = self._execution.failures
        while failures:
            number, error = failures.popleft()
            if error is None:
                self._assignment.verify_owner(number)
            else:
                self._assignment.handle_failure(number, error)
            self._note_state(number)

    def _note_states(self, units: AbstractSet[int]) -> None:
        for number in units | self._lifecycle.units(*UnitState):
            self._note_state(number)

    def _note_state(self, number: int) -> None:
        """Update the state of a unit, unless it is running, being claimed, or being released."""
        if number in self._execution.tasks or number in self._claims.busy:
            return
        # A new claim may have failed before this runner learns that the unit's release is complete.
        if number in self._moves.releasing and self._lifecycle.state(number) is UnitState.RELEASING:
            return
        # The state is updated once the failure has been handled.
        if any(failure.unit == number for failure in self._execution.failures.copy()):
            return
        self._lifecycle.enter(number, self._idle_state(number))

    def _idle_state(self, number: int) -> UnitState:
        if number in self._assignment.failed:
            return UnitState.FAILED
        if number in self._moves.elsewhere:
            return UnitState.ELSEWHERE
        return UnitState.PENDING if self._assignment.is_pending(number) else UnitState.UNASSIGNED
