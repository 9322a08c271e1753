"""The lifecycle of a runner's units, the same for every kind of runner: claimed, restored, run, released, failed.

A runner supplies how a unit is executed (`Execution`); when which unit is claimed, what becomes of one that failed, and
what moves do with it, is decided here and below. Nothing here waits, but for `cancel_claims`.
"""

from __future__ import annotations

import time
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
    from joiner.runtime.ownership.retry_policy import Obstacle
    from joiner.runtime.ownership.services import Services
    from joiner.runtime.ownership.warmup import Warm
    from joiner.runtime.settings import JoinerSettings
    from joiner.runtime.task.unit import Unit
    from joiner.runtime.telemetry.metrics import JoinerMetrics


class Claimed(NamedTuple):
    """A unit that is ours, without its state yet; ``warm``: what was built of it beside its owner before."""

    unit: int
    transactions: UnitTransactions
    checkpoint: Checkpoint
    readers: Readers
    warm: Unit | None


class Failure(NamedTuple):
    """A unit that is not run any more; ``error`` None: it may be somebody else's, which is to be seen first."""

    unit: int
    error: Exception | None


_Task = TypeVar("_Task", bound=Serving)


class Execution(Protocol[_Task]):
    """What a runner supplies. `prepare` and `restore` are called in the pool, the others by the runner's thread."""

    failures: deque[Failure]
    """Units that it has stopped running, to be taken from here. First put in here, then out of ``tasks``."""

    @property
    def tasks(self) -> Mapping[int, _Task]:
        """The units that are run."""
        ...

    def prepare(self, unit: int) -> None:
        """What can be done for a unit before it is claimed."""
        ...

    def restore(self, claimed: Claimed) -> _Task:
        """Build what is run. Raises what `ownership.restore.recover` does."""
        ...

    def start(self, unit: int, task: _Task) -> None:
        """Run it from now on."""
        ...

    def release(self, action: Release, then: Callable[[], None]) -> Future[None] | None:
        """Begin to write the last transaction, with a snapshot, and call when it is written; the unit is not run any
        more. None: it goes on, or is among the failures.
        """
        ...


class Supervisor(Generic[_Task]):
    """The units of a runner. For the runner's thread."""

    def __init__(
        self,
        settings: JoinerSettings,
        claimant: Claimant,
        execution: Execution[_Task],
        services: Services,
        metrics: JoinerMetrics,
        *,
        in_group: bool,
        standby: bool,
    ) -> None:
        """``in_group``: see `AssignmentManager`; ``standby``: units of other sites are waited for."""
        self._settings = settings
        self._execution = execution
        self._metrics = metrics
        self._lifecycle = Lifecycle()
        # Those that were ours to serve when it was last said.
        self._ours: set[int] = set()
        # Force is for the start; moves need none.
        self._moves = Handover(settings, replace(claimant, take=False), self, services, standby=standby)
        claimer = Claimer(settings, services.admin, services.group_metadata_consumer)
        self._assignment = AssignmentManager(
            settings, claimant, claimer, self._moves.found_elsewhere, in_group=in_group, fenced=metrics.fenced
        )
        self._claims: ConcurrentClaims[_Task] = ConcurrentClaims(self._claim, services.pool)
        self._reports = UnitReports(claimant, services.pool, services.control.write)

    def poll(self, units: AbstractSet[int], obstacles: Mapping[int, Obstacle] | None = None) -> None:
        """Do what is due; ``units``: those that are this runner's to serve. ``obstacles``: what else is to be reported.

        Raises `IllegalTransition` where this program is wrong.
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
            self._note_state(number)
        busy = self._lifecycle.units(*OWNING) | self._moves.busy
        for number in self._assignment.due(units, busy, self._moves.claimed_by_others):
            self.begin_claim(number)
        self._note_states(units)
        self.report(obstacles)

    def report(self, obstacles: Mapping[int, Obstacle] | None = None) -> None:
        """Say what keeps units from being served, for ``joiner status``."""
        self._reports.poll({**(obstacles or {}), **self._assignment.obstacles()})

    @property
    def states(self) -> Mapping[int, UnitState]:
        """Where each unit is in its lifecycle; those that are missing are `UnitState.UNASSIGNED`."""
        return self._lifecycle.states()

    @property
    def failed_units(self) -> set[int]:
        """Units that cannot go on here."""
        return self._assignment.failed_units

    def cancel_claims(self, units: Collection[int] | None, until_s: float) -> None:
        """Claim these no more (None: none at all), and wait for it until a moment (monotonic)."""
        self._claims.call_off(self._claims.busy if units is None else units, until_s)

    def forget(self, units: list[int]) -> None:
        """These are others' to serve now; they are run no more."""
        # Last: a commit that has failed meanwhile has put its unit among those that are to be claimed again.
        self.collect_failures()
        self._ours -= set(units)
        for number in units:
            self._assignment.forget(number)
        self._moves.give_back(units)
        for number in units:
            self._note_state(number)

    # What moves ask for, see `handover.Host`

    @property
    def tasks(self) -> Mapping[int, _Task]:
        """See `Execution.tasks`."""
        return self._execution.tasks

    @property
    def claiming(self) -> AbstractSet[int]:
        """The units that are being claimed and restored."""
        return self._claims.busy

    def prepare(self, unit: int) -> None:
        """See `Execution.prepare`."""
        self._execution.prepare(unit)

    def begin_claim(self, unit: int, claimant: Claimant | None = None, warm: Warm | None = None) -> bool:
        """Begin to claim and restore a unit, with what is prepared, which is ours to close then.

        ``claimant``: for a move; by default ourselves. False: it is under way already.
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

    def give_up(self, unit: int, error: Exception) -> None:
        """A unit is not run any more because of ``error``; it is tried again where that may help."""
        if unit in self._ours:
            self._assignment.give_up(unit, error)
        self._note_state(unit)

    def schedule_claim(self, unit: int) -> None:
        """It may be claimed by the ordinary procedure."""
        self._assignment.schedule_claim(unit)

    def why_failed(self, unit: int) -> str:
        """Why a unit cannot go on here; empty where it can."""
        return self._assignment.failed.get(unit, "")

    # Steps

    def _claim(
        self, number: int, claimant: Claimant | None, warm: Warm | None, is_over: Callable[[], bool]
    ) -> _Task | None:
        """Claim and restore a unit, in the pool; None: not now, what comes next is the assignment's."""
        began_s = time.monotonic()

        def restore(transactions: UnitTransactions, checkpoint: Checkpoint, readers: Readers) -> _Task:
            self._lifecycle.enter(number, UnitState.RESTORING)
            if warm is None:
                self._execution.prepare(number)
            claimed = Claimed(number, transactions, checkpoint, readers, warm.unit if warm else None)
            task = self._execution.restore(claimed)
            self._metrics.taken(checkpoint, time.monotonic() - began_s)
            return task

        with closing(warm.readers if warm else Readers(self._settings)) as readers:
            readers.is_over = is_over
            return self._assignment.take(number, claimant, warm, readers, restore)

    def _run(self, number: int, task: _Task) -> None:
        self._assignment.taken(number)
        self._lifecycle.enter(number, UnitState.RUNNING)
        self._execution.start(number, task)
        self._moves.adopted(number)

    def collect_failures(self) -> None:
        """Decide what becomes of units that are not run any more."""
        failures = self._execution.failures
        while failures:
            number, error = failures.popleft()
            if error is None:
                self._assignment.verify_owner(number, 0.0)
            else:
                self._assignment.give_up(number, error)
            self._note_state(number)

    def _note_states(self, units: AbstractSet[int]) -> None:
        for number in units | self._lifecycle.units(*UnitState):
            self._note_state(number)

    def _note_state(self, number: int) -> None:
        """What the assignment and moves have made of a unit that is neither run nor claimed."""
        if number in self._execution.tasks or number in self._claims.busy or number in self._moves.releasing:
            return
        # In this order: what a runner's other threads stop running is among the failures before it leaves the tasks.
        if any(failure.unit == number for failure in self._execution.failures.copy()):
            return
        self._lifecycle.enter(number, self._idle_state(number))

    def _idle_state(self, number: int) -> UnitState:
        if number in self._assignment.failed:
            return UnitState.FAILED
        if number in self._moves.elsewhere:
            return UnitState.ELSEWHERE
        return UnitState.PENDING if self._assignment.is_pending(number) else UnitState.UNASSIGNED
