"""Does a person see which replica was first and by how much, as Kafka's times say, and what is no longer running?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from playwright.sync_api import Browser, expect

from broker.kafka.replicas import replica_name
from control.facts.lookup.leads import Leads, ResultLog, leads_of
from tests.integration.browser import NARROW, SEEN_MS, WIDE, Visitor, needs_browser
from tests.integration.control_service import ControlService, control_service
from tests.integration.joiner_application import PARTITIONS, Application, application, flowing
from tests.integration.services import read_topic, wait_until

pytestmark = [pytest.mark.slow, needs_browser]


@pytest.fixture
def app(kafka: str, tmp_path: Path) -> Iterator[Application]:
    yield from application(kafka, tmp_path, application="replicas = 2")


def shown(control: ControlService, app: Application) -> Any:
    return control.get(f"applications/{app.name}/replicas")


def expected(app: Application) -> Leads:
    """Return what follows from all that is in the replicas' topics."""
    logs: list[dict[int, ResultLog]] = [{} for _ in range(PARTITIONS)]
    for number in (0, 1):
        for stored in read_topic(app.bootstrap, replica_name(app.topic("out"), number), PARTITIONS):
            logs[stored.partition].setdefault(number, ResultLog()).add(stored.value, stored.at_ms)
    return leads_of(logs, 2)


def is_as_expected(control: ControlService, app: Application) -> bool:
    found, wanted = shown(control, app), expected(app)
    firsts = [(one["first"], one["lead"]) for one in found["replicas"]]
    return bool(
        found["compared"] == msgspec.to_builtins(wanted.compared)
        and firsts == [(one.first, msgspec.to_builtins(one.lead)) for one in wanted.replicas]
    )


def test_a_person_sees_which_replica_was_first_and_by_how_much(
    app: Application, tmp_path: Path, browser: Browser
) -> None:
    app.create_topics()
    first, second = app.start(instance="one"), app.start("--replica", "1", instance="two")
    merger = app.start(instance="three", command="merge")
    for joiner in (first, second):
        joiner.wait_for_units()
    merger.wait_for("merging 2 replicas")
    with control_service(app.config, tmp_path) as control:
        visitor = Visitor(browser, control, viewport=WIDE)
        page = visitor.page
        with flowing(app, 301):
            visitor.log_in(control.token, "admin")
            page.get_by_role("link", name="Replicas").click()
            row = page.get_by_role("row").filter(has_text=f"{app.name}.r1")
            expect(row).to_contain_text(f"{PARTITIONS} of {PARTITIONS}", timeout=SEEN_MS)
            expect(page.get_by_text("results were compared")).to_be_visible(timeout=SEEN_MS)
            expect(page.get_by_text("three merges")).to_be_visible(timeout=SEEN_MS)
            wait_until(lambda: min(_complete(control, app)) == PARTITIONS, "both replicas are complete")
            assert visitor.faults() == []
            visitor.picture("replicas-wide")
            _see_topology(visitor, app)
            _see_phone(browser, control)
        for app.replica in (0, 1):
            app.wait_until_through()
        # The service keeps what it has read for some seconds.
        wait_until(lambda: is_as_expected(control, app), "the page says what Kafka's times say", poll_s=1.0)
        found = shown(control, app)
        assert found["compared"]["results"] > 0
        firsts = sum(one["first"] for one in found["replicas"])
        assert firsts + found["compared"]["same"] == found["compared"]["results"]
        second.kill()
        page.goto(f"/ui/replicas?application={app.name}")
        expect(row).to_contain_text(f"0 of {PARTITIONS}", timeout=SEEN_MS)
        assert [joiner.stop() for joiner in (first, merger)] == [0, 0]
        expect(page.get_by_text("joiner merge is not running.")).to_be_visible(timeout=SEEN_MS)
        assert (visitor.elsewhere, visitor.errors) == ([], [])
        visitor.context.close()
        assert control.stop() == 0


def _complete(control: ControlService, app: Application) -> list[int]:
    return [one["complete"] or 0 for one in shown(control, app)["replicas"]]


def _see_topology(visitor: Visitor, app: Application) -> None:
    page = visitor.page
    page.get_by_role("link", name="Topology").click()
    for part in (f"replica {app.name}.r1", f"topic {app.topic('out')}.merged", "joiner merge"):
        expect(page.get_by_role("cell", name=part, exact=True).first).to_be_visible(timeout=SEEN_MS)
    expect(page.get_by_text("1 merges", exact=True)).to_be_visible(timeout=SEEN_MS)
    assert visitor.faults() == []
    visitor.picture("replicas-topology")


def _see_phone(browser: Browser, control: ControlService) -> None:
    visitor = Visitor(browser, control, viewport=NARROW, color_scheme="dark")
    visitor.log_in(control.token, "admin")
    visitor.page.get_by_role("link", name="Replicas").click()
    expect(visitor.page.get_by_text("results were compared")).to_be_visible(timeout=SEEN_MS)
    assert visitor.faults() == []
    assert visitor.page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]
    visitor.picture("replicas-narrow-dark")
    assert (visitor.elsewhere, visitor.errors) == ([], [])
    visitor.context.close()
