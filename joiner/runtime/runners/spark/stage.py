"""Runs the joiner in Spark, as a job with one long-running task per joiner instance.

Spark supplies machines, isolation and restarts. Everything else works as with plain processes: the instances agree on
who serves which unit, and each reads from and writes to Kafka directly. So no records or results pass through the
driver, and losing an executor affects only the units that it served.

The tasks do not run as a barrier stage, because there, one failed task ends all of them, and none starts until there is
room for all.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext, TaskContext
from pyspark.errors import PySparkException

from broker.commandline import end_on_signals
from broker.kafka.topics import wait_for_topics
from joiner.runtime.control import Stop
from joiner.runtime.kafka.clients import KAFKA_LOG
from joiner.runtime.kafka.control_log import ControlLog
from joiner.runtime.kafka.topics import application_topics
from joiner.runtime.ownership.eligibility import Claimant
from joiner.runtime.runners.spark.instance import Outcome, StageOrder, run_instance
from joiner.runtime.runners.spark.session import make_session, scratch_folder
from joiner.runtime.settings import JoinerSettings

_LOOK_S: Final = 0.1

_REPEAT_S: Final = 0.5
"""How often the stop request is repeated, for instances that are just starting."""

_GRACE_S: Final = 12.0
"""The maximum time from the signal to the exit. An instance may need as long as a plain process to write its last
snapshots, and delivering the stop request and shutting down Spark also take time."""

_log = logging.getLogger(__name__)


class StageFailed(Exception):
    """Spark cannot run the instances."""


class SparkStage:
    """Serves the units of an application in Spark until it is stopped."""

    def __init__(self, settings: JoinerSettings, claimant: Claimant, *, standby: bool = False) -> None:
        """``standby``: whether to wait for units that belong to other sites, instead of treating them as an error."""
        self._settings = settings
        self._order = StageOrder(settings, claimant.run, _log_level(), claimant.force, standby)
        self._stop = threading.Event()

    def stop(self) -> None:
        """Ask the stage to stop. Safe to call from a signal handler."""
        self._stop.set()

    def run(self) -> int:
        """Run the instances until all have ended. Return the highest of their exit statuses.

        Return 0 if the stage is stopped before the topics exist, or if Spark fails while the stage is being stopped.

        Raises KafkaException or `TopicError` if no unit can be served, and `StageFailed` if Spark cannot run the
        instances.
        """
        settings = self._settings
        specs = application_topics(settings)
        if wait_for_topics(settings.kafka, specs, self._stop.is_set, _log, KAFKA_LOG) is None:
            return 0
        _log.info("starting Spark (%s)", settings.spark.master)
        # py4j logs the calls between Python and the JVM. The callers report failed calls.
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        with scratch_folder() as scratch:
            try:
                return self._run_in(scratch)
            except (PySparkException, Py4JError, ConnectionError) as error:
                if self._stop.is_set():
                    # The signal may have gone to the whole process group and stopped the JVM first.
                    return 0
                raise StageFailed(in_a_line(error)) from error

    def _run_in(self, scratch: Path) -> int:
        session = make_session(self._settings, scratch)
        # Install the signal handlers again, because Spark has replaced them with its own.
        end_on_signals(self.stop, _GRACE_S)
        try:
            job = _Job(session.sparkContext, self._order)
            self._wait_for(job)
            outcomes = job.result()
        finally:
            with contextlib.suppress(Py4JError, ConnectionError):  # the JVM is gone
                session.stop()
        for error in sorted({outcome.error for outcome in outcomes if outcome.error}):
            _log.error("%s", error)
        return max(outcome.status for outcome in outcomes)

    def _wait_for(self, job: _Job) -> None:
        """Wait until all instances have ended. Once a stop is requested, ask them to stop."""
        while not job.wait(_LOOK_S):
            if not self._stop.is_set():
                continue
            with contextlib.closing(ControlLog(self._settings)) as control:
                while True:
                    control.post(Stop(run=self._order.stage))
                    if job.wait(_REPEAT_S):
                        return


class _Job:
    """The Spark job that runs the instances. Waits for it in a thread, because Spark's calls cannot be interrupted."""

    def __init__(self, context: SparkContext, order: StageOrder) -> None:
        settings = order.settings
        self._instances = settings.spark.instances or min(settings.topics.partitions, context.defaultParallelism)
        _log.info("Spark is ready: starting %s instances", self._instances)
        self._context, self._order = context, order
        self._outcomes: list[Outcome] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="job", daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait for up to ``seconds``. Return whether the job has ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def result(self) -> list[Outcome]:
        """Return the outcomes of the instances of a job that has ended. If the job failed, raise its error."""
        if self._error is not None:
            raise self._error
        return self._outcomes

    def _run(self) -> None:
        order = self._order

        def task(numbers: Iterable[int]) -> Iterator[Outcome]:
            running = TaskContext.get()
            attempt = running.attemptNumber() if running is not None else 0
            for number in numbers:
                yield run_instance(order, number, attempt)

        try:
            numbers = self._context.parallelize(range(self._instances), self._instances)
            self._outcomes = numbers.mapPartitions(task).collect()
        except BaseException as error:  # noqa: BLE001 - re-raised by the waiting thread
            self._error = error


def in_a_line(error: BaseException) -> str:
    """Return the first line of a Spark error, leaving out the JVM stack trace."""
    if isinstance(error, Py4JJavaError):
        cause: Any = error.java_exception
        return (str(cause.getMessage() or cause.toString()).splitlines() or [type(error).__name__])[0]
    if isinstance(error, ConnectionError) or type(error) is Py4JError:
        return "Spark's JVM has exited: see its last output above, then restart the stage"
    return (str(error).splitlines() or [type(error).__name__])[0]


def _log_level() -> str:
    return logging.getLevelName(logging.getLogger().getEffectiveLevel()).lower()
