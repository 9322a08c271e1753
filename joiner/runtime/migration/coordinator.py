"""Drives both sides of a move: passes control records to `Source` and `Target`, and executes the actions they return.

A runner implements the five actions of `MoveActions`. None of them blocks, except that a release may wait for the
unit's in-flight commit. The thread that calls `Coordinator.poll` also calls its other methods, to report the outcomes.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from collections.abc import Set as AbstractSet
from typing import Protocol

from joiner.runtime.clock import Clock
from joiner.runtime.control import Claiming, Refused, Released, Resumed
from joiner.runtime.kafka.control_log import ControlLog
from joiner.runtime.migration.claim_signals import Claims
from joiner.runtime.migration.protocol import Action, Claim, CoolDown, Reclaim, Release, Source, Target, WarmUp, Write
from joiner.runtime.model import Checkpoint, OnTheWay
from joiner.runtime.ownership.eligibility import Claimant

_log = logging.getLogger(__name__)


class MoveActions(Protocol):
    """The actions that a move requires of a runner. Each names the methods of `Coordinator` that report its outcome."""

    def release(self, action: Release) -> None:
        """Write the unit's last transaction, then the control record in the action. Reports `released` or `kept`."""
        ...

    def reclaim(self, unit: int, way: OnTheWay) -> None:
        """Reclaim a unit that this site released. Reports `resumed`, or `found` if another runner claimed it first."""
        ...

    def warm_up(self, unit: int) -> None:
        """Build the unit's state while its owner still serves it. Reports `warmed`, `dropped` or `failed`."""
        ...

    def cool_down(self, unit: int) -> None:
        """Discard the state built by `warm_up`."""
        ...

    def claim(self, unit: int) -> None:
        """Claim the unit. Reports `resumed`, `failed`, or `found` if another runner has claimed it."""
        ...


class Coordinator:
    """Coordinates all moves of a runner's units. Must be used by one thread only."""

    def __init__(self, claimant: Claimant, runner: MoveActions, control: ControlLog, clock: Clock) -> None:
        """``control``: the control topic, to which other threads may also write."""
        self.control, self._clock = control, clock
        self._runner = runner
        self._source = Source(claimant.site, claimant.instance)
        self._target = Target(claimant.site, claimant.instance)
        self._claims = Claims(claimant.site, claimant.run)

    @property
    def leaving(self) -> set[int]:
        """Units that this site must not claim except through a move: they have been released, or are about to be."""
        return self._source.underway

    @property
    def arriving(self) -> set[int]:
        """Units that are being claimed for a move, or have been claimed but not yet reported as resumed."""
        return self._target.claiming

    @property
    def claimed_by_others(self) -> set[int]:
        """Units known to be claimed by another runner."""
        return self._claims.of_others(self._clock.monotonic_s())

    def poll(self, owned: Collection[int], absent: Collection[int], claimed: AbstractSet[int]) -> None:
        """Process new records, and perform the actions that are due.

        ``owned``: the units that the runner serves. ``absent``: the units assigned to the runner but not served by it.
        ``claimed``: the units that it is claiming.
        """
        for record, _ in self.control.read():
            now_s = self._clock.monotonic_s()
            if isinstance(record, Claiming):
                self._claims.hear(record, now_s)
            self._do(self._source.hear(record, now_s, owned))
            self._do(self._target.hear(record, now_s, absent))
        now_s = self._clock.monotonic_s()
        self._do(self._source.tick(now_s))
        self._do(self._target.tick(now_s))
        claiming = self._claims.due(claimed, now_s)
        if claiming is not None:
            self.control.post(claiming)

    def released(self, unit: int) -> None:
        """See `Source.released`."""
        self._source.released(unit, self._clock.monotonic_s())

    def kept(self, unit: int) -> None:
        """See `Source.kept`."""
        self._source.kept(unit)

    def warmed(self, unit: int) -> None:
        """See `Target.warmed`."""
        self._do(self._target.warmed(unit))

    def dropped(self, unit: int) -> None:
        """See `Target.dropped`."""
        self._do(self._target.dropped(unit))

    def failed(self, unit: int, why: str) -> None:
        """Record why this runner cannot claim the unit or cannot build its state."""
        self._do(self._target.failed(unit, why))

    def resumed(self, unit: int, late_ms: int = 0) -> None:
        """Record that the unit was claimed and that its join resumed ``late_ms`` ago."""
        self._do(self._source.is_back(unit))
        self._do(self._target.resumed(unit, late_ms))

    def found(self, unit: int, checkpoint: Checkpoint) -> None:
        """Record that, according to its checkpoint, the unit belongs to another site or is on its way to one."""
        way = checkpoint.on_the_way
        if way is None:
            self._source.gone(unit)
        else:
            self._do(self._source.found(unit, way, checkpoint.site, self._clock.monotonic_s()))
        if unit in self._target.claiming:
            self._do(self._target.lost(unit))

    def forget(self, units: Iterable[int]) -> None:
        """Stop handling the moves of units revoked from this runner."""
        for unit in units:
            self._source.gone(unit)
            self._do(self._target.lost(unit))

    def _do(self, actions: Iterable[Action]) -> None:
        for action in actions:
            self._do_one(action)

    def _do_one(self, action: Action) -> None:
        match action:
            case Write(record):
                _log_record(record)
                self.control.write(record)
            case Release(unit, way, to):
                _log.info("unit %s: releasing it to %s (move %s)", unit, to, way.move)
                self._runner.release(action)
            case Reclaim(unit, way):
                _log.warning("unit %s: no one claimed it (move %s); reclaiming it", unit, way.move)
                self._runner.reclaim(unit, way)
            case WarmUp(unit):
                _log.info("unit %s: moving here; building its state", unit)
                self._runner.warm_up(unit)
            case CoolDown(unit):
                self._runner.cool_down(unit)
            case Claim(unit):
                self._runner.claim(unit)


def _log_record(record: object) -> None:
    match record:
        case Refused(move=move, unit=unit, why=why):
            _log.warning("unit %s: not moved (move %s): %s", unit, move, why)
        case Released(move=move, unit=unit, to=to):
            _log.info("unit %s: on its way to %s (move %s)", unit, to, move)
        case Resumed(move=move, unit=unit):
            _log.info("unit %s: moved here (move %s)", unit, move)
        case _:
            _log.debug("%s", record)
