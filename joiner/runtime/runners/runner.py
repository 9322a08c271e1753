"""The interface of every kind of runner: `run` serves units until `stop` is called; `states` has each unit's state."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from contextlib import closing
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from broker.kafka.topics import wait_for_topics
from broker.metrics import TelemetryServer
from joiner.runtime.clock import Clock
from joiner.runtime.kafka.clients import KAFKA_LOG
from joiner.runtime.kafka.topics import TopicWatch, application_topics
from joiner.runtime.ownership.eligibility import Claimant
from joiner.runtime.ownership.services import Services, open_services
from joiner.runtime.runners.lifecycle import UnitState
from joiner.runtime.runners.supervisor import Supervisor
from joiner.runtime.settings import JoinerSettings
from joiner.runtime.telemetry.metrics import JoinerMetrics
from joiner.runtime.telemetry.unit_gauges import UnitStatus

_log = logging.getLogger(__name__)


class Parts(NamedTuple):
    """The components from which a runner's loop is built.

    ``watch``: checks that the input topics stay the same. ``standby``: whether to wait for units of other sites.
    """

    settings: JoinerSettings
    claimant: Claimant
    services: Services
    telemetry: TelemetryServer
    metrics: JoinerMetrics
    watch: TopicWatch
    standby: bool


class Loop(Protocol):
    """Serves the units of an application once its topics exist."""

    supervisor: Supervisor[Any]

    def statuses(self) -> Mapping[int, UnitStatus]:
        """Return the figures that the metrics show for each unit. Thread-safe."""
        ...

    def close(self) -> None:
        """Stop serving units, within seconds."""
        ...


_Loop = TypeVar("_Loop", bound=Loop)


class Runner(ABC, Generic[_Loop]):
    """Serves the units of an application until it is stopped."""

    def __init__(self, settings: JoinerSettings, claimant: Claimant, clock: Clock, *, standby: bool = False) -> None:
        """``standby``: whether to wait for units that belong to other sites, instead of treating them as an error."""
        self._settings, self._claimant, self._clock, self._standby = settings, claimant, clock, standby
        self._stop = threading.Event()
        self._telemetry = TelemetryServer(settings.metrics)
        self._loop: _Loop | None = None
        """None until the topics exist."""
        self._metrics = JoinerMetrics(settings, claimant, self._telemetry, self._statuses, self._failed_units, clock)

    @property
    def states(self) -> Mapping[int, UnitState]:
        """The state of each unit known to this runner."""
        return {} if (loop := self._loop) is None else loop.supervisor.states

    def stop(self) -> None:
        """Ask the runner to stop. Safe to call from a signal handler."""
        self._stop.set()

    def run(self) -> int:
        """Serve units until stopped. Return the exit status: 1 if a unit has failed.

        Raises KafkaException or `TopicError` if no unit can be served, and `SettingsError` if the metrics cannot be
        exposed. Each kind of runner documents any other errors that it raises.
        """
        settings = self._settings
        with self._telemetry:
            specs = application_topics(settings)
            facts = wait_for_topics(settings.kafka, specs, self._is_over, _log, KAFKA_LOG)
            if facts is None:
                return 0
            with open_services(settings, self._clock) as services:
                known = {name: facts[name] for name in settings.input_topics}
                watch = TopicWatch(services.admin, known, self._clock)
                loop = self._make(
                    Parts(settings, self._claimant, services, self._telemetry, self._metrics, watch, self._standby)
                )
                self._loop = loop
                try:
                    with closing(loop):
                        return self._work(loop)
                finally:
                    self._loop = None

    @abstractmethod
    def _make(self, parts: Parts) -> _Loop:
        """Create the loop for this kind of runner. Raises KafkaException."""

    @abstractmethod
    def _work(self, loop: _Loop) -> int:
        """Run the loop until `_is_over` returns true. Return the exit status."""

    def _is_over(self) -> bool:
        """Send a heartbeat to the telemetry, and return whether to stop. Called in every iteration of the loop."""
        self._telemetry.heartbeat()
        return self._stop.is_set()

    def _wait(self, seconds: float) -> None:
        """Wait for the given number of seconds, or until a stop is requested."""
        self._clock.wait_for(self._stop, seconds)

    def _statuses(self) -> Mapping[int, UnitStatus]:
        return {} if (loop := self._loop) is None else loop.statuses()

    def _failed_units(self) -> Collection[int]:
        return () if (loop := self._loop) is None else loop.supervisor.failed_units
