"""Does a person with a browser see what the join does: live, offline, on a phone, in dark, and by keyboard?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.integration.browser import (
    SCREENS,
    SEEN_MS,
    Visitor,
    choose,
    needs_browser,
    users_file,
)
from tests.integration.control_service import ControlService, control_service
from tests.integration.joiner_application import PARTITIONS, Application, application, seeded_entries

pytestmark = [pytest.mark.slow, needs_browser]


@pytest.fixture
def app(kafka: str, tmp_path: Path) -> Iterator[Application]:
    yield from application(kafka, tmp_path)


def test_a_person_sees_the_units_live(app: Application, control: ControlService, browser: Browser) -> None:
    visitor = Visitor(browser, control)
    page = visitor.page
    visitor.log_in("wrong password")
    expect(page.get_by_role("alert")).to_have_text("the name or the password is wrong", timeout=SEEN_MS)
    assert visitor.faults() == []
    visitor.errors.clear()  # the browser reports the status 401
    visitor.log_in()
    expect(page.get_by_text("The application has never run.")).to_be_visible(timeout=SEEN_MS)
    app.create_topics()
    app.produce(seeded_entries(91, 600))
    joiner = app.start()
    app.wait_until_through()
    expect(page.get_by_text(f"{PARTITIONS} of {PARTITIONS} units running")).to_be_visible(timeout=SEEN_MS)
    expect(page.get_by_role("row").filter(has_text="process one").filter(has_text="running")).to_have_count(
        PARTITIONS, timeout=SEEN_MS
    )
    assert joiner.stop() == 0
    expect(page.get_by_role("row").filter(has_text="one has left")).to_have_count(1, timeout=SEEN_MS)
    expect(page.get_by_text(f"0 of {PARTITIONS} units running")).to_be_visible(timeout=SEEN_MS)
    expect(page.get_by_role("row").filter(has_text="stopped")).to_have_count(PARTITIONS, timeout=SEEN_MS)
    page.get_by_role("button", name="Log out").click()
    login = f"http://127.0.0.1:{control.port}/login"
    page.wait_for_url(login)
    page.goto("/ui")
    page.wait_for_url(login)
    assert (visitor.elsewhere, visitor.errors) == ([], [])


def test_the_page_serves_phones_and_dark_rooms_and_screen_readers(
    app: Application, control: ControlService, browser: Browser
) -> None:
    app.create_topics()
    app.produce(seeded_entries(92, 600))
    joiner = app.start()
    app.wait_until_through()
    for viewport, scheme in SCREENS:
        visitor = Visitor(browser, control, viewport=viewport, color_scheme=scheme)
        visitor.log_in()
        name = f"{scheme} {viewport['width']}"
        expect(visitor.page.get_by_role("row").filter(has_text="running")).to_have_count(PARTITIONS, timeout=SEEN_MS)
        assert visitor.faults() == [], name
        width = visitor.page.evaluate("document.documentElement.scrollWidth")
        assert width <= viewport["width"], f"{name}: the page is wider than the screen"
        visitor.picture(f"control-{name.replace(' ', '-')}")
        assert (visitor.elsewhere, visitor.errors) == ([], []), name
        visitor.context.close()
    assert joiner.stop() == 0


def test_a_trouble_is_shown_and_an_open_page_neither_delays_the_end_nor_outlives_its_session(
    app: Application, tmp_path: Path, browser: Browser
) -> None:
    users = users_file(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    # Nothing listens there.
    text = app.config.read_text().replace(app.bootstrap, "127.0.0.1:9").replace(app.name, f"{app.name}b")
    (other / "lsb.toml").write_text(text)
    more = {"LSB_CONTROL__USERS_FILE": str(users), "LSB_CONTROL__LISTEN": "127.0.0.1:0"}
    with control_service(app.config, tmp_path, "first", other / "lsb.toml", **more) as control:
        visitor = Visitor(browser, control, color_scheme="dark")
        page = visitor.page
        visitor.log_in()
        expect(page.get_by_text("The application has never run.")).to_be_visible(timeout=SEEN_MS)
        choose(page, "Application", f"{app.name}b")
        expect(page.get_by_text("The data shown is not current")).to_be_visible(timeout=SEEN_MS)
        assert visitor.faults() == []
        assert control.stop() == 0
        # The page looks for the service again, which does not know the session any more.
        more["LSB_CONTROL__LISTEN"] = f"127.0.0.1:{control.port}"
    with control_service(app.config, tmp_path, "second", **more):
        page.wait_for_url(f"http://127.0.0.1:{control.port}/login", timeout=SEEN_MS)
    visitor.context.close()
