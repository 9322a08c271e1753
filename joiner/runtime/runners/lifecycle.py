"""The states of a unit at one runner, and the transitions between them. No Kafka here, no clock.

UNASSIGNED  it is not assigned to this runner, or this runner has not seen it yet
PENDING     it will be claimed, at once or after a back-off; `AssignmentManager.obstacles` has the reason
CLAIMING    its transactional id is being initialised, its checkpoint read and written back as ours
RESTORING   it is claimed and its state is being built (in Spark only its task; a worker builds the state later)
RUNNING     its batches are joined and committed
RELEASING   its last transaction is being written, for a move
ELSEWHERE   it belongs to another site, or is on its way there; the runner waits for it
FAILED      it cannot continue here until an operator acts, or the group assigns it again
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from enum import Enum
from typing import Final


class UnitState(Enum):
    """See the module's docstring."""

    UNASSIGNED = "unassigned"
    PENDING = "pending"
    CLAIMING = "claiming"
    RESTORING = "restoring"
    RUNNING = "running"
    RELEASING = "releasing"
    ELSEWHERE = "elsewhere"
    FAILED = "failed"


_U = UnitState

TRANSITIONS: Final[Mapping[UnitState, frozenset[UnitState]]] = {
    # A move may claim a unit of another site before the group has assigned it to this runner.
    _U.UNASSIGNED: frozenset({_U.PENDING, _U.CLAIMING, _U.ELSEWHERE}),
    _U.PENDING: frozenset({_U.UNASSIGNED, _U.CLAIMING, _U.ELSEWHERE, _U.FAILED}),
    _U.CLAIMING: frozenset({_U.UNASSIGNED, _U.PENDING, _U.RESTORING, _U.ELSEWHERE, _U.FAILED}),
    _U.RESTORING: frozenset({_U.UNASSIGNED, _U.PENDING, _U.RUNNING, _U.ELSEWHERE, _U.FAILED}),
    _U.RUNNING: frozenset({_U.UNASSIGNED, _U.PENDING, _U.RELEASING, _U.FAILED}),
    # A move straight back claims the unit once its last transaction is visible, before this runner sees it complete.
    _U.RELEASING: frozenset({_U.UNASSIGNED, _U.PENDING, _U.CLAIMING, _U.ELSEWHERE, _U.FAILED}),
    _U.ELSEWHERE: frozenset({_U.UNASSIGNED, _U.PENDING, _U.CLAIMING, _U.FAILED}),
    _U.FAILED: frozenset({_U.UNASSIGNED, _U.PENDING, _U.CLAIMING, _U.ELSEWHERE}),
}

OWNING: Final = frozenset({_U.CLAIMING, _U.RESTORING, _U.RUNNING, _U.RELEASING})
"""States in which this runner owns the unit or is about to, so it must not be claimed again."""


class IllegalTransition(Exception):
    """A transition that is not in the table, which is a bug in this program."""


class Lifecycle:
    """The states of a runner's units. Thread-safe."""

    def __init__(self) -> None:
        self._states: dict[int, UnitState] = {}
        self._lock = threading.Lock()

    def state(self, unit: int) -> UnitState:
        """Return the state of a unit, `UnitState.UNASSIGNED` if it has never been seen."""
        return self._states.get(unit, UnitState.UNASSIGNED)

    def enter(self, unit: int, state: UnitState) -> None:
        """Move a unit to a state, which may be the current one. Raises `IllegalTransition`."""
        with self._lock:
            before = self.state(unit)
            if state is not before and state not in TRANSITIONS[before]:
                raise IllegalTransition(f"unit {unit}: {state.value} cannot follow {before.value}: a defect to report")
            if state is UnitState.UNASSIGNED:
                self._states.pop(unit, None)
            else:
                self._states[unit] = state

    def states(self) -> dict[int, UnitState]:
        """Return the states of all units except unassigned ones."""
        with self._lock:
            return dict(self._states)

    def units(self, *states: UnitState) -> set[int]:
        """Return the units in any of these states."""
        with self._lock:
            return {unit for unit, state in self._states.items() if state in states}
