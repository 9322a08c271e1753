"""Defects planted in the stage's driver and worker, one at a time. Defects common to all runners are in `bugs`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Final

import msgspec

from joiner.runtime.runners.spark import units as module
from joiner.runtime.runners.spark import worker
from joiner.runtime.runners.spark.plans import Outcome
from joiner.runtime.runners.spark.spark_task import SparkTask
from joiner.runtime.runners.spark.units import Units
from tests.simulation import bugs
from tests.simulation.bugs import Bug, changed
from tests.simulation.spark import MemoryCopy


def what_was_planned_before_is_taken() -> AbstractContextManager[None]:
    """The outcome of a plan is written even if the unit has been planned again since."""
    accept = Units.accept

    def wrong(self: Any, outcome: Outcome) -> None:
        task = self.tasks.get(outcome.plan.unit)
        if task is not None:
            task.planned = outcome.plan
        accept(self, outcome)

    return changed(Units, "accept", wrong)


def failed_commit_is_ignored() -> AbstractContextManager[None]:
    """After a failed transaction, the driver continues as if it had been committed."""

    def wrong(_self: Any, _number: int, task: SparkTask) -> bool:
        commit, task.commit = task.commit, None
        if commit is not None:
            commit.failure()
            task.checkpoint = commit.checkpoint
        return True

    return changed(Units, "_finish", wrong)


def copy_of_another_vector_is_used() -> AbstractContextManager[None]:
    """Spark's copy of the state is used, whatever its vector."""

    def wrong(self: Any, _start: Mapping[str, int], _offsets: Mapping[str, int]) -> bytes | None:
        return self.kept[-1][2] if self.kept else None

    return changed(MemoryCopy, "read", wrong)


def worker_believes_its_memory() -> AbstractContextManager[None]:
    """A worker continues with the unit in its memory, whatever the unit's vector."""
    unit_at = worker._unit_at  # noqa: SLF001 - the defect is planted here

    def wrong(settings: Any, plan: Any, copy: Any, clock: Any, left: Any) -> Any:
        return left.unit if left is not None else unit_at(settings, plan, copy, clock, left)

    return changed(worker, "_unit_at", wrong)


def checkpoint_is_that_of_the_begin() -> AbstractContextManager[None]:
    """The results of a plan are committed with the vector at its start."""
    write = vars(module)["write_commit"]

    def wrong(*given: Any) -> Any:
        *before, checkpoint, snapshot = given
        stale = msgspec.structs.replace(checkpoint, offsets=_before.get(checkpoint.unit, checkpoint.offsets))
        _before[checkpoint.unit] = checkpoint.offsets
        return write(*before, stale, snapshot)

    _before.clear()
    return changed(module, "write_commit", wrong)


_before: dict[int, Any] = {}


def next_plan_does_not_wait_for_what_is_on_its_way() -> AbstractContextManager[None]:
    """The next plan starts at the last checkpoint known to be written, not after the one in flight."""
    return changed(SparkTask, "reached", property(lambda self: self.checkpoint.offsets))


SPARK_BUGS: Final[dict[str, Bug]] = {
    found.__name__: found
    for found in (
        what_was_planned_before_is_taken,
        failed_commit_is_ignored,
        copy_of_another_vector_is_used,
        worker_believes_its_memory,
        checkpoint_is_that_of_the_begin,
        next_plan_does_not_wait_for_what_is_on_its_way,
        # Defects common to all runners that the driver reaches through code of its own.
        bugs.offsets_before_results,
        bugs.results_before_offsets,
        bugs.fenced_state_goes_on,
    )
}
