"""Parts of runners that work without Kafka: an idle supervisor, and a process's loop with input from the tests."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from types import SimpleNamespace
from typing import Any

import pytest

from broker.metrics import TelemetryServer
from joiner.runtime.clock import SystemClock
from joiner.runtime.kafka.snapshot_log import SnapshotPlace
from joiner.runtime.ownership.eligibility import Claimant
from joiner.runtime.ownership.services import Services
from joiner.runtime.runners import input as input_
from joiner.runtime.runners import process
from joiner.runtime.runners.active_task import ActiveTask
from joiner.runtime.runners.lifecycle import UnitState
from joiner.runtime.runners.process import LoopParts, ProcessLoop
from joiner.runtime.runners.supervisor import Supervisor
from joiner.runtime.settings import JoinerSettings
from joiner.runtime.telemetry.metrics import JoinerMetrics
from tests.unit.joiner.runtime.joiner_inputs import make_settings


class AtOnce(Executor):
    """Stands in for a pool: runs the submitted work at once."""

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(work(*arguments, **named))
        except Exception as error:  # noqa: BLE001 - like a real pool
            done.set_exception(error)
        return done


def quiet_services(pool: Executor) -> Services:
    """Return services with the real clock, and with a control topic that is empty and drops all records."""
    control: Any = SimpleNamespace(read=list, write=lambda _record: None, post=lambda _record: None)
    nothing: Any = None
    return Services(pool, pool, nothing, nothing, control, SystemClock())


class NoTasks:
    """An execution that runs no tasks."""

    def __init__(self) -> None:
        self.tasks: dict[int, Any] = {}
        self.failures: deque[Any] = deque()


def idle_supervisor(pool: Executor) -> Supervisor[Any]:
    settings, claimant = make_settings(partitions=2), Claimant("run", "one")
    metrics = JoinerMetrics(settings, claimant, TelemetryServer(settings.metrics), dict, set, SystemClock())
    tasks: Any = NoTasks()
    return Supervisor(settings, claimant, tasks, quiet_services(pool), metrics, standby=False)


class Group:
    """Stands in for a group membership."""

    def __init__(self, *_given: Any) -> None:
        self.is_assigned = True
        self.units: set[int] = set()


def idle_loop(settings: JoinerSettings, consumer: Any = None) -> ProcessLoop:
    """Return the loop of a plain process that serves no units yet. ``consumer`` reads its input."""
    watch: Any = None
    telemetry, claimant = TelemetryServer(settings.metrics), Claimant("run", "one")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "SiteMembership", Group)
        patch.setattr(input_, "make_consumer", lambda *_given, **_more: consumer or QuietConsumer())
        metrics = JoinerMetrics(settings, claimant, telemetry, dict, set, SystemClock())
        return ProcessLoop(
            LoopParts(settings, claimant, quiet_services(AtOnce()), telemetry, metrics, watch, standby=False)
        )


def make_task(unit: Any, *, transactions: Any = None, checkpoint: Any = None, **more: Any) -> ActiveTask:
    """Return a task whose last snapshot was taken long ago, at the beginning of the logs."""
    given: dict[str, Any] = {"snapshot_offsets": dict.fromkeys(unit.offsets, 0), "snapshot_at_s": 0.0, **more}
    place = SnapshotPlace(0, [0, 0])
    return ActiveTask(
        unit=unit, transactions=transactions, clock=SystemClock(), checkpoint=checkpoint, place=place, **given
    )


def serve(loop: ProcessLoop, number: int, task: Any) -> None:
    """Make the loop run a unit, as if it had claimed and restored it."""
    for state in (UnitState.PENDING, UnitState.CLAIMING, UnitState.RESTORING, UnitState.RUNNING):
        loop.supervisor._lifecycle.enter(number, state)  # noqa: SLF001 - sets the state directly
    loop.tasks.tasks[number] = task


class QuietConsumer:
    """A consumer that receives no records."""

    def incremental_assign(self, _places: Any) -> None:
        """See `confluent_kafka.Consumer`."""

    def incremental_unassign(self, _places: Any) -> None:
        """See `confluent_kafka.Consumer`."""

    def resume(self, _places: Any) -> None:
        """See `confluent_kafka.Consumer`."""

    def consume(self, _most: int, _wait_s: float) -> list[Any]:
        """See `confluent_kafka.Consumer`."""
        return []
