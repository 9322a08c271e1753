"""The units that a plain process runs: their batches are joined, and their transactions written in the background."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, wait

import msgspec
from confluent_kafka import KafkaError, KafkaException

from joiner.runtime.kafka.gaps import GapVerifier
from joiner.runtime.kafka.snapshot_log import SnapshotPlace
from joiner.runtime.kafka.transaction import UnitTransactions, goes_apart
from joiner.runtime.migration.protocol import Release
from joiner.runtime.model import Checkpoint
from joiner.runtime.ownership.restore import recover
from joiner.runtime.runners.active_task import ActiveTask
from joiner.runtime.runners.commit import Commit, write_commit
from joiner.runtime.runners.input import InputConsumer
from joiner.runtime.runners.supervisor import Claimed, Failure
from joiner.runtime.settings import JoinerSettings
from joiner.runtime.task.decode import Messages
from joiner.runtime.task.effects import Effects
from joiner.runtime.task.function_failures import FailureLog
from joiner.runtime.telemetry.metrics import JoinerMetrics, UnitStatus
from joiner.runtime.telemetry.throughput import Throughput

_log = logging.getLogger(__name__)


class ProcessTasks:
    """See `supervisor.Execution`."""

    def __init__(self, settings: JoinerSettings, pool: Executor, metrics: JoinerMetrics) -> None:
        self.tasks: dict[int, ActiveTask] = {}
        self.failures: deque[Failure] = deque()
        self._settings, self._pool, self._metrics = settings, pool, metrics
        self._input = InputConsumer(settings)
        self._gaps = GapVerifier(settings)
        self._throughput = Throughput()
        self._function_failures = FailureLog(settings)
        # What was read last, by unit and topic: messages, and where a log's end was met.
        self._batches: dict[int, dict[str, Messages]] = {}
        self._ends: dict[int, dict[str, int]] = {}
        self._read_s = -math.inf
        """When was read last."""

    def statuses(self) -> dict[int, UnitStatus]:
        """For metrics; any thread may ask."""
        return {number: task.status() for number, task in list(self.tasks.items())}

    def held(self) -> dict[int, int]:
        """The records that each unit holds."""
        return {number: task.recovered.unit.held() for number, task in self.tasks.items()}

    def note_log_ends(self) -> None:
        """For metrics: as far as Kafka has told them."""
        for number, task in self.tasks.items():
            task.log_ends = self._input.log_ends(number)

    def report(self, held: dict[int, int], *, last: bool = False) -> None:
        """Log a line of progress where one is due."""
        self._throughput.report(held, last=last)

    def close(self) -> None:
        """Read nothing any more."""
        self._input.close()
        self._gaps.close()
        self._function_failures.close()

    # Units that come

    def prepare(self, unit: int) -> None:
        """See `supervisor.Execution`."""
        self._input.connect(unit)

    def restore(self, claimed: Claimed) -> ActiveTask:
        """See `supervisor.Execution`."""
        unit, transactions, checkpoint, readers, warm = claimed
        recovered = recover(self._settings, unit, transactions, checkpoint, warm, readers)
        return ActiveTask(recovered, transactions, time.monotonic())

    def start(self, unit: int, task: ActiveTask) -> None:
        """See `supervisor.Execution`."""
        self.tasks[unit] = task
        self._input.add(unit, task.recovered.unit.offsets)

    # Working

    def turn(self) -> None:
        """Read once, join what came, and begin the commits."""
        interval_s = self._settings.application.commit_interval / 1e9
        # What the last batch took counts: the next one has filled meanwhile.
        wait_s = max(0.0, self._read_s + interval_s - time.monotonic())
        self._batches, self._ends, errors = self._input.read(wait_s)
        self._read_s = time.monotonic()
        for error in errors:
            self._read_error(*error)
        for number, task in list(self.tasks.items()):
            self._turn(number, task)
            if self.tasks.get(number) is task:
                self._pause_what_runs_ahead(number, task)

    def _turn(self, number: int, task: ActiveTask) -> None:
        """Join what was read of a unit, while its last commit is written, and hand in the next."""
        application = self._settings.application
        batches = self._batches.pop(number, {})
        ends = task.ends(batches, self._ends.pop(number, {}))
        if task.commit is not None and task.commit.written.done() and not self._finish_commit(number, task):
            return
        # What was read before the topics were paused, has to wait here.
        if task.waiting is not None and (ends or task.commit is None) and not self._begin_waiting_commit(number, task):
            return
        if not ends and (task.commit is not None or not task.snapshot_due(application)):
            return
        task.has_uncommitted = True
        try:
            task.waiting = self._apply(number, task, batches, ends)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not touch the other units
            if task.is_writing_long or self._finish_commit(number, task):
                self._fail(number, error)
            return
        if not task.is_writing_long:
            self._begin_waiting_commit(number, task)

    def _begin_waiting_commit(self, number: int, task: ActiveTask) -> bool:
        """Hand in what the last batch has brought forth, the commit before being finished; whether the unit goes on."""
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
            _log.info("unit %s: %s goes on", number, ", ".join(sorted(resuming)))
        task.paused = ahead

    def _apply(
        self, number: int, task: ActiveTask, batches: dict[str, Messages], ends: dict[str, int]
    ) -> tuple[Effects, int]:
        unit = task.recovered.unit
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
        return write_commit(self._metrics, transactions, messages, effects.appended_ms, checkpoint, snapshot)

    def _begin_commit(
        self, number: int, task: ActiveTask, effects: Effects, *, with_snapshot: bool, stopped: bool = False
    ) -> None:
        """Begin the commit of everything that the unit's state holds, the one before being finished."""
        try:
            checkpoint = msgspec.structs.replace(task.checkpoint(effects.failed_pairs), stopped=stopped)
            snapshot = task.snapshot() if with_snapshot else None
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not touch the other units
            self._fail(number, error)
            return
        self._function_failures.note(number, effects.failed_pairs)
        written = self._pool.submit(self._commit, task.transactions, effects, checkpoint, snapshot)
        task.begin_commit(Commit(checkpoint, written, goes_apart(snapshot)))

    def _finish_commit(self, number: int, task: ActiveTask) -> bool:
        """Wait for what is on its way, if anything is; returns whether the unit goes on."""
        error = task.finish_commit()
        if error is not None:
            self._fail(number, error)
        return error is None

    def _fail(self, number: int, error: Exception | None) -> None:
        """The unit is not run any more; ``error`` None: it may be somebody else's."""
        self.failures.append(Failure(number, error))
        self.drop(number)

    def _read_error(self, error: KafkaError, partition: int | None, topic: str | None) -> None:
        number = -1 if partition is None else partition
        task = self.tasks.get(number)
        if number < 0:
            # Brokers are away, which the library's log tells of, and it goes on by itself when they are back.
            _log.debug("reading: %s", error.str())
        elif task is None:
            _log.debug("reading %s [%s], which is not served: %s", topic, number, error.str())
        elif error.code() in {KafkaError._AUTO_OFFSET_RESET, KafkaError.UNKNOWN_TOPIC_OR_PART}:  # noqa: SLF001
            # The topic was deleted, or retention removed records before they were read. If the unit is still
            # ours, the claim finds out which. If not, then only what its owner has done with lies behind us.
            _log.warning("unit %s: %s cannot be read where the join stands: %s", number, topic, error.str())
            self._fail(number, None)
        elif task.is_writing_long or self._finish_commit(number, task):
            # What the client gives next may lie behind records that it has left out (a damaged batch, for one).
            self._fail(number, KafkaException(KafkaError(error.code(), f"reading {topic}: {error.str()}")))

    def drop(self, number: int) -> None:
        """Forget a unit without committing anything."""
        task = self.tasks.pop(number, None)
        if task is not None:
            self._input.remove(number, task.recovered.unit.offsets, task.paused)
            # What the current batch still holds of it was read for a state that is gone.
            self._batches.pop(number, None)
            self._ends.pop(number, None)

    # Units that go

    def release(self, action: Release, then: Callable[[], None]) -> Future[None] | None:
        """Finish what is on its way, and begin the last transaction, for a move."""
        number = action.unit
        task = self.tasks[number]
        if task.is_writing_long or not self._finish_commit(number, task) or task.has_uncommitted:
            return None
        try:
            checkpoint = msgspec.structs.replace(task.checkpoint(), run=action.way.run(), site=action.to)
            snapshot = task.snapshot() if task.is_changed() else None
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not touch the other units
            self._fail(number, error)
            return None
        self.drop(number)

        def write() -> None:
            self._commit(task.transactions, Effects(), checkpoint, snapshot)
            then()

        return self._pool.submit(write)

    def write_last_snapshots(self, units: list[int], until_s: float, *, stopped: bool = False) -> None:
        """Finish the commits of the units, and write last snapshots, as far as that is done before a moment.

        ``stopped``: their checkpoints say that this process has ended.
        """
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
                # Not needed for correctness: whoever comes next finds out whether it was, and replays.
                _log.warning("unit %s: the last commit is not known to be written", number)

    def _finish_soon(self, units: list[int], until_s: float) -> None:
        """Finish those commits that are written before a moment."""
        under_way = {
            number: task.commit for number in units if (task := self.tasks.get(number)) is not None and task.commit
        }
        wait([commit.written for commit in under_way.values()], timeout=max(0.0, until_s - time.monotonic()))
        for number, commit in under_way.items():
            if commit.written.done():
                self._finish_commit(number, self.tasks[number])
