"""The rows of the tables that show the same as the drawing."""

from __future__ import annotations

from typing import Any, Final

from control.facts.graph.parts import Node, numbers
from control.facts.topology import Topology

FLOW_COLUMNS: Final = ("from", "to", "rate", "lag", "state", "note")
PART_COLUMNS: Final = ("part", "in", "state", "units", "records/s", "lag", "details")

_KINDS: Final = {
    "site": "site",
    "instance": "instance",
    "repartition": "copying of",
    "replica": "replica",
    "merged_topic": "topic",
    "input_topic": "topic",
    "result_topic": "topic",
    "late_topic": "topic",
    "unmatched_topic": "topic",
    "dead_letter_topic": "topic",
}
"""The word before a node's label, by kind."""

Row = dict[str, Any]


def flow_rows(topology: Topology) -> list[Row]:
    """Return a row for each flow."""
    names = {node.id: _name(node) for node in topology.nodes}
    return [
        {
            "key": f"{number} {edge.source} {edge.target}",
            "from": names[edge.source],
            "to": names[edge.target],
            "rate": "" if edge.rate is None else f"{edge.rate:,.1f} {edge.unit}/s",
            "lag": "" if edge.lag is None else f"{edge.lag:,}",
            "state": edge.level,
            "note": edge.note,
        }
        for number, edge in enumerate(topology.edges)
    ]


def part_rows(topology: Topology) -> list[Row]:
    """Return a row for each node except the units, whose numbers are in their instance's row."""
    names = {node.id: _name(node) for node in topology.nodes}
    return [
        {
            "key": node.id,
            "part": names[node.id],
            "in": names.get(node.within, ""),
            "state": node.state,
            "units": numbers(node.units),
            "records/s": "" if node.rate is None else f"{node.rate:,.1f}",
            "lag": "" if node.lag is None else f"{node.lag:,}",
            "details": "; ".join(f"{name}: {value}" for name, value in node.details.items() if value),
        }
        for node in topology.nodes
        if node.kind != "unit"
    ]


def _name(node: Node) -> str:
    if node.kind == "standbys":
        return f"standbys {node.label}"
    return f"{_KINDS[node.kind]} {node.label}" if node.kind in _KINDS else node.label
