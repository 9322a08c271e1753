"""Lays out a topology in columns, from left to right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import product
from typing import Final

from control.facts.graph.parts import Edge, Node
from control.page.drawing.boxes import Groups, flow_text, simple_box, site_boxes, site_width
from control.page.drawing.shapes import LINE, PAD, Box, Drawing, Label, Line, Point

_END: Final = 148
"""The width of the boxes at both ends."""

_TOPICS: Final = (200, 176, 160)
"""The widths of topic boxes, best first. The first one that fits is used."""

_INSTANCES: Final = {
    # The widths of the columns in a site, best first, by the preferred number of columns.
    1: ((184,),),
    2: ((184, 184), (150, 150), (184,)),
}
_WITH_STANDBYS: Final = (184, 134)

_BETWEEN: Final = (68, 130)
"""The minimum and maximum distance between two columns, where the rates are shown."""

_ABOVE: Final = 18
"""The vertical distance between two boxes."""

_LINKED: Final = 44
"""The vertical distance between two boxes with a flow between them."""

_BELOW: Final = 14
"""How far below all boxes a flow passes."""

_TOP_MAX: Final = 140
"""The lowest start of a column, so that the data's entire path is at the top of a tall drawing."""

_PORTS: Final = 18
"""The distance between two flows at the border of a box, if there is room."""


def lay_out_across(groups: Groups, width: int) -> Drawing | None:
    """Return a drawing of this width, or None if that is too narrow."""
    ends = [
        # Each node at the ends gets its own column if there is room. Otherwise, these nodes are stacked.
        ([[one] for one in groups.sources], [[one] for one in groups.sinks]),
        ([groups.sources] if groups.sources else [], [groups.sinks] if groups.sinks else []),
    ]
    in_sites = (_WITH_STANDBYS,) if groups.has_standbys else _INSTANCES[2 if groups.has_many_instances else 1]
    for (before, behind), instances, topic in product(ends, in_sites, _TOPICS):
        columns: list[tuple[list[Node], float]] = [
            *((one, _END) for one in before),
            (groups.inputs, topic),
            (groups.sites, site_width(instances)),
            (groups.outputs, topic),
            *((one, topic if any(node.kind == "merged_topic" for node in one) else _END) for one in behind),
        ]
        free = width - 2 - sum(wide for _, wide in columns)
        between = free / (len(columns) - 1)
        if between >= _BETWEEN[0]:
            between = min(between, _BETWEEN[1])
            left = 1 + (free - between * (len(columns) - 1)) / 2
            return _Across(groups, width, columns, instances).drawn(left, between)
    return None


class _Across:
    """A drawing in columns."""

    def __init__(
        self,
        groups: Groups,
        width: int,
        columns: Sequence[tuple[list[Node], float]],
        instances: Sequence[float],
    ) -> None:
        self._groups, self._columns, self._instances = groups, columns, instances
        self._drawing = Drawing(width)
        self._outer: dict[str, Box] = {}
        """The boxes where flows begin and end."""
        self._column: dict[str, int] = {}

    def drawn(self, left: float, between: float) -> Drawing:
        """Return the drawing. ``left``: where the first column begins. ``between``: the distance between columns."""
        drawing = self._drawing
        columns = []
        for number, (nodes, width) in enumerate(self._columns):
            columns.append(self._stack(nodes, left, width))
            self._column |= {node.id: number for node in nodes}
            left += width + between
        tallest = max(_height(column) for column in columns)
        for column in columns:
            self._place(column, 1 + min(_TOP_MAX, (tallest - _height(column)) / 2))
        drawing.height = round(tallest) + 2
        self._add_flows()
        return drawing

    def _stack(self, nodes: Sequence[Node], x: float, width: float) -> list[list[Box]]:
        """Return the boxes of each node, one node below the other, starting at 0."""
        found: list[list[Box]] = []
        y = 0.0
        linked = Counter(frozenset((edge.source, edge.target)) for edge in self._groups.edges)
        for before, node in zip([None, *nodes], nodes, strict=False):
            if before is not None:
                flows = linked[frozenset((before.id, node.id))]
                y += _LINKED + LINE * (flows - 1) if flows else _ABOVE
            if node.kind == "site":
                boxes = site_boxes(self._groups, node, x, y, self._instances)
            else:
                boxes = [simple_box(node, x, y, width)]
            found.append(boxes)
            y = boxes[0].bottom
        return found

    def _place(self, column: Sequence[Sequence[Box]], top: float) -> None:
        for boxes in column:
            moved = [box._replace(y=box.y + top) for box in boxes]
            self._outer[moved[0].key] = moved[0]
            self._drawing.boxes += moved

    def _add_flows(self) -> None:
        beside: list[tuple[str, Edge]] = []
        vertical: dict[frozenset[str], list[tuple[str, Edge]]] = {}
        for number, edge in enumerate(self._groups.edges):
            key = f"{number} {edge.source} {edge.target}"
            distance = self._column[edge.target] - self._column[edge.source]
            if distance == 0:
                vertical.setdefault(frozenset((edge.source, edge.target)), []).append((key, edge))
            elif abs(distance) == 1:
                beside.append((key, edge))
            else:
                self._add_below(key, edge)
        self._add_curves(beside)
        for flows in vertical.values():
            for number, (key, edge) in enumerate(flows):
                self._add_vertical(key, edge, (number + 0.5) / len(flows))

    def _add_vertical(self, key: str, edge: Edge, part: float) -> None:
        """Add a flow between two boxes of a column.

        ``part``: where to put it, as a fraction of the source's width, and its label, as a fraction of the distance.
        """
        source, target = self._outer[edge.source], self._outer[edge.target]
        x = source.x + source.width * part
        is_down = source.y < target.y
        start, end = (source.bottom, target.y) if is_down else (source.y, target.bottom)
        points = ((x, start), (x, end))
        self._drawing.lines.append(Line(key, edge.level, points, "down" if is_down else "up", rate=edge.rate))
        text = flow_text(edge, is_wide=True) or (edge.note if source.kind == "group" else "")
        if text:
            upper, lower = min(start, end), max(start, end)
            y = upper + (lower - upper) * part
            self._drawing.labels.append(Label(key, text, edge.level, source.middle[0], y))

    def _add_below(self, key: str, edge: Edge) -> None:
        """Add a flow that passes below everything between its ends."""
        source, target = self._outer[edge.source], self._outer[edge.target]
        y = max(box.bottom for box in self._outer.values()) + _BELOW
        start, end = source.middle[0], target.middle[0]
        if text := flow_text(edge, is_wide=True):
            self._drawing.labels.append(Label(key, text, edge.level, (start + end) / 2, y))
        self._drawing.height = max(self._drawing.height, round(y + LINE / 2) + 2)
        points = ((start, source.bottom), (start, y), (end, y), (end, target.bottom))
        self._drawing.lines.append(Line(key, edge.level, points, "up", rate=edge.rate))

    def _add_curves(self, flows: Sequence[tuple[str, Edge]]) -> None:
        """Add the flows between neighbouring columns."""
        ports = self._ports(flows)
        labels: dict[int, list[Label]] = {}
        for key, edge in flows:
            (x1, y1), (x2, y2) = ports[key, edge.source], ports[key, edge.target]
            middle = (x1 + x2) / 2
            points = ((x1, y1), (middle, y1), (middle, y2), (x2, y2))
            towards = "right" if x1 < x2 else "left"
            self._drawing.lines.append(Line(key, edge.level, points, towards, is_curve=True, rate=edge.rate))
            if text := flow_text(edge):
                part = self._place_of_label(edge)
                y = y1 + (y2 - y1) * (3 * part**2 - 2 * part**3)
                label = Label(key, text, edge.level, x1 + (x2 - x1) * part, y)
                labels.setdefault(self._column[edge.source], []).append(label)
        for of_column in labels.values():
            self._drawing.labels += _apart(of_column)

    def _place_of_label(self, edge: Edge) -> float:
        """Return where on a flow to put its label, as a fraction. Flows of several sites do not cross near a site."""
        sites = {site.id for site in self._groups.sites}
        if len(sites) == 1:
            return 0.5
        return 0.35 if edge.source in sites else 0.65 if edge.target in sites else 0.5

    def _ports(self, flows: Sequence[tuple[str, Edge]]) -> dict[tuple[str, str], Point]:
        """Return where each flow begins and ends: at the borders of the boxes, ordered by where the other ends are."""
        at: dict[tuple[str, bool], list[tuple[float, str]]] = {}
        for key, edge in flows:
            is_right = self._column[edge.source] < self._column[edge.target]
            for one, other, side in ((edge.source, edge.target, is_right), (edge.target, edge.source, not is_right)):
                at.setdefault((one, side), []).append((self._outer[other].middle[1], key))
        found: dict[tuple[str, str], Point] = {}
        for (one, is_right), others in at.items():
            box = self._outer[one]
            low, high = box.y + 2 * PAD, box.bottom - 2 * PAD
            others.sort()
            wanted = [min(max(other, low), high) for other, _ in others]
            for (_, key), y in zip(others, _spread(wanted, low, high), strict=True):
                found[key, one] = (box.right if is_right else box.x, y)
        return found


def _height(column: Sequence[Sequence[Box]]) -> float:
    return column[-1][0].bottom if column else 0.0


def _spread(wanted: Sequence[float], low: float, high: float) -> list[float]:
    """Return places near the wanted ones, which are sorted, spaced apart if there is room."""
    apart = min(_PORTS, (high - low) / max(1, len(wanted) - 1))
    found: list[float] = []
    for number, place in enumerate(wanted):
        found.append(max(place, found[-1] + apart) if number else place)
    for number in range(len(found) - 1, -1, -1):
        limit = high if number == len(found) - 1 else found[number + 1] - apart
        found[number] = min(found[number], limit)
    return found


def _apart(labels: Sequence[Label]) -> list[Label]:
    """Return the labels, moved down where they would overlap."""
    found: list[Label] = []
    for label in sorted(labels, key=lambda one: one.y):
        least = found[-1].y + (found[-1].height + label.height) / 2 if found else label.y
        found.append(label._replace(y=max(label.y, least)))
    return found
