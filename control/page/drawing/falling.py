"""Lays out a topology from top to bottom, for narrow screens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from control.facts.graph.parts import Edge, Node
from control.page.drawing.boxes import GAP, Groups, flow_text, simple_box, site_boxes
from control.page.drawing.shapes import LINE, PAD, Box, Drawing, Label, Line, Point

_LEFT: Final = 26
"""The width at the left for flows that bypass boxes."""

_RIGHT: Final = 16
_BOX_MAX: Final = 640
_SIDE_BY_SIDE: Final = 420
"""The minimum width for placing instances or standbys side by side."""

_ARROW: Final = 26
"""The distance between two boxes, not counting the labels between them."""

_INTO_SITES: Final = 16.0
_INTO_TOPICS: Final = 6.0
"""How far from the left flows into the sites and into the output topics bypass boxes."""


def lay_out_down(groups: Groups, width: int) -> Drawing:
    """Return a drawing of this width."""
    return _Down(groups, width).drawn()


class _Down:
    """A top-to-bottom drawing. The labels of the flows into a box are above it."""

    def __init__(self, groups: Groups, width: int) -> None:
        self._groups, self._drawing = groups, Drawing(width)
        self._width = min(_BOX_MAX, width - _LEFT - _RIGHT)
        self._left = _LEFT + (width - _LEFT - _RIGHT - self._width) / 2
        self._outer: dict[str, Box] = {}
        self._order: list[str] = []

    def drawn(self) -> Drawing:
        """Return the drawing."""
        groups = self._groups
        connected = {edge.target for edge in groups.edges if edge.source == "connector"}
        followed = {edge.source for edge in groups.edges if edge.target in {"merger", "db_connector"}}
        # The topics that the connectors write and read are next to them.
        inputs = sorted(groups.inputs, key=lambda node: node.id not in connected)
        outputs = sorted(groups.outputs, key=lambda node: node.id in followed)
        y = 1.0
        for node in (*groups.sources, *inputs, *groups.sites, *outputs, *groups.sinks):
            y = self._place(node, y)
        self._drawing.height = round(y) + 2
        for number, edge in enumerate(groups.edges):
            self._add_flow(f"{number} {edge.source} {edge.target}", edge)
        return self._drawing

    def _place(self, node: Node, y: float) -> float:
        """Place a node below the others, and return its bottom edge."""
        texts = self._texts_above(node)
        if self._order:
            y += _ARROW + LINE * max(0, len(texts) - 1)
        if node.kind == "site":
            boxes = site_boxes(self._groups, node, self._left, y, self._columns())
        else:
            boxes = [simple_box(node, self._left, y, self._width)]
        for number, (edge, text) in enumerate(texts):
            at = y - _ARROW / 2 - LINE * (len(texts) - 1 - number)
            key = f"above {node.id} {number}"
            self._drawing.labels.append(Label(key, text, edge.level, self._left + 2 * PAD, at, is_centred=False))
        self._drawing.boxes += boxes
        self._outer[node.id] = boxes[0]
        self._order.append(node.id)
        return boxes[0].bottom

    def _columns(self) -> list[float]:
        """Return the widths of the columns in a site."""
        are_two = self._groups.has_standbys or self._groups.has_many_instances
        if not are_two or self._width < _SIDE_BY_SIDE:
            return [self._width - 2 * PAD]
        free = self._width - 2 * PAD - GAP
        return [free * 0.6, free * 0.4] if self._groups.has_standbys else [free / 2, free / 2]

    def _texts_above(self, node: Node) -> list[tuple[Edge, str]]:
        """Return the label of each flow into a node, with the name of its source if there are several."""
        into = [edge for edge in self._groups.edges if edge.target == node.id]
        names = {one.id: one.label for one in self._groups.inputs}
        names |= {one.id: f"{one.kind} {one.label}" for one in self._groups.sites}
        found = [(edge, flow_text(edge, is_wide=True) or self._note(edge)) for edge in into]
        found = [(edge, text) for edge, text in found if text]
        if len(found) < 2:  # noqa: PLR2004 - as the docstring says
            return found
        return [(edge, f"{names.get(edge.source, edge.source)}: {text}") for edge, text in found]

    def _note(self, edge: Edge) -> str:
        is_move = edge.source.startswith("site:") and edge.target.startswith("site:")
        return edge.note if is_move else ""

    def _add_flow(self, key: str, edge: Edge) -> None:
        source, target = self._outer[edge.source], self._outer[edge.target]
        distance = self._order.index(edge.target) - self._order.index(edge.source)
        if distance == 1:
            x = self._left + PAD
            points: Sequence[Point] = ((x, source.bottom), (x, target.y))
            towards = "down"
        elif not edge.source.startswith(("topic:", "site:", "replica:")):
            # Dead letters from the connectors.
            x = source.right + _RIGHT / 2
            points = (
                (source.right, source.middle[1]),
                (x, source.middle[1]),
                (x, target.middle[1]),
                (target.right, target.middle[1]),
            )
            towards = "left"
        else:
            x = self._left - _LEFT + (_INTO_SITES if edge.target.startswith(("site:", "replica:")) else _INTO_TOPICS)
            start = source.bottom - 2 * PAD if source.kind == "group" else source.middle[1]
            end = target.y + 2 * PAD
            points = ((source.x, start), (x, start), (x, end), (target.x, end))
            towards = "right"
        self._drawing.lines.append(Line(key, edge.level, tuple(points), towards, rate=edge.rate))
