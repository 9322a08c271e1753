"""The frame of all pages, built with NiceGUI: who is logged in, which application is shown, and the navigation.

A page receives the facts once a second, over a WebSocket. NiceGUI was chosen because its assets are in its wheel, so
the pages work without the internet, and because we need no front end of our own. It evaluates expressions in the
browser, so the pages need ``unsafe-eval``. Texts from Kafka are therefore shown only in labels and table cells, never
as HTML or Markdown.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol
from urllib.parse import quote

from fastapi import FastAPI, Request, Response
from nicegui import app as pages
from nicegui import ui

from control.access.form import PATH as LOGIN_PATH
from control.access.permission import refusal_of
from control.page import content
from control.problem import Problem

if TYPE_CHECKING:
    from nicegui.events import GenericEventArguments

    from control.access.login import Login
    from control.access.users import User
    from control.actions.desk import Desk
    from control.facts.watcher import Watcher
    from control.roles import Role
    from joiner.runtime.settings import JoinerSettings

MOUNT: Final = "/ui"
_REFRESH_S: Final = 1.0
_RECONNECT_S: Final = 10.0
_TITLE: Final = '<h1 style="font-size: 1.25rem; font-weight: 500; line-height: 1.5; margin: 0">LocalStreamBuffer</h1>'

_SET_UP: Final = """
for (const table of document.querySelectorAll(".q-table__middle")) {
  table.tabIndex = 0;
  table.setAttribute("role", "region");
  table.setAttribute("aria-label", table.parentElement.querySelector(".q-table__title").textContent);
}
window.socket.on("connect_error", () => fetch(location.href).then(() => location.reload()).catch(() => {}));
"""
"""Makes tables wider than the screen scrollable by keyboard, which Quasar's tables are not.

Also reloads the page if the service responds but no longer knows the page, as after a restart.
"""

_LOG_IN: Final = f'location.href = "{LOGIN_PATH}"'
TROUBLE: Final = "bg-red-800 text-white rounded px-2 py-1"


class Visit(NamedTuple):
    """A page that a browser has opened. ``role``: its user's role at that time. ``request``: the request for it."""

    watcher: Watcher
    desk: Desk
    role: Role
    request: Request
    login: Login

    def user(self) -> User | None:
        """Return the user with their current role, or None if the session has ended."""
        return self.login.user_of(self.request)[0]

    def refusal(self, role: Role) -> str:
        """Return why the user may not do something that needs ``role`` now, or an empty string."""
        # The user may have been removed or given another role since the page was opened.
        user = self.user()
        return "log in again" if user is None else refusal_of(user, role)


class Section(Protocol):
    """The content of a page, below its headline."""

    def build(self) -> None:
        """Create the elements."""
        ...

    def refresh(self) -> None:
        """Show what is known now. Called once a second, and only while the user is logged in."""
        ...


class Place(NamedTuple):
    """A page that the frame links to. ``path``: below `MOUNT`. ``is_for``: whether it is about an application."""

    path: str
    title: str
    make: Callable[[Visit], Section]
    is_for: Callable[[JoinerSettings], bool] = lambda _settings: True


def mount_pages(
    app: FastAPI, places: Sequence[Place], watchers: Mapping[str, Watcher], desks: Mapping[str, Desk], login: Login
) -> None:
    """Add the pages to the service. ``watchers``, ``desks``: by application.

    NiceGUI has one app per process, so this can be done only once.
    """

    def add(place: Place) -> None:
        @ui.page(place.path, title=f"{place.title} - LocalStreamBuffer")
        def page(request: Request, application: str = "") -> None:
            chosen = application if application in watchers else next(iter(watchers))
            visit = Visit(watchers[chosen], desks[chosen], request.state.user.role, request, login)
            _Page(visit, place).build(places, list(watchers))

    for place in places:
        add(place)
    # NiceGUI would respond with its own page, which it keeps for a minute.
    pages.add_exception_handler(HTTPStatus.NOT_FOUND, _not_found)
    ui.run_with(
        app,
        mount_path=MOUNT,
        language="en-US",
        dark=None,
        binding_refresh_interval=None,
        reconnect_timeout=_RECONNECT_S,
        show_welcome_message=False,
    )


async def _not_found(_request: Request, _error: Exception) -> Response:
    return Problem(HTTPStatus.NOT_FOUND, "there is no such page").response()


class _Page:
    """A page in one browser."""

    def __init__(self, visit: Visit, place: Place) -> None:
        self._visit, self._place = visit, place
        self._name = visit.watcher.settings.application.name
        self._section = place.make(visit)

    def build(self, places: Sequence[Place], applications: list[str]) -> None:
        """Create the elements and show the facts in them."""
        ui.colors(primary="#1d4ed8")
        with ui.header().classes("items-center"):
            ui.html(_TITLE, sanitize=False)
            with ui.element("nav").props('aria-label="Pages"').classes("flex gap-4"):
                for place in places:
                    if place.is_for(self._visit.watcher.settings):
                        self._link(place)
            ui.space()
            if len(applications) > 1:
                ui.select(
                    applications,
                    value=self._name,
                    label="Application",
                    # NiceGUI prepends the path it is mounted at.
                    on_change=lambda event: ui.navigate.to(_target(self._place, event.value)),
                ).props("dark dense options-dense")
            ui.button("Log out", on_click=self._log_out).props("flat color=white")
        ui.label(self._name).classes("text-xl")
        self._headline = ui.label().classes("text-base")
        self._troubles = ui.column().props('role="status"')
        self._section.build()
        ui.run_javascript(_SET_UP)
        self._refresh()
        ui.timer(_REFRESH_S, self._refresh)

    def _link(self, place: Place) -> None:
        link = ui.link(place.title, _target(place, self._name)).classes("text-white")
        if place == self._place:
            link.props('aria-current="page"').classes("text-weight-bold")

    def _refresh(self) -> None:
        if self._visit.user() is None:
            ui.run_javascript(_LOG_IN)
            return
        facts = self._visit.watcher.facts
        list_in(self._troubles, content.troubles(facts, round(1000 * time.time())), TROUBLE)
        self._headline.set_text(content.headline(facts))
        self._section.refresh()

    def _log_out(self) -> None:
        login = self._visit.login
        login.end(self._visit.request.cookies.get(login.cookie, ""))
        ui.run_javascript(_LOG_IN)


def _target(place: Place, application: str) -> str:
    return f"{place.path}?application={quote(application)}"


def list_in(column: ui.column, texts: Sequence[str], classes: str) -> None:
    """Show texts in a column. Change only labels whose text differs, so that screen readers do not repeat the rest."""
    labels = [child for child in column.default_slot.children if isinstance(child, ui.label)]
    for label, text in zip(labels, texts, strict=False):
        label.set_text(text)
    for label in labels[len(texts) :]:
        label.delete()
    with column:
        for text in texts[len(labels) :]:
            ui.label(text).classes(classes)


def table_of(title: str, names: Sequence[str], key: str) -> ui.table:
    """Create an empty table. ``key``: the name of the cell that identifies a row."""
    columns: list[dict[str, Any]] = [{"name": name, "label": name, "field": name, "align": "left"} for name in names]
    made = ui.table(columns=columns, rows=[], row_key=key, title=title, pagination={"rowsPerPage": 0})
    return made.props("dense hide-pagination").classes("w-full")


def button_cells(
    table: ui.table, column: str, on_click: Callable[[GenericEventArguments], Any], name: str, value: str
) -> ui.element:
    """Show the cells of a column as buttons, and return the element that is rendered for each of them.

    ``value``: a JavaScript expression for what ``on_click`` receives, such as ``props.row.key``. It also follows
    ``name`` in the accessible name of the button.
    """
    # Not a template: NiceGUI creates what is in a template again whenever anything on the page changes. The button
    # would lose the focus, and a click would be lost if the change came between pressing and releasing.
    with table.add_slot(f"body-cell-{column}"), ui.element("q-td") as cell:
        button = ui.element("q-btn").props("dense no-caps")
    cell.props[":props"] = "props"
    button.props[":aria-label"] = f"{json.dumps(name)} + ' ' + {value}"
    # NiceGUI would give those of all rows the same id.
    cell.props[":id"] = button.props[":id"] = "undefined"
    return button.on("click", on_click, js_handler=f"() => emit({value})")


def chart_of(title: str) -> ui.echart:
    """Create an empty chart of one series over time."""
    # Colours that are legible on white and on black.
    axis = {"axisLabel": {"color": "#767b84", "hideOverlap": True}, "splitLine": {"lineStyle": {"color": "#88888844"}}}
    with ui.column().classes("w-full sm:w-auto sm:flex-1 gap-0"):
        ui.label(title).classes("text-weight-bold")
        return ui.echart(
            {
                "animation": False,
                "grid": {"left": 8, "right": 8, "top": 8, "bottom": 8, "containLabel": True},
                "xAxis": {"type": "time", **axis},
                "yAxis": {"type": "value", "min": 0, "minInterval": 1, **axis},
                "series": [{"type": "line", "showSymbol": False, "data": []}],
                "aria": {"enabled": True, "label": {"description": title}},
            }
        ).classes("w-full h-48")
