"""Accepts orders for an application, carries them out, and knows what came of those of all services.

An order counts once it is read back from the audit topic, so all services agree on what was ordered, and a repeated
request finds the action that it has caused. If a service dies, the others find that its actions are not reported any
more, and say what has come of them as far as it can be seen.
"""

from __future__ import annotations

import logging
import threading
import uuid
from typing import TYPE_CHECKING, Final, NamedTuple

from confluent_kafka import KafkaException

from broker.kafka.topics import TopicError
from control.actions.audit import DONE, INTERRUPTED, Asked, Ended, Refused, Reported
from control.actions.audit_log import APPEND_S, AuditLog
from control.actions.history import RUNNING, Action, History, Refusal
from control.actions.orders import Order, ReleaseSilent
from control.actions.perform import Means, perform
from control.actions.plan import OrderRefused, plan, progress
from joiner.runtime.kafka.clients import describe

if TYPE_CHECKING:
    from control.facts.watcher import Watcher
    from joiner.runtime.clock import Clock

RUNNING_MAX: Final = 16
"""How many actions of an application may run at the same time."""

ABANDONED_S: Final = 20.0
"""An action of another service is given up if nothing has been reported of it for this long."""

_ALIVE_S: Final = 5.0
"""How often a running action is reported."""

_READ_S: Final = 0.1
_RETRY_S: Final = 1.0
_AGREE_S: Final = 2 * APPEND_S + 5.0

_log = logging.getLogger(__name__)


class NotAccepted(Exception):
    """An order that was not accepted for a reason that will pass. The message says why."""


class KeyReused(Exception):
    """The idempotency key belongs to another order of the same user."""


class Accepted(NamedTuple):
    """An action. ``is_new``: whether this request has caused it."""

    action: Action
    is_new: bool


class Desk:
    """Accepts the orders for an application. Thread-safe."""

    def __init__(self, watcher: Watcher, clock: Clock, open_log: type[AuditLog] = AuditLog) -> None:
        self._watcher, self._clock = watcher, clock
        self._service = uuid.uuid4().hex
        self._stop = threading.Event()
        self._log = open_log(watcher.settings, clock, self._stop)
        self._history = History()
        self._changed = threading.Condition()
        self._is_current = False
        self._trouble = "the audit topic has not been read yet"
        self._heard: dict[str, tuple[int, float]] = {}
        """The running actions of other services: the last record about each, and when it was read."""
        self._performing: dict[str, float] = {}
        """The actions that this service carries out, and when each was reported last."""
        self._asking = threading.Lock()
        name = watcher.settings.application.name
        self._thread = threading.Thread(target=self._run, name=f"audit {name}", daemon=True)

    @property
    def actions(self) -> list[Action]:
        """The last actions of all services, the oldest first."""
        with self._changed:
            return self._history.actions

    @property
    def refusals(self) -> list[Refusal]:
        """The last orders that were refused, the oldest first."""
        with self._changed:
            return self._history.refusals

    @property
    def trouble(self) -> str:
        """Why orders cannot be accepted at present, or an empty string."""
        return "" if self._is_current else self._trouble

    def start(self) -> None:
        """Start reading the audit topic."""
        self._thread.start()

    def stop(self) -> None:
        """Withdraw what is being carried out, as far as possible, and stop reading soon."""
        self._stop.set()

    def join(self, wait_s: float) -> None:
        """Wait up to ``wait_s`` seconds until the outcomes are recorded and reading has stopped."""
        self._thread.join(wait_s)

    def plan(self, order: Order) -> list[str]:
        """Return in sentences what an order would do now. Raises `OrderRefused`."""
        return plan(order, self._watcher.facts, self._watcher.settings, round(self._clock.wall_s() * 1e9))

    def accept(self, order: Order, key: str, by: str) -> Accepted:
        """Accept an order of the user ``by``, or return the action that the same request has caused before.

        Returns once the order is recorded, after 25 s at most. Raises `OrderRefused`, `NotAccepted` and `KeyReused`.
        """
        with self._asking:
            if (action := self._with_key(order, by, key)) is not None:
                return Accepted(action, is_new=False)
            if not self._is_current or self._stop.is_set():
                raise NotAccepted(f"orders cannot be accepted at present: {self._trouble}")
            if len(self._performing) >= RUNNING_MAX:
                raise NotAccepted(f"{RUNNING_MAX} actions are running already: wait until one has ended")
            try:
                self.plan(order)
            except OrderRefused as refused:
                self._note_refusal(Refused(by=by, order=order, why=str(refused)))
                raise
            name = uuid.uuid4().hex
            asked = Asked(action=name, key=key, by=by, service=self._service, order=order)
            try:
                self._log.append(asked)
            except (KafkaException, TopicError) as error:
                raise NotAccepted(
                    f"the order may not have been recorded: {describe(error)}; repeat it with the same idempotency key"
                ) from error
            return self._agreed(order, by, key, name)

    def _with_key(self, order: Order, by: str, key: str) -> Action | None:
        with self._changed:
            action = self._history.with_key(by, key)
        if action is not None and action.order != order:
            raise KeyReused("this idempotency key belongs to another order; use a new one")
        return action

    def _agreed(self, order: Order, by: str, key: str, name: str) -> Accepted:
        """Wait until the order has been read back, and return the action that counts."""
        until_s = self._clock.monotonic_s() + _AGREE_S
        with self._changed:
            while self._history.with_key(by, key) is None:
                is_over = self._stop.is_set() or self._clock.monotonic_s() > until_s
                if not self._changed.wait(timeout=0.5) and is_over:
                    raise NotAccepted("the order was recorded, but cannot be read back; repeat it with the same key")
        action = self._with_key(order, by, key)
        if action is None:
            raise NotAccepted("so many orders were given that this one is forgotten; look at the units")
        return Accepted(action, is_new=action.id == name)

    def _note_refusal(self, refused: Refused) -> None:
        try:
            self._log.prepare()
        except (KafkaException, TopicError) as error:
            _log.warning("the refusal of an order was not recorded: %s", describe(error))
            return
        self._log.post(refused)

    def _run(self) -> None:
        while not self._stop.is_set() or self._performing:
            try:
                self.turn()
            except (KafkaException, TopicError) as error:
                self._fail(describe(error))
            except Exception:  # noqa: BLE001 - without this thread, no order could be accepted any more
                _log.exception("the audit topic of %s cannot be read", self._watcher.settings.application.name)
                self._fail("an error in this program; whoever runs it finds the cause in its log")
        self._log.close(1.0)

    def _fail(self, why: str) -> None:
        if why != self._trouble or self._is_current:
            _log.warning("%s: %s", self._watcher.settings.application.name, why)
        self._is_current, self._trouble = False, why
        self._stop.wait(_RETRY_S)

    def turn(self) -> None:
        """Read what is new, begin what was ordered, and report what is running. Raises KafkaException."""
        found = self._log.read(_READ_S)
        with self._changed:
            for record, offset, at_ms in found:
                self._history.apply(record, offset, at_ms)
            running = self._history.running()
            mine = [
                record.action
                for record, _, _ in found
                if isinstance(record, Asked) and running.get(record.action, ("", 0))[0] == self._service
            ]
            for name in mine:
                if name not in self._performing and (action := self._history.get(name)) is not None:
                    self._begin(action)
            self._changed.notify_all()
        self._is_current = self._log.is_current
        if self._is_current:
            self._report_alive()
            self._give_up(running)

    def _begin(self, action: Action) -> None:
        self._performing[action.id] = self._clock.monotonic_s()
        threading.Thread(target=self._perform, args=(action,), name=f"action {action.id}", daemon=True).start()

    def _perform(self, action: Action) -> None:
        def report(text: str) -> None:
            self._log.post(Reported(action=action.id, text=text))

        _log.info("%s has ordered: %s", action.by, action.order)
        try:
            outcome = perform(action.order, Means(self._watcher, self._clock, self._stop, report))
            ended = Ended(action=action.id, state=outcome.state, text=outcome.text)
        except Exception:  # noqa: BLE001 - the user must learn that it has ended
            _log.exception("action %s failed", action.id)
            ended = Ended(action=action.id, state=INTERRUPTED, text="an error in this program; see its log")
        try:
            self._log.append(ended)
        except (KafkaException, TopicError) as error:
            # Another service, or this one, finds that nothing is reported any more, and gives the action up.
            _log.warning("the outcome of action %s was not recorded: %s", action.id, describe(error))
        finally:
            self._performing.pop(action.id, None)

    def _report_alive(self) -> None:
        now_s = self._clock.monotonic_s()
        for name, reported_s in list(self._performing.items()):
            if now_s - reported_s > _ALIVE_S:
                self._performing[name] = now_s
                self._log.post(Reported(action=name))

    def _give_up(self, running: dict[str, tuple[str, int]]) -> None:
        """Record an outcome for actions of which nothing is reported any more."""
        now_s = self._clock.monotonic_s()
        others = {name: offset for name, (_, offset) in running.items() if name not in self._performing}
        self._heard = {
            name: self._heard[name] if self._heard.get(name, (-1, 0.0))[0] == offset else (offset, now_s)
            for name, offset in others.items()
        }
        for name, (_, heard_s) in self._heard.items():
            if now_s - heard_s <= ABANDONED_S or self._watcher.facts.trouble:
                continue
            with self._changed:
                action = self._history.get(name)
            if action is not None and action.state == RUNNING:
                self._log.prepare()
                self._log.post(self._given_up(action))

    def _given_up(self, action: Action) -> Ended:
        why = "the service that carried this out has ended"
        order = action.order
        if isinstance(order, ReleaseSilent):
            text = f"{why}; the watermark may have been written, and writing it again is harmless"
            return Ended(action=action.id, state=INTERRUPTED, text=text)
        found = progress(order, self._watcher.facts)
        if found.is_done:
            return Ended(action=action.id, state=DONE, text=f"{found.text} ({why} before it was known)")
        text = f"{why}; now: {found.text}. If this is not what you want, order it again"
        return Ended(action=action.id, state=INTERRUPTED, text=text)
