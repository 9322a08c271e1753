"""The join as a stage in Spark: the same application as the plain process runs, Kafka to Kafka, exactly once.

Structured Streaming decides when and where a unit is worked on; the driver decides which range comes next, owns the
units, and writes their transactions. Each start takes a new checkpoint folder: the units' checkpoints in Kafka say
where to go on, for every kind of runner, and Spark's copy of the states lives no longer than the query.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Collection, Mapping
from contextlib import closing
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from broker.kafka.topics import wait_for_topics
from broker.metrics import TelemetryServer
from joiner.runtime.kafka.clients import KAFKA_LOG
from joiner.runtime.kafka.topics import application_topics
from joiner.runtime.ownership.eligibility import Claimant
from joiner.runtime.ownership.services import open_services
from joiner.runtime.runners.spark.driver import Driver
from joiner.runtime.runners.spark.query import Query, StageFailed, in_a_line
from joiner.runtime.runners.spark.session import ForeignFolder, make_session, scratch_folder
from joiner.runtime.settings import JoinerSettings
from joiner.runtime.shutdown import end_on_signals
from joiner.runtime.telemetry.metrics import JoinerMetrics, UnitStatus

_log = logging.getLogger(__name__)


class SparkStage:
    """Serves the units of an application in Spark until it is stopped."""

    def __init__(self, settings: JoinerSettings, claimant: Claimant, *, standby: bool = False) -> None:
        """``standby``: units of other placements are waited for, rather than an error."""
        self._settings, self._claimant, self._standby = settings, claimant, standby
        self._stop = threading.Event()
        self._telemetry = TelemetryServer(settings.metrics)
        self._driver: Driver | None = None
        """None until the topics are there."""
        self._metrics = JoinerMetrics(settings, claimant, self._telemetry, self._statuses, self._failed_units)

    def stop(self) -> None:
        """Ask the stage to end; safe to call from a signal handler."""
        self._stop.set()

    def run(self) -> int:
        """Serve until stopped; returns the exit status: 1 if a unit could not go on.

        Raises KafkaException, `TopicError` or `StageFailed` where nothing can be served, SettingsError of metrics.
        """
        with self._telemetry:
            specs = application_topics(self._settings)
            facts = wait_for_topics(self._settings.kafka, specs, self._is_over, _log, KAFKA_LOG)
            if facts is None:
                return 0
            with open_services(self._settings) as services:
                driver = Driver(
                    self._settings,
                    self._claimant,
                    services,
                    self._telemetry,
                    self._metrics,
                    facts,
                    standby=self._standby,
                )
                self._driver = driver
                try:
                    with closing(driver), scratch_folder() as scratch:
                        return self._run_in(scratch, driver)
                finally:
                    self._driver = None

    def _run_in(self, scratch: Path, driver: Driver) -> int:
        _log.info("starting Spark (%s)", self._settings.spark.master)
        # It tells of every call between Python and the JVM; what fails there is told by whoever has called.
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        try:
            session = make_session(self._settings, scratch)
            # Spark has set its own.
            end_on_signals(self._stop.set)
            try:
                query = Query(self._settings, session, scratch, driver.units)
                try:
                    return driver.run(query, self._is_over, self._stop.wait)
                finally:
                    with contextlib.suppress(Py4JError, ConnectionError):  # the JVM is gone
                        query.close()
            finally:
                with contextlib.suppress(Py4JError, ConnectionError):
                    session.stop()
        except ForeignFolder as error:
            raise StageFailed(str(error)) from error
        except (PySparkException, Py4JError, ConnectionError) as error:
            if self._stop.is_set():
                # Whoever stops everything at once may have stopped the JVM first.
                return 0
            raise StageFailed(in_a_line(error)) from error

    def _statuses(self) -> Mapping[int, UnitStatus]:
        return {} if (driver := self._driver) is None else driver.units.statuses()

    def _failed_units(self) -> Collection[int]:
        return () if (driver := self._driver) is None else driver.supervisor.failed_units

    def _is_over(self) -> bool:
        """Asked whenever the loop turns."""
        self._telemetry.heartbeat()
        return self._stop.is_set()
