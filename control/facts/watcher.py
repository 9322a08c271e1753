"""Reads an application's topics continuously, in a few threads, and keeps what is known about it.

It joins no consumer group and writes nothing. While Kafka is unreachable, it keeps what it knows, reports the cause,
and tries again.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from control.facts.dead_letter_reading import LetterReading
from control.facts.dead_letters import DeadLetterIndex
from control.facts.flow.endpoints import Endpoints
from control.facts.lookup.lookup import Lookup
from control.facts.reading import Facts, Reading
from control.facts.retrying import RetryingThread
from control.facts.timeline import Event, Timeline
from joiner.runtime.settings import replica_settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from joiner.runtime.clock import Clock
    from joiner.runtime.settings import JoinerSettings

PUBLISH_S: Final = 0.5
"""How often the facts are renewed."""

_SAMPLES_MAX: Final = 120
"""How many samples are kept: a minute's worth."""


class Sample(NamedTuple):
    """An application's lag and records per second, at a time in ms since the epoch."""

    at_ms: int
    rate: float
    lag: int


class Watcher:
    """Keeps an application's `Facts` and its dead letters. Thread-safe.

    ``lookup``: what is read only on request.
    """

    def __init__(self, settings: JoinerSettings, clock: Clock, endpoints: Endpoints | None = None) -> None:
        """``endpoints``: what is upstream and downstream of the application (default: nothing is configured)."""
        self.settings = settings
        self.endpoints = Endpoints() if endpoints is None else endpoints
        self.lookup = Lookup(settings, clock)
        self.letters = DeadLetterIndex()
        self._clock = clock
        self._facts = Facts()
        self._samples: deque[Sample] = deque(maxlen=_SAMPLES_MAX)
        self._events: tuple[Event, ...] = ()
        self._lock = threading.Lock()
        self._timeline = Timeline()
        name, letters = settings.application.name, LetterReading(settings, clock, self.letters)
        self._replicas = {number: Facts() for number in range(1, settings.application.replicas)}
        """The facts about the other replicas. A thread for each of them replaces its own."""
        self._threads = (
            RetryingThread(name, self._read, self._report),
            RetryingThread(f"dead letters of {name}", letters.read, self.letters.report),
            *(
                RetryingThread(
                    replica_settings(settings, number).application.name,
                    partial(self._read_replica, number),
                    partial(self._report_replica, number),
                )
                for number in self._replicas
            ),
        )

    @property
    def facts(self) -> Facts:
        """What is known now. Does not wait."""
        return self._facts

    @property
    def events(self) -> list[Event]:
        """What has happened, oldest first."""
        with self._lock:
            return list(self._events)

    @property
    def samples(self) -> list[Sample]:
        """The last samples, oldest first."""
        with self._lock:
            return list(self._samples)

    def start(self) -> None:
        """Start reading."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop reading soon."""
        for thread in self._threads:
            thread.stop()
        self.lookup.stop()

    def join(self, wait_s: float) -> None:
        """Wait up to ``wait_s`` seconds for reading to stop."""
        until_s = self._clock.monotonic_s() + wait_s
        for thread in self._threads:
            thread.join(max(0.0, until_s - self._clock.monotonic_s()))
        self.lookup.join(max(0.0, until_s - self._clock.monotonic_s()))

    def _read(self, stop: threading.Event, note_success: Callable[[], None]) -> None:
        with closing(Reading(self.settings, self._clock, self._timeline, self.endpoints.sink)) as reading:
            while not stop.is_set():
                reading.read_until(self._clock.monotonic_s() + PUBLISH_S, stop)
                if not stop.is_set() and (facts := reading.facts()) is not None:
                    self._publish(facts)
                    note_success()

    def _read_replica(self, number: int, stop: threading.Event, note_success: Callable[[], None]) -> None:
        settings = replica_settings(self.settings, number)
        # Its events are not shown.
        with closing(Reading(settings, self._clock, Timeline())) as reading:
            while not stop.is_set():
                reading.read_until(self._clock.monotonic_s() + PUBLISH_S, stop)
                if not stop.is_set() and (facts := reading.facts()) is not None:
                    self._replicas[number] = facts
                    note_success()

    def _report_replica(self, number: int, trouble: str) -> None:
        self._replicas[number] = msgspec.structs.replace(self._replicas[number], trouble=trouble)

    def _report(self, trouble: str) -> None:
        self._publish(msgspec.structs.replace(self._facts, trouble=trouble))

    def _publish(self, facts: Facts) -> None:
        with self._lock:
            # Only this thread changes the timeline.
            self._events = tuple(self._timeline.events)
        self._facts = msgspec.structs.replace(facts, number=self._facts.number + 1, replicas=dict(self._replicas))
        if facts.status is not None and not facts.trouble and facts.read_ms is not None and facts.lag is not None:
            with self._lock:
                self._samples.append(Sample(facts.read_ms, sum(facts.rates), facts.lag))
