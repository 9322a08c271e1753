"""Each alert in grafana/alerts.yml fires in the running stack when its cause occurs, and clears afterwards.

The rules are the real ones with shorter durations. The stack runs no simulator, because the tests send the events.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Producer

from broker.partitioner import partition_of
from tests.compose.stack import ROOT, Stack, wait_until

RULES: Final = (ROOT / "grafana/alerts.yml").read_text()
SPEED: Final = "actSpeed_C11"
TORQUE: Final = "vaTorque_C11"
UNITS: Final = 5
HELD_MAX: Final = 20_000
"""Must equal the value in alerts.yml in this folder."""
_DURATION: Final = re.compile(r"\b\d+[smhd]\b")
_DEADLINE_S: Final = 90.0


def sooner(rules: str) -> str:
    """Return the rules with durations in seconds instead of minutes."""
    return re.sub(r"(\[|offset )[25]m\b", r"\g<1>30s", re.sub(r"for: \w+", "for: 5s", rules))


def event(thing: str, at_ms: int, number: int, *quantities: str) -> dict[str, object]:
    """Return an event as a machine would send it."""
    return {"Thing": thing, "id": f"{thing}-{number}", "Timestamp": at_ms, **dict.fromkeys(quantities, 1.5)}


class Provoked(Stack):
    """The stack, with checks of its alerts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "rules.yml").write_text(sooner(RULES))
        super().__init__(folder, (), [Path(__file__).with_name("alerts.yml")], LSB_TEST_RULES=f"{folder}/rules.yml")

    def send(self, events: list[dict[str, object]], rate: str = "max") -> None:
        """Send events over MQTT with the simulator."""
        path = self._folder / "events.json"
        path.write_text("".join(json.dumps(one) + "\n" for one in events))
        self.simulate(path, "--rate", rate)

    def write(self, topic: str, value: bytes, thing: str) -> None:
        """Write a record directly to Kafka."""
        producer = Producer({"bootstrap.servers": f"127.0.0.1:{self.ports['KAFKA']}"})
        producer.produce(topic, value, thing, partition_of(thing.encode(), UNITS))
        assert producer.flush(30) == 0

    def is_quiet(self, *names: str) -> None:
        """Wait until none of these alerts is firing."""
        began_s = time.monotonic()
        wait_until(lambda: not names_of(self.firing()) & {*names}, f"{names} are quiet", _DEADLINE_S)
        print(f"{', '.join(names)}: quiet after {time.monotonic() - began_s:.0f} s")

    def fires(self, name: str, **labels: str) -> None:
        """Wait until this alert is firing with these labels."""
        began_s, wanted = time.monotonic(), {"alertname": name, **labels}.items()
        wait_until(lambda: any(wanted <= one.items() for one in self.firing()), f"{wanted} fires", _DEADLINE_S)
        print(f"{name} {labels}: fires after {time.monotonic() - began_s:.0f} s")


def names_of(alerts: list[dict[str, str]]) -> set[str]:
    return {one["alertname"] for one in alerts}


@pytest.fixture(scope="module")
def stack(images: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Provoked]:
    with Provoked(tmp_path_factory.mktemp("stack")).lent() as made:
        made.run("up", "-d", "--no-build")
        made.wait_until_healthy()
        wait_until(lambda: made.prometheus("count(lsb_joiner_unit_owner)") == UNITS, "all units are served")
        yield made


def test_the_rules_that_are_provoked_differ_from_the_real_ones_in_durations_alone() -> None:
    assert sooner(RULES) != RULES
    assert _DURATION.sub("…", sooner(RULES)) == _DURATION.sub("…", RULES)


def test_nothing_fires_while_all_is_well(stack: Provoked) -> None:
    now_ms = time.time_ns() // 1_000_000
    pairs = [event("calm", now_ms + at, at, SPEED, TORQUE) for at in range(500)]
    stack.send(pairs)
    wait_until(lambda: stack.prometheus("sum(lsb_db_connector_points_total)") == 2 * len(pairs), "all pairs are points")
    stack.is_quiet(*re.findall(r"alert: (\w+)", RULES))


@pytest.mark.parametrize(
    ("service", "topic"),
    [("connector", None), ("joiner", "machine.data"), ("db_connector", "machine.out")],
)
def test_dead_letters_of_a_service_raise_an_alert(stack: Provoked, service: str, topic: str | None) -> None:
    stack.is_quiet("DeadLettersArrive")
    if topic is None:
        stack.send([{"Thing": "broken"}])
    else:
        stack.write(topic, b"no record", "broken")
    stack.fires("DeadLettersArrive", job=service)
    stack.is_quiet("DeadLettersArrive")


def test_a_side_that_falls_silent_and_the_buffer_that_it_fills_raise_alerts(stack: Provoked) -> None:
    stack.is_quiet("SideSilent", "BufferNearItsBound")
    thing, now_ms, held = "silent", time.time_ns() // 1_000_000, HELD_MAX * 17 // 20
    unit = str(partition_of(thing.encode(), UNITS))
    stack.send([event(thing, now_ms, 0, SPEED, TORQUE)])
    stack.send([event(thing, now_ms + 10 * number, number, SPEED) for number in range(1, held)])
    for join in ("power", "inputs"):
        stack.fires("SideSilent", side="right", unit=unit, join=join)
        stack.fires("BufferNearItsBound", unit=unit, join=join)
    stack.send([event(thing, now_ms + 10 * held, held, SPEED, TORQUE)])
    stack.is_quiet("SideSilent", "BufferNearItsBound")


def test_a_joiner_that_falls_behind_raises_an_alert(stack: Provoked) -> None:
    stack.is_quiet("LagGrows")
    thing, now_ms = "quick", time.time_ns() // 1_000_000
    joiner = stack.inspect("joiner")["Id"]
    subprocess.run(["docker", "update", "--cpus", "0.03", joiner], check=True, capture_output=True)
    stack.send([event(thing, now_ms + number, number, SPEED, TORQUE) for number in range(60_000)], "3000")
    stack.fires("LagGrows", unit=str(partition_of(thing.encode(), UNITS)))
    subprocess.run(["docker", "update", "--cpus", "2", joiner], check=True, capture_output=True)
    stack.is_quiet("LagGrows")


def test_an_unavailable_database_raises_an_alert(stack: Provoked) -> None:
    stack.is_quiet("DatabaseAway", "ServiceNotReady")
    stack.run("stop", "influxdb")
    stack.send([event("calm", time.time_ns() // 1_000_000, 1000 + at, SPEED, TORQUE) for at in range(2)])
    stack.fires("DatabaseAway", job="db_connector")
    stack.fires("ServiceNotReady", job="db_connector")
    stack.run("start", "influxdb")
    stack.is_quiet("DatabaseAway", "ServiceNotReady")


def test_a_service_that_is_not_ready_raises_an_alert(stack: Provoked) -> None:
    stack.is_quiet("ServiceNotReady")
    stack.run("stop", "mqtt")
    stack.fires("ServiceNotReady", job="connector")
    stack.run("start", "mqtt")
    stack.is_quiet("ServiceNotReady")


def test_a_service_that_is_down_raises_an_alert(stack: Provoked) -> None:
    stack.is_quiet("ServiceAway")
    stack.run("stop", "connector")
    stack.fires("ServiceAway", job="connector")
    stack.run("start", "connector")
    stack.is_quiet("ServiceAway")


@pytest.mark.parametrize("away", ["joiner", "kafka"])
def test_units_without_an_owner_raise_an_alert(stack: Provoked, away: str) -> None:
    stack.is_quiet("UnitWithoutOwner", "ServiceAway")
    stack.run("stop", away)
    for unit in range(UNITS):
        stack.fires("UnitWithoutOwner", unit=str(unit))
    if away == "joiner":
        stack.fires("ServiceAway", job="joiner")
    stack.run("start", away)
    stack.is_quiet("UnitWithoutOwner", "ServiceAway")
