"""The page, made with NiceGUI: it is given the facts once a second, over a WebSocket.

NiceGUI was chosen because its assets are in its wheel, so that the page works without the internet, and because it
needs no front end of our own. It compiles templates in the browser, so its pages need ``unsafe-eval``. Texts from
Kafka are therefore shown by labels and table cells only, never as HTML or Markdown.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from fastapi import FastAPI, Request
from nicegui import ui

from control.page import content
from control.page.form import PATH as LOGIN_PATH

if TYPE_CHECKING:
    from control.access.login import Login
    from control.facts.watcher import Watcher

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
"""Lets tables that are wider than the screen be scrolled by keyboard, which Quasar's tables do not.

Also loads the page again if the service answers but does not know the page any more, as after its restart.
"""

_LOG_IN: Final = f'location.href = "{LOGIN_PATH}"'
_TROUBLE: Final = "bg-red-800 text-white rounded px-2 py-1"


def mount_page(app: FastAPI, watchers: Mapping[str, Watcher], login: Login) -> None:
    """Add the page to the service. NiceGUI has one app for each process, so this can be done once only."""

    @ui.page("/", title="LocalStreamBuffer")
    def page(request: Request, application: str = "") -> None:
        chosen = application if application in watchers else next(iter(watchers))
        _Page(watchers, chosen, login, request).build()

    ui.run_with(
        app,
        mount_path=MOUNT,
        language="en-US",
        dark=None,
        binding_refresh_interval=None,
        reconnect_timeout=_RECONNECT_S,
        show_welcome_message=False,
    )


class _Page:
    """The page of one browser."""

    def __init__(self, watchers: Mapping[str, Watcher], chosen: str, login: Login, request: Request) -> None:
        self._watchers, self._chosen, self._login, self._request = watchers, chosen, login, request
        self._shown = -1

    def build(self) -> None:
        """Make the elements and show the facts in them."""
        ui.colors(primary="#1d4ed8")
        with ui.header().classes("items-center"):
            ui.html(_TITLE, sanitize=False)
            ui.space()
            if len(self._watchers) > 1:
                ui.select(
                    list(self._watchers),
                    value=self._chosen,
                    label="Application",
                    # NiceGUI puts the path under which it is mounted before this one.
                    on_change=lambda event: ui.navigate.to(f"/?application={quote(event.value)}"),
                ).props("dark dense options-dense")
            ui.button("Log out", on_click=self._log_out).props("flat color=white")
        ui.label(self._chosen).classes("text-xl")
        self._headline = ui.label().classes("text-base")
        self._troubles = ui.column().props('role="status"')
        with ui.row().classes("w-full"):
            self._rate = _chart("Records a second")
            self._lag = _chart("Lag in records")
        self._units = _table("Units", content.UNIT_COLUMNS, "unit")
        self._assignments = ui.column()
        self._instances = _table("Instances", content.INSTANCE_COLUMNS, "key")
        self._events = _table("What has happened", content.EVENT_COLUMNS, "key").props("wrap-cells")
        ui.run_javascript(_SET_UP)
        self._refresh()
        ui.timer(_REFRESH_S, self._refresh)

    def _refresh(self) -> None:
        if self._login.user_of(self._request)[0] is None:
            ui.run_javascript(_LOG_IN)
            return
        watcher = self._watchers[self._chosen]
        facts = watcher.facts
        _list_in(self._troubles, content.troubles(facts, round(1000 * time.time())), _TROUBLE)
        if facts.number == self._shown:
            return
        self._shown = facts.number
        self._headline.set_text(content.headline(facts))
        _list_in(self._assignments, content.assignments(facts), "")
        for table, rows in (
            (self._units, content.unit_rows(facts)),
            (self._instances, content.instance_rows(facts)),
            (self._events, content.event_rows(watcher.events)),
        ):
            if table.rows != rows:
                table.rows = rows
        both = content.series(watcher.samples)
        for chart, points in zip((self._rate, self._lag), both, strict=True):
            chart.run_chart_method("setOption", {"series": [{"data": points}]})

    def _log_out(self) -> None:
        self._login.end(self._request.cookies.get(self._login.cookie, ""))
        ui.run_javascript(_LOG_IN)


def _list_in(column: ui.column, texts: Sequence[str], classes: str) -> None:
    """Show texts in a column. Only labels whose text differs are changed, so that nothing is read aloud again."""
    labels = [child for child in column.default_slot.children if isinstance(child, ui.label)]
    for label, text in zip(labels, texts, strict=False):
        label.set_text(text)
    for label in labels[len(texts) :]:
        label.delete()
    with column:
        for text in texts[len(labels) :]:
            ui.label(text).classes(classes)


def _table(title: str, names: Sequence[str], key: str) -> ui.table:
    columns: list[dict[str, Any]] = [{"name": name, "label": name, "field": name, "align": "left"} for name in names]
    table = ui.table(columns=columns, rows=[], row_key=key, title=title, pagination={"rowsPerPage": 0})
    return table.props("dense hide-pagination").classes("w-full")


def _chart(title: str) -> ui.echart:
    # Colours that can be read on white and on black.
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
