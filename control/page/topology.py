"""The page with an application's topology: a drawing, and the same information as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nicegui import ui
from nicegui.events import GenericEventArguments

from control.facts.graph.parts import TROUBLE, WARNING
from control.facts.topology import topology_of
from control.page.drawing.layout import Room, lay_out, room_of
from control.page.drawing.paint import DARK, EMPTY, LIGHT, Element, elements_of, frame_of
from control.page.drawing.rows import FLOW_COLUMNS, PART_COLUMNS, flow_rows, part_rows
from control.page.frame import Visit, list_in, table_of

if TYPE_CHECKING:
    from control.facts.topology import Topology

_EVENT: Final = "topology-room"
_REPORT_ROOM: Final = """
const begin = () => {
  if (!getElement(%(id)d)?.chart) return setTimeout(begin, 20);
  const place = getHtmlElement(%(id)d);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const report = () => emitEvent("%(event)s", {width: place.clientWidth, dark: dark.matches});
  new ResizeObserver(report).observe(place);
  dark.addEventListener("change", report);
};
begin();
"""
"""Tells the service how wide the drawing may be and whether to use dark colours: once the chart can draw, and whenever
either changes."""

_LEGEND: Final = (
    "Dashed: standbys. Dotted: not observed, drawn as configured. The wider a flow, the more records. "
    "Point at a box for details. The tables below show the same."
)
_MARKS: Final = {TROUBLE: "border-l-4 border-red-700 pl-2", WARNING: "border-l-4 border-amber-600 pl-2"}


class TopologySection:
    """See `control.page.frame.Section`."""

    def __init__(self, visit: Visit) -> None:
        self._watcher = visit.watcher
        self._shown = -1
        self._topology: Topology | None = None
        self._room: Room | None = None
        """None until the browser has reported it."""
        self._drawn: dict[str, Element] = {}
        """The elements that the browser has, by id."""

    def build(self) -> None:
        """See `Section`."""
        with ui.column().props('role="status"'):
            self._troubles = {level: ui.column().classes("gap-1") for level in _MARKS}
        self._chart = ui.echart(EMPTY).classes("w-full")
        name = self._watcher.settings.application.name
        self._chart.props(f'role="img" aria-label="Topology of {name}, as in the tables below"')
        ui.label(_LEGEND).classes("text-sm")
        self._flows = table_of("Flows", FLOW_COLUMNS, "key")
        self._parts = table_of("Parts", PART_COLUMNS, "key")
        # The last column contains the long texts.
        self._parts.columns[-1]["style"] = "white-space: normal; min-width: 20rem"
        ui.on(_EVENT, self._give_room)
        ui.run_javascript(_REPORT_ROOM % {"id": self._chart.id, "event": _EVENT})

    def refresh(self) -> None:
        """See `Section`."""
        watcher = self._watcher
        facts = watcher.facts
        if facts.number == self._shown:
            return
        self._shown = facts.number
        self._topology = topology = topology_of(watcher.settings, watcher.endpoints, facts)
        for level, column in self._troubles.items():
            texts = [f"{level.capitalize()}: {one.text}" for one in topology.troubles if one.level == level]
            list_in(column, texts, _MARKS[level])
        for table, rows in ((self._flows, flow_rows(topology)), (self._parts, part_rows(topology))):
            if table.rows != rows:
                table.rows = rows
        self._draw()

    def _give_room(self, event: GenericEventArguments) -> None:
        """Redraw if the room has changed."""
        room = room_of(event.args)
        if room is not None and room != self._room:
            self._room = room
            self._draw()

    def _draw(self) -> None:
        """Send what has changed. If the set of elements has changed, replace all of them at once."""
        if self._topology is None or self._room is None:
            return
        drawing = lay_out(self._topology, self._room.width)
        colours = DARK if self._room.is_dark else LIGHT
        elements = {element["id"]: element for element in elements_of(drawing, colours)}
        is_other = elements.keys() != self._drawn.keys()
        changed = [one for name, one in elements.items() if is_other or one != self._drawn[name]]
        self._drawn = elements
        if is_other:
            self._chart.style(f"height: {drawing.height}px")
        if changed:
            options = frame_of(drawing) | {"graphic": {"elements": changed}}
            how = {"replaceMerge": ["graphic"]} if is_other else {}
            self._chart.run_chart_method("setOption", options, how)
