"""What a runner logs about a unit that it waits for."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from joiner.runtime.migration.handover import Handover
from joiner.runtime.model import Checkpoint, OnTheWay
from joiner.runtime.ownership.eligibility import Claimant
from tests.manual_clock import ManualClock
from tests.unit.joiner.runtime.joiner_inputs import DATA, make_settings


@pytest.mark.parametrize(
    ("run", "said"),
    [
        ("other", "unit 3: owned by spark two; waiting until it is moved here"),
        (OnTheWay("m", "process").run(), "unit 3: on its way from process to spark; waiting until it is moved here"),
    ],
)
def test_the_log_says_where_a_unit_is_while_the_runner_waits_for_it(
    caplog: pytest.LogCaptureFixture, run: str, said: str
) -> None:
    caplog.set_level(logging.INFO, "joiner")
    services: Any = SimpleNamespace(control=None, clock=ManualClock())
    host: Any = None
    handover = Handover(make_settings(partitions=4), Claimant("run", "one"), host, services, standby=True)
    found = Checkpoint(1, "app", 3, run, "two", "spark", {DATA: 4}, {DATA: 0}, {}, 4, "", {}, {}, {})
    for _ in range(2):
        assert handover.found_elsewhere(3, found)
    assert caplog.messages == [said]
