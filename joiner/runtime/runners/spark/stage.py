"""The join as a stage in Spark: the same application as the plain process runs, Kafka to Kafka, exactly once.

Structured Streaming decides when and where a unit is worked on; this driver decides which range comes next, owns the
units, and writes their transactions. Each start takes a new checkpoint folder: the units' progress in Kafka says where
to go on, for every kind of runner, and Spark's copy of the states lives no longer than the query.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import OffsetSpec
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from broker.kafka.topics import TopicError, wait_for_topics
from broker.metrics import TelemetryServer
from joiner.runtime.kafka.checkpoint_log import read_state
from joiner.runtime.kafka.clients import KAFKA_LOG, TIMEOUT_S, make_admin
from joiner.runtime.kafka.readers import Readers
from joiner.runtime.kafka.snapshot_log import SnapshotPlace
from joiner.runtime.kafka.topics import TopicWatch, application_topics
from joiner.runtime.kafka.transaction import UnitTransactions, unsubscribed_consumer
from joiner.runtime.migration.handover import Handover, Host
from joiner.runtime.migration.protocol import Release
from joiner.runtime.model import Checkpoint
from joiner.runtime.ownership.assignment import AssignmentManager
from joiner.runtime.ownership.claim import Claimer
from joiner.runtime.ownership.concurrent_claims import ConcurrentClaims
from joiner.runtime.ownership.eligibility import Claimant
from joiner.runtime.ownership.restore import newest_offsets
from joiner.runtime.ownership.unit_reports import UnitReports
from joiner.runtime.ownership.warmup import Warm
from joiner.runtime.runners.spark.plans import decode_outcome
from joiner.runtime.runners.spark.session import ForeignFolder, StageFolder, grouping_keys, make_session, scratch_folder
from joiner.runtime.runners.spark.source import PlanServer, read_plans
from joiner.runtime.runners.spark.units import Leaving, SparkTask, Units
from joiner.runtime.runners.spark.worker import OUTPUT_SCHEMA, UnitProcessor
from joiner.runtime.settings import JoinerSettings
from joiner.runtime.shutdown import end_on_signals
from joiner.runtime.telemetry.metrics import JoinerMetrics, UnitStatus

_LOOK_S: Final = 0.05
_LAST_S: Final = 1.5
"""For the last snapshots: ending must take seconds, of which Spark needs some."""
_CALL_OFF_S: Final = 0.5
"""For claims that are under way at the end."""
_RETRY_WAIT_S: Final = 1.0
_QUERY_FAILURES_MAX: Final = 5
"""Queries that fail in a row without a batch between."""

_log = logging.getLogger(__name__)


class StageFailed(Exception):
    """Spark cannot run the query."""


class SparkStage:
    """Serves the units of an application in Spark until it is stopped."""

    def __init__(self, settings: JoinerSettings, claimant: Claimant, *, standby: bool = False) -> None:
        """``standby``: units of other placements are waited for, rather than an error."""
        self._settings = settings
        self._claimant = claimant
        self._numbers = set(range(settings.topics.partitions))
        self._stop = threading.Event()
        self._claims = 0
        self._queries = self._failures = 0
        self._teller = TelemetryServer(settings.metrics)
        self._meters = JoinerMetrics(
            settings, claimant, self._teller, self._unit_statuses, lambda: self._wanted.failed_units
        )
        self._wanted = AssignmentManager(settings, claimant, in_group=False, fenced=self._meters.fenced)
        self._units = Units(settings, self._ends, self._wanted.give_up, self._meters)
        self._takeovers = ConcurrentClaims(self._take, self._adopt)
        host = Host(
            owned=self._units.served,
            connect=lambda _number: None,
            take=self._takeovers.begin,
            taking=lambda: self._takeovers.busy,
            release=self._release,
            give_up=self._wanted.give_up,
            schedule_claim=self._wanted.schedule_claim,
            why_failed=lambda number: self._wanted.failed.get(number, ""),
        )
        self._notices = UnitReports(claimant)
        # Force is for the start; moves need none.
        self._moves = Handover(settings, replace(claimant, take=False), host, standby=standby)

    def stop(self) -> None:
        """Ask the stage to end; safe to call from a signal handler."""
        self._stop.set()

    def run(self) -> int:
        """Serve until stopped; returns the exit status: 1 if a unit could not go on.

        Raises KafkaException, `broker.kafka.topics.TopicError` or `StageFailed` where nothing can be served, and
        SettingsError where metrics cannot be told.
        """
        with self._teller:
            return self._run()

    def _run(self) -> int:
        specs = application_topics(self._settings)
        facts = wait_for_topics(self._settings.kafka, specs, self._is_over, _log, KAFKA_LOG)
        if facts is None:
            return 0
        inputs = self._settings.input_topics
        self._admin = make_admin(self._settings.kafka)
        watch = TopicWatch(self._admin, {name: found for name, found in facts.items() if name in inputs})
        group_metadata_consumer = unsubscribed_consumer(self._settings)
        self._pool = ThreadPoolExecutor(len(self._numbers), "unit")
        self._wanted.start(Claimer(self._settings, self._admin, group_metadata_consumer), self._moves.found_elsewhere)
        self._takeovers.start(self._pool)
        self._moves.start(self._pool, self._admin, group_metadata_consumer)
        self._notices.start(self._pool, self._moves.say)
        try:
            with scratch_folder() as scratch:
                return self._run_in(scratch, watch)
        except (PySparkException, Py4JError, ConnectionError) as error:
            if self._stop.is_set():
                # Whoever stops everything at once may have stopped the JVM first.
                return 0
            raise StageFailed(_in_a_line(error)) from error
        finally:
            self._takeovers.call_off(self._takeovers.busy, time.monotonic() + _CALL_OFF_S)
            self._moves.close()
            self._units.close()
            self._pool.shutdown(wait=False)

    def _run_in(self, scratch: Path, watch: TopicWatch) -> int:
        self._teller.why_unready = self._why_unready
        _log.info("starting Spark (%s)", self._settings.spark.master)
        # It tells of every call between Python and the JVM; what fails there is told by whoever has called.
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        session = make_session(self._settings, scratch)
        # Spark has set its own.
        end_on_signals(self._stop.set)
        checkpoint = self._settings.spark.checkpoint
        if checkpoint is None and not str(session.sparkContext.master).startswith("local"):
            raise StageFailed("spark.checkpoint is needed on a cluster: name a folder or URL that all workers reach")
        self._checkpoint = f"{checkpoint or scratch / 'checkpoint'}/{self._settings.application.name}"
        self._folder = StageFolder(session, self._checkpoint)
        server = PlanServer(scratch, self._units.next_turn)
        query: StreamingQuery | None = None
        try:
            self._folder.begin()
            slots = grouping_keys(session, len(self._numbers))
            while not self._is_over() and self._wanted.failed_units < self._numbers:
                if query is None:
                    query = self._start_query(session, server, slots)
                # Before Spark has run a batch, others serve the units better.
                if self._units.is_awake:
                    self._moves.poll(self._numbers)
                    self._take_units()
                self._units.tend()
                self._notices.poll(self._units.obstacles() | self._wanted.obstacles())
                watch.check()
                if not query.isActive:
                    self._note_failure(query)
                    query = None
                self._stop.wait(_LOOK_S)
            status = 1 if self._wanted.failed_units else 0
            self._units.finish(time.monotonic() + _LAST_S)
        except ForeignFolder as error:
            raise StageFailed(str(error)) from error
        except TopicError:
            # What was read last may be of another topic: it must not be saved as the state.
            self._units.drop_all()
            raise
        finally:
            server.close()
            with contextlib.suppress(Py4JError, ConnectionError):  # the JVM is gone
                if query is not None and query.isActive:
                    query.stop()
                self._folder.remove()
                session.stop()
        return status

    def _is_over(self) -> bool:
        """Asked whenever the loop turns."""
        self._teller.heartbeat()
        return self._stop.is_set()

    def _why_unready(self) -> str:
        if not self._units.is_awake:
            return "Spark is starting"
        missing = self._numbers - self._units.served.keys()
        return f"units {sorted(missing)} are not served, see the log" if missing else ""

    def _unit_statuses(self) -> dict[int, UnitStatus]:
        return self._units.statuses()

    # The query

    def _start_query(self, session: SparkSession, server: PlanServer, slots: list[int]) -> StreamingQuery:
        self._units.begin_anew()
        if self._queries:
            self._folder.remove_part(str(self._queries))
        self._queries += 1
        folder = f"{self._checkpoint}/{self._queries}"
        plans: DataFrame = read_plans(session, server, slots)
        outcomes = plans.groupBy("slot").transformWithStateInPandas(
            statefulProcessor=UnitProcessor(self._settings),
            outputStructType=OUTPUT_SCHEMA,
            outputMode="append",
            timeMode="none",
        )
        writer = outcomes.writeStream.foreachBatch(self._take_batch).option("checkpointLocation", folder)
        return writer.outputMode("append").start()

    def _take_batch(self, outcomes: DataFrame, batch: int) -> None:
        began_s = time.monotonic()
        found = [decode_outcome(memoryview(data.as_buffer())) for data in outcomes.toArrow().column("outcome")]
        joined_s = time.monotonic()
        if not self._units.is_awake:
            _log.info("Spark is ready")
        for outcome in found:
            self._units.take(outcome)
        self._failures = 0
        _log.debug(
            "batch %s: %s records in %.2f s, workers %s, handed in after %.2f s more",
            batch,
            sum(outcome.records for outcome in found),
            joined_s - began_s,
            {
                outcome.plan.unit: {what: round(spent_s, 3) for what, spent_s in outcome.spent_s.items()}
                for outcome in found
            },
            time.monotonic() - joined_s,
        )

    def _note_failure(self, query: StreamingQuery) -> None:
        self._failures += 1
        error: Any = query.exception()
        reason = _in_a_line(error) if isinstance(error, StreamingQueryException) else "it was stopped"
        if self._failures >= _QUERY_FAILURES_MAX:
            raise StageFailed(f"the query in Spark failed {self._failures} times in a row, at last with: {reason}")
        _log.warning("the query in Spark has ended (%s); starting it anew from what is committed", reason)
        self._stop.wait(_RETRY_WAIT_S)

    def _ends(self) -> dict[int, dict[str, int]]:
        """The stable ends of the input topics."""
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

    # Units that come and go

    def _take_units(self) -> None:
        """Serve what was taken, and begin to take what is due; nothing here waits."""
        self._takeovers.poll(self._numbers)
        self._wanted.plan_retries(self._numbers)
        busy = self._units.served.keys() | self._takeovers.busy | self._moves.busy
        for number in self._wanted.due(self._numbers, busy, self._moves.claimed_by_others):
            self._takeovers.begin(number)

    def _take(
        self, number: int, claimant: Claimant | None, warm: Warm | None, is_over: Callable[[], bool]
    ) -> SparkTask | None:
        """Claim a unit; None: not now, it stays waiting, or it was set aside or is waited for."""
        began_s = time.monotonic()
        with closing(warm.readers if warm else Readers(self._settings)) as readers:
            readers.is_over = is_over
            return self._wanted.take(number, claimant, warm, readers, partial(self._serving, began_s))

    def _serving(
        self, began_s: float, transactions: UnitTransactions, checkpoint: Checkpoint, readers: Readers
    ) -> SparkTask:
        """A unit that was claimed. Its state is built by the worker that gets it first."""
        settings = self._settings
        state = readers.state
        if state is None:
            state = read_state(settings.kafka, settings.application.name, settings.state_topic, checkpoint.unit)
        self._meters.taken(checkpoint, time.monotonic() - began_s)
        return SparkTask(0, transactions, checkpoint, SnapshotPlace.after(state), newest_offsets(checkpoint, state))

    def _adopt(self, number: int, served: SparkTask) -> None:
        self._wanted.taken(number)
        self._claims += 1
        served.claim = self._claims
        self._units.add(number, served)
        self._moves.adopted(number)

    def _release(self, action: Release, then: Callable[[], None]) -> Future[None] | None:
        leaving = Leaving(action.way.run(), action.to, then)
        return leaving.written if self._units.release(action.unit, leaving) else None


def _in_a_line(error: BaseException) -> str:
    """What Spark says, without the Java that it came through."""
    if isinstance(error, ConnectionError) or type(error) is Py4JError:
        return "Spark's JVM is gone: see its last words above, and start the stage again"
    return (str(error).splitlines() or [type(error).__name__])[0]
