"""Accepts orders for an application, carries them out, and tracks the outcomes of every service's orders.

An order takes effect once it is read back from the audit topic, so all services agree on what was ordered, and a
repeated request finds the action it caused. If an action goes unreported, another service asks about it. If there is no
answer, that service records what it can see of the outcome.
"""

from __future__ import annotations

import logging
import threading
import uuid
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from confluent_kafka import KafkaException

from broker.kafka.topics import TopicError
from broker.settings import SettingsError
from control.actions.audit import Asked, Refused
from control.actions.audit_log import AuditLog
from control.actions.history import ACTIONS_MAX, Action, History, Refusal
from control.actions.orders import Drain, Move, Order, Pin, PutRecordsBack, ReleaseSilent, Retry, Scale, Standbys
from control.actions.plan import plan
from control.actions.reinjection import PutBackError, put_back
from control.actions.tasks import Tasks
from control.facts.retrying import DEFECT
from joiner.runtime.kafka.clients import describe
from joiner.runtime.membership.ordering import OrderRefused

if TYPE_CHECKING:
    from control.facts.watcher import Watcher
    from joiner.runtime.clock import Clock

RUNNING_MAX: Final = 16
"""How many actions of an application may run at the same time."""

_READ_S: Final = 0.1
_RETRY_S: Final = 1.0
_BUSY_S: Final = 1.0
_AGREE_S: Final = 10.0
_REFUSED_S: Final = 1.0
"""At most one refusal is recorded in this time, so that nobody can flood the audit topic."""
_WHY_LENGTH_MAX: Final = 1_000

_log = logging.getLogger(__name__)


class NotAccepted(Exception):
    """An order was not accepted for a temporary reason, given in the message.

    ``may_count``: the order may have been recorded, so it should be repeated with the same idempotency key.
    """

    def __init__(self, why: str, *, may_count: bool = False) -> None:
        super().__init__(why)
        self.may_count = may_count


class KeyReused(Exception):
    """The idempotency key belongs to another order of the same user."""


class Accepted(NamedTuple):
    """An action. ``is_new``: whether this request caused it."""

    action: Action
    is_new: bool


class Desk:
    """Accepts the orders for an application. Thread-safe."""

    def __init__(self, watcher: Watcher, clock: Clock, open_log: type[AuditLog] = AuditLog) -> None:
        self._watcher, self._clock = watcher, clock
        self.service: Final = uuid.uuid4().hex
        self._stop = threading.Event()
        self._log = open_log(watcher.settings, clock, self._stop)
        self._history = History()
        self._generation = 1
        self._changed = threading.Condition()
        """Guards the history."""
        self._tasks = Tasks(watcher, clock, self._log, self._stop)
        self._trouble = self._log.trouble
        self._asking = threading.Lock()
        self._refused_s = -_REFUSED_S
        name = watcher.settings.application.name
        self._thread = threading.Thread(target=self._run, name=f"audit {name}", daemon=True)

    def actions(self, limit: int = ACTIONS_MAX) -> list[Action]:
        """Return the last actions of all services, oldest first."""
        with self._changed:
            return self._history.actions(limit)

    def action(self, name: str) -> Action | None:
        """Return an action by its id."""
        with self._changed:
            return self._history.get(name)

    @property
    def refusals(self) -> list[Refusal]:
        """The last recorded refusals of orders, oldest first."""
        with self._changed:
            return self._history.refusals

    @property
    def trouble(self) -> str:
        """Why orders cannot be accepted at present, or an empty string."""
        return "the service is stopping" if self._stop.is_set() else self._trouble

    def start(self) -> None:
        """Start reading the audit topic."""
        self._thread.start()

    def stop(self) -> None:
        """Withdraw running actions where possible, and stop reading soon. Does not wait."""
        self._stop.set()

    def join(self, wait_s: float) -> None:
        """Wait up to ``wait_s`` seconds for the outcomes to be recorded and for reading to stop."""
        self._thread.join(wait_s)

    def plan(self, order: Order) -> list[str]:
        """Return sentences describing what an order would do now. Raises `OrderRefused`."""
        return plan(order, self._watcher.facts, self._watcher.settings, round(self._clock.wall_s() * 1e9))

    def preview(self, order: Order, by: str) -> list[str]:
        """Return what an order would do now, after looking at the dead letters that it names. Blocks.

        Raises `OrderRefused`.
        """
        would = self.plan(order)
        if isinstance(order, PutRecordsBack):
            value = None if order.value is None else order.value.encode()
            settings = self._watcher.settings
            try:
                outcomes = put_back(settings, order.dead_letters, by, value, again=order.again, dry_run=True)
            except PutBackError as error:
                raise OrderRefused(str(error)) from error
            would += [
                f"{one.partition}/{one.offset}: {one.reason or f'to {one.to_topic} [{one.to_partition}]'}"
                for one in outcomes
            ]
        return would

    def accept(self, order: Order, key: str, by: str) -> Accepted:
        """Accept an order from the user ``by``, or return the action that the same request caused earlier.

        Returns once the order is recorded and read back. Raises `OrderRefused`, `NotAccepted` and `KeyReused`.
        """
        if (action := self._with_key(order, by, key)) is not None:
            return Accepted(action, is_new=False)
        if self.trouble:
            raise NotAccepted(f"orders cannot be accepted at present: {self.trouble}")
        if not self._asking.acquire(timeout=_BUSY_S):
            raise NotAccepted("another order is being recorded")
        try:
            if (action := self._with_key(order, by, key)) is not None:
                return Accepted(action, is_new=False)
            self._check(order, by)
            name = self._record(order, key, by)
        finally:
            self._asking.release()
        return self._agreed(order, by, key, name)

    def _check(self, order: Order, by: str) -> None:
        """Raise `OrderRefused` or `NotAccepted` if an order cannot be carried out now."""
        with self._changed:
            running = [known.action.order for known in self._history.running().values()]
        if len(running) + self._tasks.expected() >= RUNNING_MAX:
            raise NotAccepted(f"{RUNNING_MAX} actions are running already: wait for one to end")
        try:
            self.plan(order)
            if any(_target(one) == _target(order) for one in running):
                raise OrderRefused("an action on the same target is running: wait for it to end")
        except OrderRefused as refused:
            shown = msgspec.structs.replace(order, value=None) if isinstance(order, PutRecordsBack) else order
            _log.info("refused an order from %s: %s: %s", by, refused, shown)
            self._note_refusal(Refused(by=by, order=shown, why=str(refused)[:_WHY_LENGTH_MAX]))
            raise

    def _obstacle(self, action: Action) -> str:
        """Return why an accepted action must not begin, or an empty string if it may.

        Two orders may be accepted at the same time. The first one in the topic wins.
        """
        earlier = []
        for name, known in self._history.running().items():
            if name == action.id:
                break
            earlier.append(known.action.order)
        if any(_target(one) == _target(action.order) for one in earlier):
            return "another action on the same target was ordered just before"
        if len(earlier) >= RUNNING_MAX:
            return f"{RUNNING_MAX} other actions were ordered just before"
        return ""

    def _record(self, order: Order, key: str, by: str) -> str:
        name = uuid.uuid4().hex
        self._tasks.expect(name)
        try:
            self._log.append(Asked(action=name, key=key, by=by, service=self.service, order=order))
        except UnicodeEncodeError as error:
            raise OrderRefused("the order contains characters that cannot be written") from error
        except (TopicError, SettingsError) as error:
            raise NotAccepted(f"orders cannot be recorded: {error}") from error
        except (KafkaException, BufferError) as error:
            raise NotAccepted(f"the order may not have been recorded: {describe(error)}", may_count=True) from error
        return name

    def _with_key(self, order: Order, by: str, key: str) -> Action | None:
        with self._changed:
            action = self._history.with_key(by, key)
        if action is not None and action.order != order:
            raise KeyReused("this idempotency key belongs to another order; use a new one")
        return action

    def _agreed(self, order: Order, by: str, key: str, name: str) -> Accepted:
        """Wait until the order has been read back, and return the action that its key belongs to."""
        until_s = self._clock.monotonic_s() + _AGREE_S
        with self._changed:
            while self._history.with_key(by, key) is None:
                if self._stop.is_set() or self._clock.monotonic_s() > until_s:
                    raise NotAccepted("the order was recorded, but has not been read back yet", may_count=True)
                self._changed.wait(timeout=0.5)
        action = self._with_key(order, by, key)
        if action is None:
            raise NotAccepted("so many orders were given that this one has been forgotten; look at the units")
        return Accepted(action, is_new=action.id == name)

    def _note_refusal(self, refused: Refused) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._refused_s >= _REFUSED_S:
            self._refused_s = now_s
            self._log.prepare()
            self._log.post(refused)

    def _run(self) -> None:
        while not self._stop.is_set() or not self._tasks.is_empty:
            try:
                self.turn()
            except (KafkaException, TopicError, SettingsError) as error:
                self._fail(describe(error))
            except Exception:  # noqa: BLE001 - without this thread, no more orders could be accepted
                if self._trouble != DEFECT:
                    _log.exception("the audit topic of %s cannot be read", self._watcher.settings.application.name)
                self._fail(DEFECT)
        self._log.close(1.0)

    def _fail(self, why: str) -> None:
        if why != self._trouble:
            _log.warning("%s: %s", self._watcher.settings.application.name, why)
        self._trouble = why
        self._clock.sleep(_RETRY_S)

    def turn(self) -> None:
        """Read new records, begin the actions ordered, and report the running ones. Raises KafkaException."""
        found = self._log.read(_READ_S)
        with self._changed:
            for record, offset, at_ms, generation in found:
                if generation != self._generation:
                    self._generation = generation
                    self._history.begin_anew()
                if self._history.apply(record, offset, at_ms) and isinstance(record, Asked):
                    self._tasks.begin(record.action, self._history.get(record.action), self._obstacle)
            if found:
                self._changed.notify_all()
            posts = self._tasks.posts(self._history)
        self._trouble = self._log.trouble
        if posts:
            self._log.prepare()
        for record in posts:
            self._log.post(record)


def _target(order: Order) -> object:
    """Return what an order changes, so that conflicting orders do not run at the same time."""
    match order:
        case Move():
            return Move
        case Pin() | Retry():
            return Pin, order.site, order.unit
        case Standbys():
            return Standbys, order.site
        case Drain() | Scale():
            return type(order), order.site, order.instance
        case ReleaseSilent() | PutRecordsBack():
            return order
