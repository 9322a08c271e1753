"""Does a person with a browser see what the join does: live, offline, on a phone, in dark, and by keyboard?"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

from control.access.users import Role, add_user
from tests.integration.control_service import ControlService, control_service
from tests.integration.joiner_application import PARTITIONS, Application, application, seeded_entries

PASSWORD: Final = "correct horse battery"  # noqa: S105 - of a test
_SEEN_MS: Final = 30_000


def _find_browser() -> str | None:
    """Return a browser that runs. On some systems, the command only installs one."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        path = shutil.which(name)
        if path is not None and subprocess.run([path, "--version"], capture_output=True, check=False).returncode == 0:
            return path
    return None


_CHROMIUM: Final = _find_browser()

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(_CHROMIUM is None, reason="needs a browser: apt-get install chromium"),
]


@pytest.fixture
def app(kafka: str, tmp_path: Path) -> Iterator[Application]:
    yield from application(kafka, tmp_path)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # Its sandbox needs rights that a container does not have; it opens pages of this test alone.
        launched = playwright.chromium.launch(executable_path=_CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def control(app: Application, tmp_path: Path) -> Iterator[ControlService]:
    users = tmp_path / "users"
    add_user(users, "otto", Role.OPERATOR, PASSWORD)
    with control_service(app.config, tmp_path, LSB_CONTROL__USERS_FILE=str(users)) as service:
        yield service


class Visitor:
    """A person with a browser. ``elsewhere``: what the page has asked of other servers. ``errors``: in its console."""

    def __init__(self, browser: Browser, control: ControlService, **options: Any) -> None:
        self.context = browser.new_context(base_url=f"http://127.0.0.1:{control.port}", **options)
        self.page: Page = self.context.new_page()
        self.elsewhere: list[str] = []
        self.errors: list[str] = []
        self.page.on("request", self._note)
        self.page.on("console", lambda one: self.errors.append(one.text) if one.type == "error" else None)

    def log_in(self, password: str = PASSWORD) -> None:
        """Fill in the form by keyboard."""
        self.page.goto("/")
        expect(self.page.get_by_label("Name")).to_be_focused(timeout=_SEEN_MS)
        self.page.keyboard.type("otto")
        self.page.keyboard.press("Tab")
        self.page.keyboard.type(password)
        self.page.keyboard.press("Enter")

    def faults(self) -> list[tuple[str, str]]:
        """Return the serious faults of accessibility on the page, each with the first element that has it."""
        found = Axe().run(self.page).response["violations"]
        return [(one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in {"serious", "critical"}]

    def picture(self, name: str) -> None:
        """Save a picture of the page if ``LSB_PICTURES`` names a folder."""
        if folder := os.environ.get("LSB_PICTURES"):
            self.page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)

    def _note(self, request: Any) -> None:
        if not request.url.startswith(("http://127.0.0.1:", "data:")):
            self.elsewhere.append(request.url)


def test_a_person_sees_the_units_live(app: Application, control: ControlService, browser: Browser) -> None:
    visitor = Visitor(browser, control)
    page = visitor.page
    visitor.log_in("wrong password")
    expect(page.get_by_role("alert")).to_have_text("the name or the password is wrong", timeout=_SEEN_MS)
    assert visitor.faults() == []
    visitor.errors.clear()  # the browser reports the status 401
    visitor.log_in()
    expect(page.get_by_text("The application has never run.")).to_be_visible(timeout=_SEEN_MS)
    app.create_topics()
    app.produce(seeded_entries(91, 600))
    joiner = app.start()
    app.wait_until_through()
    expect(page.get_by_text(f"{PARTITIONS} of {PARTITIONS} units running")).to_be_visible(timeout=_SEEN_MS)
    expect(page.get_by_role("row").filter(has_text="process one").filter(has_text="running")).to_have_count(
        PARTITIONS, timeout=_SEEN_MS
    )
    assert joiner.stop() == 0
    expect(page.get_by_role("row").filter(has_text="one has left")).to_have_count(1, timeout=_SEEN_MS)
    expect(page.get_by_text(f"0 of {PARTITIONS} units running")).to_be_visible(timeout=_SEEN_MS)
    expect(page.get_by_role("row").filter(has_text="stopped")).to_have_count(PARTITIONS, timeout=_SEEN_MS)
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
    wide, narrow = {"width": 1280, "height": 800}, {"width": 360, "height": 740}
    for scheme in ("light", "dark"):
        for viewport in (wide, narrow):
            visitor = Visitor(browser, control, viewport=viewport, color_scheme=scheme)
            visitor.log_in()
            name = f"{scheme} {viewport['width']}"
            expect(visitor.page.get_by_role("row").filter(has_text="running")).to_have_count(
                PARTITIONS, timeout=_SEEN_MS
            )
            # The page makes its tables fit for the keyboard once it is connected.
            expect(visitor.page.locator(".q-table__middle[tabindex]")).to_have_count(3, timeout=_SEEN_MS)
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
    users = tmp_path / "users"
    add_user(users, "otto", Role.OPERATOR, PASSWORD)
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
        expect(page.get_by_text("The application has never run.")).to_be_visible(timeout=_SEEN_MS)
        page.get_by_label("Application").click()
        page.get_by_role("option", name=f"{app.name}b").click()
        expect(page.get_by_text("What is shown is not current")).to_be_visible(timeout=_SEEN_MS)
        assert visitor.faults() == []
        assert control.stop() == 0
        # The page looks for the service again, which does not know the session any more.
        more["LSB_CONTROL__LISTEN"] = f"127.0.0.1:{control.port}"
    with control_service(app.config, tmp_path, "second", **more):
        page.wait_for_url(f"http://127.0.0.1:{control.port}/login", timeout=_SEEN_MS)
    visitor.context.close()
