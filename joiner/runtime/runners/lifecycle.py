"""Defines the states of a unit on one runner, and the transitions between them. Uses neither Kafka nor a clock.

UNASSIGNED  the unit is not assigned to this runner, or the runner has not seen it yet
PENDING     the unit will be claimed, at once or after a back-off; `AssignmentManager.obstacles` gives the reason
CLAIMING    the runner initialises the unit's transactional id, reads its checkpoint and becomes the owner named there
RESTORING   the unit is claimed and its state is being built
RUNNING     the unit's batches are joined and committed
RELEASING   the unit's last transaction before a move is being written
ELSEWHERE   the unit belongs to another site or is being moved there; the runner waits for it
FAILED      the unit cannot continue here until an operator orders another attempt, or it is assigned again
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
    # A move may claim a unit of another site before it is assigned to this runner.
    _U.UNASSIGNED: frozenset({_U.PENDING, _U.CLAIMING, _U.ELSEWHERE}),
    _U.PENDING: frozenset({_U.UNASSIGNED, _U.CLAIMING, _U.ELSEWHERE, _U.FAILED}),
    _U.CLAIMING: frozenset({_U.UNASSIGNED, _U.PENDING, _U.RESTORING, _U.ELSEWHERE, _U.FAILED}),
    _U.RESTORING: frozenset({_U.UNASSIGNED, _U.PENDING, _U.RUNNING, _U.ELSEWHERE, _U.FAILED}),
    _U.RUNNING: frozenset({_U.UNASSIGNED, _U.PENDING, _U.RELEASING, _U.FAILED}),
    # If a unit is moved straight back, it can be claimed as soon as its last transaction is visible to readers, even
    # before this runner learns that the transaction is complete.
    _U.RELEASING: frozenset({_U.UNASSIGNED, _U.PENDING, _U.CLAIMING, _U.ELSEWHERE, _U.FAILED}),
    _U.ELSEWHERE: frozenset({_U.UNASSIGNED, _U.PENDING, _U.CLAIMING, _U.FAILED}),
    _U.FAILED: frozenset({_U.UNASSIGNED, _U.PENDING, _U.CLAIMING, _U.ELSEWHERE}),
}

OWNING: Final = frozenset({_U.CLAIMING, _U.RESTORING, _U.RUNNING, _U.RELEASING})
"""In these states the runner owns the unit or is about to own it, so the unit must not be claimed again."""


class IllegalTransition(Exception):
    """Raised for a transition missing from the table, which is a bug in this program."""


class Lifecycle:
    """The states of a runner's units. Thread-safe."""

    def __init__(self) -> None:
        self._states: dict[int, UnitState] = {}
        self._lock = threading.Lock()

    def state(self, unit: int) -> UnitState:
        """Return the state of a unit, or `UnitState.UNASSIGNED` if the runner has never seen it."""
        return self._states.get(unit, UnitState.UNASSIGNED)

    def enter(self, unit: int, state: UnitState) -> None:
        """Change the state of a unit. The new state may be the current one.

        Raises `IllegalTransition` if the table does not contain the transition.
        """
        with self._lock:
            before = self.state(unit)
            if state is not before and state not in TRANSITIONS[before]:
                raise IllegalTransition(f"unit {unit}: {state.value} cannot follow {before.value}: report this bug")
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
