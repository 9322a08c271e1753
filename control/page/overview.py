"""The first page: throughput and lag, the units, the instances, and what has happened."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nicegui import ui

from control.page import content
from control.page.frame import Visit, chart_of, list_in, table_of

if TYPE_CHECKING:
    from control.facts.watcher import Watcher


class OverviewSection:
    """See `control.page.frame.Section`."""

    def __init__(self, visit: Visit) -> None:
        self._watcher: Watcher = visit.watcher
        self._shown = -1

    def build(self) -> None:
        """See `Section`."""
        with ui.row().classes("w-full"):
            self._rate = chart_of("Records per second")
            self._lag = chart_of("Lag in records")
        self._units = table_of("Units", content.UNIT_COLUMNS, "unit")
        self._assignments = ui.column()
        self._instances = table_of("Instances", content.INSTANCE_COLUMNS, "key")
        self._events = table_of("What has happened", content.EVENT_COLUMNS, "key").props("wrap-cells")

    def refresh(self) -> None:
        """See `Section`."""
        watcher = self._watcher
        facts = watcher.facts
        if facts.number == self._shown:
            return
        self._shown = facts.number
        list_in(self._assignments, content.assignments(facts), "")
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
