"""Reads the topics of an application continuously, in a thread, and keeps what is known of it.

It is no member of any consumer group and writes nothing. While Kafka is unreachable, it keeps what it knew, tells the
cause, and tries again.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from contextlib import closing
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from confluent_kafka import KafkaException

from broker.settings import SettingsError
from control.facts.reading import Facts, Reading
from control.facts.timeline import Event, Timeline
from control.lookup.lookup import Lookup
from joiner.runtime.kafka.clients import describe

if TYPE_CHECKING:
    from joiner.runtime.clock import Clock
    from joiner.runtime.settings import JoinerSettings

PUBLISH_S: Final = 0.5
"""How often the facts are renewed."""

_SAMPLES_MAX: Final = 120
"""How many samples are kept: those of a minute."""

_RETRY_S: Final = 1.0
_RETRY_S_MAX: Final = 30.0

_DEFECT: Final = "an error in this program; whoever runs it finds the cause in its log"

_log = logging.getLogger(__name__)


class Sample(NamedTuple):
    """The records a second and the lag of an application at a time in ms since the epoch."""

    at_ms: int
    rate: float
    lag: int


class Watcher:
    """Keeps the `Facts` of an application. Thread-safe. ``lookup``: what is read only when somebody asks."""

    def __init__(self, settings: JoinerSettings, clock: Clock) -> None:
        self.settings = settings
        self.lookup = Lookup(settings, clock)
        self._clock = clock
        self._stop = threading.Event()
        self._facts = Facts()
        self._samples: deque[Sample] = deque(maxlen=_SAMPLES_MAX)
        self._events: tuple[Event, ...] = ()
        self._lock = threading.Lock()
        self._timeline = Timeline()
        self._thread = threading.Thread(target=self._run, name=f"watch {settings.application.name}", daemon=True)

    @property
    def facts(self) -> Facts:
        """What is known now. Does not wait."""
        return self._facts

    @property
    def events(self) -> list[Event]:
        """What has happened, the oldest first."""
        with self._lock:
            return list(self._events)

    @property
    def samples(self) -> list[Sample]:
        """The last samples, the oldest first."""
        with self._lock:
            return list(self._samples)

    def start(self) -> None:
        """Start reading."""
        self._thread.start()

    def stop(self) -> None:
        """Stop reading soon."""
        self._stop.set()
        self.lookup.stop()

    def join(self, wait_s: float) -> None:
        """Wait up to ``wait_s`` seconds until reading has stopped."""
        until_s = self._clock.monotonic_s() + wait_s
        self._thread.join(wait_s)
        self.lookup.join(max(0.0, until_s - self._clock.monotonic_s()))

    def _run(self) -> None:
        wait_s = _RETRY_S
        while not self._stop.is_set():
            try:
                with closing(Reading(self.settings, self._clock, self._timeline)) as reading:
                    while not self._stop.is_set():
                        reading.read_until(self._clock.monotonic_s() + PUBLISH_S, self._stop)
                        if not self._stop.is_set() and (facts := reading.facts()) is not None:
                            self._publish(facts)
                            wait_s = _RETRY_S
            except Exception as error:  # noqa: BLE001 - without this thread, the service would show old facts for good
                is_expected = isinstance(error, KafkaException | SettingsError)
                if not is_expected and self._facts.trouble != _DEFECT:
                    _log.exception("%s cannot be read", self.settings.application.name)
                self._report(describe(error) if is_expected else _DEFECT)
            self._stop.wait(wait_s)
            wait_s = min(2 * wait_s, _RETRY_S_MAX)

    def _report(self, trouble: str) -> None:
        if trouble != self._facts.trouble:
            _log.warning("%s: %s", self.settings.application.name, trouble)
        self._publish(msgspec.structs.replace(self._facts, trouble=trouble))

    def _publish(self, facts: Facts) -> None:
        with self._lock:
            # Only this thread changes the timeline.
            self._events = tuple(self._timeline.events)
        self._facts = msgspec.structs.replace(facts, number=self._facts.number + 1)
        if facts.status is not None and not facts.trouble and facts.read_ms is not None and facts.lag is not None:
            with self._lock:
                self._samples.append(Sample(facts.read_ms, sum(facts.rates), facts.lag))
