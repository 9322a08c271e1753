"""The loop of the Spark driver, which manages the units and their transactions while the streaming query runs.

This module does not use Spark itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Protocol

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import OffsetSpec

from broker.kafka.topics import TopicError
from joiner.runtime.kafka.clients import TIMEOUT_S
from joiner.runtime.runners.spark.spark_task import SparkTask
from joiner.runtime.runners.spark.units import Units
from joiner.runtime.runners.supervisor import Supervisor

if TYPE_CHECKING:
    from joiner.runtime.runners.runner import Parts
    from joiner.runtime.telemetry.unit_gauges import UnitStatus

_LOOK_S: Final = 0.05
_LAST_S: Final = 1.5
"""Time limit for writing the last snapshots. A shutdown must take only seconds, and Spark needs some of them."""
_CANCEL_S: Final = 0.5
"""Time limit for cancelling claims at shutdown."""


class RunningQuery(Protocol):
    """A streaming query that executes plans. Simulated runs replace it with one that does not need Spark."""

    def keep_running(self, wait: Callable[[float], object]) -> None:
        """Start the query if it is not running. Raises an error if the stage must fail."""
        ...


class Driver:
    """The loop of a stage; see `runner.Loop`."""

    def __init__(self, parts: Parts) -> None:
        """Create the loop. Raises KafkaException."""
        settings, claimant, services, telemetry, metrics, watch, standby = parts
        self._settings, self._admin, self._watch = settings, services.admin, watch
        self._clock = services.clock
        self._numbers = set(range(settings.topics.partitions))
        self.units = Units(settings, claimant.run, self._ends, metrics, services.clock)
        self.supervisor: Supervisor[SparkTask] = Supervisor(
            settings, claimant, self.units, services, metrics, in_group=False, standby=standby
        )
        telemetry.why_unready = self.why_unready

    def statuses(self) -> Mapping[int, UnitStatus]:
        """See `runner.Loop`."""
        return self.units.statuses()

    def run(self, query: RunningQuery, is_over: Callable[[], bool], wait: Callable[[float], object]) -> int:
        """Serve units until ``is_over()`` is true. Return the exit status. Raises the same errors as `Runner.run`."""
        try:
            while not is_over() and self.supervisor.failed_units < self._numbers:
                query.keep_running(wait)
                # Until Spark has completed a batch, other runners can serve the units sooner, so this one does not
                # claim any.
                if self.units.is_awake:
                    self.supervisor.poll(self._numbers, self.units.obstacles())
                else:
                    self.supervisor.collect_failures()
                    self.supervisor.report(self.units.obstacles())
                self.units.poll()
                self._watch.check()
                wait(_LOOK_S)
            self.supervisor.collect_failures()
            status = 1 if self.supervisor.failed_units else 0
            self.units.finish(self._clock.monotonic_s() + _LAST_S)
            self.supervisor.collect_failures()
        except TopicError:
            # The last messages may come from a recreated topic, so a state that includes them must not be saved.
            self.units.drop_all()
            raise
        return status

    def close(self) -> None:
        """Stop claiming and committing."""
        self.supervisor.cancel_claims(None, self._clock.monotonic_s() + _CANCEL_S)
        self.units.close()

    def why_unready(self) -> str:
        """Return why the stage is not ready, or an empty string if it serves every unit."""
        if not self.units.is_awake:
            return "Spark is starting"
        missing = self._numbers - self.units.tasks.keys()
        return f"units {sorted(missing)} are not served, see the log" if missing else ""

    def _ends(self) -> dict[int, dict[str, int]]:
        """Return the last stable offsets of the input topics, by unit and topic. Raises KafkaException."""
        places = [TopicPartition(topic, unit) for topic in self._settings.input_topics for unit in self._numbers]
        asked = self._admin.list_offsets(
            {place: OffsetSpec.latest() for place in places},  # type: ignore[no-untyped-call] # it has no types
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=TIMEOUT_S,
        )
        found: dict[int, dict[str, int]] = {}
        for place, answer in asked.items():
            found.setdefault(place.partition, {})[place.topic] = answer.result().offset
        return found
