"""Carries out and reports a service's own actions, and gives up on others' actions that are no longer reported."""

from __future__ import annotations

import logging
import math
import threading
from typing import TYPE_CHECKING, Final

import msgspec

from control.actions.audit import DONE, FAILED, INTERRUPTED, WITHDRAWN, Doubted, Ended, Reported
from control.actions.history import without_contents
from control.actions.orders import PutRecordsBack, ReleaseSilent, Retry
from control.actions.perform import Means, perform
from control.actions.plan import progress

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from control.actions.audit_log import AuditLog
    from control.actions.history import Action, History, Known
    from control.facts.watcher import Watcher
    from joiner.runtime.clock import Clock

SILENT_S: Final = 20.0
"""An action that has been silent for this long is doubted."""
ANSWER_S: Final = 15.0
"""A doubted action is given up if nothing is heard of it for this long after the doubt was read."""

_ALIVE_S: Final = 5.0
"""How often a running action is reported."""
_POST_S: Final = 3.0
"""How often an outcome or a doubt is posted until it is read back."""
_LATE_S: Final = 30.0
"""An order that is read back later than this is not carried out."""
_FORGOTTEN_S: Final = 3_600.0
"""An order that has not been read back by then was never recorded."""

_log = logging.getLogger(__name__)


class _Task(msgspec.Struct):
    """An action that this service carries out. ``posted_s``: when it was last reported.

    ``ended``: the outcome, which is posted until it is read back.
    """

    posted_s: float
    ended: Ended | None = None

    def end(self, ended: Ended) -> None:
        """Set the outcome, to be posted on the next turn."""
        self.ended, self.posted_s = ended, -math.inf


class Tasks:
    """The actions of this service, and what it must report about those of others. Thread-safe, except as noted."""

    def __init__(self, watcher: Watcher, clock: Clock, log: AuditLog, stop: threading.Event) -> None:
        self._watcher, self._clock, self._log, self._stop = watcher, clock, log, stop
        self._lock = threading.Lock()
        self._asked_s: dict[str, float] = {}
        """The orders that this service has accepted but not begun, and when it accepted them."""
        self._tasks: dict[str, _Task] = {}
        self._heard: dict[str, tuple[int, float]] = {}
        """Other services' running actions: the offset of the last record about each, and when it was read."""
        self._posted_s: dict[str, float] = {}
        """When this service last posted something about each action of another service."""

    @property
    def is_empty(self) -> bool:
        """Whether the outcomes of all actions begun so far have been recorded."""
        with self._lock:
            return not self._tasks

    def expect(self, name: str) -> None:
        """Expect this action's order to be read back."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            self._asked_s = {one: at_s for one, at_s in self._asked_s.items() if now_s - at_s < _FORGOTTEN_S}
            self._asked_s[name] = now_s

    def expected(self) -> int:
        """Return how many orders may be read back soon."""
        since_s = self._clock.monotonic_s() - _LATE_S
        with self._lock:
            return sum(asked_s > since_s for asked_s in self._asked_s.values())

    def begin(self, name: str, action: Action | None, obstacle: Callable[[Action], str]) -> None:
        """Begin an action whose order was read back, if this service accepted it.

        ``action``: None if another action owns the key. ``obstacle``: returns why the action must not begin, so that
        it is withdrawn, or an empty string.
        """
        now_s = self._clock.monotonic_s()
        with self._lock:
            asked_s = self._asked_s.pop(name, None)
            if asked_s is None or action is None:
                return
            task = self._tasks[name] = _Task(now_s)
        if self._stop.is_set():
            why = "the service was stopped"
        elif now_s - asked_s > _LATE_S:
            why = "the order was recorded too late"
        else:
            why = obstacle(action)
        if why:
            text = f"{why}: nothing was done; order it again if it is needed"
            task.end(Ended(action=name, state=WITHDRAWN, text=text))
            return
        thread = threading.Thread(target=self._perform, args=(action, task), name=f"action {name}", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            task.end(Ended(action=name, state=FAILED, text="the service has no threads left: nothing was done"))

    def posts(self, history: History) -> list[Ended | Reported | Doubted]:
        """Return the records to post now. The history must not change meanwhile."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            running = history.running()
            return [*self._of_own(history, running, now_s), *self._of_others(running, now_s)]

    def _perform(self, action: Action, task: _Task) -> None:
        def report(text: str) -> None:
            self._log.post(Reported(action=action.id, text=text))

        _log.info("%s ordered: %s", action.by, without_contents(action).order)
        try:
            outcome = perform(action.order, Means(action.by, self._watcher, self._clock, self._stop, report))
            ended = Ended(action=action.id, state=outcome.state, text=outcome.text)
        except Exception:  # noqa: BLE001 - the user must learn that it has ended
            _log.exception("action %s failed", action.id)
            ended = Ended(action=action.id, state=INTERRUPTED, text="an error in this program; see its log")
        with self._lock:
            task.end(ended)

    def _of_own(self, history: History, running: Mapping[str, Known], now_s: float) -> list[Ended | Reported | Doubted]:
        """Return outcomes for this service's ended actions, and reports for the running ones."""
        posts: list[Ended | Reported | Doubted] = []
        for name, task in list(self._tasks.items()):
            known, is_doubted = history.get(name), name in running and running[name].is_doubted
            if task.ended is not None:
                if known is None or (known.state, known.text) == (task.ended.state, task.ended.text):
                    del self._tasks[name]
                elif now_s - task.posted_s > _POST_S:
                    task.posted_s = now_s
                    posts.append(task.ended)
            elif now_s - task.posted_s > _ALIVE_S or is_doubted:
                task.posted_s = now_s
                posts.append(Reported(action=name))
        return posts

    def _of_others(self, running: Mapping[str, Known], now_s: float) -> list[Ended | Reported | Doubted]:
        """Return the doubts and outcomes to record for other services' silent actions."""
        posts: list[Ended | Reported | Doubted] = []
        running = {name: known for name, known in running.items() if name not in self._tasks}
        self._heard = {
            name: self._heard[name] if self._heard.get(name, (-1, 0.0))[0] == known.offset else (known.offset, now_s)
            for name, known in running.items()
        }
        self._posted_s = {name: at_s for name, at_s in self._posted_s.items() if name in running}
        for name, known in running.items():
            silent_s = now_s - self._heard[name][1]
            if self._watcher.facts.trouble or now_s - self._posted_s.get(name, -math.inf) < _POST_S:
                continue
            if known.is_doubted and silent_s > ANSWER_S:
                posts.append(self._given_up(known))
            elif not known.is_doubted and silent_s > SILENT_S:
                posts.append(Doubted(action=name))
            else:
                continue
            self._posted_s[name] = now_s
        return posts

    def _given_up(self, known: Known) -> Ended:
        action, why = known.action, "nothing has been heard of the service that carried this out"
        if isinstance(action.order, ReleaseSilent):
            text = f"{why}; the watermark may have been written, and writing it again is harmless"
            return Ended(action=action.id, state=INTERRUPTED, text=text, is_inferred=True)
        if isinstance(action.order, PutRecordsBack):
            text = f"{why}; the records may have been put back, and putting them back again is refused if they were"
            return Ended(action=action.id, state=INTERRUPTED, text=text, is_inferred=True)
        if isinstance(action.order, Retry):
            text = f"{why}; the unit may have been tried again. Check it, and repeat the order if need be"
            return Ended(action=action.id, state=INTERRUPTED, text=text, is_inferred=True)
        found = progress(action.order, self._watcher.facts)
        if found.is_done:
            return Ended(action=action.id, state=DONE, text=f"{found.text} ({why})", is_inferred=True)
        text = f"{why}; now: {found.text}. If this is not what you want, order it again"
        return Ended(action=action.id, state=INTERRUPTED, text=text, is_inferred=True)
