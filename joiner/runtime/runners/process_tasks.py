"""The running units of a plain process. The runner's thread joins batches, and the pool writes transactions."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Final

import msgspec
from confluent_kafka import KafkaError, KafkaException

from joiner.runtime.kafka.batches.gaps import GapVerifier
from joiner.runtime.migration.protocol import Release
from joiner.runtime.ownership.restore import recover
from joiner.runtime.ownership.services import Services
from joiner.runtime.runners.active_task import ActiveTask
from joiner.runtime.runners.input import InputConsumer, PendingInput
from joiner.runtime.runners.supervisor import Claimed, Failure
from joiner.runtime.runners.task_commits import TaskCommits
from joiner.runtime.settings import JoinerSettings
from joiner.runtime.task.decoding.messages import Messages
from joiner.runtime.task.effects import Effects
from joiner.runtime.telemetry.metrics import JoinerMetrics
from joiner.runtime.telemetry.unit_gauges import UnitStatus

_WAIT_S: Final = 0.05
"""How long a turn may wait for input."""

_FIRST_SNAPSHOT: Final = 0.1
"""After which part of the snapshot interval the first snapshot after a claim is due. Otherwise, a unit that often
changes owner, or whose owner often restarts, would get none, and each claim would replay more than the one before."""

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
        self._commits = TaskCommits(settings, services, metrics, self.tasks, self._fail)
        # Messages with many records are meant for throughput, and the number of pending records is unknown until they
        # are decoded. So all units are served in one turn.
        self._pending = PendingInput(*([1] if settings.topics.has_rows else []))
        self._turned_s = -math.inf
        """When the last turn began joining."""

    def statuses(self) -> dict[int, UnitStatus]:
        """Return the units' figures for metrics. Thread-safe."""
        return {number: task.status() for number, task in list(self.tasks.items())}

    def held(self) -> dict[int, int]:
        """Return the number of records that each unit holds."""
        return {number: task.unit.held() for number, task in self.tasks.items()}

    def note_log_ends(self) -> None:
        """Record the ends of the logs, for metrics."""
        for number, task in self.tasks.items():
            task.log_ends = self._input.log_ends(number)

    def report(self, held: dict[int, int], *, last: bool = False) -> None:
        """Log a progress line if one is due."""
        self._commits.throughput.report(held, last=last)

    def close(self) -> None:
        """Close the consumers, and log the last failures of joining functions."""
        self._input.close()
        self._gaps.close()
        self._commits.close()

    # Starting units

    def prepare(self, unit: int) -> None:
        """See `supervisor.Execution`."""
        self._input.connect(unit)

    def prepare_early(self, unit: int) -> None:
        """Prepare to run a unit that this process may claim at any time. Thread-safe. Does not raise."""
        self._input.connect_early(unit)

    def restore(self, claimed: Claimed) -> ActiveTask:
        """See `supervisor.Execution`."""
        _, transactions, checkpoint, readers, warm = claimed
        recovered = recover(transactions, checkpoint, readers, warm)
        interval_s = self._settings.application.snapshot_interval / 1e9
        return ActiveTask(
            unit=recovered.unit,
            transactions=transactions,
            clock=self._clock,
            checkpoint=recovered.checkpoint,
            place=recovered.place,
            snapshot_offsets=recovered.snapshot_offsets,
            snapshot_at_s=self._clock.monotonic_s() - (1 - _FIRST_SNAPSHOT) * interval_s,
            records=recovered.records_since_snapshot,
        )

    def start(self, unit: int, task: ActiveTask) -> None:
        """See `supervisor.Execution`."""
        self.tasks[unit] = task
        self._input.add(unit, task.unit.offsets)

    # Running

    def turn(self) -> None:
        """Poll the input once, join what has arrived for the units whose turn it is, and begin their commits.

        If the turn is not due yet, only poll the input, so that the caller does not wait for a long commit interval.
        """
        interval_s = self._settings.application.commit_interval / 1e9
        # Measured from the start of the last batch, because the next one has been filling up since.
        step_s = interval_s / self._pending.turns(len(self.tasks))
        due_s = self._turned_s + step_s
        until_s = min(due_s, self._clock.monotonic_s() + _WAIT_S)
        self._commits.begin_all_waiting(until_s)
        room = self._input.messages_max
        if step_s > _WAIT_S:
            # There are several reads in a turn, and all of them together must not make a batch too large.
            room -= self._pending.messages(self._ready())
        wait_s = until_s - self._clock.monotonic_s() if room > 0 else 0.0
        read = self._input.read(max(1, room), max(0.0, wait_s))
        self._pending.add(read, self.tasks)
        for error in read.errors:
            self._read_error(*error)
        ready = self._ready()
        if until_s < due_s and not self._is_full(ready):
            self._commits.finish_done()
            return
        self._turned_s = self._clock.monotonic_s()
        for number in self._pending.begin_turn(ready, self._input.records_max):
            task = self.tasks[number]
            self._turn(number, task)
            if self.tasks.get(number) is task:
                self._pause_what_runs_ahead(number, task)

    def _ready(self) -> list[int]:
        """Return the units that can take part in a turn."""
        # Messages that were read before their topics were paused stay pending until the large snapshot is written.
        return [number for number, task in self.tasks.items() if not task.is_held_up]

    def _is_full(self, ready: list[int]) -> bool:
        """Return whether enough is pending for a turn of the ``ready`` units before it is due."""
        # Do not ask whether the read returned early: the client waits for whole milliseconds, so it always does.
        pending = self._pending.messages(ready)
        if self._settings.topics.has_rows:
            # The number of records is not known, so batches of several reads might become too large.
            return pending > 0
        return pending >= self._input.messages_max

    def _turn(self, number: int, task: ActiveTask) -> None:
        """Join the pending messages of a unit, and begin their commit if the unit's last commit is finished."""
        batches, met = self._pending.take(number)
        ends = task.ends(batches, met)
        if task.commit is not None and task.commit.written.done() and not self._commits.finish(number, task):
            return
        if ends or (task.commit is None and task.has_due(self._settings.application)):
            task.has_uncommitted = True
            try:
                task.add_waiting(self._apply(number, task, batches, ends))
            except Exception as error:  # noqa: BLE001 - no error may affect the other units
                if task.is_writing_long or self._commits.finish(number, task):
                    self._fail(number, error)
                return
        if task.waiting is None:
            return
        # Other units do not wait for a slow commit of this one unless too much would be held in memory.
        is_full = task.waiting.records >= self._input.records_max and not task.is_writing_long
        if task.commit is None or is_full:
            self._commits.begin_waiting(number, task)

    def _pause_what_runs_ahead(self, number: int, task: ActiveTask) -> None:
        ahead = task.to_pause()
        if ahead == task.paused:
            return
        if pausing := ahead - task.paused:
            self._input.pause(number, pausing)
            _log.info("unit %s: paused %s, because %s", number, ", ".join(sorted(pausing)), task.why_paused)
        if resuming := task.paused - ahead:
            self._input.resume(number, resuming)
            _log.info("unit %s: resumed %s", number, ", ".join(sorted(resuming)))
        task.paused = ahead

    def _apply(self, number: int, task: ActiveTask, batches: Mapping[str, Messages], ends: dict[str, int]) -> Effects:
        unit = task.unit
        self._gaps.check(number, unit.offsets, batches)
        effects = unit.apply(batches, ends)
        task.records += effects.records
        self._input.batch_limit.note(effects.records, effects.outcomes, len(self.tasks))
        return effects

    def _fail(self, number: int, error: Exception | None) -> None:
        """Stop running a unit. ``error`` is None if another runner may have claimed it."""
        self.failures.append(Failure(number, error))
        self.drop(number)

    def _read_error(self, error: KafkaError, partition: int | None, topic: str | None) -> None:
        number = -1 if partition is None else partition
        task = self.tasks.get(number)
        if number < 0:
            # Brokers are unreachable. The library logs that and recovers on its own.
            _log.debug("reading: %s", error.str())
        elif task is None:
            _log.debug("reading %s [%s], which is not served: %s", topic, number, error.str())
        elif error.code() in {KafkaError._AUTO_OFFSET_RESET, KafkaError.UNKNOWN_TOPIC_OR_PART}:  # noqa: SLF001
            # The topic was deleted, or retention removed unread records. If the unit is still ours, the next claim
            # reports the cause. If not, its new owner may have consumed the records before they were removed.
            _log.warning("unit %s: %s can no longer be read: %s", number, topic, error.str())
            self._fail(number, None)
        elif task.is_writing_long or self._commits.finish(number, task):
            # The client may continue after skipped records, for example those of a corrupt batch.
            self._fail(number, KafkaException(KafkaError(error.code(), f"reading {topic}: {error.str()}")))

    def drop(self, number: int) -> None:
        """Stop running a unit without committing anything."""
        task = self.tasks.pop(number, None)
        if task is not None:
            self._input.remove(number, task.unit.offsets, task.paused)
            # Pending messages were read for a state that no longer exists.
            self._pending.drop(number)

    # Releasing and stopping

    def release(self, action: Release, then: Callable[[], None]) -> Future[None] | None:
        """See `supervisor.Execution`."""
        number = action.unit
        task = self.tasks[number]
        if not self._commits.commit_all(number, task):
            return None
        try:
            checkpoint = msgspec.structs.replace(task.next_checkpoint(), run=action.way.run(), site=action.to)
            snapshot = task.snapshot() if task.is_changed() else None
        except Exception as error:  # noqa: BLE001 - no error may affect the other units
            self._fail(number, error)
            return None
        self.drop(number)

        def write() -> None:
            self._commits.write(task.transactions, Effects(), checkpoint, snapshot)
            then()

        return self._pool.submit(write)

    def finish_commits(self, units: list[int], until_s: float) -> None:
        """Commit what the units have joined, until ``until_s`` (monotonic)."""
        self._commits.finish_soon(units, until_s)
        for number in units:
            task = self.tasks.get(number)
            if task is not None and task.commit is None and task.waiting is not None:
                self._commits.begin_waiting(number, task)
        self._commits.finish_soon(units, until_s)

    def write_last_snapshots(self, units: list[int], until_s: float, *, stopped: bool = False) -> None:
        """Finish the commits of the units and write their last snapshots, until ``until_s`` (monotonic).

        ``stopped``: mark their checkpoints to show that this process has shut down cleanly.
        """
        self.finish_commits(units, until_s)
        for number in units:
            task = self.tasks.get(number)
            if task is None or task.commit is not None or task.has_uncommitted:
                continue
            if stopped or task.is_changed():
                self._commits.begin(number, task, Effects(), with_snapshot=task.is_changed(), stopped=stopped)
        self._commits.finish_soon(units, until_s)
        for number in units:
            if number in self.tasks and self.tasks[number].commit is not None:
                # Not needed for correctness: the next owner checks whether it was written, and replays.
                _log.warning("unit %s: the last commit was not confirmed", number)
