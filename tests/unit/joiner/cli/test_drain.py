"""Does `joiner drain` write its order, and refuse only what cannot be meant?"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from joiner.cli import drain
from joiner.runtime.control import Drain, Heartbeat
from joiner.runtime.membership.state import SiteState
from tests.manual_clock import ManualClock
from tests.unit.joiner.runtime.joiner_inputs import make_settings


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[Drain]:
    """The orders that the command writes. At the site, only the instance "one" is running, without units."""
    orders: list[Drain] = []
    state = SiteState("process")
    state.apply(Heartbeat(site="process", instance="one", run="run"), 0)
    log = SimpleNamespace(write=orders.append, close=lambda: None)
    monkeypatch.setattr(drain, "make_admin", lambda _settings: None)
    monkeypatch.setattr(drain, "topic_facts", lambda _admin, names: dict.fromkeys(names))
    monkeypatch.setattr(drain, "read_sites", lambda *_: {"process": state})
    monkeypatch.setattr(drain, "ControlLog", lambda _settings: log)
    return orders


def run_drain(instance: str, **options: Any) -> int:
    return drain.drain(make_settings(), "process", instance, 1.0, ManualClock(), **options)


@pytest.mark.parametrize("undo", [False, True])
def test_a_running_instance_is_drained_and_let_have_units_again(written: list[Drain], *, undo: bool) -> None:
    assert run_drain("one", undo=undo) == 0
    assert written == [Drain(site="process", instance="one", drained=not undo)]


def test_an_instance_that_is_not_running_cannot_be_drained(
    written: list[Drain], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_drain("two") == 1
    assert "has no instance 'two' at site 'process'; running there: one" in capsys.readouterr().out
    assert written == []


def test_the_order_to_drain_an_instance_can_be_undone_while_it_is_not_running(
    written: list[Drain], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_drain("two", undo=True) == 0
    assert capsys.readouterr().out == "two may have units again; it is not running now\n"
    assert written == [Drain(site="process", instance="two", drained=False)]


@pytest.mark.parametrize("undo", [False, True])
def test_no_topic_is_created_for_an_application_that_has_never_run(
    written: list[Drain], monkeypatch: pytest.MonkeyPatch, *, undo: bool
) -> None:
    monkeypatch.setattr(drain, "topic_facts", lambda _admin, _names: {})
    assert run_drain("one", undo=undo) == 1
    assert written == []
