"""Is the outcome of a move told for every unit, also if a checkpoint cannot be read?"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from joiner.cli import move as move_module
from joiner.cli.move import carry_out
from joiner.runtime.control import Ready, Record, Released, Request, Resumed
from joiner.runtime.migration.order import Order, Step
from joiner.runtime.model import Checkpoint, OnTheWay, UnitStopped
from tests.manual_clock import ManualClock
from tests.unit.joiner.runtime.joiner_inputs import make_settings
from tests.unit.joiner.runtime.test_model import make_checkpoint


class Target:
    """The control log, with a source that releases all units after 30 s and a target that reports only unit 1."""

    resumed_s = 32

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._due: list[tuple[float, Record]] = []

    def begin_now(self, _clock: Any) -> None: ...

    def close(self) -> None: ...

    def write(self, record: Record) -> None:
        if isinstance(record, Request) and not self._due:
            now_s = self._clock.now_s
            for unit in record.units:
                of_unit: dict[str, Any] = {"move": record.move, "unit": unit, "to": "green", "instance": "one"}
                self._due += [(now_s, Ready(**of_unit)), (now_s + 30, Released(**of_unit))]
            self._due.append((now_s + self.resumed_s, Resumed(move=record.move, unit=1, to="green", instance="two")))

    def read(self, _wait_s: float) -> list[tuple[Record, int]]:
        before_s = self._clock.now_s
        self._clock.now_s += 1.0
        return [(record, 1_000) for due_s, record in self._due if before_s <= due_s < self._clock.now_s]


def ordered(clock: ManualClock, monkeypatch: pytest.MonkeyPatch, read: Any, report: Any) -> Order:
    """Order the move of units 0 and 1 to the site green. ``read`` reads the checkpoints."""
    monkeypatch.setattr(move_module, "ControlLog", lambda _settings: Target(clock))
    monkeypatch.setattr(move_module, "read_checkpoint", read)
    monkeypatch.setattr(move_module, "ensure_topics", lambda *_: None)
    monkeypatch.setattr(move_module, "make_admin", lambda *_: None)
    settings = make_settings()
    made: Any = SimpleNamespace(settings=settings, clock=clock, close=lambda: None)
    monkeypatch.setattr(move_module, "Readers", lambda *_: made)
    return carry_out(settings, "green", [0, 1], 60.0, clock, report)


def test_a_target_that_claims_late_still_has_its_time_to_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """The units are released after 30 s and claimed after 45 s, and unit 1 is reported to run after 47 s."""
    clock = ManualClock(0.0)
    way = OnTheWay("m", "process").run()

    def read(_readers: Any, unit: int) -> Checkpoint:
        site, run = ("process", "a") if clock.now_s < 30 else ("green", way) if clock.now_s < 45 else ("green", "b")
        return make_checkpoint(unit=unit, site=site, run=run, instance="two")

    monkeypatch.setattr(Target, "resumed_s", 47)
    order = ordered(clock, monkeypatch, read, lambda _text: None)
    assert [(one.step, one.why) for one in order.units.values()] == [
        (Step.MOVED, "claimed by two, but not confirmed to be running"),
        (Step.MOVED, ""),
    ]


def test_a_checkpoint_of_a_later_release_hides_no_other_unit_and_ends_as_not_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, steps = ManualClock(), list[str]()

    def read(_readers: Any, _unit: int) -> None:
        raise UnitStopped("its checkpoint comes from a later release")

    order = ordered(clock, monkeypatch, read, steps.append)
    assert [(one.step, one.why) for one in order.units.values()] == [
        (Step.MOVED, "it is not known whether it runs at green: its checkpoint comes from a later release"),
        (Step.MOVED, ""),
    ]
    assert steps[-1].startswith("unit 0: it is not known")
