"""Every pair and every aligned row exists exactly once, from the events file to the database, whatever dies when."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import pytest

from simulator.generate import Plan, write
from tests.chaos.pipeline import ChaosPipeline, ChaosStack
from tests.chaos.play import Play
from tests.chaos.report import row_of
from tests.chaos.schedule import schedule, seeds
from tests.integration.joiner_application import found_of

_log = logging.getLogger(__name__)

EVENTS_PER_S = 150


@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", seeds())
def test_every_pair_comes_out_once_whatever_dies(
    servers: ChaosStack, chaos_report: list[dict[str, Any]], tmp_path: Path, seed: int
) -> None:
    acts = schedule(seed)
    _log.warning("seed %s: %s", seed, acts)
    began_s = time.monotonic()
    count = int(EVENTS_PER_S * (acts[-1].at_s + 5))
    events = tmp_path / "events.json"
    write(Plan(events=count, seed=seed, machines=7, disorder=0.02, repeats=0.005, equal=0.005), events)
    servers.up()
    pipeline = ChaosPipeline(servers, tmp_path, events, EVENTS_PER_S, standbys=seed % 2, restarts_as_forks=True)
    play = Play(pipeline, acts)
    try:
        played = play.run()
    finally:
        play.close()
        pipeline.close()
    row = row_of(seed, played, time.monotonic() - began_s)
    _log.warning("%s", row)
    chaos_report.append(row | {"timeline": played.timeline, "schedule": [vars(act) for act in acts]})
    assert played.failures == []
    rows = found_of(played.report, "aligned rows", "spindle")
    assert found_of(played.report, "points in InfluxDB", "spindle") == rows > 100
    assert played.report["is_right"], (tmp_path / "verified.txt").read_text()
