"""Are orders about units and standbys carried out, and do they outlive the service that has given them?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from control.actions.tasks import ANSWER_S, SILENT_S
from tests.integration.control_service import ControlService, control_service
from tests.integration.joiner_application import PARTITIONS, Application, application, flowing
from tests.integration.services import DEADLINE_S, wait_until
from tests.integration.site_status import assignment, warm
from tests.integration.test_joiner_defects import fail_once


@pytest.fixture
def app(kafka: str, tmp_path: Path) -> Iterator[Application]:
    yield from application(kafka, tmp_path)


@pytest.fixture
def control(app: Application, tmp_path: Path) -> Iterator[ControlService]:
    with control_service(app.config, tmp_path) as service:
        yield service


def order(control: ControlService, app: Application, kind: str, **fields: Any) -> Any:
    """Give an order about the site of plain processes. Return the action."""
    return control.order(app.name, {"kind": kind, "site": "process", "epochs": {}, **fields})


def outcome(control: ControlService, app: Application, kind: str, **fields: Any) -> tuple[str, str]:
    """Give an order and wait for its outcome. Return its state and its text."""
    done = control.outcome(app.name, order(control, app, kind, **fields)["id"], 2 * DEADLINE_S)
    return done["state"], done["text"]


def in_force(app: Application) -> tuple[dict[int, str], int | None, list[str]] | None:
    """Return the pins, the number of standbys and the drained instances by order, if they are known at the moment."""
    found = assignment(app)
    return None if found is None else (found.pinned, found.standbys_ordered, found.drained)


def test_a_unit_is_pinned_and_units_are_kept_warm(app: Application, control: ControlService) -> None:
    with flowing(app, 131):
        app.start(instance="one")
        app.start(instance="two")
        wait_until(lambda: control.all_serve(app.name, "one", "two"), "both serve units")
        unit = control.served(app.name)["one"][0]
        assert outcome(control, app, "pin", unit=unit, instance="two") == ("done", f"unit {unit} is served by two")
        assert control.status(app.name)["assignments"]["process"]["pinned"] == {str(unit): "two"}
        assert outcome(control, app, "standbys", count=1) == ("done", "each unit has 1 standby")
        wait_until(lambda: warm(app) == PARTITIONS, "the standbys are seen to be warm")
        state, text = outcome(control, app, "standbys", count=2)
        assert (state, "because there are too few instances; the order remains in force" in text) == ("failed", True)
        assert outcome(control, app, "standbys", count=None) == (
            "done",
            "each unit has as many standbys as the settings say",
        )
        assert outcome(control, app, "pin", unit=unit, instance=None) == ("done", f"unit {unit} is no longer pinned")
        wait_until(lambda: in_force(app) == ({}, None, []), "no order is in force any more")
    app.wait_until_through()
    app.verify()


def test_a_unit_that_has_failed_is_tried_again(app: Application, control: ControlService) -> None:
    failing, unit = fail_once(app, "joined", "KeyError")

    def is_told() -> bool:
        return bool((control.status(app.name) or {}).get("not_served"))

    wait_until(is_told, "the service knows that the unit is not served")
    state, text = outcome(control, app, "retry", unit=unit)
    assert (state, text.startswith(f"unit {unit} is served by ")) == ("done", True), text
    app.wait_until_through()
    state, text = outcome(control, app, "retry", unit=unit)
    assert (state, "there is nothing to try again" in text) == ("done", True), text
    assert failing.stop() == 0
    app.verify()


@pytest.mark.long
@pytest.mark.slow
def test_orders_whose_service_dies_at_once_are_told_and_can_be_repeated(
    app: Application, control: ControlService, tmp_path: Path
) -> None:
    orders: dict[str, dict[str, Any]] = {
        "standbys": {"count": 1},
        "scale": {"instance": "host", "processes": 2},
        "pin": {"unit": 0, "instance": "two"},
        "retry": {"unit": 1},
        "drain": {"instance": "one"},
    }
    with flowing(app, 132):
        app.start(instance="one")
        app.start(instance="two")
        app.start("--processes", "1", instance="host")
        with control_service(app.config, tmp_path, "doomed") as doomed:
            wait_until(lambda: doomed.all_serve(app.name, "one", "two", "host-1"), "all serve units")
            wait_until(lambda: bool(doomed.get(f"applications/{app.name}")["supervisors"]), "the supervisor is known")
            given = {kind: order(doomed, app, kind, **fields)["id"] for kind, fields in orders.items()}
            doomed.kill()
        for kind, action in given.items():
            told = control.outcome(app.name, action, SILENT_S + ANSWER_S + DEADLINE_S)
            assert told["state"] in {"done", "interrupted"}, told
            assert told["state"] == "done" or "nothing has been heard of the service" in told["text"], (kind, told)
        # What was given remains in force, and giving it again does no harm.
        for kind, fields in orders.items():
            assert outcome(control, app, kind, **fields)[0] == "done", kind
        wait_until(lambda: in_force(app) == ({0: "two"}, 1, ["one"]), "the orders are in force")
        names = {"one", "two", "host-1", "host-2"}
        wait_until(lambda: set(control.served(app.name)) == names, "all instances are members")
    app.wait_until_through()
    app.verify()
