"""What the nodes of Sparkplug B have announced: the metrics of each node and device, and where its sequence is.

A birth announces the metrics, and later messages refer to them by name or alias. The memory is limited: senders choose
how many nodes, devices and metrics there are.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from connector.formats.events import UnusableError

KNOWN_MAX: Final = 100_000
"""Maximum number of nodes, devices and metrics to know, all together. This many take about 25 MB of memory, if their
names have 30 characters."""

SEQUENCE: Final = 256
"""Sequence numbers are from 0 to 255; then they begin again."""

ASK_EVERY_S: Final = 60.0
"""How often a node is asked for its births, at most, and how often a gap in its sequence is logged."""

_ASKED_MAX: Final = 1_000
"""How many nodes to ask within `ASK_EVERY_S`, at most. Senders choose the names of nodes."""


class Announced(NamedTuple):
    """A metric of a birth."""

    name: str
    datatype: int


class Scope:
    """The metrics of a node or a device, by name and by alias."""

    __slots__ = ("by_alias", "by_name")

    def __init__(self) -> None:
        self.by_alias: dict[int, Announced] = {}
        self.by_name: dict[str, Announced] = {}

    @property
    def size(self) -> int:
        """How much the scope counts towards `KNOWN_MAX`."""
        return 1 + max(len(self.by_name), len(self.by_alias))

    def add(self, metric: Announced, alias: int | None) -> None:
        """Add a metric that has been announced."""
        self.by_name[metric.name] = metric
        if alias is not None:
            self.by_alias[alias] = metric


class Node:
    """A node that has announced itself. ``bd_seq`` identifies its birth, and ``sequence`` is its last number."""

    __slots__ = ("bd_seq", "scopes", "sequence")

    def __init__(self, bd_seq: int | None) -> None:
        self.bd_seq = bd_seq
        self.sequence: int | None = None
        self.scopes: dict[str, Scope] = {}

    @property
    def size(self) -> int:
        """How much the node counts towards `KNOWN_MAX`."""
        return sum(scope.size for scope in self.scopes.values())

    def follow(self, sequence: int | None) -> bool:
        """Note the sequence number of the next message. Return whether messages before it are missing."""
        if sequence is None:
            return False
        is_gap = self.sequence is not None and sequence != (self.sequence + 1) % SEQUENCE
        self.sequence = sequence
        return is_gap


class Births:
    """The nodes that have announced themselves, by group and node. The scope of a node's own metrics is ``""``."""

    def __init__(self, known_max: int = KNOWN_MAX) -> None:
        self._nodes: dict[tuple[str, str], Node] = {}
        self._known_max = known_max
        self._size = 0

    def __len__(self) -> int:
        """Return the number of nodes, devices and metrics that are known."""
        return self._size

    def node(self, group: str, node: str) -> Node | None:
        """Return a node, if it has announced itself."""
        return self._nodes.get((group, node))

    def add_node(self, group: str, name: str, scope: Scope, bd_seq: int | None) -> Node:
        """Add a node that is not known. Raises `UnusableError` at the limit."""
        self._check(scope)
        node = self._nodes[group, name] = Node(bd_seq)
        node.scopes[""] = scope
        self._size += scope.size
        return node

    def add_device(self, node: Node, device: str, scope: Scope) -> None:
        """Add a device that is not known. Raises `UnusableError` at the limit."""
        self._check(scope)
        node.scopes[device] = scope
        self._size += scope.size

    def drop_node(self, group: str, name: str) -> None:
        """Forget a node and its devices."""
        node = self._nodes.pop((group, name), None)
        self._size -= node.size if node is not None else 0

    def drop_device(self, node: Node, device: str) -> None:
        """Forget a device."""
        scope = node.scopes.pop(device, None)
        self._size -= scope.size if scope is not None else 0

    def _check(self, scope: Scope) -> None:
        if self._size + scope.size > self._known_max:
            message = (
                f"the connector knows {self._size} nodes, devices and metrics of Sparkplug B, and this birth announces "
                f"{scope.size} more, but the limit is {self._known_max}: divide the topics between several connectors"
            )
            raise UnusableError(message)


class Askings:
    """Limits how often something is done for a node: once in `ASK_EVERY_S`, and for `_ASKED_MAX` nodes in this time."""

    def __init__(self) -> None:
        self._asked_s: dict[tuple[str, str], float] = {}

    def is_due(self, node: tuple[str, str], now_s: float) -> bool:
        """Return whether to do it now, and note that it is done."""
        while self._asked_s and now_s - next(iter(self._asked_s.values())) >= ASK_EVERY_S:
            del self._asked_s[next(iter(self._asked_s))]
        if node in self._asked_s or len(self._asked_s) >= _ASKED_MAX:
            return False
        self._asked_s[node] = now_s
        return True
