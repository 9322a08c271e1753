"""The streaming query that executes plans. It is started, watched, and restarted if it ends."""

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
"""How many queries in a row may fail without completing a batch."""

_log = logging.getLogger(__name__)


class StageFailed(Exception):
    """Spark cannot run the query."""


class Query:
    """See `driver.RunningQuery`."""

    def __init__(
        self, settings: JoinerSettings, session: SparkSession, scratch: Path, units: Units, clock: Clock
    ) -> None:
        """``scratch``: a folder with the lifetime of the stage. Raises `StageFailed` and `session.ForeignFolder`."""
        self._settings, self._session, self._units, self._clock = settings, session, units, clock
        checkpoint = settings.spark.checkpoint
        if checkpoint is None and not str(session.sparkContext.master).startswith("local"):
            raise StageFailed("spark.checkpoint is needed on a cluster: name a folder or URL that all workers reach")
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
            # Started by the next call, if any, because a stop may have been requested in the meantime.
            wait(_RETRY_WAIT_S)
        elif self._running is None:
            self._running = self._start()

    def close(self) -> None:
        """Stop the query and remove its folder. Raises Py4JError or ConnectionError if the JVM is gone."""
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
            "batch %s: %s records in %.2f s, workers %s, submitted after %.2f s more",
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
            raise StageFailed(f"the query in Spark failed {self._failures} times in a row, finally with: {reason}")
        _log.warning("the query in Spark has ended (%s); restarting it from the last commits", reason)


def in_a_line(error: BaseException) -> str:
    """Return the first line of a Spark error, without the JVM stack trace."""
    if isinstance(error, ConnectionError) or type(error) is Py4JError:
        return "Spark's JVM is gone: see its last output above, and start the stage again"
    return (str(error).splitlines() or [type(error).__name__])[0]
