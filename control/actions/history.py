"""An application's actions: a fold over the records of its audit topic that needs neither Kafka nor a clock."""

from __future__ import annotations

from typing import Final

import msgspec

from control.actions.audit import Asked, Doubted, Ended, Record, Refused, Reported
from control.actions.orders import Order, PutRecordsBack

ACTIONS_MAX: Final = 1_000
"""How many actions and idempotency keys are remembered. Older ones are forgotten unless they are still running."""

_REPORTS_MAX: Final = 200
_REFUSALS_MAX: Final = 100

RUNNING: Final = "running"


class Report(msgspec.Struct, frozen=True):
    """A step of an action, at a time in ms since the epoch."""

    at_ms: int
    text: str


class Action(msgspec.Struct, frozen=True):
    """An order that is being carried out, or has been.

    ``by``: the user. ``state``: ``running``, ``done``, ``failed``, ``withdrawn``, or ``interrupted`` if the service
    carrying it out did not report an outcome. ``text``: the outcome. ``ended_ms``: None while it runs. Times are when
    Kafka appended the records, in ms since the epoch.
    """

    id: str
    by: str
    order: Order
    asked_ms: int
    state: str = RUNNING
    reports: list[Report] = []
    ended_ms: int | None = None
    text: str = ""


def without_contents(action: Action) -> Action:
    """Return an action without the contents of records, which not every user may see."""
    order = action.order
    if not isinstance(order, PutRecordsBack) or order.value is None:
        return action
    hidden = msgspec.structs.replace(order, value=f"({len(order.value):,} characters)")
    return msgspec.structs.replace(action, order=hidden)


class Refusal(msgspec.Struct, frozen=True):
    """An order that was refused, and why."""

    at_ms: int
    by: str
    order: Order
    why: str


class Known(msgspec.Struct):
    """An action and what else is known about it.

    ``service``: the service carrying it out. ``key``: the user and the idempotency key. ``offset``: the offset of the
    last record about it. ``is_doubted``: a service has asked if it is still being carried out, and nothing has been
    heard since. ``is_inferred``: the outcome was recorded by another service.
    """

    action: Action
    service: str
    key: tuple[str, str]
    offset: int
    is_doubted: bool = False
    is_inferred: bool = False


class History:
    """The last actions. Not thread-safe."""

    def __init__(self) -> None:
        self.refusals: list[Refusal] = []
        """The last refusals, oldest first."""
        self._read = -1
        self._known: dict[str, Known] = {}
        self._keys: dict[tuple[str, str], str] = {}

    def actions(self, limit: int = ACTIONS_MAX) -> list[Action]:
        """Return the last actions, oldest first."""
        return [known.action for known in [*self._known.values()][-limit:]]

    def get(self, action: str) -> Action | None:
        """Return an action by its id."""
        known = self._known.get(action)
        return None if known is None else known.action

    def with_key(self, by: str, key: str) -> Action | None:
        """Return the action that a user ordered with this idempotency key."""
        action = self._keys.get((by, key))
        return None if action is None else self.get(action)

    def running(self) -> dict[str, Known]:
        """Return the actions that are running, by id."""
        return {name: known for name, known in self._known.items() if known.action.state == RUNNING}

    def begin_anew(self) -> None:
        """Expect the records of a recreated topic. Everything known so far is kept."""
        self._read = -1

    def apply(self, record: Record, offset: int, at_ms: int) -> bool:
        """Apply the record at ``offset``, appended at ``at_ms``. Return False if it was applied before."""
        if offset <= self._read:
            return False
        self._read = offset
        match record:
            case Asked(action=name, key=key, by=by):
                # The first request with a key wins, whichever service received it.
                if (by, key) not in self._keys and name not in self._known:
                    self._known[name] = Known(Action(name, by, record.order, at_ms), record.service, (by, key), offset)
                    self._keys[by, key] = name
                    self._forget()
            case Refused():
                self.refusals = [*self.refusals, Refusal(at_ms, record.by, record.order, record.why)][-_REFUSALS_MAX:]
            case Reported(action=name) | Ended(action=name) | Doubted(action=name):
                if (known := self._known.get(name)) is not None:
                    known.offset = offset
                    _apply_to(known, record, at_ms)
        return True

    def _forget(self) -> None:
        ended = [name for name, known in self._known.items() if known.action.state != RUNNING]
        for name in ended[: len(self._known) - ACTIONS_MAX] if len(self._known) > ACTIONS_MAX else ():
            del self._keys[self._known.pop(name).key]


def _apply_to(known: Known, record: Reported | Ended | Doubted, at_ms: int) -> None:
    action, is_running = known.action, known.action.state == RUNNING
    if isinstance(record, Doubted):
        known.is_doubted = is_running
    elif isinstance(record, Reported):
        known.is_doubted = False
        if record.text and is_running:
            reports = [*action.reports, Report(at_ms, record.text)][-_REPORTS_MAX:]
            known.action = msgspec.structs.replace(action, reports=reports)
    # The service that carried out the action knows the outcome better than one that gave up on it.
    elif is_running or (known.is_inferred and not record.is_inferred):
        known.is_inferred = record.is_inferred
        known.action = msgspec.structs.replace(action, state=record.state, text=record.text, ended_ms=at_ms)
