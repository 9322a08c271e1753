"""Does the control service tell what is true of a running application, and is it dispensable?"""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.control_service import ControlService, control_service
from tests.integration.joiner_application import PARTITIONS, Application, application, seeded_entries
from tests.integration.services import wait_until

_PASSES = ("at", "committed_s_ago")
"""What differs from one moment to the next."""


@pytest.fixture
def app(kafka: str, tmp_path: Path) -> Iterator[Application]:
    yield from application(kafka, tmp_path)


def test_what_is_shown_is_what_joiner_status_and_kafka_say(app: Application, tmp_path: Path) -> None:
    with control_service(app.config, tmp_path) as control:
        wait_until(lambda: _overview(control)["trouble"] == "", "the service has reached Kafka")
        assert (_overview(control)["has_run"], control.status(app.name)) == (False, None)
        request = urllib.request.Request(f"http://127.0.0.1:{control.port}/ui/_nicegui/none")
        request.add_header("Authorization", f"Bearer {control.token}")
        with pytest.raises(urllib.error.HTTPError) as missing:
            urllib.request.urlopen(request, timeout=30)
        # Not a page of NiceGUI, which it would keep.
        assert (missing.value.code, json.load(missing.value)["detail"]) == (404, "there is no such page")
        app.create_topics()
        app.produce(seeded_entries(81, 600))
        joiner = app.start()
        app.wait_until_through()
        ends = app.ends()

        def is_shown() -> bool:
            status = control.status(app.name)
            units = [] if status is None else status["units"]
            return len(units) == PARTITIONS and all(
                unit is not None and unit["offsets"] == ends[number] and unit["state"] == "running"
                for number, unit in enumerate(units)
            )

        wait_until(is_shown, "the service shows that all is consumed")
        assert joiner.stop() == 0

        def is_same() -> bool:
            # Both look at the members of the consumer group, which change once the session of the joiner has ended.
            told = app.command("status", "--json")
            if told.returncode:
                return False
            return bool(_lasting(control.status(app.name)) == _lasting(json.loads(told.stdout)))

        wait_until(is_same, "the service shows what joiner status shows")
        app.produce(seeded_entries(82, 300))
        behind = sum(sum(at.values()) for at in app.ends().values()) - sum(sum(at.values()) for at in ends.values())
        wait_until(lambda: _overview(control)["lag"] == behind > 0, "the lag is the records that were produced since")
        assert {"assigned", "left"} <= {event["kind"] for event in _events(control, app)}
        assert control.stop() == 0


def test_a_failure_is_told_with_the_pause_of_each_unit(app: Application, tmp_path: Path) -> None:
    app.application += "\nstandbys = 1"
    app.create_topics()
    joiners = [app.start(instance="one"), app.start(instance="two")]
    with control_service(app.config, tmp_path) as control:
        wait_until(lambda: all(_served(control, app).values()), "each instance serves units")
        app.produce(seeded_entries(83, 600))
        app.wait_until_through()
        before = _served(control, app)
        joiners[0].kill()
        app.produce(seeded_entries(84, 600))
        app.wait_until_through()

        def told() -> list[Any]:
            events = _events(control, app)
            failed = [
                event["number"] for event in events if (event["kind"], event.get("instance")) == ("failed", "one")
            ]
            return [event for event in events if failed and event["kind"] == "owner" and event["instance"] == "two"]

        wait_until(lambda: {event["unit"] for event in told()} >= set(before["one"]), "each unit's new owner is told")
        assert all(event["pause_ms"] > 0 for event in told() if event["unit"] in before["one"])
    assert joiners[1].stop() == 0
    app.verify()


def test_its_death_stops_nothing_and_two_of_them_say_the_same(app: Application, tmp_path: Path) -> None:
    app.create_topics()
    joiner = app.start()
    with (
        control_service(app.config, tmp_path, "first") as first,
        control_service(app.config, tmp_path, "second") as second,
    ):
        app.produce(seeded_entries(85, 400))
        app.wait_until_through()
        first.kill()
        app.produce(seeded_entries(86, 400))
        app.wait_until_through()
        assert joiner.stop() == 0
        with control_service(app.config, tmp_path, "third") as third:

            def agree() -> bool:
                found = _lasting(second.status(app.name))
                return found == _lasting(third.status(app.name)) and _states(found) == {"stopped"}

            wait_until(agree, "both services show that the joiner has stopped")
        # A caller that has connected and says nothing does not delay the end (`stop` has a deadline).
        with socket.create_connection(("127.0.0.1", second.port)):
            assert second.stop() == 0
    app.verify()


def _overview(control: ControlService) -> Any:
    (found,) = control.get("applications")
    return found


def _events(control: ControlService, app: Application) -> list[Any]:
    found: list[Any] = control.get(f"applications/{app.name}/events")
    return found


def _states(status: Any) -> set[str]:
    return set() if status is None else {unit["state"] if unit else "never run" for unit in status["units"]}


def _served(control: ControlService, app: Application) -> dict[str, list[int]]:
    """Return the units of both instances."""
    status = control.status(app.name)
    processes = {} if status is None else status["processes"].get("process", {})
    return {name: processes.get(name, []) for name in ("one", "two")}


def _lasting(value: Any) -> Any:
    """Return a value without what differs from one moment to the next."""
    if isinstance(value, dict):
        return {name: _lasting(one) for name, one in value.items() if name not in _PASSES}
    return [_lasting(one) for one in value] if isinstance(value, list) else value
