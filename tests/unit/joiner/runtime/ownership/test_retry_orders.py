"""Does a unit that was set aside come back by order, and only then?"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from joiner.runtime.control import NotServed
from joiner.runtime.kafka.transaction import Fenced
from joiner.runtime.model import RESET_RUN, UnitStopped
from joiner.runtime.ownership import assignment
from joiner.runtime.ownership.eligibility import Claimant, OwnedElsewhere
from joiner.runtime.ownership.unit_reports import UnitReports
from tests.manual_clock import ManualClock
from tests.unit.joiner.runtime.ownership.test_assignment import UNIT, Runner, checkpoint
from tests.unit.joiner.runtime.runner_parts import AtOnce, idle_supervisor


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def test_a_unit_that_has_failed_is_claimed_again_by_order_each_time(clock: ManualClock) -> None:
    runner = Runner(clock)
    runner.claims.outcomes = [UnitStopped("damaged")] * 3
    for made in (1, 2, 3):
        runner.wait(60.0)
        assert (runner.claims.made, runner.wanted.failed_units) == (made, {UNIT})
        assert runner.wanted.retry(UNIT)
        assert (runner.wanted.failed_units, runner.wanted.obstacles()) == (set(), {})
    runner.turn()
    assert runner.is_served


def test_the_wait_of_a_unit_that_is_retried_anyway_ends_by_order(clock: ManualClock) -> None:
    runner = Runner(clock)
    runner.claims.outcomes = [MemoryError()] * 8
    runner.wait(400.0)
    runner.claims.outcomes = [MemoryError()] * 8
    runner.fail(MemoryError())
    runner.turn()
    made = runner.claims.made
    assert not runner.wanted.retry(UNIT)
    assert runner.wanted.obstacles() == {}
    runner.turn()
    assert runner.claims.made == made + 1
    waited = runner.wanted.obstacles()[UNIT].retry_s
    assert waited is not None
    assert waited <= 3.0, "earlier failures do not count"


def test_an_order_does_not_skip_the_check_of_who_owns_a_unit(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assignment, "read_checkpoint", lambda *_: checkpoint("other"))
    runner = Runner(clock)
    runner.turn()
    runner.fail(Fenced())
    runner.wanted.retry(UNIT)
    runner.turn()
    assert (runner.claims.made, runner.wanted.failed_units) == (1, set())
    assert UNIT in runner.wanted.failed, "another process has claimed it"
    assert not runner.wanted.retry(UNIT)
    assert UNIT in runner.wanted.failed, "it is left to that process"


def test_a_unit_that_was_reset_while_it_was_served_is_claimed_by_order(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assignment, "read_checkpoint", lambda *_: checkpoint(RESET_RUN))
    runner = Runner(clock)
    runner.turn()
    runner.fail(Fenced())
    runner.wait(60.0)
    assert runner.wanted.failed_units == {UNIT}
    runner.wanted.retry(UNIT)
    runner.turn()
    assert runner.is_served


def test_an_order_about_a_unit_that_is_served_or_not_assigned_here_does_nothing(clock: ManualClock) -> None:
    runner = Runner(clock)
    runner.turn()
    assert not runner.wanted.retry(UNIT)
    assert not runner.wanted.retry(UNIT + 1)
    runner.turn()
    assert (runner.claims.made, runner.wanted.is_pending(UNIT + 1)) == (1, False)


def test_a_unit_that_fails_again_is_reported_again(clock: ManualClock) -> None:
    runner, written = Runner(clock), list[NotServed]()
    reports = UnitReports(Claimant("run", "one"), AtOnce(), written.append, clock)
    runner.claims.outcomes = [UnitStopped("damaged")] * 2
    for _ in range(2):
        runner.turn()
        clock.now_s += 3.0
        reports.poll(runner.wanted.obstacles())
        assert [notice.why for notice in written] == ["damaged"]
        assert written[0].lasts_ms == 3000
        runner.wanted.retry(UNIT)
        reports.poll(runner.wanted.obstacles())
        assert [notice.why for notice in written] == ["damaged", ""]
        written.clear()


def test_a_unit_of_another_site_is_claimed_by_order_and_found_to_be_there() -> None:
    supervisor = idle_supervisor(AtOnce())
    claims: list[int] = []

    def claim(unit: int, *_given: Any) -> Any:
        claims.append(unit)
        raise OwnedElsewhere("unit 1 is owned by a green", checkpoint("theirs", "green"))

    claimer: Any = SimpleNamespace(claim=claim)
    supervisor._assignment._claimer = claimer  # noqa: SLF001 - claims without Kafka
    for made in (1, 2):
        for _ in range(3):
            supervisor.poll({1})
        assert (claims, supervisor.failed_units) == ([1] * made, {1})
        supervisor.retry({1})
        assert (supervisor.failed_units, supervisor.elsewhere) == (set(), set())
