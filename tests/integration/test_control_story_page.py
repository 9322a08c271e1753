"""Can a person with a browser follow what happens to the join, and change it, while data flows?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.integration.browser import SEEN_MS, Visitor, choose, needs_browser
from tests.integration.control_service import ControlService
from tests.integration.joiner_application import PARTITIONS, Application, application, flowing
from tests.integration.test_control_orders_page import confirm, row

pytestmark = [pytest.mark.long, pytest.mark.timeout(900), needs_browser]

PAUSE = re.compile(r"\d\.\d{3} s")
FOLLOWED_MS = 120_000
"""Spark may take this long to start, and workers to come and go."""


@pytest.fixture
def app(kafka: str, tmp_path: Path) -> Iterator[Application]:
    yield from application(kafka, tmp_path)


def actions(page: Page, kind: str = "") -> None:
    """Open the page of the orders, and choose a kind of order."""
    page.get_by_role("link", name="Actions").click()
    if kind:
        choose(page, "Order", kind)


def overview(page: Page) -> None:
    page.get_by_role("link", name="Overview").click()


def happened(page: Page, kind: str, text: str) -> None:
    """Wait until an event of a kind is on the timeline."""
    events = page.get_by_role("row").filter(has_text=kind).filter(has_text=text)
    expect(events.first).to_be_visible(timeout=FOLLOWED_MS)


def test_an_operator_changes_the_number_of_workers_and_standbys_and_sees_a_failover(
    app: Application, control: ControlService, browser: Browser
) -> None:
    with flowing(app, 141):
        app.start("--processes", "1", instance="host")
        lone = app.start(instance="lone")
        visitor = Visitor(browser, control)
        page = visitor.page
        visitor.log_in()
        for count in (3, 1):
            actions(page, "Change the number of worker processes")
            choose(page, "Supervisor", "process host")
            page.get_by_label("Worker processes").fill(str(count))
            confirm(page, f"Let host run {count} worker processes")
            words = page.get_by_role("row").filter(has_text=f"run {count} worker processes under host")
            expect(words.filter(has_text="done")).to_have_count(1, timeout=FOLLOWED_MS)
        actions(page, "Change the number of standbys")
        choose(page, "Site", "process")
        page.get_by_label("Standbys (as the settings say if empty)").fill("1")
        confirm(page, "Let each unit of process have 1 standby")
        row(page, "1 standby for each unit of process", "done")
        actions(page, "Pin a unit to an instance")
        choose(page, "Instance", "process lone")
        page.get_by_label("Unit").fill("0")
        confirm(page, "Let lone")
        row(page, "pin unit 0 to lone at process", "done")
        assert visitor.faults() == []
        overview(page)
        expect(page.get_by_text("standbys by order: 1")).to_be_visible(timeout=SEEN_MS)
        expect(page.get_by_text("pinned: unit 0 to lone")).to_be_visible()
        taken_over = page.get_by_role("row").filter(has_text="unit 0 is served by process host-1; before: process lone")
        before = taken_over.count()
        lone.kill()
        happened(page, "failed", "lone was silent for too long and is considered failed")
        expect(taken_over.filter(has_text=PAUSE)).to_have_count(before + 1, timeout=FOLLOWED_MS)
        expect(page.get_by_role("row").filter(has_text="process host-1").filter(has_text="running")).to_have_count(
            PARTITIONS, timeout=SEEN_MS
        )
        visitor.picture("overview-failover")
        actions(page, "Unpin a unit")
        choose(page, "Pin", "process 0 lone")
        confirm(page, "Let any instance of process serve unit 0.")
        row(page, "unpin unit 0 at process", "done")
        assert (visitor.faults(), visitor.elsewhere, visitor.errors) == ([], [], [])
        visitor.context.close()
    app.wait_until_through()
    app.verify()


def test_an_operator_moves_the_join_to_spark_and_back_and_sees_the_pauses(
    app: Application, control: ControlService, browser: Browser
) -> None:
    with flowing(app, 142):
        app.start(instance="plain").wait_for_units()
        app.start("--standby", instance="in-spark", command="spark")
        visitor = Visitor(browser, control)
        page = visitor.page
        visitor.log_in()
        # Spark has started once its instance can be chosen.
        expect(page.get_by_role("row").filter(has_text="in-spark").first).to_be_visible(timeout=FOLLOWED_MS)
        for site, instance in (("spark", "in-spark"), ("process", "plain")):
            actions(page)
            choose(page, "To site", site)
            confirm(page, f"to the site {site}")
            moved = page.get_by_role("row").filter(has_text=f"move all units to {site}")
            expect(moved.filter(has_text="done")).to_have_count(1, timeout=FOLLOWED_MS)
            expect(moved.filter(has_text="longest pause")).to_have_count(1)
            overview(page)
            for unit in range(PARTITIONS):
                arrived = page.get_by_role("row").filter(has_text=f"unit {unit} runs at {site}, served by {instance}")
                expect(arrived.filter(has_text=PAUSE)).to_have_count(1, timeout=SEEN_MS)
            visitor.picture(f"overview-moved-to-{site}")
        assert (visitor.faults(), visitor.elsewhere, visitor.errors) == ([], [], [])
        visitor.context.close()
    app.wait_until_through()
    app.verify()
