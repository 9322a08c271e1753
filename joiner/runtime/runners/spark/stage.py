"""Runs the join as a stage in Spark. Like the plain process, it reads from Kafka and writes to Kafka exactly once.

Structured Streaming decides when and where a unit is executed. The driver owns the units, plans the offset range of
each batch, and writes the transactions. Runners of every kind continue from the units' checkpoints in Kafka, so each
start of the stage uses a new Spark checkpoint folder. The states that Spark stores are discarded when the query ends.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from joiner.runtime.runners.runner import Parts, Runner
from joiner.runtime.runners.spark.driver import Driver
from joiner.runtime.runners.spark.query import Query, StageFailed, in_a_line
from joiner.runtime.runners.spark.session import ForeignFolder, make_session, scratch_folder
from joiner.runtime.shutdown import end_on_signals

_log = logging.getLogger(__name__)


class SparkStage(Runner[Driver]):
    """Serves units in a Spark stage. `run` also raises `StageFailed`."""

    def _make(self, parts: Parts) -> Driver:
        return Driver(parts)

    def _work(self, loop: Driver) -> int:
        with scratch_folder() as scratch:
            return self._run_in(scratch, loop)

    def _run_in(self, scratch: Path, driver: Driver) -> int:
        _log.info("starting Spark (%s)", self._settings.spark.master)
        # py4j logs the calls between Python and the JVM. Failures of calls are reported by the callers.
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        try:
            session = make_session(self._settings, scratch)
            # Install the signal handlers again, because Spark has replaced them with its own.
            end_on_signals(self._stop.set)
            try:
                query = Query(self._settings, session, scratch, driver.units, self._clock)
                try:
                    return driver.run(query, self._is_over, self._wait)
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
                # The signal may have gone to the whole process group and stopped the JVM first.
                return 0
            raise StageFailed(in_a_line(error)) from error
