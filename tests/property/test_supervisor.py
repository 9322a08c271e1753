"""Does every history of a unit follow the transition table, and leave the unit running, or failed with a reason?"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from types import SimpleNamespace
from typing import Any, Final

import pytest
from hypothesis import settings as examples
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from broker.metrics import TelemetryServer
from joiner.runtime.control import Released
from joiner.runtime.kafka.transaction import Aborted, Fenced
from joiner.runtime.migration import handover
from joiner.runtime.migration.protocol import Release
from joiner.runtime.model import Checkpoint, OnTheWay, UnitStopped
from joiner.runtime.ownership import assignment
from joiner.runtime.ownership.claim import ClaimLost
from joiner.runtime.ownership.eligibility import Claimant, OwnedElsewhere
from joiner.runtime.ownership.services import Services
from joiner.runtime.runners.lifecycle import UnitState
from joiner.runtime.runners.supervisor import Claimed, Failure, Supervisor
from joiner.runtime.telemetry.metrics import JoinerMetrics
from tests.manual_clock import ManualClock
from tests.unit.joiner.runtime.joiner_inputs import DATA, make_settings

UNITS: Final = 3
ELSEWHERE_STATES: Final = frozenset({UnitState.FAILED, UnitState.ELSEWHERE})


def checkpoint(unit: int, *, run: str = "run", site: str = "process") -> Checkpoint:
    return Checkpoint(1, "app", unit, run, "other", site, {DATA: 0}, {DATA: 0}, {}, UNITS, "", {}, {}, {})


PASSING: Final[dict[str, Callable[[int], Exception]]] = {
    "fenced": lambda _unit: Fenced(),
    "overtaken": lambda _unit: ClaimLost("run"),
    "aborted": lambda _unit: Aborted("away"),
    "memory": lambda _unit: MemoryError(),
}
LASTING: Final[dict[str, Callable[[int], Exception]]] = {
    "stopped": lambda _unit: UnitStopped("damaged"),
    "defect": lambda _unit: ValueError("a defect"),
    "elsewhere": lambda unit: OwnedElsewhere("another site's", checkpoint(unit, run="theirs", site="green")),
}
FAULTS: Final = PASSING | LASTING


class Pool(Executor):
    """A pool that queues work until the history runs it."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, work: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.waiting.append((future, lambda: work(*given, **named)))
        return future

    def do(self, which: int) -> None:
        future, work = self.waiting.pop(which % len(self.waiting))
        future.set_result(work())


class Execution:
    """An execution that only records which units it runs."""

    def __init__(self) -> None:
        self.tasks: dict[int, Any] = {}
        self.failures: deque[Failure] = deque()
        self.releases: dict[int, Future[None]] = {}
        self.fault: Exception | None = None

    def prepare(self, unit: int) -> None:
        """Do nothing."""

    def restore(self, claimed: Claimed) -> Any:
        if (fault := self.fault) is not None:
            raise fault
        return SimpleNamespace(unit=claimed.unit, first_commit_s=1.0)

    def start(self, unit: int, task: Any) -> None:
        assert unit not in self.tasks, "the unit is started twice"
        self.tasks[unit] = task

    def fail(self, unit: int, error: Exception | None) -> None:
        self.failures.append(Failure(unit, error))
        del self.tasks[unit]

    def release(self, action: Release, _then: Callable[[], None]) -> Future[None]:
        del self.tasks[action.unit]
        self.releases[action.unit] = Future()
        return self.releases[action.unit]


class Lives(RuleBasedStateMachine):
    """Three units at one runner; any event may occur at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.fault: Exception | None = None
        self.units: set[int] = set()
        self.pool, self.execution = Pool(), Execution()
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(assignment, "read_checkpoint", lambda _readers, unit: checkpoint(unit))
        self._patch.setattr(handover, "read_checkpoint", lambda _readers, unit: checkpoint(unit))
        settings, claimant = make_settings(partitions=UNITS), Claimant("run", "one")
        metrics = JoinerMetrics(settings, claimant, TelemetryServer(settings.metrics), dict, set, self.clock)
        control: Any = SimpleNamespace(read=list, write=lambda _record: None, post=lambda _record: None)
        nothing: Any = None
        services = Services(self.pool, self.pool, nothing, nothing, control, self.clock)
        execution: Any = self.execution
        self.supervisor: Supervisor[Any] = Supervisor(settings, claimant, execution, services, metrics, standby=True)
        claims: Any = SimpleNamespace(claim=self._claim)
        self.supervisor._assignment._claimer = claims  # noqa: SLF001 - claims without Kafka

    @property
    def lost(self) -> set[int]:
        """The units that another process has claimed."""
        return {*self.supervisor._assignment.failed} - self.supervisor.failed_units  # noqa: SLF001 - not told otherwise

    def teardown(self) -> None:
        self._patch.undo()

    def _claim(self, unit: int, *_given: Any) -> tuple[Any, Checkpoint]:
        if (fault := self.fault) is not None:
            raise fault
        return None, checkpoint(unit)

    @rule(unit=st.integers(0, UNITS - 1))
    def given_by_the_group(self, unit: int) -> None:
        self.units.add(unit)

    @precondition(lambda self: self.units)
    @rule(data=st.data())
    def taken_by_the_group(self, data: st.DataObject) -> None:
        unit = data.draw(st.sampled_from(sorted(self.units)))
        self.units.discard(unit)
        self.supervisor.cancel_claims([unit], self.clock.now_s)
        self.execution.tasks.pop(unit, None)
        self.supervisor.forget([unit])

    @rule(seconds=st.sampled_from([0.1, 1.0, 10.0, 100.0]))
    def turn(self, seconds: float) -> None:
        self.clock.now_s += seconds
        self.supervisor.poll(self.units)

    @precondition(lambda self: self.pool.waiting)
    @rule(which=st.integers(0, 5), claim=st.sampled_from([None, *FAULTS]), restore=st.sampled_from([None, *FAULTS]))
    def work(self, which: int, claim: str | None, restore: str | None) -> None:
        self.fault = FAULTS[claim](which % UNITS) if claim else None
        self.execution.fault = FAULTS[restore](which % UNITS) if restore else None
        self.pool.do(which)
        self.fault = self.execution.fault = None

    @precondition(lambda self: self.execution.tasks)
    @rule(data=st.data(), fault=st.sampled_from([None, *PASSING, "stopped", "defect"]))
    def fail(self, data: st.DataObject, fault: str | None) -> None:
        """Fail a batch or a commit. Only claims can detect that a unit belongs to another site."""
        unit = data.draw(st.sampled_from(sorted(self.execution.tasks)))
        self.execution.fail(unit, FAULTS[fault](unit) if fault else None)

    @rule(units=st.sets(st.integers(0, UNITS - 1), min_size=1))
    def retry(self, units: set[int]) -> None:
        """Order that units be tried again, whatever has become of them."""
        self.supervisor.retry(units)
        # A claim that has ended, but has not been collected yet, is tried again at the next turn.
        ended = units - self.supervisor.claiming
        assert not ended & self.supervisor.failed_units
        assert not {unit for unit in ended if self.supervisor.states.get(unit) is UnitState.FAILED} - self.lost

    @precondition(lambda self: self.execution.tasks)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        unit = data.draw(st.sampled_from(sorted(self.execution.tasks)))
        record = Released(move="m", unit=unit, to="green", instance="one")
        moves = self.supervisor._moves  # noqa: SLF001 - as the protocol requests
        moves.release(Release(unit, OnTheWay("m", "process"), "green", record))

    @precondition(lambda self: self.execution.releases)
    @rule(data=st.data(), fault=st.sampled_from([None, *PASSING, "stopped", "defect"]))
    def released(self, data: st.DataObject, fault: str | None) -> None:
        unit = data.draw(st.sampled_from(sorted(self.execution.releases)))
        written = self.execution.releases.pop(unit)
        if fault is not None:
            written.set_exception(FAULTS[fault](unit))
        else:
            written.set_result(None)

    @precondition(lambda self: self.execution.releases)
    @rule(data=st.data())
    def moved_straight_back(self, data: st.DataObject) -> None:
        """Claim a unit whose last transaction is visible although its future is not done yet."""
        unit = data.draw(st.sampled_from(sorted(self.execution.releases)))
        self.supervisor._moves.claim(unit)  # noqa: SLF001 - as the protocol requests

    @precondition(lambda self: self.execution.tasks)
    @rule(data=st.data(), fault=st.sampled_from(["fenced", "aborted", "stopped", "defect"]))
    def fail_while_the_supervisor_is_at_work(self, data: st.DataObject, fault: str) -> None:
        """Fail a unit during a poll, as Spark's threads may do at any point."""
        unit = data.draw(st.sampled_from(sorted(self.execution.tasks)))
        moves = self.supervisor._moves  # noqa: SLF001 - as above
        poll = moves.poll

        def failing(units: Any) -> None:
            poll(units)
            if unit in self.execution.tasks:
                self.execution.fail(unit, FAULTS[fault](unit))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(moves, "poll", failing)
            self.supervisor.poll(self.units)

    @precondition(lambda self: self.units)
    @rule()
    def calm(self) -> None:
        """Check that, without further faults, each assigned unit is running, has failed, or belongs to another site."""
        for unit in sorted(self.execution.releases):
            self.execution.releases.pop(unit).set_result(None)
        for _ in range(200):
            self.turn(10.0)
            while self.pool.waiting:
                self.pool.do(0)
        states = self.supervisor.states
        for unit in self.units:
            assert states.get(unit) in {UnitState.RUNNING, *ELSEWHERE_STATES}
            if states[unit] is UnitState.FAILED:
                assert self.supervisor.why_failed(unit)

    @invariant()
    def what_is_run_is_said_to_be(self) -> None:
        failing = {failure.unit for failure in self.execution.failures}
        running = {unit for unit, state in self.supervisor.states.items() if state is UnitState.RUNNING}
        assert running - failing == self.execution.tasks.keys() - failing


Lives.TestCase.settings = examples(max_examples=80, stateful_step_count=40, deadline=None)
TestLives = Lives.TestCase


def test_a_unit_whose_claim_fails_while_it_is_to_be_tried_again_is_claimed_once_more() -> None:
    lives = Lives()
    try:
        lives.units.add(0)
        lives.supervisor.poll(lives.units)
        lives.execution.fault = UnitStopped("damaged")
        lives.pool.do(0)
        lives.execution.fault = None
        # The claim has failed, and its outcome has not been collected.
        lives.supervisor.retry({0})
        for _ in range(2):
            lives.supervisor.poll(lives.units)
            while lives.pool.waiting:
                lives.pool.do(0)
        lives.supervisor.poll(lives.units)
        assert (set(lives.execution.tasks), lives.supervisor.failed_units) == ({0}, set())
    finally:
        lives.teardown()


def test_a_unit_that_comes_back_twice_before_its_release_is_complete_can_be_claimed_twice() -> None:
    lives = Lives()
    try:
        lives.units.add(0)
        lives.calm()
        moves = lives.supervisor._moves  # noqa: SLF001 - as the protocol requests
        record = Released(move="m", unit=0, to="green", instance="one")
        moves.release(Release(0, OnTheWay("m", "process"), "green", record))
        for _ in range(2):
            moves.claim(0)
            assert lives.supervisor.states[0] is UnitState.CLAIMING
            # The group gives the unit to another process, so the claim is in vain.
            lives.supervisor.cancel_claims([0], lives.clock.now_s)
            lives.supervisor.forget([0])
            lives.pool.do(0)
            lives.supervisor.poll(set())
            assert 0 not in lives.supervisor.states
    finally:
        lives.teardown()
