"""Does `joiner scale` say which of the workers are running, and which of them serve nothing?"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from joiner.cli import workers
from joiner.runtime.control import Drain, Heartbeat, MemberRecord, Scale, Workers
from joiner.runtime.membership.state import SiteState
from joiner.runtime.runners.workers.supervisor import Command
from joiner.runtime.settings import replica_settings
from tests.manual_clock import ManualClock
from tests.unit.joiner.runtime.joiner_inputs import make_settings


def test_a_drained_worker_counts_as_running_and_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = make_settings()
    site = settings.application.site
    state, orders = SiteState(site), list[Scale]()
    records: list[MemberRecord] = [
        *(Heartbeat(site=site, instance=f"host-{number}", run="run") for number in (1, 2)),
        Workers(site=site, instance="host", host="h", running=2, wanted=2),
        *(Drain(site=site, instance=name) for name in ("host-2", "host-3", "other")),
    ]
    for offset, record in enumerate(records):
        state.apply(record, offset)
    monkeypatch.setattr(workers, "read_site", lambda *_: state)
    log = SimpleNamespace(write=orders.append, close=lambda: None)
    monkeypatch.setattr(workers, "ControlLog", lambda _settings: log)
    assert workers.scale(settings, 2, None, 1.0, ManualClock()) == 0
    assert orders == [Scale(site=site, instance="host", processes=2)]
    assert capsys.readouterr().out.endswith("2 of 2 worker processes are members; drained: host-2\n")


@pytest.mark.parametrize(
    ("replicas", "replica", "given"), [(1, 0, []), (2, 0, ["--replica", "0"]), (2, 1, ["--replica", "1"])]
)
def test_workers_run_the_replica_of_their_supervisor(
    monkeypatch: pytest.MonkeyPatch, replicas: int, replica: int, given: list[str]
) -> None:
    settings = replica_settings(make_settings(application={"replicas": replicas}), replica)
    commands: list[Command] = []

    class Supervisor:
        def __init__(
            self, _name: str, _count: int, command: Callable[[str, int], Command], *_: Any, **_more: Any
        ) -> None:
            commands.append(command("one", 0))

        def run(self, _stop: Any) -> int:
            return 0

    control = SimpleNamespace(read=list, write=commands.append, is_drained=None, close=lambda: None)
    monkeypatch.setattr(workers, "WorkerSupervisor", Supervisor)
    monkeypatch.setattr(workers, "end_on_signals", lambda *_given: None)
    monkeypatch.setattr(workers, "wait_for_topics", lambda *_given: {})
    monkeypatch.setattr(workers, "_Control", lambda *_given: control)
    options = Namespace(processes=2, force_claim=False, log_level="info", config=None, standby=False)
    assert workers.run_workers(settings, options, ManualClock()) == 0
    arguments = list(commands[0].arguments)
    assert arguments[arguments.index("info") + 1 :] == given
