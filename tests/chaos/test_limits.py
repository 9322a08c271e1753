"""The guarantees hold under extreme conditions: full disks, wrong clocks, minutes without Kafka.

The MQTT broker is killed as well. What survives a kill depends on the broker; the local stack's loses nothing. Each of
these runs takes minutes, so only `make test-chaos` includes them.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from simulator.generate import Plan, write
from tests.chaos.limits import why_no_clock, why_no_disk
from tests.chaos.pipeline import ChaosPipeline, ChaosStack, chaos_stack
from tests.chaos.play import Play
from tests.chaos.report import row_of
from tests.chaos.schedule import Act

EVENTS_PER_S = 100

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.timeout(900),
    pytest.mark.long,
]


def play(servers: ChaosStack, folder: Path, acts: list[Act], rows: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """Run the acts while data flows, and check the outcome. Return the row for the report."""
    began_s = time.monotonic()
    events = folder / "events.json"
    count = int(EVENTS_PER_S * (acts[-1].until_s + 10))
    write(Plan(events=count, seed=1, machines=7, disorder=0.02, repeats=0.005, equal=0.005), events)
    pipeline = ChaosPipeline(servers, folder, events, EVENTS_PER_S)
    playing = Play(pipeline, acts)
    try:
        played = playing.run()
        row = row_of(name, played, time.monotonic() - began_s)
        lost = sum(fates["lost before Kafka"] for fates in played.report["events"]["accounts"].values())
        rows.append(row | {"lost before Kafka": lost, "timeline": played.timeline})
        assert played.failures == []
        assert played.report["is_right"], (folder / "verified.txt").read_text()
    finally:
        playing.close()
        pipeline.close()
    return rows[-1]


def test_kafka_may_be_unavailable_for_minutes(
    servers: ChaosStack, chaos_report: list[dict[str, Any]], tmp_path: Path
) -> None:
    play(servers, tmp_path, [Act(10, "kill", "kafka", 150)], chaos_report, "Kafka away")


@pytest.mark.skipif(bool(why_no_disk()), reason=why_no_disk())
@pytest.mark.parametrize("server", ["kafka", "influxdb"])
def test_a_full_disk_costs_nothing_but_time(server: str, chaos_report: list[dict[str, Any]], tmp_path: Path) -> None:
    # Far enough apart that the server is running again before its disk is filled a second time.
    again_s, acts = 60, []
    if server == "influxdb":
        acts = [act for at_s in (0, again_s - 8) for act in _start_influxdb_again(at_s + 24)]
    acts += [Act(8, "fill", server, 15), Act(again_s, "fill", server, 10), Act(again_s + 30, "stop", "one", 0)]
    acts.sort(key=lambda act: act.at_s)
    with chaos_stack(small_disks=[server]) as servers:
        play(servers, tmp_path, acts, chaos_report, f"disk of {server} full")


def _start_influxdb_again(at_s: float) -> list[Act]:
    """Return the acts of an operator after a full disk: two restarts, with no writes in between.

    InfluxDB 1.8 accepts no writes after a failed write to its log. At the next start it opens the log at its end, and
    truncates the torn record only after that (`WAL.Open` and `CacheLoader.Load` in tsdb/engine/tsm1). Later writes are
    then placed after a gap, and are lost at the following start.
    """
    return [
        Act(at_s, "stop", "db_connector", 12),
        Act(at_s + 3, "stop", "influxdb", 0),
        Act(at_s + 7, "stop", "influxdb", 0),
    ]


@pytest.mark.skipif(bool(why_no_clock()), reason=why_no_clock())
def test_clocks_that_are_set_change_nothing(chaos_report: list[dict[str, Any]], tmp_path: Path) -> None:
    day_s = 86_400
    # Kafka's clock is not set here, because Kafka does not start under libfaketime. The simulation sets its clock
    # (`Incidents.skew_clock`).
    whose = ["connector", "one", "two", "db_connector", "simulator"]
    acts = [
        act
        for turn, name in enumerate(whose)
        for act in (
            Act(5 + 12 * turn, "clock", name, 5, "", 3600),
            Act(11 + 12 * turn, "clock", name, 5, "", (-3600, -day_s)[turn % 2]),
        )
    ]
    acts.append(Act(80, "kill", "one"))
    with chaos_stack(wrong_clocks=whose) as servers:
        play(servers, tmp_path, acts, chaos_report, "clocks set")


def test_a_killed_mqtt_broker_loses_nothing_that_it_acknowledged(
    servers: ChaosStack, chaos_report: list[dict[str, Any]], tmp_path: Path
) -> None:
    # The broker is killed while the connector reads, and while the connector is down and messages are queued.
    acts = [
        act
        for at_s in (6, 23, 40, 57)
        for act in (
            Act(at_s, "kill", "mqtt", 1),
            Act(at_s + 6, "kill", "connector", 6),
            Act(at_s + 9.3, "kill", "mqtt", 1),
        )
    ]
    servers.up()
    play(servers, tmp_path, acts, chaos_report, "MQTT broker killed")
