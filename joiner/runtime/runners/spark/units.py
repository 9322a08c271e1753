"""The running units of a Spark driver, each with its plan, its outcome, and its in-flight transaction.

Spark runs one batch at a time. For each batch, it requests plans (`Units.next_turn`) and returns their outcomes
(`Units.accept`). The transactions are written while Spark runs the next batch. Whether Spark commits a batch does not
matter, because only the checkpoint in Kafka counts. A failed transaction does not stop the query: its unit is claimed
again, under a new claim number, and outcomes with the old number are discarded.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from random import Random
from typing import Final

import msgspec
from confluent_kafka import KafkaException

from joiner.runtime.clock import Clock
from joiner.runtime.kafka.checkpoint_log import read_state
from joiner.runtime.kafka.snapshot_log import SnapshotPlace
from joiner.runtime.kafka.transaction import Aborted, OwnershipInDoubt, UnitTransactions, goes_apart
from joiner.runtime.migration.protocol import Release
from joiner.runtime.model import Checkpoint, UnitStopped
from joiner.runtime.ownership.restore import newest_offsets, unless_fenced
from joiner.runtime.ownership.retry_policy import Obstacle, RetryTracker, cause_of
from joiner.runtime.runners.commit import Commit, write_commit
from joiner.runtime.runners.spark.plans import Outcome, Plan, Turn, share_out, unpack
from joiner.runtime.runners.spark.spark_task import Leaving, SparkTask
from joiner.runtime.runners.supervisor import Claimed, Failure
from joiner.runtime.settings import JoinerSettings
from joiner.runtime.task.function_failures import FailureLog
from joiner.runtime.telemetry.metrics import JoinerMetrics
from joiner.runtime.telemetry.throughput import Throughput
from joiner.runtime.telemetry.unit_gauges import UnitStatus

Ends = Callable[[], Mapping[int, Mapping[str, int]]]
"""Returns the last stable offsets of the input topics, by unit and topic. Raises KafkaException."""

_log = logging.getLogger(__name__)

_LOOK_S: Final = 0.01

_AWAKE_S: Final = 20.0

_RETRY_WAIT_S: Final = 1.0
"""How long to wait before repeating a failed request for the ends of the input."""

_RECORD_BYTES: Final = 600
"""Approximate size of a held record in bytes, including its id."""


class _InputEnds:
    """The last stable offsets of the input. A failed request is followed by a back-off before the next one."""

    def __init__(self, ask: Ends, clock: Clock) -> None:
        self._ask, self._clock = ask, clock
        self._not_before_s = 0.0
        self.seen: Mapping[int, Mapping[str, int]] = {}
        """The ends that were read last, by unit and topic. Old values are valid lower bounds, because logs only
        grow."""

    def read(self) -> Mapping[int, Mapping[str, int]] | None:
        """Request the ends of the input, by unit and topic. Return None if they cannot be read at the moment."""
        if self._clock.monotonic_s() < self._not_before_s:
            return None
        try:
            self.seen = self._ask()
        except KafkaException as error:
            _log.warning("the ends of the input cannot be read: %s", error.args[0].str())
            self._not_before_s = self._clock.monotonic_s() + _RETRY_WAIT_S
            return None
        return self.seen


class Units:
    """The units of this driver. Thread-safe."""

    def __init__(self, settings: JoinerSettings, run: str, ends: Ends, metrics: JoinerMetrics, clock: Clock) -> None:
        """``run`` seeds the jitter of back-offs: it differs between drivers, and makes simulations reproducible."""
        self._settings = settings
        self._metrics, self._clock = metrics, clock
        self._ends = _InputEnds(ends, clock)
        self.tasks: dict[int, SparkTask] = {}
        """By number; changed by this class only."""
        self.failures: deque[Failure] = deque()
        self._claims = 0
        self._lock = threading.RLock()
        self._pool = ThreadPoolExecutor(settings.topics.partitions, "commit")
        self._troubles = RetryTracker(Random(run), clock)  # noqa: S311 - no secret
        self._is_last = False
        self._woken_s: float | None = None
        self._throughput = Throughput(clock)
        self._failures = FailureLog(settings, clock)
        self._spent_s: dict[str, float] = {}

    def prepare(self, unit: int) -> None:
        """See `supervisor.Execution`. Nothing to prepare: the workers open their own connections."""

    def restore(self, claimed: Claimed) -> SparkTask:
        """See `supervisor.Execution`. The state is built later, by the worker that gets the unit's first batch.

        ``claimed.warm`` is not used: warm-up only served to check that this stage can continue the unit.
        """
        readers = claimed.readers
        state = readers.state if readers.state is not None else read_state(readers, claimed.unit)
        return SparkTask(
            number=claimed.unit,
            transactions=claimed.transactions,
            clock=self._clock,
            checkpoint=claimed.checkpoint,
            place=SnapshotPlace.after(state),
            snapshot_offsets=newest_offsets(claimed.checkpoint, state),
            snapshot_at_s=self._clock.monotonic_s(),
        )

    def start(self, unit: int, task: SparkTask) -> None:
        """See `supervisor.Execution`."""
        with self._lock:
            # Outcomes of an earlier claim are discarded.
            self._claims += 1
            task.claim_number = self._claims
            self.tasks[unit] = task

    def query_started(self) -> None:
        """Record that a new query is starting, so that outcomes from the previous one will not arrive."""
        with self._lock:
            self._woken_s = None
            for task in self.tasks.values():
                task.planned = None

    def release(self, action: Release, then: Callable[[], None]) -> Future[None] | None:
        """See `supervisor.Execution`. The unit's next plan will be its last."""
        with self._lock:
            task = self.tasks.get(action.unit)
            if task is None:
                return None
            task.leaving = Leaving(action.way.run(), action.to, then)
            return task.leaving.written

    def drop_all(self) -> None:
        """Stop all units without committing anything."""
        with self._lock:
            self.tasks.clear()

    def statuses(self) -> dict[int, UnitStatus]:
        """Return the units' figures for metrics."""
        return {number: task.status(self._ends.seen.get(number, {})) for number, task in list(self.tasks.items())}

    def obstacles(self) -> dict[int, Obstacle]:
        """Return the obstacles for the running units whose last plan failed."""
        tasks = list(self.tasks.items())
        found = {number: self._troubles.obstacle(number, task.not_before_s) for number, task in tasks}
        return {number: obstacle for number, obstacle in found.items() if obstacle is not None}

    @property
    def is_awake(self) -> bool:
        """Whether the current query has completed a batch. Its first batch takes longer than the others."""
        return self._woken_s is not None

    # Plans for Spark

    def next_turn(self, last: Turn) -> Turn:
        """Return the plans of the next batch, or the last turn again if there is no work."""
        # Read without holding the lock, because this may take a long time.
        ends = self._ends.read()
        if ends is None:
            return last
        with self._lock:
            plans = self._plans(ends) or self._wake_up()
            return Turn(last.number + 1, plans) if plans else last

    def _plans(self, ends: Mapping[int, Mapping[str, int]]) -> list[Plan]:
        ready = {
            number: task
            for number, task in sorted(self.tasks.items())
            if task.is_ready() and not self._is_short(task, ends.get(number, {}))
        }
        waiting: dict[tuple[int, str], int] = {}
        for number, task in ready.items():
            task.pause(ends.get(number, {}))
            waiting |= task.waiting(ends.get(number, {}))
        shares = share_out(waiting, self._settings.messages_max(self._settings.spark.batch_records_max))
        records_max, application = _records_max(self._settings), self._settings.application
        for number, task in self.tasks.items():
            is_ready = number in ready
            task.planned = task.plan(shares, records_max, application, last=self._is_last) if is_ready else None
        found = [task.planned for task in self.tasks.values() if task.planned is not None]
        return sorted(found, key=lambda plan: plan.unit)

    def _wake_up(self) -> list[Plan]:
        """Return empty plans from time to time, because Spark ends workers that have been idle for a minute."""
        if self._woken_s is not None and self._clock.monotonic_s() - self._woken_s < _AWAKE_S:
            return []
        return [Plan(unit, 0, {}, {}, {}) for unit in range(self._settings.topics.partitions)]

    def _is_short(self, task: SparkTask, ends: Mapping[str, int]) -> bool:
        """Return whether an input log ends before the offset already read. If this persists, stop the unit."""
        if not task.is_short(ends):
            return False
        if task.is_short_for_long:
            _log.warning("unit %s: an input log ends before the offset that was already joined", task.number)
            self._drop_for(task.number, task, OwnershipInDoubt())
        return True

    # Outcomes

    def accept(self, outcome: Outcome) -> None:
        """Wait for the unit's previous transaction, then begin one for the outcome of a plan."""
        number = outcome.plan.unit
        task = self.tasks.get(number)
        if task is not None and (commit := task.commit) is not None:
            # Wait without holding the lock, because this may take a long time.
            self._clock.wait_until_done([commit.written])
        with self._lock:
            self._woken_s = self._clock.monotonic_s()
            task = self.tasks.get(number)
            if task is None or task.planned != outcome.plan:
                return
            task.planned = None
            if not self._finish(number, task):
                return
            if outcome.stopped:
                # The ownership check runs in place of a transaction, and its error is handled like that of a failed
                # one.
                checked = self._pool.submit(_raise_unless_fenced, task.transactions, outcome.stopped)
                task.commit = Commit(task.checkpoint, checked)
            elif outcome.lost:
                _log.warning("unit %s: its input cannot be read at the committed offset: %s", number, outcome.lost)
                self._drop_for(number, task, OwnershipInDoubt())
            elif outcome.failed:
                wait_s = self._troubles.wait_s(number, cause_of(Aborted()), outcome.failed) or 0.0
                text = "unit %s: a batch could not be joined, retrying in %.1f s: %s"
                _log.warning(text, number, wait_s, outcome.failed)
                task.not_before_s = self._clock.monotonic_s() + wait_s
            else:
                self._troubles.served(number)
                self._begin_commit(task, outcome)

    def _begin_commit(self, task: SparkTask, outcome: Outcome) -> None:
        plan, leaving = outcome.plan, task.leaving
        self._failures.note(plan.unit, outcome.failed_pairs)
        checkpoint, snapshot = task.accept(outcome)
        written = self._pool.submit(self._commit, task.transactions, outcome, checkpoint, snapshot)
        task.commit = Commit(checkpoint, written, goes_apart(snapshot))
        if leaving is not None and leaving.plan == plan:
            del self.tasks[plan.unit]
            written.add_done_callback(lambda last: _finish_release(leaving, last))
        self._throughput.count(outcome.records, outcome.pairs, outcome.failed_pairs)
        for what, seconds in outcome.spent_s.items():
            self._spent_s[what] = self._spent_s.get(what, 0.0) + seconds

    def _commit(
        self,
        transactions: UnitTransactions,
        outcome: Outcome,
        checkpoint: Checkpoint,
        snapshot: tuple[bytes, SnapshotPlace] | None,
    ) -> SnapshotPlace | None:
        return write_commit(
            self._metrics, self._clock, transactions, unpack(outcome.parts), outcome.appended_ms, checkpoint, snapshot
        )

    def _finish(self, number: int, task: SparkTask) -> bool:
        """Wait for the in-flight transaction, if any. Return whether the unit is still running."""
        error = task.finish_commit()
        if error is not None:
            self._drop_for(number, task, error)
        return error is None

    def _drop_for(self, number: int, task: SparkTask, error: Exception) -> None:
        if task.leaving is not None:
            # The handover is waiting for this release, and handles the failure.
            task.leaving.written.set_exception(error)
        else:
            self.failures.append(Failure(number, error))
        del self.tasks[number]

    # Periodically, and at the end

    def poll(self) -> None:
        """Finish the transactions that have been written, and log the progress."""
        with self._lock:
            for number, task in list(self.tasks.items()):
                if task.commit is not None and task.commit.written.done():
                    self._finish(number, task)
            self._throughput.report(self._held())

    def _held(self) -> dict[int, int]:
        return {number: task.held for number, task in self.tasks.items()}

    def finish(self, until_s: float) -> None:
        """Plan the last snapshots, and wait until ``until_s`` (monotonic) for them to be written."""
        self._is_last = True
        while self._clock.monotonic_s() < until_s:
            self.poll()
            with self._lock:
                if all(task.is_saved for task in self.tasks.values()):
                    break
            self._clock.sleep(_LOOK_S)
        self._log_stopped(until_s)
        with self._lock:
            self._failures.close()
            self._throughput.report(self._held(), last=True)
            spent = ", ".join(f"{what} {seconds:.1f} s" for what, seconds in self._spent_s.items())
            _log.info("time spent by the workers: %s", spent or "none")

    def _log_stopped(self, until_s: float) -> None:
        """Mark the units as cleanly shut down in their checkpoints, waiting at most until ``until_s`` (monotonic)."""
        with self._lock:
            written = []
            for task in self.tasks.values():
                if task.commit is None and task.leaving is None:
                    checkpoint = msgspec.structs.replace(task.checkpoint, stopped=True)
                    last = self._pool.submit(
                        write_commit, self._metrics, self._clock, task.transactions, {}, {}, checkpoint, None
                    )
                    task.commit = Commit(checkpoint, last)
                    written.append(last)
        self._clock.wait_until_done(written, until_s)
        self.poll()

    def close(self) -> None:
        """Start no more transactions."""
        self._pool.shutdown(wait=False)


def _records_max(settings: JoinerSettings) -> int:
    """Return the maximum number of records per topic and unit in a batch.

    The limit is low enough for a topic to be paused before the unit's buffer is full.
    """
    application = settings.application
    room = min(application.buffer_records_max, application.buffer_bytes_max // _RECORD_BYTES)
    return max(1, room // (2 * len(settings.input_topics)))


def _raise_unless_fenced(transactions: UnitTransactions, fault: str) -> SnapshotPlace | None:
    """Raise `Fenced` if another runner has claimed the unit, else `UnitStopped` for the fault found by a worker."""
    with unless_fenced(transactions):
        raise UnitStopped(fault)


def _finish_release(leaving: Leaving, last: Future[SnapshotPlace | None]) -> None:
    error = last.exception()
    if error is not None:
        leaving.written.set_exception(error)
        return
    try:
        leaving.then()
    finally:
        # The unit is released even if the record of it could not be written.
        leaving.written.set_result(None)
