"""Each replica and their union are right, up to the database, whatever dies when.

A result of the union may come from any replica. The tester judges each replica's topics, the merged topics and the
database, which has exactly the points of the union.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from simulator.generate import Plan, write
from tests.chaos.pipeline import ChaosPipeline, ChaosStack, chaos_stack
from tests.chaos.replica_schedule import application_of, full_schedule, replicated, short_schedule, standbys_of
from tests.chaos.replicated import ReplicasPlay
from tests.chaos.report import row_of
from tests.chaos.schedule import seeds
from tests.integration.joiner_application import found_of

_log = logging.getLogger(__name__)

IS_FULL: Final = "LSB_CHAOS_FULL" in os.environ
SEEDS: Final = 8
"""The maximum number of seeds."""
EVENTS_PER_S: Final = 80
RESET_S: Final = 90
"""For how long there is data, in addition, if a replica is reset."""


@pytest.fixture(scope="module")
def servers() -> Iterator[ChaosStack]:
    with chaos_stack(applications=(replicated(2, 2), replicated(3, 2))) as started:
        yield started


@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", seeds()[: SEEDS if IS_FULL else 1])
def test_each_replica_and_their_union_come_out_once_whatever_dies(
    servers: ChaosStack, replicas_report: list[dict[str, Any]], tmp_path: Path, seed: int
) -> None:
    acts = full_schedule(seed) if IS_FULL else short_schedule(seed)
    _log.warning("seed %s: %s", seed, acts)
    began_s = time.monotonic()
    resets_s = RESET_S * sum(act.fault == "reset" for act in acts)
    events = tmp_path / "events.json"
    count = int(EVENTS_PER_S * (acts[-1].at_s + resets_s + 5))
    write(Plan(events=count, seed=seed, machines=7, disorder=0.04, repeats=0.005, equal=0.005), events)
    servers.up()
    pipeline = ChaosPipeline(
        servers,
        tmp_path,
        events,
        EVENTS_PER_S,
        standbys=standbys_of(seed),
        starts_as_forks=True,
        applications=(application_of(seed),),
    )
    play = ReplicasPlay(pipeline, acts)
    try:
        played = play.run()
    finally:
        play.close()
        pipeline.close()
    row = row_of(seed, played, time.monotonic() - began_s)
    _log.warning("%s", row)
    replicas_report.append(row | {"timeline": played.timeline})
    assert played.failures == []
    union, *replicas = played.report["reports"]
    rows = found_of(union, "aligned rows", "spindle")
    assert found_of(union, "points in InfluxDB", "spindle") == rows > 100
    assert found_of(union, "failed pairs", "power") > 10
    assert all(found_of(replica, "aligned rows", "spindle") > 0 for replica in replicas)
    assert played.report["is_right"], (tmp_path / "verified.txt").read_text()
