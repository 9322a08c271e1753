"""A runner's part in moves: warming up, releasing, claiming and awaiting units. `protocol` decides the next step.

The runner's loop calls `poll`. A unit that is being moved must not delay other units, so slow work runs in a thread
pool. A release may wait for the unit's in-flight commit, but not if that commit writes a large snapshot: the release is
then retried later.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from typing import Final, Protocol, TypeVar

from confluent_kafka import KafkaException

from joiner.runtime.kafka.checkpoint_log import read_checkpoint
from joiner.runtime.kafka.clients import describe
from joiner.runtime.kafka.readers import Readers
from joiner.runtime.migration.coordinator import Coordinator
from joiner.runtime.migration.protocol import Release
from joiner.runtime.model import Checkpoint, OnTheWay, UnitStopped
from joiner.runtime.ownership.eligibility import Claimant, ownership_of
from joiner.runtime.ownership.services import Services
from joiner.runtime.ownership.warmup import Warm, warm_up
from joiner.runtime.settings import JoinerSettings

CHECK_S: Final = 2.0
"""How often to check who owns the units that this runner waits for. If the runner misses a Released record, it claims
the unit at most this much later."""

_QUIET_S: Final = 0.5
"""A unit that has not committed within this time after its claim is reported as having resumed at the claim.

If the first batch takes longer, the reported pause is too short."""

_Outcome = TypeVar("_Outcome")

_log = logging.getLogger(__name__)


class Serving(Protocol):
    """What a move needs to know about a running unit."""

    first_commit_s: float
    """Monotonic time at which the runner noticed the first commit after the claim; 0 until then."""


class Host(Protocol):
    """What moves need from a runner (see `runners.supervisor`). All except `prepare` run in the runner's thread."""

    @property
    def tasks(self) -> Mapping[int, Serving]:
        """The running units."""
        ...

    @property
    def claiming(self) -> AbstractSet[int]:
        """The units being claimed or restored."""
        ...

    def prepare(self, unit: int) -> None:
        """Prepare to run a unit, before its state is built."""
        ...

    def begin_claim(self, unit: int, claimant: Claimant | None, warm: Warm | None) -> bool:
        """Start claiming, restoring and running a unit. Return False if it is already being claimed.

        The host closes ``warm`` when the claim ends.
        """
        ...

    def release(self, action: Release, then: Callable[[], None]) -> Future[None] | None:
        """Stop running a unit, and start writing its last transaction.

        ``then`` is called once the transaction has been written. Return None if the unit keeps running, because it
        cannot be released now, or if it has failed.
        """
        ...

    def handle_failure(self, unit: int, error: Exception) -> None:
        """Handle the failure of a unit's last commit."""
        ...

    def schedule_claim(self, unit: int) -> None:
        """Schedule an ordinary claim of a unit, outside any move."""
        ...

    def why_failed(self, unit: int) -> str:
        """Return why a unit cannot continue on this runner, or an empty string if it can."""
        ...


class Handover:
    """Handles the units being moved to or from a runner, and the units that the runner is waiting for."""

    def __init__(
        self,
        settings: JoinerSettings,
        claimant: Claimant,
        host: Host,
        services: Services,
        *,
        standby: bool,
    ) -> None:
        """``standby``: wait for units of other sites."""
        self.is_standby = standby
        self._settings = settings
        self._claimant = claimant
        self._host = host
        self._services, self._clock = services, services.clock
        self._mover = Coordinator(claimant, self, services.control, services.clock)
        # Units of other sites, each with the time of its next owner check.
        self._elsewhere: dict[int, float] = {}
        self._reported: set[int] = set()
        # Units found to belong to other sites since the last poll, each with its checkpoint.
        self._found: deque[tuple[int, Checkpoint]] = deque()
        self._warm: dict[int, Warm] = {}
        self._warming: dict[int, Future[Warm | None]] = {}
        self._releases: dict[int, Future[None]] = {}
        self._check: Future[dict[int, Checkpoint | None]] | None = None
        # Units that have been claimed but not yet reported as resumed, each with the time of its claim.
        self._resumed_s: dict[int, float] = {}

    @property
    def busy(self) -> set[int]:
        """Units that only a move may claim for now."""
        return self._elsewhere.keys() | self._releases.keys() | self._mover.leaving

    @property
    def elsewhere(self) -> AbstractSet[int]:
        """Units of other sites that this runner is waiting for."""
        return self._elsewhere.keys()

    @property
    def releasing(self) -> AbstractSet[int]:
        """Units whose last transaction is being written."""
        return self._releases.keys()

    @property
    def claimed_by_others(self) -> set[int]:
        """Units known to be claimed by another runner."""
        return self._mover.claimed_by_others

    def poll(self, units: AbstractSet[int]) -> None:
        """Perform the actions that are due. ``units``: the units assigned to this runner."""
        while self._found:
            number, checkpoint = self._found.popleft()
            self._mover.found(number, checkpoint)
        _collect_done(self._warming, self._after_warm_up)
        _collect_done(self._releases, self._after_release)
        self._check_owners()
        self._mover.poll(self._host.tasks.keys(), units - self._host.tasks.keys(), self._host.claiming)
        self._report_resumed()
        self._report_refused()

    def found_elsewhere(self, number: int, checkpoint: Checkpoint) -> bool:
        """Record that a unit belongs to another site. Return whether to wait for it."""
        way = checkpoint.on_the_way
        waits = self.is_standby or (way is not None and way.source == self._claimant.site)
        if waits and number not in self._reported:
            self._reported.add(number)
            _log.info("unit %s: %s; waiting until it is moved here", number, ownership_of(checkpoint))
        self._elsewhere[number] = self._clock.monotonic_s() + CHECK_S
        self._found.append((number, checkpoint))
        return waits

    def adopted(self, number: int) -> None:
        """Record that the runner serves the unit."""
        self._reported.discard(number)
        self._elsewhere.pop(number, None)
        self._resumed_s[number] = self._clock.monotonic_s()

    def claim_anew(self, number: int) -> None:
        """Allow a failed unit to be claimed, even if it was found to belong to another site. The claim checks again."""
        self._elsewhere.pop(number, None)
        self._reported.discard(number)

    def give_back(self, units: list[int]) -> None:
        """Stop tracking units revoked from this process, so that other processes of its site can serve them."""
        for number in units:
            self._elsewhere.pop(number, None)
            self._resumed_s.pop(number, None)
            self._reported.discard(number)
        self._mover.forget(units)

    # Actions of moves, see `coordinator.MoveActions`

    def release(self, action: Release) -> None:
        """See `coordinator.MoveActions`."""
        release = self._host.release(action, lambda: self._mover.control.write(action.record))
        if release is None:
            self._mover.kept(action.unit)
        else:
            self._releases[action.unit] = release

    def reclaim(self, unit: int, way: OnTheWay) -> None:
        """See `coordinator.MoveActions`."""
        self._begin_claim(unit, replace(self._claimant, back=way))

    def warm_up(self, unit: int) -> None:
        """See `coordinator.MoveActions`. The state is built in a thread of the pool."""
        if unit not in self._warming:
            self._warming[unit] = self._services.pool.submit(self._prepare, unit)

    def cool_down(self, unit: int) -> None:
        """See `coordinator.MoveActions`. The prepared producer is destroyed with the last reference to it."""
        warm = self._warm.pop(unit, None)
        if warm is not None:
            warm.readers.close()

    def claim(self, unit: int) -> None:
        """See `coordinator.MoveActions`."""
        self._begin_claim(unit, self._claimant)

    # Outcomes

    def _begin_claim(self, number: int, claimant: Claimant) -> None:
        if number not in self._host.tasks and self._host.begin_claim(number, claimant, self._warm.get(number)):
            self._warm.pop(number, None)

    def _prepare(self, number: int) -> Warm | None:
        self._host.prepare(number)
        return warm_up(self._settings, number, self._services, self._claimant)

    def _after_warm_up(self, number: int, warming: Future[Warm | None]) -> None:
        # Examine the error without raising it here, because its traceback would refer to this frame and keep the
        # prepared state alive (see `runners.commit`).
        match error := warming.exception():
            case None:
                warm = warming.result()
                if warm is None:
                    self._mover.dropped(number)
                    return
                self._warm[number] = warm
                self._mover.warmed(number)
            case UnitStopped():
                self._mover.failed(number, str(error))
            case Exception():
                # Retried with the next request.
                _log.warning("unit %s: its state cannot be built now: %s", number, describe(error))
                self._mover.dropped(number)
            case _:
                raise error

    def _after_release(self, number: int, release: Future[None]) -> None:
        # From now on, wait for units to come back, even if the outcome of this release is unknown.
        self.is_standby = True
        error = release.exception()
        if error is None:
            self._elsewhere[number] = self._clock.monotonic_s() + CHECK_S
            self._mover.released(number)
            return
        # The next claim will find out whether the release was written.
        self._mover.kept(number)
        if not isinstance(error, Exception):
            raise error
        self._host.handle_failure(number, error)

    def _check_owners(self) -> None:
        if self._check is not None and self._check.done():
            check, self._check = self._check, None
            for number, checkpoint in check.result().items():
                if number in self._elsewhere and number not in self._host.claiming:
                    self._after_check(number, checkpoint)
        now_s = self._clock.monotonic_s()
        due = [number for number, check_s in self._elsewhere.items() if check_s <= now_s]
        if due and self._check is None:
            self._elsewhere.update(dict.fromkeys(due, now_s + CHECK_S))
            self._check = self._services.pool.submit(self._read, due)

    def _read(self, numbers: list[int]) -> dict[int, Checkpoint | None]:
        """Read the checkpoints of units. Stop at the first unit for which Kafka does not answer.

        A unit's checkpoint is None if there is none or it is unreadable.
        """
        found: dict[int, Checkpoint | None] = {}
        with closing(Readers(self._settings, self._clock)) as readers:
            for number in numbers:
                try:
                    found[number] = read_checkpoint(readers, number)
                except UnitStopped:
                    found[number] = None  # the claim will report it
                except KafkaException as error:
                    _log.debug("unit %s: its owner cannot be read now: %s", number, describe(error))
                    break
        return found

    def _after_check(self, number: int, checkpoint: Checkpoint | None) -> None:
        if checkpoint is None or self._claimant.may_continue(checkpoint):
            del self._elsewhere[number]
            self._host.schedule_claim(number)
        else:
            self._mover.found(number, checkpoint)

    def _report_refused(self) -> None:
        for number in self._mover.arriving:
            if why := self._host.why_failed(number):
                self._mover.failed(number, why)

    def _report_resumed(self) -> None:
        now_s = self._clock.monotonic_s()
        for number, resumed_s in list(self._resumed_s.items()):
            owned = self._host.tasks.get(number)
            if owned is None:
                del self._resumed_s[number]
            elif owned.first_commit_s or now_s - resumed_s > _QUIET_S:
                del self._resumed_s[number]
                self._mover.resumed(number, int(1000 * (now_s - (owned.first_commit_s or resumed_s))))


def _collect_done(futures: dict[int, Future[_Outcome]], then: Callable[[int, Future[_Outcome]], None]) -> None:
    """Remove the completed futures, and call ``then`` for each."""
    for number, future in [(number, future) for number, future in futures.items() if future.done()]:
        del futures[number]
        then(number, future)
