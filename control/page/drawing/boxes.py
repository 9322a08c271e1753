"""Lays out the boxes of a topology's nodes: their labels and sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from control.facts.graph.parts import OK, UNKNOWN, WARNING, Edge, Node, numbers
from control.facts.graph.sites import ALL_WARM
from control.facts.topology import Topology
from control.page.drawing.shapes import LINE, PAD, Box, Text

_UNIT: Final = (24, 18)
_UNIT_GAP: Final = 4
GAP: Final = 10
_HEAD: Final = 3 * LINE + PAD
_STANDBYS_MAX: Final = 3
_CAUSES_MAX: Final = 4
_MANY_INSTANCES: Final = 8
_MILLION: Final = 1_000_000
_TENTHS_BELOW: Final = 10

CONTENTS: Final = {
    "input_topic": "input",
    "result_topic": "results",
    "late_topic": "late records",
    "unmatched_topic": "unmatched records",
    "dead_letter_topic": "dead letters",
}
"""What a topic contains, by kind of node."""


class Groups:
    """A topology's nodes, grouped by their place in the drawing."""

    def __init__(self, topology: Topology) -> None:
        self.edges = topology.edges
        by_kind: dict[str, list[Node]] = {}
        self._within: dict[str, list[Node]] = {}
        self._beside: dict[str, Node] = {}
        for node in topology.nodes:
            by_kind.setdefault(node.kind, []).append(node)
            if node.within:
                self._within.setdefault(node.within, []).append(node)
            if node.beside:
                self._beside[node.beside] = node
        self.sources = by_kind.get("mqtt_broker", []) + by_kind.get("connector", [])
        # What copies to a repartition topic precedes it.
        self.inputs = [node for node in topology.nodes if node.kind in {"repartition", "input_topic"}]
        self.sites = by_kind.get("site", []) + by_kind.get("replica", [])
        # Those of other replicas are last in the graph, as their replicas are, so that no flows cross.
        self.outputs = [node for node in topology.nodes if node.kind in list(CONTENTS)[1:]]
        self.sinks = [
            one for kind in ("merger", "merged_topic", "db_connector", "database") for one in by_kind.get(kind, [])
        ]
        self.has_standbys = bool(self._beside)
        self.has_many_instances = any(len(self.members(site)) > _MANY_INSTANCES for site in self.sites)
        """Whether to place instances side by side, if there is room."""

    def members(self, site: Node) -> list[Node]:
        """Return the instances of a site, and its units without an owner."""
        return [node for node in self._within.get(site.id, []) if node.kind != "standbys"]

    def units(self, node: Node) -> list[Node]:
        """Return the units in a node, if they have their own nodes."""
        return self._within.get(node.id, [])

    def standbys(self, node: Node) -> Node | None:
        """Return the standbys of a node's units, if there are any."""
        return self._beside.get(node.id)


def simple_box(node: Node, x: float, y: float, width: float) -> Box:
    """Return the box of a node that contains no others."""
    about = CONTENTS.get(node.kind) or {
        "mqtt_broker": node.details.get("topic", ""),
        "connector": "MQTT to Kafka",
        "repartition": "repartitioned",
        "replica": f"replica {node.details.get('replica', '')}",
        "merger": "replicas to one topic",
        "merged_topic": "merged results",
        "db_connector": "Kafka to a database",
        "database": node.details.get("table") or node.details.get("measurement", ""),
    }.get(node.kind, "")
    texts = (Text(node.label, "title"), Text(about, "muted"), Text(node.state, node.level))
    return Box(node.id, "box", node.level, x, y, width, 2 * PAD + 3 * LINE, texts, hint_of(node))


def site_boxes(groups: Groups, site: Node, x: float, y: float, widths: Sequence[float]) -> list[Box]:
    """Return the box of a site, followed by the boxes in it.

    ``widths``: the widths of the columns for instances. If there are standbys, the second column is theirs. If there is
    only one column, standbys go below their instance.
    """
    inner: list[Box] = []
    columns = len(widths)
    tops = [y + _HEAD + PAD] * columns
    for number, member in enumerate(groups.members(site)):
        standbys = groups.standbys(member)
        column = 0 if groups.has_standbys else number % columns
        left = x + PAD + sum(widths[:column]) + column * GAP
        box, *units = _member_boxes(groups, member, left, tops[column], widths[column])
        inner += [box, *units]
        bottom = box.bottom
        if standbys is not None:
            if columns > 1:
                beside = _standbys_box(standbys, box.right + GAP, box.y, widths[1], box.height)
            else:
                beside = _standbys_box(standbys, left + 2 * PAD, box.bottom + GAP / 2, widths[0] - 2 * PAD, 0)
            inner.append(beside)
            bottom = max(bottom, beside.bottom)
        tops[column] = bottom + GAP
    height = max(tops) - y - GAP + PAD if inner else _HEAD + PAD
    operators = "; ".join(f"{what} {site.details[what]}" for what in ("joins", "aligns") if what in site.details)
    texts = (Text(f"site {site.label}", "title"), Text(site.state, site.level), Text(operators, "muted"))
    width = site_width(widths)
    return [Box(site.id, "group", site.level, x, y, width, height, texts, hint_of(site)), *inner]


def site_width(widths: Sequence[float]) -> float:
    """Return the width of a site's box, given the widths of its columns."""
    return 2 * PAD + sum(widths) + (len(widths) - 1) * GAP


def hint_of(node: Node) -> str:
    """Return everything known about a node, as lines."""
    facts = {"state": node.state}
    if node.units and node.kind != "unit":
        facts["units"] = numbers(node.units)
    if node.rate is not None:
        facts["rate"] = f"{node.rate:,.1f}/s"
    if node.lag is not None:
        facts["lag"] = f"{node.lag:,}"
    title = f"{node.kind.replace('_', ' ')} {node.label}" if node.kind in {"site", "instance", "unit"} else node.label
    return "\n".join([title, *(f"{name}: {value}" for name, value in (facts | node.details).items())])


def flow_text(edge: Edge, *, is_wide: bool = False) -> str:
    """Return a flow's rate and lag, on separate lines, or on one line if ``is_wide``."""
    parts = []
    if edge.rate is not None:
        rate = f"{short(edge.rate)}/s"
        parts = [rate] if edge.unit == "records" else [rate, f"({edge.unit})"]
        parts = [" ".join(parts)] if is_wide else parts
    if edge.lag:
        parts.append(f"lag {short(edge.lag)}")
    return (", " if is_wide else "\n").join(parts)


def short(count: float) -> str:
    """Return a count in a few characters. The tables show all digits."""
    if count >= _MILLION:
        return f"{count / 1e6:,.1f} M"
    return f"{count:.1f}" if 0 < count < _TENTHS_BELOW and count != int(count) else f"{count:,.0f}"


def _member_boxes(groups: Groups, node: Node, x: float, y: float, width: float) -> list[Box]:
    """Return the box of an instance, or of the units without an owner, followed by the boxes of the units."""
    texts = [Text(node.label, "title")]
    if node.rate is not None:
        texts.append(Text(f"{short(node.rate)}/s, lag {'not known' if node.lag is None else short(node.lag)}", "plain"))
    if node.kind == "unowned":
        texts += [Text(cause, node.level) for cause in list(node.details)[:_CAUSES_MAX]]
        if (more := len(node.details) - _CAUSES_MAX) > 0:
            texts.append(Text(f"and {more} more causes", "muted"))
    elif node.rate is None or node.level not in {OK, UNKNOWN}:
        texts.append(Text(node.state, node.level))
    if node.kind == "unowned" and node.lag:
        texts.append(Text(f"lag {short(node.lag)}", node.level))
    units = groups.units(node)
    if node.units and not units:
        texts.append(Text(f"{len(node.units)} units: {numbers(node.units)}", "muted"))
    top = y + PAD + len(texts) * LINE + (_UNIT_GAP if units else 0)
    per_row = max(1, int((width - 2 * PAD + _UNIT_GAP) // (_UNIT[0] + _UNIT_GAP)))
    chips = [
        Box(
            unit.id,
            "unit",
            unit.level,
            x + PAD + number % per_row * (_UNIT[0] + _UNIT_GAP),
            top + number // per_row * (_UNIT[1] + _UNIT_GAP),
            *_UNIT,
            (Text(unit.label, unit.level),),
            hint_of(unit),
        )
        for number, unit in enumerate(units)
    ]
    bottom = chips[-1].bottom if chips else top
    return [Box(node.id, "box", node.level, x, y, width, bottom + PAD - y, tuple(texts), hint_of(node)), *chips]


def _standbys_box(node: Node, x: float, y: float, width: float, height: float) -> Box:
    shown = list(node.details.items())[:_STANDBYS_MAX]
    are_warm = node.level == OK
    lines = [Text(f"standby{'s' * (len(node.details) > 1)}{', warm' * are_warm}", "muted")]
    for name, text in shown:
        lines.append(Text(name, "plain"))
        if not (are_warm and text == ALL_WARM):
            lines += [Text(part, WARNING if "not" in part else "muted") for part in text.split(", ")]
    if (more := len(node.details) - len(shown)) > 0:
        lines.append(Text(f"and {more} more", "muted"))
    needed = 2 * PAD + len(lines) * LINE
    return Box(node.id, "standbys", node.level, x, y, width, max(height, needed), tuple(lines), hint_of(node))
