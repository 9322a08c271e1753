"""The states of a unit at one runner, and which may follow which. No Kafka here, no clock.

UNASSIGNED  another runner's to serve
PENDING     to be claimed: at once, or when a back-off is over
CLAIMING    the transactional id is being initialised, the checkpoint read and written back as ours
RESTORING   claimed; its state is being built
RUNNING     its batches are joined and committed
RELEASING   its last transaction is being written, for a move
ELSEWHERE   another site's; waited for, or on its way there
FAILED      it cannot go on here: for an operator, or until the group gives it back
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from enum import Enum
from typing import Final


class UnitState(Enum):
    """See above."""

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
    # A move claims what is elsewhere, also before the group has given it to us.
    _U.UNASSIGNED: frozenset({_U.PENDING, _U.CLAIMING, _U.ELSEWHERE}),
    _U.PENDING: frozenset({_U.UNASSIGNED, _U.CLAIMING, _U.ELSEWHERE, _U.FAILED}),
    _U.CLAIMING: frozenset({_U.UNASSIGNED, _U.PENDING, _U.RESTORING, _U.ELSEWHERE, _U.FAILED}),
    _U.RESTORING: frozenset({_U.UNASSIGNED, _U.PENDING, _U.RUNNING, _U.ELSEWHERE, _U.FAILED}),
    _U.RUNNING: frozenset({_U.UNASSIGNED, _U.PENDING, _U.RELEASING, _U.FAILED}),
    # A move straight back claims it as soon as its last transaction is visible, which is before we know that it is.
    _U.RELEASING: frozenset({_U.UNASSIGNED, _U.PENDING, _U.CLAIMING, _U.ELSEWHERE, _U.FAILED}),
    _U.ELSEWHERE: frozenset({_U.UNASSIGNED, _U.PENDING, _U.CLAIMING, _U.FAILED}),
    _U.FAILED: frozenset({_U.UNASSIGNED, _U.PENDING, _U.CLAIMING, _U.ELSEWHERE}),
}

OWNING: Final = frozenset({_U.CLAIMING, _U.RESTORING, _U.RUNNING, _U.RELEASING})
"""A unit in one of these is not claimed (again): this runner is at it already."""


class IllegalTransition(Exception):
    """A defect: a unit was to enter a state that cannot follow the one it is in."""


class Lifecycle:
    """The states of a runner's units. For any thread."""

    def __init__(self) -> None:
        self._states: dict[int, UnitState] = {}
        self._lock = threading.Lock()

    def state(self, unit: int) -> UnitState:
        """Where a unit is; one that was never heard of is `UnitState.UNASSIGNED`."""
        return self._states.get(unit, UnitState.UNASSIGNED)

    def enter(self, unit: int, state: UnitState) -> None:
        """A unit is in another state from now on, or in the same. Raises `IllegalTransition`."""
        with self._lock:
            before = self.state(unit)
            if state is not before and state not in TRANSITIONS[before]:
                raise IllegalTransition(f"unit {unit}: {state.value} cannot follow {before.value}: a defect to report")
            if state is UnitState.UNASSIGNED:
                self._states.pop(unit, None)
            else:
                self._states[unit] = state

    def states(self) -> dict[int, UnitState]:
        """Of all units that are not unassigned."""
        with self._lock:
            return dict(self._states)

    def units(self, *states: UnitState) -> set[int]:
        """Those that are in one of some states."""
        with self._lock:
            return {unit for unit, state in self._states.items() if state in states}
