"""The join as a stage in Spark: the same application as the plain process runs, Kafka to Kafka, exactly once.

Structured Streaming decides when and where a unit is worked on; this driver decides which range comes next, owns the
units, and writes their transactions. Each start takes a new checkpoint folder: the units' progress in Kafka says where
to go on, for every kind of runner, and Spark's copy of the states lives no longer than the query.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec
from py4j.protocol import Py4JError
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from broker.topics import TopicError, wait_for_topics
from joiner.run.clients import KAFKA_LOG, TIMEOUT_S, make_admin
from joiner.run.continuity import Claimant
from joiner.run.ending import end_on_signals
from joiner.run.progress import RESET_RUN, Progress
from joiner.run.recovery import application_topics, claim
from joiner.run.settings import JoinerSettings
from joiner.run.state_log import read_progress, read_state
from joiner.run.topic_watch import TopicWatch
from joiner.run.transaction import Aborted, Fenced, SnapshotPlace, UnitTransactions, unsubscribed_consumer
from joiner.run.unit import UnitStopped
from joiner.spark.plans import decode_outcome
from joiner.spark.session import grouping_keys, make_session
from joiner.spark.source import PlanServer, read_plans
from joiner.spark.units import Served, Units
from joiner.spark.worker import OUTPUT_SCHEMA, UnitProcessor

_CLAIM_ATTEMPTS: Final = 5
_FENCED_WAIT_S: Final = 1.0
_RETRY_WAIT_S: Final = 1.0
_LOOK_S: Final = 0.02
_LAST_S: Final = 3.0
"""For the last snapshots: ending must take seconds."""
_QUERY_FAILURES_MAX: Final = 5
"""Queries that fail in a row without a batch between."""

_log = logging.getLogger(__name__)


class StageFailed(Exception):
    """Spark cannot run the query."""


class SparkStage:
    """Serves the units of an application in Spark until it is stopped."""

    def __init__(self, settings: JoinerSettings, claimant: Claimant, *, standby: bool = False) -> None:
        """``standby``: units of other placements are waited for, rather than an error."""
        self._is_standby = standby
        self._settings = settings
        self._claimant = claimant
        self._stop = threading.Event()
        self._claims = 0
        # Units to be taken (again) not before a time, with whether we were fenced; and those that cannot go on.
        self._waiting: dict[int, tuple[float, bool]] = {}
        self._aside: dict[int, str] = {}
        self._failures = 0
        self._units = Units(settings, self._ends, self._give_up)

    def stop(self) -> None:
        """Ask the stage to end; safe to call from a signal handler."""
        self._stop.set()

    def run(self) -> int:
        """Serve until stopped; returns the exit status: 1 if a unit could not go on.

        Raises KafkaException, `broker.topics.TopicError` or `StageFailed` where nothing can be served.
        """
        specs = application_topics(self._settings)
        facts = wait_for_topics(self._settings.kafka, specs, self._stop.is_set, _log, KAFKA_LOG)
        if facts is None:
            return 0
        inputs = self._settings.input_topics
        self._admin = make_admin(self._settings.kafka)
        self._lender = unsubscribed_consumer(self._settings)
        watch = TopicWatch(self._admin, {name: found for name, found in facts.items() if name in inputs})
        scratch = Path(tempfile.mkdtemp(prefix="joiner-spark-"))
        try:
            return self._run_in(scratch, watch)
        finally:
            self._units.close()
            shutil.rmtree(scratch, ignore_errors=True)

    def _run_in(self, scratch: Path, watch: TopicWatch) -> int:
        _log.info("starting Spark (%s)", self._settings.spark.master)
        # It tells of every call between Python and the JVM; what fails there is told by whoever has called.
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        session = make_session(self._settings, scratch)
        # Spark has set its own.
        end_on_signals(self._stop.set)
        server = PlanServer(scratch, self._units.next_turn)
        slots = grouping_keys(session, self._settings.topics.partitions)
        self._pool = ThreadPoolExecutor(self._settings.topics.partitions, "claim")
        self._waiting = dict.fromkeys(range(self._settings.topics.partitions), (0.0, False))
        query: StreamingQuery | None = None
        try:
            while not self._stop.is_set() and len(self._aside) < self._settings.topics.partitions:
                if query is None:
                    query = self._start_query(session, server, slots, scratch)
                self._take_units()
                self._units.tend()
                watch.check()
                if not query.isActive:
                    self._note_failure(query)
                    query = None
                self._stop.wait(_LOOK_S)
            status = 1 if self._aside else 0
            self._units.finish(time.monotonic() + _LAST_S)
        except TopicError:
            # What was read last may be of another topic: it must not be saved as the state.
            for number in self._units.numbers():
                self._units.drop(number)
            raise
        except (Py4JError, OSError) as error:
            raise StageFailed(
                f"Spark's JVM is gone ({error}): see its last words above, and start the stage again"
            ) from error
        finally:
            server.close()
            with contextlib.suppress(Py4JError, OSError):  # it is gone
                if query is not None and query.isActive:
                    query.stop()
                session.stop()
        return status

    # The query

    def _start_query(
        self, session: SparkSession, server: PlanServer, slots: list[int], scratch: Path
    ) -> StreamingQuery:
        self._units.begin_anew()
        folder = f"{self._settings.spark.checkpoint or scratch / 'checkpoint'}/{self._claimant.run}-{self._failures}"
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
        for outcome in found:
            self._units.take(outcome)
        self._failures = 0
        _log.debug(
            "batch %s: %s records in %.2f s, workers %s, handed in after %.2f s more",
            batch,
            sum(outcome.records for outcome in found),
            joined_s - began_s,
            [{what: round(spent_s, 3) for what, spent_s in outcome.spent_s.items()} for outcome in found],
            time.monotonic() - joined_s,
        )

    def _note_failure(self, query: StreamingQuery) -> None:
        self._failures += 1
        error: Any = query.exception()
        reason = str(error).splitlines()[0] if isinstance(error, StreamingQueryException) else "it was stopped"
        if self._failures >= _QUERY_FAILURES_MAX:
            raise StageFailed(f"the query in Spark failed {self._failures} times in a row, at last with: {reason}")
        _log.warning("the query in Spark has ended (%s); starting it anew from what is committed", reason)
        self._stop.wait(_RETRY_WAIT_S)

    def _ends(self) -> dict[int, dict[str, int]]:
        """The stable ends of the input topics."""
        units = range(self._settings.topics.partitions)
        places = [TopicPartition(topic, unit) for topic in self._settings.input_topics for unit in units]
        asked = self._admin.list_offsets(
            {place: OffsetSpec.latest() for place in places},  # type: ignore[no-untyped-call] # it has no types
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=TIMEOUT_S,
        )
        found: dict[int, dict[str, int]] = {}
        for place, answer in asked.items():
            found.setdefault(place.partition, {})[place.topic] = answer.result().offset
        return found

    # Taking units

    def _take_units(self) -> None:
        now_s = time.monotonic()
        due = sorted(number for number, (not_before_s, _) in self._waiting.items() if not_before_s <= now_s)
        for number, served in zip(due, self._pool.map(self._take, due), strict=True):
            if served is not None:
                del self._waiting[number]
                self._units.add(number, served)
                _log.info("unit %s: taken", number)

    def _take(self, number: int) -> Served | None:
        """Claim a unit; None: not now, it stays waiting or has been set aside."""
        was_fenced = self._waiting[number][1]
        try:
            if was_fenced and not self._still_ours(number):
                return None
            transactions, progress = self._claim(number)
            state = read_state(
                self._settings.kafka, self._settings.application.name, self._settings.state_topic, number
            )
            newest = state.manifests()[:1]
            self._claims += 1
            return Served(
                self._claims,
                transactions,
                progress,
                SnapshotPlace.after(state),
                dict(newest[0].offsets if newest else progress.start),
            )
        except UnitStopped as stopped:
            self._set_aside(number, str(stopped))
        except Fenced:
            self._set_aside(
                number, f"unit {number}: claimed by others {_CLAIM_ATTEMPTS} times; another runner wants it too"
            )
        except (Aborted, KafkaException) as error:
            _log.warning("unit %s: cannot be taken now, trying again: %s", number, _text(error))
            self._waiting[number] = (time.monotonic() + _RETRY_WAIT_S, was_fenced)
        return None

    def _claim(self, number: int) -> tuple[UnitTransactions, Progress]:
        for attempt in range(_CLAIM_ATTEMPTS):
            transactions = UnitTransactions(self._settings, number, self._lender)
            try:
                return transactions, claim(self._settings, number, self._admin, transactions, self._claimant)
            except Fenced:
                _log.info("unit %s: fenced before the claim was written (attempt %s)", number, attempt + 1)
                self._stop.wait(_RETRY_WAIT_S * attempt / 2)
        raise Fenced

    def _still_ours(self, number: int) -> bool:
        """After being fenced: whether the progress record still names this run. If not, the unit is lost."""
        progress = read_progress(
            self._settings.kafka, self._settings.application.name, self._settings.state_topic, number
        )
        if progress is None or progress.run == self._claimant.run:
            _log.info("unit %s: the one that fenced us never claimed it; taking it back", number)
            return True
        nobody = " by a reset" if progress.run == RESET_RUN else ""
        self._set_aside(number, f"unit {number}: now owned by {progress.owner} (run {progress.run}){nobody}; given up")
        return False

    def _give_up(self, number: int, error: Exception) -> None:
        """A batch or its transaction failed: begin the unit anew at its last commit where that may help."""
        if isinstance(error, Aborted | KafkaException):
            _log.warning("unit %s: going back to its last commit: %s", number, _text(error))
            self._waiting[number] = (time.monotonic() + _RETRY_WAIT_S, False)
        elif isinstance(error, Fenced):
            _log.warning("unit %s: somebody else may have it; looking who", number)
            self._waiting[number] = (time.monotonic() + _FENCED_WAIT_S, True)
        elif isinstance(error, UnitStopped):
            self._set_aside(number, str(error))
        else:
            _log.debug("unit %s", number, exc_info=error)
            self._set_aside(number, f"unit {number}: a batch failed with {type(error).__name__}: {_text(error)}")

    def _set_aside(self, number: int, why: str) -> None:
        _log.error("%s", why)
        self._aside[number] = why
        self._waiting.pop(number, None)


def _text(error: BaseException) -> str:
    if isinstance(error, KafkaException):
        return str(error.args[0].str())
    return str(error) or type(error).__name__
