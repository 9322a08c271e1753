"""The running units of a Spark driver: the plan of each, its outcome, and the transaction in flight.

Spark runs one batch after the other. For each it asks for plans (`Units.next_turn`) and returns their outcomes
(`Units.accept`); transactions are written while Spark runs the next batch. Spark's own commit of a batch is irrelevant:
the checkpoint in Kafka decides, and work of Spark's that did not get into one is discarded by a claim with a new
number. So a failed transaction never stops the query.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from random import Random
from typing import Final

import msgspec
from confluent_kafka import KafkaException

from joiner.runtime.clock import Clock
from joiner.runtime.kafka.checkpoint_log import read_state
from joiner.runtime.kafka.snapshot_log import SnapshotPlace
from joiner.runtime.kafka.transaction import Aborted, Fenced, UnitTransactions, goes_apart
from joiner.runtime.migration.protocol import Release
from joiner.runtime.model import Checkpoint, UnitStopped
from joiner.runtime.ownership.restore import newest_offsets, unless_fenced
from joiner.runtime.ownership.retry_policy import Obstacle, RetryTracker, cause_of
from joiner.runtime.runners.commit import Commit, write_commit
from joiner.runtime.runners.spark.plans import Outcome, Plan, Turn, share_out, unpack
from joiner.runtime.runners.supervisor import Claimed, Failure
from joiner.runtime.settings import ApplicationSettings, JoinerSettings
from joiner.runtime.task.flow_control import SILENT_S, Lead, topics_to_pause
from joiner.runtime.task.function_failures import FailureLog, counts_with
from joiner.runtime.telemetry.metrics import JoinerMetrics, UnitStatus
from joiner.runtime.telemetry.throughput import Throughput

Ends = Callable[[], Mapping[int, Mapping[str, int]]]
"""The stable ends of the input topics, by unit and topic. Raises KafkaException."""

_log = logging.getLogger(__name__)

_LOOK_S: Final = 0.01

_AWAKE_S: Final = 20.0

_RETRY_WAIT_S: Final = 1.0
"""Back-off before a failed request is repeated."""

_SHORT_S: Final = 5.0
"""How long a leader may not know its stable end after an election."""

_RECORD_BYTES: Final = 600
"""Approximate bytes of a held record, including its id."""


@dataclass
class Leaving:
    """A unit being released: the owner its last checkpoint names, and a call for when that is written."""

    run: str
    site: str
    then: Callable[[], None]
    written: Future[None] = field(default_factory=Future)
    plan: Plan | None = None
    """The last plan, once made."""


@dataclass
class SparkTask:
    """A running unit of this driver."""

    claim: int
    transactions: UnitTransactions
    clock: Clock
    checkpoint: Checkpoint
    """The last one known to be committed."""
    place: SnapshotPlace
    snapshot_offsets: dict[str, int]
    snapshot_at_s: float
    records: int = 0
    held: int = 0
    held_bytes: dict[str, tuple[int, int]] = field(default_factory=dict)
    commit: Commit | None = None
    planned: Plan | None = None
    """The plan Spark is executing."""
    leaving: Leaving | None = None
    first_commit_s: float = 0.0
    """When the first transaction after the claim was found written; 0: not yet."""
    quiet_since_s: dict[str, float] = field(default_factory=dict)
    """The topics whose log was at its end when last asked, and since when."""
    leads: list[Lead] = field(default_factory=list)
    paused: set[str] = field(default_factory=set)
    """The topics that are paused, because they run ahead of the others."""
    not_before_s: float = 0.0
    """No plan is made before, as the last one has failed."""
    short_since_s: float | None = None
    """Since when a log has ended before the offset already read."""

    @property
    def reached(self) -> dict[str, int]:
        """The offsets at which the next plan begins: those of the last commit, including the one in flight."""
        return self.checkpoint.offsets if self.commit is None else self.commit.checkpoint.offsets

    @property
    def is_saved(self) -> bool:
        """Whether no commit is in flight and the newest snapshot is of this state."""
        return self.commit is None and self.reached == self.snapshot_offsets

    def status(self, ends: Mapping[str, int]) -> UnitStatus:
        """The unit's figures for metrics; ``ends``: of its input."""
        checkpoint = self.checkpoint
        lag = sum(max(0, ends.get(topic, at) - at) for topic, at in checkpoint.offsets.items())
        age_s = 0.0 if checkpoint.offsets == self.snapshot_offsets else self.clock.monotonic_s() - self.snapshot_at_s
        return UnitStatus(checkpoint, self.held_bytes, self.paused, lag, age_s)

    def snapshot_due(self, application: ApplicationSettings, *, last: bool) -> bool:
        """Whether the next plan should return a snapshot; ``last``: it is the last plan."""
        if self.reached == self.snapshot_offsets and not self.transactions.has_pending_markers:
            return False
        late = self.clock.monotonic_s() - self.snapshot_at_s >= application.snapshot_interval / 1e9
        return last or late or self.records >= application.snapshot_records


class Units:
    """The units of this driver. Thread-safe."""

    def __init__(self, settings: JoinerSettings, run: str, ends: Ends, metrics: JoinerMetrics, clock: Clock) -> None:
        """``run``: the seed of the back-off, so that drivers differ and simulated histories are reproducible."""
        self._settings = settings
        self._metrics, self._clock = metrics, clock
        self._ends = ends
        self._ends_seen: Mapping[int, Mapping[str, int]] = {}
        self.tasks: dict[int, SparkTask] = {}
        """By number; changed by this class only."""
        self.failures: deque[Failure] = deque()
        self._claims = 0
        self._lock = threading.RLock()
        self._pool = ThreadPoolExecutor(settings.topics.partitions, "commit")
        self._troubles = RetryTracker(Random(run), clock)  # noqa: S311 - no secret
        self._ask_ends_s = 0.0
        self._is_last = False
        self._woken_s: float | None = None
        self._throughput = Throughput(clock)
        self._failures = FailureLog(settings, clock)
        self._spent_s: dict[str, float] = {}

    def prepare(self, unit: int) -> None:
        """See `supervisor.Execution`: there is nothing to prepare."""

    def restore(self, claimed: Claimed) -> SparkTask:
        """See `supervisor.Execution`. The first worker that gets the unit builds its state."""
        state = claimed.readers.state or read_state(claimed.readers, claimed.unit)
        place, snapshot = SnapshotPlace.after(state), newest_offsets(claimed.checkpoint, state)
        now_s = self._clock.monotonic_s()
        return SparkTask(0, claimed.transactions, self._clock, claimed.checkpoint, place, snapshot, now_s)

    def start(self, unit: int, task: SparkTask) -> None:
        """See `supervisor.Execution`."""
        with self._lock:
            # Outcomes of an earlier claim are discarded.
            self._claims += 1
            task.claim = self._claims
            self.tasks[unit] = task

    def query_started(self) -> None:
        """Note that a new query starts: outcomes of the former one will not arrive."""
        with self._lock:
            self._woken_s = None
            for served in self.tasks.values():
                served.planned = None

    def release(self, action: Release, then: Callable[[], None]) -> Future[None] | None:
        """See `supervisor.Execution`: the next plan is the unit's last."""
        with self._lock:
            served = self.tasks.get(action.unit)
            if served is None:
                return None
            served.leaving = Leaving(action.way.run(), action.to, then)
            return served.leaving.written

    def drop_all(self) -> None:
        """Stop all units without committing anything."""
        with self._lock:
            self.tasks.clear()

    def statuses(self) -> dict[int, UnitStatus]:
        """The units' figures for metrics."""
        return {number: served.status(self._ends_seen.get(number, {})) for number, served in list(self.tasks.items())}

    def obstacles(self) -> dict[int, Obstacle]:
        """The obstacles of running units whose last plan has failed."""
        served = list(self.tasks.items())
        found = {number: self._troubles.obstacle(number, one.not_before_s) for number, one in served}
        return {number: obstacle for number, obstacle in found.items() if obstacle is not None}

    @property
    def is_awake(self) -> bool:
        """Whether the running query has completed a batch, so that the next one takes no longer than usual."""
        return self._woken_s is not None

    # Plans for Spark

    def next_turn(self, last: Turn) -> Turn:
        """The plans of the next batch; the last turn again if there is nothing to do."""
        if self._clock.monotonic_s() < self._ask_ends_s:
            return last
        try:
            # Without the lock, as it may take long. Ends only grow, so old ones are valid.
            ends = self._ends_seen = self._ends()
        except KafkaException as error:
            _log.warning("the ends of the input cannot be read: %s", error.args[0].str())
            self._ask_ends_s = self._clock.monotonic_s() + _RETRY_WAIT_S
            return last
        with self._lock:
            plans = self._plans(ends)
            plans = plans or self._wake_up()
            return Turn(last.number + 1, plans) if plans else last

    def _plans(self, ends: Mapping[int, Mapping[str, int]]) -> list[Plan]:
        now_s = self._clock.monotonic_s()
        ready = {
            number: served
            for number, served in sorted(self.tasks.items())
            if now_s >= served.not_before_s
            and not (served.commit is not None and served.commit.may_last)
            and not self._is_short(number, served, ends.get(number, {}))
        }
        waiting = {}
        for number, served in ready.items():
            self._pause(number, served, ends.get(number, {}))
            for topic, at in served.reached.items():
                if topic not in served.paused:
                    waiting[number, topic] = max(0, ends.get(number, {}).get(topic, at) - at)
        shares = share_out(waiting, self._settings.spark.batch_records_max)
        found = []
        for number, served in self.tasks.items():
            served.planned = self._plan(number, served, shares) if number in ready else None
            if served.planned is not None:
                found.append(served.planned)
        return sorted(found, key=lambda plan: plan.unit)

    def _wake_up(self) -> list[Plan]:
        """Empty plans, periodically: Spark ends workers that have been idle for a minute."""
        if self._woken_s is not None and self._clock.monotonic_s() - self._woken_s < _AWAKE_S:
            return []
        return [Plan(unit, 0, {}, {}, {}) for unit in range(self._settings.topics.partitions)]

    def _plan(self, number: int, served: SparkTask, shares: Mapping[tuple[int, str], int]) -> Plan | None:
        begin, most = served.reached, self._most()
        end = {topic: at + min(most, shares.get((number, topic), 0)) for topic, at in begin.items()}
        snapshot = served.snapshot_due(self._settings.application, last=self._is_last)
        if end == begin and not snapshot and served.leaving is None:
            return None
        snapshot = snapshot or served.leaving is not None
        plan = Plan(number, served.claim, served.checkpoint.start, begin, end, snapshot)
        if served.leaving is not None:
            served.leaving.plan = plan
        return plan

    def _most(self) -> int:
        """The most records of a topic per unit and batch, few enough to pause a side that runs ahead."""
        application, topics = self._settings.application, len(self._settings.input_topics)
        room = min(application.buffer_records_max, application.buffer_bytes_max // _RECORD_BYTES)
        return max(1, room // (2 * topics))

    def _is_short(self, number: int, served: SparkTask, ends: Mapping[str, int]) -> bool:
        """Whether a log ends before the offset already read; if that lasts, the unit is claimed again."""
        if all(ends.get(topic, at) >= at for topic, at in served.reached.items()):
            served.short_since_s = None
            return False
        now_s = self._clock.monotonic_s()
        if served.short_since_s is None:
            served.short_since_s = now_s
        elif now_s - served.short_since_s > _SHORT_S:
            _log.warning("unit %s: its input ends before the offset already joined", number)
            self._drop_for(number, served, Fenced())
        return True

    def _pause(self, number: int, served: SparkTask, ends: Mapping[str, int]) -> None:
        now_s = self._clock.monotonic_s()
        for topic, at in served.reached.items():
            if ends.get(topic, at) > at:
                served.quiet_since_s.pop(topic, None)
            else:
                served.quiet_since_s.setdefault(topic, now_s)
        silent = {topic for topic, since_s in served.quiet_since_s.items() if since_s < now_s - SILENT_S}
        ahead = topics_to_pause(served.leads, served.paused, silent)
        if ahead != served.paused:
            _log.info("unit %s: paused topics: %s", number, ", ".join(sorted(ahead)) or "none")
        served.paused = ahead

    # Outcomes

    def accept(self, outcome: Outcome) -> None:
        """Begin the transaction of a plan's outcome, once the one before is written."""
        number = outcome.plan.unit
        served = self.tasks.get(number)
        if served is not None and (commit := served.commit) is not None:
            # Without the lock, as it may take long.
            self._clock.wait_until_done([commit.written])
        with self._lock:
            self._woken_s = self._clock.monotonic_s()
            served = self.tasks.get(number)
            if served is None or served.planned != outcome.plan:
                return
            served.planned = None
            if not self._finish(number, served):
                return
            if outcome.stopped:
                # Checked in the place of a transaction, and reported like a failed one.
                checked = self._pool.submit(_raise_unless_fenced, served.transactions, outcome.stopped)
                served.commit = Commit(served.checkpoint, checked)
            elif outcome.lost:
                _log.warning("unit %s: cannot be read at the committed offset: %s", number, outcome.lost)
                self._drop_for(number, served, Fenced())
            elif outcome.failed:
                wait_s = self._troubles.wait_s(number, cause_of(Aborted()), outcome.failed) or 0.0
                text = "unit %s: a batch could not be joined, retrying in %.1f s: %s"
                _log.warning(text, number, wait_s, outcome.failed)
                served.not_before_s = self._clock.monotonic_s() + wait_s
            else:
                self._troubles.served(number)
                self._begin_commit(served, outcome)

    def _begin_commit(self, served: SparkTask, outcome: Outcome) -> None:
        plan, leaving = outcome.plan, served.leaving
        counts = counts_with(outcome.counts, served.checkpoint.counts, outcome.failed_pairs)
        checkpoint = msgspec.structs.replace(served.checkpoint, offsets=plan.end, counts=counts, joins=outcome.joins)
        self._failures.note(plan.unit, outcome.failed_pairs)
        if leaving is not None and leaving.plan == plan:
            checkpoint = msgspec.structs.replace(checkpoint, run=leaving.run, site=leaving.site)
        served.held, served.held_bytes = outcome.held, outcome.held_bytes
        served.records += outcome.records
        snapshot = None
        if outcome.snapshot is not None:
            snapshot = outcome.snapshot, served.place
            served.snapshot_at_s, served.records = self._clock.monotonic_s(), 0
        served.leads = outcome.leads
        written = self._pool.submit(self._commit, served.transactions, outcome, checkpoint, snapshot)
        served.commit = Commit(checkpoint, written, goes_apart(snapshot))
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

    def _finish(self, number: int, served: SparkTask) -> bool:
        """Wait for the transaction in flight, if any; returns whether the unit still runs."""
        commit, served.commit = served.commit, None
        if commit is None:
            return True
        if (error := commit.failure()) is not None:
            self._drop_for(number, served, error)
            return False
        place = commit.written.result()
        served.first_commit_s = served.first_commit_s or self._clock.monotonic_s()
        served.checkpoint = commit.checkpoint
        if place is not None:
            served.place, served.snapshot_offsets = place, commit.checkpoint.offsets
        return True

    def _drop_for(self, number: int, served: SparkTask, error: Exception) -> None:
        if served.leaving is not None:
            # The handover that waits for it gives it up.
            served.leaving.written.set_exception(error)
        else:
            self.failures.append(Failure(number, error))
        del self.tasks[number]

    # Periodically, and at the end

    def poll(self) -> None:
        """Finish transactions that are written, and log progress."""
        with self._lock:
            for number, served in list(self.tasks.items()):
                if served.commit is not None and served.commit.written.done():
                    self._finish(number, served)
            self._throughput.report({number: served.held for number, served in self.tasks.items()})

    def finish(self, until_s: float) -> None:
        """Plan last snapshots, and wait for them until ``until_s`` (monotonic)."""
        self._is_last = True
        while self._clock.monotonic_s() < until_s:
            self.poll()
            with self._lock:
                if all(
                    served.commit is None and served.reached == served.snapshot_offsets
                    for served in self.tasks.values()
                ):
                    break
            self._clock.sleep(_LOOK_S)
        self._log_stopped(until_s)
        with self._lock:
            self._failures.close()
            self._throughput.report({number: served.held for number, served in self.tasks.items()}, last=True)
            spent = ", ".join(f"{what} {seconds:.1f} s" for what, seconds in self._spent_s.items())
            _log.info("time spent by the workers: %s", spent or "none")

    def _log_stopped(self, until_s: float) -> None:
        """Write checkpoints that say that this driver has ended, until ``until_s`` (monotonic)."""
        with self._lock:
            written = []
            for served in self.tasks.values():
                if served.commit is None and served.leaving is None:
                    checkpoint = msgspec.structs.replace(served.checkpoint, stopped=True)
                    last = self._pool.submit(
                        write_commit, self._metrics, self._clock, served.transactions, {}, {}, checkpoint, None
                    )
                    served.commit = Commit(checkpoint, last)
                    written.append(last)
        self._clock.wait_until_done(written, until_s)
        self.poll()

    def close(self) -> None:
        """Start no more transactions."""
        self._pool.shutdown(wait=False)


def _raise_unless_fenced(transactions: UnitTransactions, fault: str) -> SnapshotPlace | None:
    """Raise `UnitStopped` for a fault a worker has found, or `Fenced` if another runner has claimed the unit."""
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
        # Even if the record was not written: the unit is released.
        leaving.written.set_result(None)
