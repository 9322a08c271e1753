"""Can a person with a browser give orders, and is everybody else told what it takes?"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from playwright.sync_api import TimeoutError as PlaywrightTimeout

from tests.integration.browser import SEEN_MS, Visitor, choose, needs_browser
from tests.integration.control_service import ControlService
from tests.integration.joiner_application import (
    PARTITIONS,
    Application,
    Entry,
    application,
    flowing,
    things_over_all_units,
)
from tests.integration.services import wait_until
from tests.integration.site_status import are_shared

ENDED_MS = 70_000
"""An order to move units ends within 60 s."""
OUTDATED = re.compile("has been replaced by|is not current|not known at the moment")
"""Said of an order that is refused because units were assigned anew after it was checked, or are not known at present.
Both happen if a busy machine keeps a process waiting."""

pytestmark = [pytest.mark.slow, needs_browser]


@pytest.fixture
def app(kafka: str, tmp_path: Path) -> Iterator[Application]:
    yield from application(kafka, tmp_path)


def confirm(page: Page, text: str) -> None:
    """Check the order, read its plan, and confirm it. Repeat that as long as what it rests on is outdated."""
    wait_until(lambda: _is_given(page, text), "the order is not refused as outdated")


def _is_given(page: Page, text: str) -> bool:
    """Return whether the order was given, and not refused as outdated."""
    check, dialog = page.get_by_role("button", name="Check"), page.get_by_role("dialog", name="Confirm the order")
    outdated = page.get_by_role("alert").get_by_text(OUTDATED)
    earlier = outdated.element_handles()
    try:
        check.click()
        for one in earlier:
            one.wait_for_element_state("hidden", timeout=SEEN_MS)
        expect(dialog.or_(outdated)).to_be_visible(timeout=SEEN_MS)
    except (AssertionError, PlaywrightTimeout):  # the page has moved below the pointer
        return False
    if dialog.is_visible():
        expect(dialog).to_contain_text(text, timeout=SEEN_MS)
        dialog.get_by_role("button", name="Do it").click()
        # The button is disabled until the order has been recorded or refused.
        expect(check).to_be_enabled(timeout=SEEN_MS)
    return not outdated.is_visible()


def row(page: Page, order: str, state: str) -> None:
    """Wait until the list of orders has a row with this order, and it has ended in this state."""
    rows = page.get_by_role("row").filter(has_text=order)
    ended = rows.filter(has_text=re.compile("done|failed|withdrawn|interrupted")).first
    expect(ended).to_be_visible(timeout=ENDED_MS)
    outcome = ended.inner_text()
    expect(rows.filter(has_text=state), outcome).to_have_count(1, timeout=SEEN_MS)


def test_an_operator_moves_units_and_drains_an_instance(
    app: Application, control: ControlService, browser: Browser
) -> None:
    with flowing(app, 111):
        app.start(instance="blue").wait_for_units()
        app.start(instance="two")
        app.start("--standby", "--site", "green", instance="green")
        wait_until(lambda: are_shared(app, "blue", "two"), "both have units, which stay where they are")
        visitor = Visitor(browser, control)
        page = visitor.page
        visitor.log_in()
        page.get_by_role("link", name="Actions").click()
        choose(page, "To site", "green")
        confirm(page, "Move units 0, 1, 2 to the site green")
        row(page, "move all units to green", "done")
        visitor.picture("actions-moved")
        assert visitor.faults() == []
        page.get_by_role("link", name="Overview").click()
        running = page.get_by_role("row").filter(has_text="green green").filter(has_text="running")
        expect(running).to_have_count(PARTITIONS, timeout=SEEN_MS)
        expect(page.get_by_role("row").filter(has_text="runs at green, served by green")).to_have_count(
            PARTITIONS, timeout=SEEN_MS
        )
        page.get_by_role("link", name="Actions").click()
        choose(page, "To site", "process")
        confirm(page, "to the site process")
        row(page, "move all units to process", "done")
        choose(page, "Order", "Drain an instance")
        choose(page, "Instance", "process two")
        page.get_by_role("button", name="Check").click()
        expect(page.get_by_role("dialog")).to_contain_text("two keeps running without units.", timeout=SEEN_MS)
        assert visitor.faults() == []
        visitor.picture("actions-dialog")
        # Whoever thinks better of it changes nothing.
        page.get_by_role("button", name="Cancel").click()
        expect(page.get_by_role("dialog")).to_have_count(0)
        confirm(page, "two keeps running without units.")
        row(page, "drain two at process", "done")
        assert (visitor.elsewhere, visitor.errors) == ([], [])
        visitor.context.close()
    app.wait_until_through()
    app.verify()


def test_an_admin_releases_what_waits_for_a_silent_stream_and_mistakes_are_told(
    app: Application, control: ControlService, browser: Browser
) -> None:
    app.create_topics()
    (thing,) = things_over_all_units(1)
    settings = app.settings()
    left, right = (settings.join[0].streams[side].quantity or "" for side in ("left", "right"))

    def record(quantity: str, time_ms: int) -> Entry:
        content = {"thing": thing, "quantity": quantity, "phenomenonTime": time_ms, "result": 1.5, "id": f"e{time_ms}"}
        return Entry(thing, json.dumps(content).encode())

    app.produce([record(right, 1_000), record(left, 1_100), record(left, 1_200)])
    joiner = app.start()
    app.wait_until_through()
    viewport = {"width": 360, "height": 740}
    visitor = Visitor(browser, control, viewport=viewport, color_scheme="dark")
    page = visitor.page
    visitor.log_in(name="ada")
    page.get_by_role("link", name="Actions").click()
    choose(page, "Order", "Write a watermark for a silent stream")
    page.get_by_role("button", name="Check").click()
    expect(page.get_by_role("alert")).to_contain_text("enter a time", timeout=SEEN_MS)
    page.get_by_label("No record older than").fill("2000")
    page.get_by_label("Thing (all if empty)").fill(thing)
    choose(page, "Quantity (all if empty)", right)
    confirm(page, "This cannot be undone.")
    row(page, f"thing {thing} and quantity {right}", "done")
    assert visitor.faults() == []
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= viewport["width"], "the page is wider than the screen"
    visitor.picture("actions-narrow-dark")
    assert joiner.stop() == 0
    app.verify()
    assert (visitor.elsewhere, visitor.errors) == ([], [])
    visitor.context.close()


def test_a_viewer_sees_what_was_ordered_and_which_role_it_takes(control: ControlService, browser: Browser) -> None:
    visitor = Visitor(browser, control)
    page = visitor.page
    visitor.log_in(name="vera")
    page.get_by_role("link", name="Actions").click()
    expect(page.get_by_text("Orders need the role operator.")).to_be_visible(timeout=SEEN_MS)
    expect(page.get_by_role("button", name="Check")).to_have_count(0)
    expect(page.get_by_text("What was ordered")).to_be_visible()
    assert visitor.faults() == []
    visitor.context.close()
