"""The parts of a topology: nodes and edges."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import msgspec

OK: Final = "ok"
UNKNOWN: Final = "unknown"
WARNING: Final = "warning"
TROUBLE: Final = "trouble"

LEVELS: Final = (UNKNOWN, OK, WARNING, TROUBLE)
"""How bad the state of something is, worst last. ``unknown``: the service does not observe it, or has not yet.
``warning``: it may pass on its own. ``trouble``: an operator should look at it."""


class Node(msgspec.Struct, frozen=True):
    """Something that data flows through, or a group of such things.

    ``kind``: ``mqtt_broker``, ``connector``, ``repartition`` (the copying of a topic), ``input_topic``, ``site``,
    ``instance``, ``unowned`` (the units of a site that no instance serves), ``standbys`` (those of the units of an
    instance), ``unit``, ``replica`` (another replica of the application), ``result_topic``, ``late_topic``,
    ``unmatched_topic``, ``dead_letter_topic``, ``merger`` (`joiner merge`), ``merged_topic``, ``db_connector`` or
    ``database``. ``state``: in words. ``level``: one of `LEVELS`. ``within``: the id of its group. ``beside``: for
    standbys, the id of the node whose units they keep warm. ``units``: their numbers. ``rate``: the records per second
    that it consumes. ``lag``: what it has not consumed. Either is None if it is unknown or does not apply.
    ``details``: further facts, in words.
    """

    id: str
    kind: str
    label: str
    state: str
    level: str
    within: str = ""
    beside: str = ""
    units: list[int] = []
    rate: float | None = None
    lag: int | None = None
    details: dict[str, str] = {}


class Edge(msgspec.Struct, frozen=True):
    """A flow of data from one node to another, or a move of units from one site to another.

    ``rate``: per second, in ``unit``. ``lag``: what is waiting at its source. Either is None if it is unknown or does
    not apply. ``level``: one of `LEVELS`.
    """

    source: str = msgspec.field(name="from")
    target: str = msgspec.field(name="to")
    rate: float | None = None
    lag: int | None = None
    unit: str = ""
    note: str = ""
    level: str = OK


class Trouble(msgspec.Struct, frozen=True):
    """A sentence describing something that an operator should look at. ``level``: ``warning`` or ``trouble``."""

    level: str
    text: str


@dataclass
class Graph:
    """A graph under construction."""

    nodes: list[Node] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)

    def as_last_known(self) -> Graph:
        """Return the graph without anything that may have changed since, for when the facts cannot be renewed."""
        return Graph(
            [
                node
                if node.level == UNKNOWN
                else msgspec.structs.replace(
                    node, state=f"last known: {node.state}", level=UNKNOWN, rate=None, lag=None
                )
                for node in self.nodes
            ],
            [msgspec.structs.replace(edge, level=UNKNOWN, rate=None, lag=None) for edge in self.edges],
        )


def topic_id(topic: str) -> str:
    """Return the id of a topic's node."""
    return f"topic:{topic}"


def worst(levels: Iterable[str]) -> str:
    """Return the worst of some levels, or ``unknown`` if there are none."""
    return max(levels, key=LEVELS.index, default=UNKNOWN)


def numbers(found: Iterable[int]) -> str:
    """Return numbers as text, ascending and with ranges, such as ``0-3 7``."""
    parts: list[str] = []
    first = last = None
    for number in sorted(set(found)):
        if last is not None and number == last + 1:
            last = number
            parts[-1] = f"{first}-{last}" if last - (first or 0) > 1 else f"{first} {last}"
            continue
        first = last = number
        parts.append(str(number))
    return " ".join(parts)


def units_text(found: Iterable[int]) -> str:
    """Return unit numbers as text, such as ``unit 3`` or ``units 0-3 7``."""
    all_of_them = set(found)
    return f"unit{'' if len(all_of_them) == 1 else 's'} {numbers(all_of_them)}"
