"""What the nodes of Sparkplug B have announced: the metrics of each node and device, and where its sequence is.

A birth announces the metrics, and later messages refer to them by name or alias. If messages are missing, a birth may
be among them: then all that the node has announced is forgotten, and the node is in doubt until its next birth.

The memory is limited, because senders choose how many nodes, devices and metrics there are. At the limit, the nodes
that have been silent for longest are forgotten, so no publisher can keep out the others.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from connector.formats.events import UnusableError, shown

KNOWN_MAX: Final = 100_000
"""Maximum number of nodes, devices and metrics to know, all together. This many take about 25 MB of memory, if their
names have 30 characters."""

NODE_MAX: Final = 20_000
"""Maximum number of devices and metrics of a node."""

SEQUENCE: Final = 256
"""Sequence numbers are from 0 to 255; then they begin again."""

ASK_EVERY_S: Final = 60.0
"""How often a node is asked for its births, at most, and how often a gap in its sequence is logged."""

NOTED_MAX: Final = 10_000
"""For how many nodes to note when they were asked, or that a birth was refused. The oldest note is dropped."""


WARNINGS_MAX: Final = 100
"""How many warnings to log within `ASK_EVERY_S`, at most."""


class Command(NamedTuple):
    """A message to publish at QoS 0."""

    topic: str
    payload: bytes


class Announced(NamedTuple):
    """A metric of a birth."""

    name: str
    datatype: int


class Scope:
    """The metrics of a node or a device, by alias, and their datatypes by name.

    The alias of a metric that was refused stands for None.
    """

    __slots__ = ("by_alias", "datatypes")

    def __init__(self) -> None:
        self.by_alias: dict[int, Announced | None] = {}
        self.datatypes: dict[str, int] = {}

    @property
    def size(self) -> int:
        """How much the scope counts towards `KNOWN_MAX`."""
        return 1 + max(len(self.datatypes), len(self.by_alias))

    def add(self, metric: Announced, alias: int | None) -> None:
        """Add a metric that has been announced."""
        self.datatypes[metric.name] = metric.datatype
        if alias is not None:
            self.by_alias[alias] = metric


class Node:
    """A node that has announced itself. ``bd_seq`` identifies its birth, and ``sequence`` is its last number.

    ``scopes``: what it has announced, by device; its own metrics are those of ``""``. ``aliases``: to which device each
    alias belongs. ``is_doubtful``: whether messages are missing since its birth, so that other births may be, too.
    """

    __slots__ = ("aliases", "bd_seq", "is_doubtful", "scopes", "sequence")

    def __init__(self, bd_seq: int | None) -> None:
        self.bd_seq = bd_seq
        self.sequence: int | None = None
        self.scopes: dict[str, Scope] = {}
        self.aliases: dict[int, str] = {}
        self.is_doubtful = False

    @property
    def size(self) -> int:
        """How much the node counts towards `KNOWN_MAX`."""
        return 1 + sum(scope.size for scope in self.scopes.values())

    def follow(self, sequence: int | None) -> bool:
        """Note the sequence number of the next message. Return whether messages before it are missing."""
        if sequence is None:
            return False
        is_gap = self.sequence is not None and sequence != (self.sequence + 1) % SEQUENCE
        self.sequence = sequence
        return is_gap

    def pass_over(self) -> None:
        """Count a message whose sequence number cannot be read. If others are missing, the next one shows it."""
        if self.sequence is not None:
            self.sequence = (self.sequence + 1) % SEQUENCE


class Births:
    """The nodes that have announced themselves, by group and node, and what is to be done about the others.

    All parsers of Sparkplug B share it. ``gaps`` counts the gaps in the sequences.
    """

    def __init__(self, known_max: int = KNOWN_MAX, node_max: int = NODE_MAX) -> None:
        self.asked = Notes()
        """The nodes that were asked for their births."""
        self.refused = Notes()
        """The nodes and devices whose last birth was refused."""
        self.commands: list[Command] = []
        self.warnings: list[str] = []
        self.gaps = 0
        self._nodes: dict[tuple[str, str], Node] = {}  # those that were seen last are at the end
        self._known_max, self._node_max = known_max, node_max
        self._size = 0
        self._was_full = False
        self._logged = Notes()
        self._logged_lines, self._logged_since_s = 0, 0.0

    def __len__(self) -> int:
        """Return the number of nodes, devices and metrics that are known."""
        return self._size

    def node(self, group: str, name: str) -> Node | None:
        """Return a node, if it has announced itself. It has been seen now."""
        node = self._nodes.pop((group, name), None)
        if node is not None:
            self._nodes[group, name] = node
        return node

    def add_node(self, group: str, name: str, scope: Scope, bd_seq: int | None) -> Node:
        """Add a node that is not known. Raises `UnusableError` if it is too large."""
        node = Node(bd_seq)
        self._make_room(node, 1 + scope.size)
        self._nodes[group, name] = node
        self._size += 1
        self._add(node, "", scope)
        return node

    def add_device(self, node: Node, device: str, scope: Scope) -> None:
        """Add a device, which is not known, of the node that was seen last. Raises `UnusableError` at its limit."""
        self._make_room(node, scope.size)
        self._add(node, device, scope)

    def drop_node(self, group: str, name: str) -> None:
        """Forget a node and its devices."""
        node = self._nodes.pop((group, name), None)
        self._size -= node.size if node is not None else 0

    def drop_device(self, node: Node, device: str) -> None:
        """Forget a device."""
        scope = node.scopes.pop(device, None)
        if scope is not None:
            self._size -= scope.size
            for alias in scope.by_alias:
                if node.aliases.get(alias) == device:
                    del node.aliases[alias]

    def doubt(self, node: Node) -> None:
        """Forget what a node has announced, because messages are missing, and a birth may be among them."""
        self._size -= node.size - 1
        node.scopes.clear()
        node.aliases.clear()
        node.is_doubtful = True

    def warn(self, about: tuple[str, ...], text: str, now_s: float) -> None:
        """Add a warning to log, unless there was one of the same kind about the same node within `ASK_EVERY_S`."""
        if now_s - self._logged_since_s >= ASK_EVERY_S:
            self._logged_lines, self._logged_since_s = 0, now_s
        if self._logged_lines < WARNINGS_MAX and self._logged.is_due(about, now_s):
            self._logged_lines += 1
            self.warnings.append(text)

    def lose_connection(self) -> None:
        """Doubt all nodes, because messages may be missing, and forget the requests, which may be lost, too."""
        for node in self._nodes.values():
            self.doubt(node)
            node.sequence = None
        self.commands.clear()
        self.asked.clear()
        self.refused.clear()

    def _add(self, node: Node, device: str, scope: Scope) -> None:
        node.scopes[device] = scope
        for alias in scope.by_alias:
            node.aliases.setdefault(alias, device)
        self._size += scope.size

    def _make_room(self, node: Node, more: int) -> None:
        """Forget the nodes that have been silent for longest, until a node may become larger."""
        if node.size + more > min(self._node_max, self._known_max):
            message = (
                f"the node has announced {node.size - 1} devices and metrics, and this birth announces {more} more, "
                f"but the limit is {self._node_max} per node"
            )
            raise UnusableError(message)
        while self._size + more > self._known_max:
            group, name = next(iter(self._nodes))
            self.drop_node(group, name)
            if not self._was_full:
                self._was_full = True
                self.warnings.append(
                    f"more than {self._known_max} nodes, devices and metrics of Sparkplug B: the connector forgets "
                    f"the nodes that have been silent for longest, such as {shown(f'{group}/{name}')} (logged once): "
                    "divide the topics between several connectors"
                )


class Notes:
    """Notes about at most `NOTED_MAX` nodes or devices. At the limit, the oldest note is dropped."""

    def __init__(self) -> None:
        self._noted_s: dict[tuple[str, ...], float] = {}

    def __contains__(self, key: tuple[str, ...]) -> bool:
        """Return whether there is a note."""
        return key in self._noted_s

    def add(self, key: tuple[str, ...], now_s: float = 0.0) -> None:
        """Add a note, or renew it."""
        self.drop(key)
        self._noted_s[key] = now_s
        if len(self._noted_s) > NOTED_MAX:
            del self._noted_s[next(iter(self._noted_s))]

    def is_due(self, key: tuple[str, ...], now_s: float) -> bool:
        """Return whether there is no note from within `ASK_EVERY_S`, and note the time if so."""
        noted_s = self._noted_s.get(key)
        if noted_s is not None and now_s - noted_s < ASK_EVERY_S:
            return False
        self.add(key, now_s)
        return True

    def drop(self, key: tuple[str, ...]) -> None:
        """Drop a note."""
        self._noted_s.pop(key, None)

    def clear(self) -> None:
        """Drop all notes."""
        self._noted_s.clear()
