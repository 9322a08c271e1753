"""The commits of a plain process. They run in the thread pool, one at a time for each unit."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from joiner.runtime.kafka.snapshot_log import SnapshotPlace
from joiner.runtime.kafka.transaction import UnitTransactions, goes_apart
from joiner.runtime.model import Checkpoint
from joiner.runtime.ownership.services import Services
from joiner.runtime.runners.active_task import ActiveTask
from joiner.runtime.runners.commit import Commit, write_commit
from joiner.runtime.settings import JoinerSettings
from joiner.runtime.task.effects import Effects
from joiner.runtime.task.function_failures import FailureLog
from joiner.runtime.telemetry.metrics import JoinerMetrics
from joiner.runtime.telemetry.throughput import Throughput


class TaskCommits:
    """Begins and finishes the commits of the running units. Used only by the runner's thread, except for `write`."""

    def __init__(
        self,
        settings: JoinerSettings,
        services: Services,
        metrics: JoinerMetrics,
        tasks: Mapping[int, ActiveTask],
        fail: Callable[[int, Exception], None],
    ) -> None:
        """``tasks``: the running units. ``fail``: stops running a unit whose commit fails."""
        self.throughput = Throughput(services.clock)
        self._settings, self._metrics, self._tasks, self._fail = settings, metrics, tasks, fail
        self._pool, self._clock = services.pool, services.clock
        self._function_failures = FailureLog(settings, services.clock)

    def close(self) -> None:
        """Log the last failures of joining functions."""
        self._function_failures.close()

    def write(
        self,
        transactions: UnitTransactions,
        effects: Effects,
        checkpoint: Checkpoint,
        snapshot: tuple[bytes, SnapshotPlace] | None,
    ) -> SnapshotPlace | None:
        """Commit the effects of joined batches. Return the place of the snapshot, if one was written. Thread-safe."""
        messages = effects.messages(self._settings.topics)
        counts = effects.appended_ms, effects.watermarks
        return write_commit(self._metrics, self._clock, transactions, messages, *counts, checkpoint, snapshot)

    def begin(
        self, number: int, task: ActiveTask, effects: Effects, *, with_snapshot: bool, stopped: bool = False
    ) -> None:
        """Begin the commit of the unit's current state. The previous commit must be finished."""
        try:
            task.add_watermarks(effects, self._settings.application)
            checkpoint = msgspec.structs.replace(task.next_checkpoint(effects.failed_pairs), stopped=stopped)
            snapshot = task.snapshot() if with_snapshot else None
        except Exception as error:  # noqa: BLE001 - no error may affect the other units
            self._fail(number, error)
            return
        self._function_failures.note(number, effects.failed_pairs)
        written = self._pool.submit(self.write, task.transactions, effects, checkpoint, snapshot)
        task.begin_commit(Commit(checkpoint, written, goes_apart(snapshot)))

    def begin_waiting(self, number: int, task: ActiveTask) -> bool:
        """Finish the previous commit, and begin one for all later batches. Return whether the unit is still running."""
        effects, task.waiting = task.waiting or Effects(), None
        if not self.finish(number, task):
            return False
        self.begin(number, task, effects, with_snapshot=task.snapshot_due(self._settings.application))
        self.throughput.count(effects.records, effects.pairs, effects.failed_pairs)
        return self._tasks.get(number) is task

    def begin_all_waiting(self, until_s: float) -> None:
        """Begin each unit's waiting commit once its previous one has finished; give up at ``until_s`` (monotonic)."""
        while True:
            waiting = {number: task for number, task in self._tasks.items() if task.waiting is not None}
            for number, task in waiting.items():
                if task.commit is None or task.commit.written.done():
                    self.begin_waiting(number, task)
            in_flight = [task.commit.written for task in waiting.values() if task.waiting is not None and task.commit]
            if not in_flight or self._clock.monotonic_s() >= until_s:
                return
            self._clock.wait_until_any_done(in_flight, until_s)

    def finish_done(self) -> None:
        """Finish all commits that have been written or have failed."""
        for number, task in list(self._tasks.items()):
            if task.commit is not None and task.commit.written.done():
                self.finish(number, task)

    def finish(self, number: int, task: ActiveTask) -> bool:
        """Wait for the in-flight commit, if any. Return whether the unit is still running."""
        error = task.finish_commit()
        if error is not None:
            self._fail(number, error)
        return error is None

    def commit_all(self, number: int, task: ActiveTask) -> bool:
        """Commit all joined batches, unless a slow commit is in flight. Return whether everything is committed."""
        if task.waiting is not None and not task.is_writing_long and not self.begin_waiting(number, task):
            return False
        return not task.is_writing_long and self.finish(number, task) and not task.has_uncommitted

    def finish_soon(self, units: list[int], until_s: float) -> None:
        """Wait for these units' in-flight commits until ``until_s`` (monotonic), and finish those that have ended."""
        under_way = {
            number: task.commit for number in units if (task := self._tasks.get(number)) is not None and task.commit
        }
        self._clock.wait_until_done([commit.written for commit in under_way.values()], until_s)
        for number, commit in under_way.items():
            if commit.written.done():
                self.finish(number, self._tasks[number])
