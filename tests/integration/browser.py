"""A person with a browser in front of the control service, for tests of its pages."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, ViewportSize, expect, sync_playwright

from control.access.users import add_user
from control.roles import Role
from tests.integration.control_service import ControlService, control_service
from tests.integration.joiner_application import Application

PASSWORD: Final = "correct horse battery"  # noqa: S105 - of a test
SEEN_MS: Final = 30_000
"""How long to wait until something is on the page."""
expect.set_options(timeout=SEEN_MS)

WIDE: Final = ViewportSize(width=1280, height=800)
NARROW: Final = ViewportSize(width=360, height=740)
_SCREENS: Final = [(WIDE, "light"), (NARROW, "dark"), (WIDE, "dark"), (NARROW, "light")]
SCREENS: Final = _SCREENS if os.environ.get("LSB_CHAOS_FULL") else _SCREENS[:2]
"""Sizes and color schemes for which each page is checked."""

_USERS: Final = {"vera": Role.VIEWER, "otto": Role.OPERATOR, "ada": Role.ADMIN}


def _find_browser() -> str | None:
    """Return a browser that runs. On some systems, the command only installs one."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        path = shutil.which(name)
        if path is not None and subprocess.run([path, "--version"], capture_output=True, check=False).returncode == 0:
            return path
    return None


_CHROMIUM: Final = _find_browser()

needs_browser: Final = pytest.mark.skipif(_CHROMIUM is None, reason="needs a browser: apt-get install chromium")


def launched_browser() -> Iterator[Browser]:
    """Yield a browser: the body of a fixture, of scope ``module``."""
    with sync_playwright() as playwright:
        # Its sandbox needs rights that a container does not have; it opens pages of this test alone.
        launched = playwright.chromium.launch(executable_path=_CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


def service_with_users(app: Application, folder: Path) -> Iterator[ControlService]:
    """Yield a service with the users vera (viewer), otto (operator) and ada (admin): the body of a fixture."""
    with control_service(app.config, folder, LSB_CONTROL__USERS_FILE=str(users_file(folder))) as service:
        yield service


def users_file(folder: Path) -> Path:
    """Write the file with vera, otto and ada, whose password is `PASSWORD`, and return its path."""
    file = folder / "users"
    for name, role in _USERS.items():
        add_user(file, name, role, PASSWORD)
    return file


class Visitor:
    """A person with a browser. ``elsewhere``: what the page has asked of other servers. ``errors``: in its console."""

    def __init__(self, browser: Browser, control: ControlService, **options: Any) -> None:
        self.context = browser.new_context(base_url=f"http://127.0.0.1:{control.port}", **options)
        self.page: Page = self.context.new_page()
        self.elsewhere: list[str] = []
        self.errors: list[str] = []
        self.page.on("request", self._note)
        self.page.on("console", lambda one: self.errors.append(one.text) if one.type == "error" else None)

    def log_in(self, password: str = PASSWORD, name: str = "otto") -> None:
        """Fill in the form by keyboard."""
        self.page.goto("/")
        expect(self.page.get_by_label("Name")).to_be_focused(timeout=SEEN_MS)
        self.page.keyboard.type(name)
        self.page.keyboard.press("Tab")
        self.page.keyboard.type(password)
        self.page.keyboard.press("Enter")

    def faults(self) -> list[tuple[str, str]]:
        """Return the serious faults of accessibility on the page, each with the first element that has it."""
        # The page makes its tables fit for the keyboard once it is connected.
        expect(self.page.locator(".q-table__middle:not([tabindex])")).to_have_count(0, timeout=SEEN_MS)
        # If axe fetched the style sheets, the page would show a bar that it is loading.
        found = Axe().run(self.page, options={"preload": False}).response["violations"]
        return [(one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in {"serious", "critical"}]

    def picture(self, name: str) -> None:
        """Save a picture of the page if ``LSB_PICTURES`` names a folder."""
        if folder := os.environ.get("LSB_PICTURES"):
            self.page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)

    def _note(self, request: Any) -> None:
        if not request.url.startswith(("http://127.0.0.1:", "data:")):
            self.elsewhere.append(request.url)


def choose(page: Page, label: str, option: str) -> None:
    """Choose an option as soon as it is offered, and wait until the menu has faded out.

    Quasar's menu is not without faults: axe reports a `tabindex` on the elements between the list and its options.
    """
    page.get_by_label(label, exact=True).click()
    page.get_by_role("option", name=option, exact=True).click(timeout=SEEN_MS)
    expect(page.get_by_role("listbox")).to_have_count(0, timeout=SEEN_MS)
