"""Runs slow readings one at a time, in a thread of its own, and keeps their results for a short time.

A reading has a deadline. Callers who ask for something that is already being read share its result.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from confluent_kafka import KafkaException

from control.facts.retrying import DEFECT
from joiner.runtime.kafka.clients import describe

if TYPE_CHECKING:
    from joiner.runtime.clock import Clock

READING_S: Final = 20.0
"""How long a reading may take."""

_WAIT_S: Final = 25.0
"""How long a caller waits. After that, the reading continues, and its result is kept for the next caller."""

_READINGS_MAX: Final = 8
"""How many readings may be waiting or in progress."""

_KEPT_S: Final = 3.0
_KEPT_S_MAX: Final = 30.0
_KEPT_FACTOR: Final = 4.0
"""A result is kept for this many times as long as its reading took, within these limits, so that a page that is
constantly refreshed takes up only a fraction of a core."""

_KEPT_MAX: Final = 32
_RETRY_S: Final = 5

_log = logging.getLogger(__name__)

_Result = TypeVar("_Result")


class Unavailable(Exception):
    """The request cannot be answered now, for the reason in the message. ``retry_s``: when to ask again, in seconds."""

    def __init__(self, why: str, retry_s: int = _RETRY_S) -> None:
        super().__init__(why)
        self.retry_s = retry_s


class DeadlinePassed(Exception):
    """The reading took too long, or the service is stopping."""


class Deadline:
    """The time by which a reading must end."""

    def __init__(self, clock: Clock, until_s: float, stop: threading.Event) -> None:
        """``until_s``: on a monotonic clock. ``stop``: set when the service stops."""
        self._clock, self._until_s, self._stop = clock, until_s, stop

    def is_over(self) -> bool:
        """Return whether the reading must end."""
        return self._stop.is_set() or self._clock.monotonic_s() >= self._until_s

    def check(self) -> None:
        """Raise `DeadlinePassed` if the reading must end. Readings call this between their steps."""
        if self.is_over():
            raise DeadlinePassed

    def part(self, share: float) -> Deadline:
        """Return a deadline after this share of the remaining time."""
        now_s = self._clock.monotonic_s()
        return Deadline(self._clock, now_s + share * max(0.0, self._until_s - now_s), self._stop)


class _Job(NamedTuple):
    key: Hashable
    read: Callable[[Deadline], Any]
    future: Future[Any]


class OneAtATime:
    """Readings of one application, by keys that identify what is read. Thread-safe."""

    def __init__(self, name: str, clock: Clock) -> None:
        self._name, self._clock = name, clock
        self._stop = threading.Event()
        self._changed = threading.Condition()
        self._waiting: deque[_Job] = deque()
        self._asked: dict[Hashable, Future[Any]] = {}
        """What is waiting or in progress."""
        self._kept: OrderedDict[Hashable, tuple[float, Any]] = OrderedDict()
        """The results, each with its expiry time."""
        self._thread: threading.Thread | None = None

    async def result(self, key: Hashable, read: Callable[[Deadline], _Result]) -> _Result:
        """Return what ``read`` returns, or what it returned for this key a short time ago.

        Raises `Unavailable` if too many readings are waiting, or if this one fails or takes too long.
        """
        future = self.submit(key, read)
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def wake(_future: Future[Any]) -> None:
            # If the service has stopped in the meantime, the loop may be closed.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(done.set)

        future.add_done_callback(wake)
        try:
            await asyncio.wait_for(done.wait(), _WAIT_S)
        except TimeoutError:
            raise Unavailable("it is still being read") from None
        return future.result()

    def submit(self, key: Hashable, read: Callable[[Deadline], _Result]) -> Future[_Result]:
        """Begin a reading unless its result is known or being read. Raises `Unavailable` if too many are waiting."""
        with self._changed:
            future: Future[Any] = Future()
            if (known := self._known(key)) is not None:
                future.set_result(known[1])
                return future
            if key in self._asked:
                return self._asked[key]
            if self._stop.is_set() or len(self._asked) >= _READINGS_MAX:
                raise Unavailable("too many other readings are waiting")
            self._asked[key] = future
            self._waiting.append(_Job(key, read, future))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"look up {self._name}", daemon=True)
                self._thread.start()
            self._changed.notify()
            return future

    def kept(self, key: Hashable) -> Any:
        """Return the result kept for a key, or None."""
        with self._changed:
            known = self._known(key)
            return None if known is None else known[1]

    def stop(self) -> None:
        """Make the reading in progress end soon, and begin no others."""
        self._stop.set()
        with self._changed:
            self._changed.notify()

    def join(self, wait_s: float) -> None:
        """Wait up to ``wait_s`` seconds for the reading in progress to end."""
        with self._changed:
            thread = self._thread
        if thread is not None:
            thread.join(wait_s)

    def _known(self, key: Hashable) -> tuple[float, Any] | None:
        found = self._kept.get(key)
        return found if found is not None and self._clock.monotonic_s() < found[0] else None

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._stop.is_set())
                if self._stop.is_set():
                    break
                job = self._waiting.popleft()
            self._read(job)
        for job in self._waiting:
            job.future.set_exception(Unavailable("the service is stopping"))

    def _read(self, job: _Job) -> None:
        began_s = self._clock.monotonic_s()
        result: Any = None
        error: Unavailable | None = None
        try:
            result = job.read(Deadline(self._clock, began_s + READING_S, self._stop))
        except DeadlinePassed:
            error = Unavailable(f"it takes longer than {READING_S:.0f} s")
        except KafkaException as found:
            error = Unavailable(describe(found))
        except Unavailable as found:
            # A new exception, because the traceback of this one refers to everything that was read.
            error = Unavailable(str(found), found.retry_s)
        except Exception:  # noqa: BLE001 - otherwise, the waiting callers and all later ones would wait in vain
            _log.exception("%s: a reading failed", self._name)
            error = Unavailable(DEFECT)
        now_s = self._clock.monotonic_s()
        with self._changed:
            del self._asked[job.key]
            if error is None:
                kept_s = min(max(_KEPT_S, _KEPT_FACTOR * (now_s - began_s)), _KEPT_S_MAX)
                self._keep(job.key, now_s, now_s + kept_s, result)
        # Outside the lock, because it wakes the waiting callers.
        if error is None:
            job.future.set_result(result)
        else:
            job.future.set_exception(error)

    def _keep(self, key: Hashable, now_s: float, until_s: float, result: Any) -> None:
        self._kept[key] = until_s, result
        self._kept.move_to_end(key)
        for other in [other for other, (end_s, _) in self._kept.items() if end_s <= now_s]:
            del self._kept[other]
        while len(self._kept) > _KEPT_MAX:
            self._kept.popitem(last=False)
