"""Does `joiner scale` say which of the workers are running, and which of them serve nothing?"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from joiner.cli import workers
from joiner.runtime.control import Drain, Heartbeat, MemberRecord, Scale, Workers
from joiner.runtime.membership.state import SiteState
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
