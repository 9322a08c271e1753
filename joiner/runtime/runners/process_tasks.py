"""The running units of a plain process. Its thread joins batches; the pool writes transactions."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

import msgspec
from confluent_kafka import KafkaError, KafkaException

from joiner.runtime.kafka.batches.gaps import GapVerifier
from joiner.runtime.kafka.snapshot_log import SnapshotPlace
from joiner.runtime.kafka.transaction import UnitTransactions, goes_apart
from joiner.runtime.migration.protocol import Release
from joiner.runtime.model import Checkpoint
from joiner.runtime.ownership.restore import recover
from joiner.runtime.ownership.services import Services
from joiner.runtime.runners.active_task import ActiveTask
from joiner.runtime.runners.commit import Commit, write_commit
from joiner.runtime.runners.input import InputConsumer
from joiner.runtime.runners.supervisor import Claimed, Failure
from joiner.runtime.settings import JoinerSettings
from joiner.runtime.task.decode import Messages
from joiner.runtime.task.effects import Effects
from joiner.runtime.task.function_failures import FailureLog
from joiner.runtime.telemetry.metrics import JoinerMetrics
from joiner.runtime.telemetry.throughput import Throughput
from joiner.runtime.telemetry.unit_gauges import UnitStatus

_log = logging.getLogger(__name__)


class ProcessTasks:
    """See `supervisor.Execution`."""

    def __init__(self, settings: JoinerSettings, services: Services, metrics: JoinerMetrics) -> None:
        self.tasks: dict[int, ActiveTask] = {}
        self.failures: deque[Failure] = deque()
        self._settings, self._metrics = settings, metrics
        self._pool, self._clock = services.pool, services.clock
        self._input = InputConsumer(settings)
        self._gaps = GapVerifier(settings, services.clock)
        self._throughput = Throughput(services.clock)
        self._function_failures = FailureLog(settings, services.clock)
        # The result of the last poll, by unit and topic: messages, and log ends.
        self._batches: dict[int, dict[str, Messages]] = {}
        self._ends: dict[int, dict[str, int]] = {}
        self._read_s = -math.inf
        """The time of the last poll of the input."""

    def statuses(self) -> dict[int, UnitStatus]:
        """Return the units' figures for metrics. Thread-safe."""
        return {number: task.status() for number, task in list(self.tasks.items())}

    def held(self) -> dict[int, int]:
        """Return the number of records each unit holds."""
        return {number: task.unit.held() for number, task in self.tasks.items()}

    def note_log_ends(self) -> None:
        """Record the ends of the logs, for metrics."""
        for number, task in self.tasks.items():
            task.log_ends = self._input.log_ends(number)

    def report(self, held: dict[int, int], *, last: bool = False) -> None:
        """Log a progress line if one is due."""
        self._throughput.report(held, last=last)

    def close(self) -> None:
        """Close the consumers and log the last progress lines."""
        self._input.close()
        self._gaps.close()
        self._function_failures.close()

    # Starting units

    def prepare(self, unit: int) -> None:
        """See `supervisor.Execution`."""
        self._input.connect(unit)

    def restore(self, claimed: Claimed) -> ActiveTask:
        """See `supervisor.Execution`."""
        _, transactions, checkpoint, readers, warm = claimed
        recovered = recover(transactions, checkpoint, readers, warm)
        return ActiveTask(
            unit=recovered.unit,
            transactions=transactions,
            clock=self._clock,
            checkpoint=recovered.checkpoint,
            place=recovered.place,
            snapshot_offsets=recovered.snapshot_offsets,
            snapshot_at_s=self._clock.monotonic_s(),
        )

    def start(self, unit: int, task: ActiveTask) -> None:
        """See `supervisor.Execution`."""
        self.tasks[unit] = task
        self._input.add(unit, task.unit.offsets)

    # Running

    def turn(self) -> None:
        """Poll the input once, join the messages that have arrived, and begin the commits."""
        # The time spent on the last batch counts, because the next batch has been filling up since.
        until_s = self._read_s + self._settings.application.commit_interval / 1e9
        self._begin_waiting_commits(until_s)
        self._batches, self._ends, errors = self._input.read(max(0.0, until_s - self._clock.monotonic_s()))
        self._read_s = self._clock.monotonic_s()
        for error in errors:
            self._read_error(*error)
        for number, task in list(self.tasks.items()):
            self._turn(number, task)
            if self.tasks.get(number) is task:
                self._pause_what_runs_ahead(number, task)

    def _begin_waiting_commits(self, until_s: float) -> None:
        """Begin the commits of joined batches as the previous commits of their units finish, until ``until_s``."""
        while True:
            waiting = {number: task for number, task in self.tasks.items() if task.waiting is not None}
            for number, task in waiting.items():
                if task.commit is None or task.commit.written.done():
                    self._begin_waiting_commit(number, task)
            in_flight = [task.commit.written for task in waiting.values() if task.waiting is not None and task.commit]
            if not in_flight or self._clock.monotonic_s() >= until_s:
                return
            self._clock.wait_until_any_done(in_flight, until_s)

    def _turn(self, number: int, task: ActiveTask) -> None:
        """Join the messages read for a unit, and begin their commit if the unit's last commit is finished."""
        batches = self._batches.pop(number, {})
        ends = task.ends(batches, self._ends.pop(number, {}))
        if task.commit is not None and task.commit.written.done() and not self._finish_commit(number, task):
            return
        # Messages that were read before their topics were paused wait here.
        if task.is_writing_long and task.waiting is not None and ends and not self._begin_waiting_commit(number, task):
            return
        if ends or (task.commit is None and task.snapshot_due(self._settings.application)):
            task.has_uncommitted = True
            try:
                task.add_waiting(*self._apply(number, task, batches, ends))
            except Exception as error:  # noqa: BLE001 - no error may affect the other units
                if task.is_writing_long or self._finish_commit(number, task):
                    self._fail(number, error)
                return
        if task.waiting is None:
            return
        # The other units do not wait for a slow commit of this one, unless too much would be held in memory.
        _, count = task.waiting
        is_full = count >= self._settings.application.batch_records_max and not task.is_writing_long
        if task.commit is None or is_full:
            self._begin_waiting_commit(number, task)

    def _begin_waiting_commit(self, number: int, task: ActiveTask) -> bool:
        """Finish the last commit and begin that of what was joined since. Return whether the unit is still running."""
        (effects, count), task.waiting = task.waiting or (Effects(), 0), None
        if not self._finish_commit(number, task):
            return False
        self._begin_commit(number, task, effects, with_snapshot=task.snapshot_due(self._settings.application))
        self._throughput.count(count, len(effects.joined), effects.failed_pairs)
        return self.tasks.get(number) is task

    def _pause_what_runs_ahead(self, number: int, task: ActiveTask) -> None:
        ahead = task.to_pause()
        if ahead == task.paused:
            return
        if pausing := ahead - task.paused:
            self._input.pause(number, pausing)
            _log.info("unit %s: %s waits: %s", number, ", ".join(sorted(pausing)), task.why_paused)
        if resuming := task.paused - ahead:
            self._input.resume(number, resuming)
            _log.info("unit %s: %s resumes", number, ", ".join(sorted(resuming)))
        task.paused = ahead

    def _apply(
        self, number: int, task: ActiveTask, batches: dict[str, Messages], ends: dict[str, int]
    ) -> tuple[Effects, int]:
        unit = task.unit
        self._gaps.check(number, unit.offsets, batches)
        count = sum(map(len, batches.values()))
        task.records += count
        return unit.apply(batches, ends), count

    def _commit(
        self,
        transactions: UnitTransactions,
        effects: Effects,
        checkpoint: Checkpoint,
        snapshot: tuple[bytes, SnapshotPlace] | None,
    ) -> SnapshotPlace | None:
        messages = effects.messages(self._settings.topics)
        return write_commit(
            self._metrics, self._clock, transactions, messages, effects.appended_ms, checkpoint, snapshot
        )

    def _begin_commit(
        self, number: int, task: ActiveTask, effects: Effects, *, with_snapshot: bool, stopped: bool = False
    ) -> None:
        """Begin the commit of the unit's current state. The previous commit must be finished."""
        try:
            checkpoint = msgspec.structs.replace(task.next_checkpoint(effects.failed_pairs), stopped=stopped)
            snapshot = task.snapshot() if with_snapshot else None
        except Exception as error:  # noqa: BLE001 - no error may affect the other units
            self._fail(number, error)
            return
        self._function_failures.note(number, effects.failed_pairs)
        written = self._pool.submit(self._commit, task.transactions, effects, checkpoint, snapshot)
        task.begin_commit(Commit(checkpoint, written, goes_apart(snapshot)))

    def _finish_commit(self, number: int, task: ActiveTask) -> bool:
        """Wait for the in-flight commit, if any. Return whether the unit is still running."""
        error = task.finish_commit()
        if error is not None:
            self._fail(number, error)
        return error is None

    def _commit_all(self, number: int, task: ActiveTask) -> bool:
        """Commit everything that was joined, unless that takes long. Return whether the whole state is committed."""
        if task.waiting is not None and not task.is_writing_long and not self._begin_waiting_commit(number, task):
            return False
        return not task.is_writing_long and self._finish_commit(number, task) and not task.has_uncommitted

    def _fail(self, number: int, error: Exception | None) -> None:
        """Stop running a unit. ``error`` is None if another runner may have claimed it."""
        self.failures.append(Failure(number, error))
        self.drop(number)

    def _read_error(self, error: KafkaError, partition: int | None, topic: str | None) -> None:
        number = -1 if partition is None else partition
        task = self.tasks.get(number)
        if number < 0:
            # Brokers are unreachable. The library logs that and recovers by itself.
            _log.debug("reading: %s", error.str())
        elif task is None:
            _log.debug("reading %s [%s], which is not served: %s", topic, number, error.str())
        elif error.code() in {KafkaError._AUTO_OFFSET_RESET, KafkaError.UNKNOWN_TOPIC_OR_PART}:  # noqa: SLF001
            # The topic was deleted, or retention removed unread records. If the unit is still ours, the next claim
            # reports the cause. If not, its new owner may have consumed the records before they were removed.
            _log.warning("unit %s: %s cannot be read at the committed offset: %s", number, topic, error.str())
            self._fail(number, None)
        elif task.is_writing_long or self._finish_commit(number, task):
            # The client may continue after skipped records, for example those of a corrupt batch.
            self._fail(number, KafkaException(KafkaError(error.code(), f"reading {topic}: {error.str()}")))

    def drop(self, number: int) -> None:
        """Stop running a unit without committing anything."""
        task = self.tasks.pop(number, None)
        if task is not None:
            self._input.remove(number, task.unit.offsets, task.paused)
            # The messages of the last poll were read for a state that no longer exists.
            self._batches.pop(number, None)
            self._ends.pop(number, None)

    # Releasing and stopping

    def release(self, action: Release, then: Callable[[], None]) -> Future[None] | None:
        """Finish the in-flight commit and begin the last transaction, for a move."""
        number = action.unit
        task = self.tasks[number]
        if not self._commit_all(number, task):
            return None
        try:
            checkpoint = msgspec.structs.replace(task.next_checkpoint(), run=action.way.run(), site=action.to)
            snapshot = task.snapshot() if task.is_changed() else None
        except Exception as error:  # noqa: BLE001 - no error may affect the other units
            self._fail(number, error)
            return None
        self.drop(number)

        def write() -> None:
            self._commit(task.transactions, Effects(), checkpoint, snapshot)
            then()

        return self._pool.submit(write)

    def write_last_snapshots(self, units: list[int], until_s: float, *, stopped: bool = False) -> None:
        """Finish the commits of the units and write their last snapshots, until ``until_s`` (monotonic).

        ``stopped``: mark their checkpoints to show that this process has shut down cleanly.
        """
        self._finish_soon(units, until_s)
        for number in units:
            task = self.tasks.get(number)
            if task is not None and task.commit is None and task.waiting is not None:
                self._begin_waiting_commit(number, task)
        self._finish_soon(units, until_s)
        for number in units:
            task = self.tasks.get(number)
            if task is None or task.commit is not None or task.has_uncommitted:
                continue
            if stopped or task.is_changed():
                self._begin_commit(number, task, Effects(), with_snapshot=task.is_changed(), stopped=stopped)
        self._finish_soon(units, until_s)
        for number in units:
            if number in self.tasks and self.tasks[number].commit is not None:
                # Not needed for correctness: the next owner checks whether it was written, and replays.
                _log.warning("unit %s: the last commit is not confirmed", number)

    def _finish_soon(self, units: list[int], until_s: float) -> None:
        """Finish those commits that complete before ``until_s`` (monotonic)."""
        under_way = {
            number: task.commit for number in units if (task := self.tasks.get(number)) is not None and task.commit
        }
        self._clock.wait_until_done([commit.written for commit in under_way.values()], until_s)
        for number, commit in under_way.items():
            if commit.written.done():
                self._finish_commit(number, self.tasks[number])
