"""Runs the streaming query that executes plans: starts it, watches it, and restarts it if it ends."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from joiner.runtime.clock import Clock
from joiner.runtime.runners.spark.plans import decode_outcome
from joiner.runtime.runners.spark.session import StageFolder, grouping_keys
from joiner.runtime.runners.spark.source import PlanServer, read_plans
from joiner.runtime.runners.spark.units import Units
from joiner.runtime.runners.spark.worker import OUTPUT_SCHEMA, UnitProcessor
from joiner.runtime.settings import JoinerSettings

_RETRY_WAIT_S: Final = 1.0
_FAILURES_MAX: Final = 5
"""How many queries may fail in a row without completing a batch before the stage fails."""

_log = logging.getLogger(__name__)


class StageFailed(Exception):
    """Spark cannot run the query."""


class Query:
    """See `driver.RunningQuery`."""

    def __init__(
        self, settings: JoinerSettings, session: SparkSession, scratch: Path, units: Units, clock: Clock
    ) -> None:
        """Prepare the query without starting it. ``scratch``: a temporary folder that exists as long as the stage.

        Raises `StageFailed` if ``spark.checkpoint`` is missing on a cluster, and `session.ForeignFolder`.
        """
        self._settings, self._session, self._units, self._clock = settings, session, units, clock
        checkpoint = settings.spark.checkpoint
        if checkpoint is None and not str(session.sparkContext.master).startswith("local"):
            raise StageFailed("on a cluster, spark.checkpoint must be a folder or URL that all workers can access")
        self._checkpoint = f"{checkpoint or scratch / 'checkpoint'}/{settings.application.name}"
        self._queries = self._failures = 0
        self._running: StreamingQuery | None = None
        self._folder = StageFolder(session, self._checkpoint)
        self._server = PlanServer(scratch, units.next_turn, clock)
        try:
            self._folder.begin()
            self._slots = grouping_keys(session, settings.topics.partitions)
        except BaseException:
            self._server.close()
            with contextlib.suppress(Py4JError, ConnectionError):  # the JVM is gone
                self._folder.remove()
            raise

    def keep_running(self, wait: Callable[[float], object]) -> None:
        """See `driver.RunningQuery`. Raises `StageFailed` after `_FAILURES_MAX` failures in a row."""
        if self._running is not None and not self._running.isActive:
            failed, self._running = self._running, None
            self._note_failure(failed)
            # The next call starts a new query. This one does not, because a stop may have been requested in the
            # meantime.
            wait(_RETRY_WAIT_S)
        elif self._running is None:
            self._running = self._start()

    def close(self) -> None:
        """Stop the query and remove its folder. Raises Py4JError or ConnectionError if the JVM has exited."""
        self._server.close()
        if self._running is not None and self._running.isActive:
            self._running.stop()
        self._folder.remove()

    def _start(self) -> StreamingQuery:
        self._units.query_started()
        if self._queries:
            self._folder.remove_part(str(self._queries))
        self._queries += 1
        plans: DataFrame = read_plans(self._session, self._server, self._slots)
        outcomes = plans.groupBy("slot").transformWithStateInPandas(
            statefulProcessor=UnitProcessor(self._settings),
            outputStructType=OUTPUT_SCHEMA,
            outputMode="append",
            timeMode="none",
        )
        folder = f"{self._checkpoint}/{self._queries}"
        writer = outcomes.writeStream.foreachBatch(self._take_batch).option("checkpointLocation", folder)
        return writer.outputMode("append").start()

    def _take_batch(self, outcomes: DataFrame, batch: int) -> None:
        began_s = self._clock.monotonic_s()
        found = [decode_outcome(memoryview(data.as_buffer())) for data in outcomes.toArrow().column("outcome")]
        joined_s = self._clock.monotonic_s()
        if not self._units.is_awake:
            _log.info("Spark is ready")
        for outcome in found:
            self._units.accept(outcome)
        self._failures = 0
        _log.debug(
            "batch %s: %s records joined in %.2f s (workers: %s), commits submitted in %.2f s",
            batch,
            sum(outcome.records for outcome in found),
            joined_s - began_s,
            {
                outcome.plan.unit: {what: round(spent_s, 3) for what, spent_s in outcome.spent_s.items()}
                for outcome in found
            },
            self._clock.monotonic_s() - joined_s,
        )

    def _note_failure(self, query: StreamingQuery) -> None:
        self._failures += 1
        error: Any = query.exception()
        reason = in_a_line(error) if isinstance(error, StreamingQueryException) else "it was stopped"
        if self._failures >= _FAILURES_MAX:
            raise StageFailed(f"the Spark query failed {self._failures} times in a row; last error: {reason}")
        _log.warning("the Spark query has ended (%s); restarting it from the last commits", reason)


def in_a_line(error: BaseException) -> str:
    """Return the first line of a Spark error, leaving out the JVM stack trace."""
    if isinstance(error, ConnectionError) or type(error) is Py4JError:
        return "Spark's JVM has exited: see its last output above, then restart the stage"
    return (str(error).splitlines() or [type(error).__name__])[0]
