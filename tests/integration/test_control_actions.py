"""Are orders carried out once, on a running application, and does everybody learn what came of them?"""

from __future__ import annotations

import json
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from control.actions.tasks import ANSWER_S, SILENT_S
from tests.integration.control_service import ControlService, control_service
from tests.integration.joiner_application import (
    IN_VAIN,
    PARTITIONS,
    REPEATS_MAX,
    Application,
    Entry,
    application,
    flowing,
    things_over_all_units,
)
from tests.integration.services import DEADLINE_S, wait_until


@pytest.fixture
def app(kafka: str, tmp_path: Path) -> Iterator[Application]:
    yield from application(kafka, tmp_path)


@pytest.fixture
def control(app: Application, tmp_path: Path) -> Iterator[ControlService]:
    with control_service(app.config, tmp_path) as service:
        yield service


def epochs(control: ControlService, app: Application) -> dict[str, int]:
    """Return the number of the last assignment of each site."""
    status = control.status(app.name)
    return {site: one["epoch"] for site, one in status["assignments"].items()}


def sites(control: ControlService, app: Application) -> list[str]:
    status = control.status(app.name)
    return [] if status is None else [f"{unit['site']} {unit['state']}" if unit else "" for unit in status["units"]]


def moved(control: ControlService, app: Application, order: dict[str, Any], key: str) -> Any:
    """Order to move units, and wait until they have moved. Return the last order, its key, and its outcome.

    As `joiner_application.moved_to`, it repeats the order if a busy machine has kept a process from its part in time.
    """
    for repeat in range(REPEATS_MAX + 1):
        ended = control.outcome(app.name, control.order(app.name, order, key=key)["id"])
        if ended["state"] == "done":
            break
        assert IN_VAIN.search(ended["text"]), json.dumps(ended, indent=1)
        to = sites(control, app)
        wanted = order.get("units", range(PARTITIONS))
        if all(to[unit].startswith(order["to"]) for unit in wanted):
            break  # not all were confirmed in time
        order, key = order | {"epochs": {}}, f"{key} {repeat}"
    else:
        pytest.fail(f"not moved by {REPEATS_MAX + 1} orders: {json.dumps(ended, indent=1)}")
    return order, key, ended


def test_units_move_there_and_back_and_an_order_that_is_repeated_moves_nothing(
    app: Application, control: ControlService
) -> None:
    with flowing(app, 101):
        app.start(instance="blue").wait_for_units()
        app.start("--standby", "--site", "green", instance="green")
        wait_until(lambda: sites(control, app) == ["process running"] * PARTITIONS, "blue serves all units")

        def has_target() -> bool:
            return bool(control.status(app.name)["processes"].get("green"))

        wait_until(has_target, "green is a member")
        order = {"kind": "move", "to": "green", "epochs": epochs(control, app)}
        would = control.order(app.name, order, dry_run=True)["would"]
        assert "Move units 0, 1, 2 to the site green" in would[0]
        assert control.actions(app.name) == []
        first = control.order(app.name, order, key="one")
        again = control.order(app.name, order, key="one")
        assert first["id"] == again["id"]
        order, key, ended = moved(control, app, order, "one")
        reports = [report["text"] for action in control.actions(app.name) for report in action["reports"]]
        assert any("released by blue" in report for report in reports)
        wait_until(lambda: sites(control, app) == ["green running"] * PARTITIONS, "green serves all units")
        # It has ended already, and says so.
        again = control.order(app.name, order, key=key)
        assert (again["state"], again["text"]) == (ended["state"], ended["text"])
        if key == "one" and ended["state"] == "done":
            assert f"all {PARTITIONS} units are at green; longest pause" in ended["text"]
        with pytest.raises(urllib.error.HTTPError) as refused:
            control.order(app.name, order | {"epochs": {}})
        assert refused.value.code == 409
        assert "there is nothing to do" in refused.value.read().decode()
        back = {"kind": "move", "to": "process", "units": [0], "epochs": {}}
        moved(control, app, back, "back")
        wait_until(lambda: sites(control, app)[0] == "process running", "it is back")
    app.wait_until_through()
    app.verify()


def test_an_instance_is_drained_and_has_units_again(app: Application, control: ControlService) -> None:
    with flowing(app, 102):
        app.start(instance="one")
        app.start(instance="two")
        wait_until(lambda: control.all_serve(app.name, "one", "two"), "both serve units")
        drain = {"kind": "drain", "site": "process", "instance": "one", "epochs": epochs(control, app)}
        assert control.done(app.name, control.order(app.name, drain)["id"]) == "one serves no unit"
        wait_until(lambda: control.served(app.name) == {"one": [], "two": [0, 1, 2]}, "the other serves all units")
        # Another order rests on an assignment that has been replaced by the drain.
        with pytest.raises(urllib.error.HTTPError) as refused:
            control.order(app.name, drain | {"undo": True})
        assert "has been replaced by" in refused.value.read().decode()
        undo = drain | {"undo": True, "epochs": epochs(control, app)}
        assert control.done(app.name, control.order(app.name, undo)["id"]) == "one is no longer drained"
        wait_until(lambda: bool(control.served(app.name).get("one")), "one has units again")
    app.wait_until_through()
    app.verify()


def test_worker_processes_come_and_go(app: Application, control: ControlService) -> None:
    app.create_topics()
    app.start("--processes", "1", instance="host")

    def supervisors() -> Any:
        return control.get(f"applications/{app.name}")["supervisors"]

    wait_until(lambda: bool(supervisors()), "the supervisor is known")
    for count in (3, 1):
        order: dict[str, Any] = {
            "kind": "scale",
            "site": "process",
            "instance": "host",
            "processes": count,
            "epochs": {},
        }
        control.done(app.name, control.order(app.name, order)["id"], 2 * DEADLINE_S)
        assert len(control.served(app.name)) == count
        assert [(one["instance"], one["wanted"]) for one in supervisors()] == [("host", count)]


def test_a_watermark_releases_what_waits_for_a_silent_stream(app: Application, control: ControlService) -> None:
    app.create_topics()
    (thing,) = things_over_all_units(1)

    def record(quantity: str, time_ms: int) -> Entry:
        content = {"thing": thing, "quantity": quantity, "phenomenonTime": time_ms, "result": 1.5, "id": f"e{time_ms}"}
        return Entry(thing, json.dumps(content).encode())

    settings = app.settings()
    left, right = (settings.join[0].streams[side].quantity for side in ("left", "right"))
    assert left is not None
    assert right is not None
    # Whether the right record is a neighbour of the last left one is certain once the right stream has passed it.
    app.produce([record(right, 1_000), record(left, 1_100), record(left, 1_200)])
    joiner = app.start()
    app.wait_until_through()

    def held() -> int:
        status = control.status(app.name)
        units = [] if status is None else status["units"]
        joins = [join for unit in units if unit for join in unit["joins"].values()]
        return sum(join["held_left"] + join["held_right"] for join in joins)

    def pairs() -> int:
        return sum(unit["pairs"] for unit in control.status(app.name)["units"] if unit)

    wait_until(lambda: held() > 0, "records wait")
    before = pairs()
    order = {"kind": "watermark", "thing": thing, "quantity": right, "time": 2_000}
    text = control.done(app.name, control.order(app.name, order)["id"])
    assert f"written to {app.topic('data')} [{app.unit_of(thing)}] at " in text
    wait_until(lambda: pairs() > before, "the waiting record is joined")
    assert joiner.stop() == 0
    app.verify()


@pytest.mark.long
def test_an_action_whose_service_dies_ends_or_is_withdrawn_and_another_says_so(
    app: Application, control: ControlService, tmp_path: Path
) -> None:
    with flowing(app, 103):
        app.start(instance="blue").wait_for_units()
        app.start("--standby", "--site", "green", instance="green")
        wait_until(lambda: sites(control, app) == ["process running"] * PARTITIONS, "blue serves all units")
        wait_until(lambda: bool(control.status(app.name)["processes"].get("green")), "green is a member")
        with control_service(app.config, tmp_path, "doomed") as doomed:
            wait_until(lambda: sites(doomed, app) == ["process running"] * PARTITIONS, "it knows the units")
            wait_until(lambda: bool(doomed.status(app.name)["processes"].get("green")), "it knows green")
            moved = doomed.order(app.name, {"kind": "move", "to": "green", "epochs": {}}, key="k")
            # The order is in the control topic, and units are on their way.
            wait_until(lambda: bool(doomed.actions(app.name)[-1]["reports"]), "the move has begun")
            doomed.kill()
        # The same request to another service begins nothing new.
        assert control.order(app.name, {"kind": "move", "to": "green", "epochs": {}}, key="k")["id"] == moved["id"]
        action = control.outcome(app.name, moved["id"], SILENT_S + ANSWER_S + DEADLINE_S)
        now = sites(control, app)
        if action["state"] == "done":
            assert now == ["green running"] * PARTITIONS
        else:
            assert action["state"] == "interrupted"
            assert "nothing has been heard of the service" in action["text"]
        assert all(one.endswith("running") for one in now)
    app.wait_until_through()
    app.verify()


def test_an_order_remains_in_force_if_the_service_is_stopped_while_it_waits(app: Application, tmp_path: Path) -> None:
    app.create_topics()
    app.start(instance="one")
    app.start(instance="two")
    with control_service(app.config, tmp_path, "first") as first:
        wait_until(lambda: first.all_serve(app.name, "one", "two"), "both serve units")
        # No such number of processes is ever reached, because there is no supervisor any more.
        workers = app.start("--processes", "1", instance="host")
        wait_until(lambda: bool(first.get(f"applications/{app.name}")["supervisors"]), "the supervisor is known")
        workers.kill()
        order = {"kind": "scale", "site": "process", "instance": "host", "processes": 3, "epochs": {}, "timeout_s": 600}
        action = first.order(app.name, order)
        # It is carried out in another thread, which reports for the first time once it has given the order.
        wait_until(lambda: bool(first.actions(app.name)[-1]["reports"]), "the order is given")
        assert first.stop() == 0
    with control_service(app.config, tmp_path, "second") as second:
        found = second.outcome(app.name, action["id"])
        assert (found["state"], "the order remains" in found["text"]) == ("interrupted", True), found
