"""The actions of an application: a fold over the records of its audit topic, without Kafka and without a clock."""

from __future__ import annotations

from typing import Final

import msgspec

from control.actions.audit import INTERRUPTED, Asked, Ended, Record, Refused, Reported
from control.actions.orders import Order

ACTIONS_MAX: Final = 1_000
"""How many actions and idempotency keys are remembered. Older ones are forgotten."""

_REPORTS_MAX: Final = 200
_REFUSALS_MAX: Final = 100

RUNNING: Final = "running"


class Report(msgspec.Struct, frozen=True):
    """A step of an action, at a time in ms since the epoch."""

    at_ms: int
    text: str


class Action(msgspec.Struct, frozen=True):
    """An order that is or was carried out.

    ``by``: the user. ``state``: ``running``, ``done``, ``failed``, ``withdrawn``, or ``interrupted`` if the service
    that carried it out has ended before it knew the outcome. ``text``: the outcome. ``ended_ms``: None while it runs.
    Times are those at which Kafka appended the records, in ms since the epoch.
    """

    id: str
    by: str
    order: Order
    asked_ms: int
    state: str = RUNNING
    reports: list[Report] = []
    ended_ms: int | None = None
    text: str = ""


class Refusal(msgspec.Struct, frozen=True):
    """An order that was refused, and why."""

    at_ms: int
    by: str
    order: Order
    why: str


class _Known(msgspec.Struct):
    """An action, the service that carries it out, its idempotency key, and the offset of the last record about it."""

    action: Action
    service: str
    key: tuple[str, str]
    offset: int


class History:
    """The last actions. Not thread-safe."""

    def __init__(self) -> None:
        self.refusals: list[Refusal] = []
        """The last refusals, the oldest first."""
        self._read: tuple[int, int] = (-1, -1)
        self._known: dict[str, _Known] = {}
        self._keys: dict[tuple[str, str], str] = {}

    @property
    def actions(self) -> list[Action]:
        """The actions, the oldest first."""
        return [known.action for known in self._known.values()]

    def get(self, action: str) -> Action | None:
        """Return an action by its id."""
        known = self._known.get(action)
        return None if known is None else known.action

    def with_key(self, by: str, key: str) -> Action | None:
        """Return the action that a user has ordered with this idempotency key."""
        action = self._keys.get((by, key))
        return None if action is None else self.get(action)

    def running(self) -> dict[str, tuple[str, int]]:
        """Return the actions that run, by id, each with its service and the offset of the last record about it."""
        return {
            name: (known.service, known.offset) for name, known in self._known.items() if known.action.state == RUNNING
        }

    def apply(self, record: Record, offset: int, at_ms: int) -> None:
        """Apply the record at ``offset``, appended at ``at_ms``. Records that are read a second time change nothing."""
        before, before_ms = self._read
        # A topic that was created anew begins with small offsets, but later.
        if offset <= before and at_ms <= before_ms:
            return
        self._read = offset, at_ms
        match record:
            case Asked(action=name, key=key, by=by):
                # The first request with a key counts, whichever service has received it.
                if (by, key) not in self._keys and name not in self._known:
                    action = Action(name, by, record.order, at_ms)
                    self._known[name] = _Known(action, record.service, (by, key), offset)
                    self._keys[by, key] = name
                    self._forget()
            case Refused():
                self.refusals = [*self.refusals, Refusal(at_ms, record.by, record.order, record.why)][-_REFUSALS_MAX:]
            case Reported(action=name) | Ended(action=name):
                if (known := self._known.get(name)) is not None:
                    known.action = _after(known.action, record, at_ms)
                    known.offset = offset

    def _forget(self) -> None:
        while len(self._known) > ACTIONS_MAX:
            oldest = next(iter(self._known))
            del self._keys[self._known.pop(oldest).key]


def _after(action: Action, record: Reported | Ended, at_ms: int) -> Action:
    if isinstance(record, Reported):
        if not record.text or action.state != RUNNING:
            return action
        return msgspec.structs.replace(action, reports=[*action.reports, Report(at_ms, record.text)][-_REPORTS_MAX:])
    # A service that was only suspended knows the outcome better than the one that has given it up.
    if action.state == RUNNING or (action.state == INTERRUPTED and record.state != INTERRUPTED):
        return msgspec.structs.replace(action, state=record.state, text=record.text, ended_ms=at_ms)
    return action
