"""Parses the messages of Sparkplug B: births, data and deaths of nodes and their devices.

A birth announces the metrics of a node or a device with their names, aliases and types, and data messages refer to it.
The parser remembers the births (`connector.formats.births`). A birth ends the one before as soon as its topic is known,
even if it cannot be used itself. If messages are missing, a birth may be among them: then nothing that the node has
announced counts until its next birth. Data with an alias that the birth did not announce is refused as a whole, because
other aliases may have changed too. In all these cases, the node is asked for its births. Commands and the state of
hosts are ignored.

The size of the output is linear in the size of a message; see `connector.formats.contents.check_copies`.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Container
from typing import Any, Final, NamedTuple

from broker.wire.records import NAME_LENGTH_MAX, Record
from connector.formats.births import Announced, Births, Command, Node, Scope
from connector.formats.contents import (
    NO_NUMBER,
    RETAINED,
    Context,
    Found,
    Levels,
    check_copies,
    parts_with,
    refused,
)
from connector.formats.events import UnusableError, measured, shown
from connector.formats.payload import decode, rebirth_payload
from connector.templates import SPARKPLUG, SparkplugSettings

_KINDS: Final = {4: {"NBIRTH", "NDATA", "NDEATH"}, 5: {"DBIRTH", "DDATA", "DDEATH"}}
"""The kinds of messages to read, by the number of levels of their topics."""

_IGNORED: Final = {(4, 2, "NCMD"), (5, 2, "DCMD"), (3, 1, "STATE")}
"""The number of levels of a topic, and the level that says that the message is a command, or the state of a host."""

_SIGNED: Final = {1: 8, 2: 16, 3: 32, 4: 64}
_UNSIGNED: Final = {5: 8, 6: 16, 7: 32, 8: 64}
"""The types of integers, with their width in bits. Their values are the bits of an unsigned number."""

_REALS: Final = frozenset({9, 10})
_BOOLEAN: Final = 11
_DATATYPE_MAX: Final = 34
_FIELD_BITS: Final = {"int_value": 32, "long_value": 64}
_EXACT_INT_MAX: Final = 2**53

_BD_SEQ: Final = "bdSeq"
_CONTROLS: Final = ("Node Control/", "Device Control/")

_MS: Final = 10**6


class _Origin(NamedTuple):
    """Which message it is, as its topic says. ``device`` is empty for a node's own messages."""

    kind: str
    group: str
    node: str
    device: str = ""

    @property
    def scope(self) -> tuple[str, str, str]:
        """The node or the device that has sent it."""
        return self[1:]

    @property
    def is_birth(self) -> bool:
        """Whether it announces metrics."""
        return self.kind in {"NBIRTH", "DBIRTH"}


class SparkplugParser:
    """Parses messages of Sparkplug B, and remembers the births of their nodes.

    ``elapsed`` returns the time in seconds from any origin. ``births``: what the nodes have announced, which several
    parsers may share.
    """

    def __init__(
        self, template: SparkplugSettings, context: Context, elapsed: Callable[[], float], births: Births
    ) -> None:
        self._template, self._context, self._elapsed, self._births = template, context, elapsed, births

    def parse(self, levels: Levels, payload: bytes, *, is_retained: bool) -> Found:
        """Return the records of a message, and a refusal of what cannot be used. Never raises.

        A retained message is skipped: the specification forbids it, and it may contain aliases that have changed.
        """
        if _is_ignored(levels.topic):
            return Found()
        if is_retained:
            return Found(skipped={RETAINED: 1})
        try:
            reading = self._read(_origin_of(levels.topic), levels, payload)
            check_copies((record for _, record in reading.records), len(payload) + len(levels.topic.encode()))
        except UnusableError as error:
            return Found((refused(levels.topic, payload, str(error)),))
        parts = parts_with(reading.records, reading.reasons, "metrics of the message", levels.topic, payload)
        return Found(tuple(parts), skipped={NO_NUMBER: reading.skipped} if reading.skipped else {})

    def _read(self, origin: _Origin, levels: Levels, payload: bytes) -> _Reading:
        """Read a message. Raises `UnusableError`; also then, a birth ends the one before."""
        node = self._births.node(origin.group, origin.node)
        if origin.kind == "NBIRTH":
            self._births.drop_node(origin.group, origin.node)
            node = None
        elif origin.kind == "DBIRTH" and node is not None:
            self._births.drop_device(node, origin.device)
        try:
            self._context.check_length(payload)
            content = decode(payload)
        except UnusableError as error:
            if node is not None and origin.kind != "NDEATH":
                node.pass_over()
            if origin.is_birth:
                self._refuse_birth(origin, error)
            raise
        reading = _Reading(self._template, self._context, levels, origin, content)
        if origin.is_birth:
            self._begin(origin, node, content, reading)
        elif origin.kind in {"NDATA", "DDATA"}:
            self._continue(origin, node, content, reading)
        elif node is not None:
            self._end(origin, node, content)
        return reading

    def _begin(self, origin: _Origin, node: Node | None, content: Any, reading: _Reading) -> None:
        """Remember a birth, and read its values. The earlier one is forgotten already."""
        if origin.kind == "DBIRTH":
            node = self._known(origin, node)
            self._follow(origin, node, content)
        scope = reading.announced(node.aliases if node is not None else ())
        try:
            if node is None:
                node = self._births.add_node(origin.group, origin.node, scope, _bd_seq(content))
                node.follow(_sequence(content))
            else:
                self._births.add_device(node, origin.device, scope)
        except UnusableError as error:
            self._refuse_birth(origin, error)
            raise
        self._births.refused.drop(origin.scope)
        reading.read(scope)

    def _continue(self, origin: _Origin, node: Node | None, content: Any, reading: _Reading) -> None:
        """Read a data message. Raises `UnusableError` if its birth, or one of its aliases, is not known."""
        node = self._known(origin, node)
        self._follow(origin, node, content)
        scope = node.scopes.get(origin.device)
        if scope is None:
            self._ask(origin)
            if not node.is_doubtful:
                message = f"the birth of the device {shown(origin.device)} is not known{self._next_step(origin)}"
                raise UnusableError(message)
            scope = Scope()
        elif (unknown := reading.unknown_alias(scope)) is not None:
            self._births.doubt(node)
            self._ask(origin)
            message = f"the alias {unknown} is in no birth that the connector has received{self._next_step(origin)}"
            raise UnusableError(message)
        reading.read(scope)

    def _end(self, origin: _Origin, node: Node, content: Any) -> None:
        """Forget a node or a device that has died. A death that belongs to an earlier birth of the node is ignored."""
        if origin.kind == "DDEATH":
            self._follow(origin, node, content)
            self._births.drop_device(node, origin.device)
        elif node.bd_seq is None or _bd_seq(content) == node.bd_seq:
            self._births.drop_node(origin.group, origin.node)

    def _known(self, origin: _Origin, node: Node | None) -> Node:
        if node is None:
            self._ask(origin)
            name = shown(f"{origin.group}/{origin.node}")
            message = f"the birth of the node {name} is not known{self._next_step(origin)}"
            raise UnusableError(message)
        return node

    def _next_step(self, origin: _Origin) -> str:
        if self._is_refused(origin):
            return ": the last one was refused"
        return "; the connector asks for it" if self._template.rebirth else " (connector.topic: rebirth is false)"

    def _follow(self, origin: _Origin, node: Node, content: Any) -> None:
        """Note the sequence number of a message, and doubt the node if others are missing."""
        before = node.sequence
        if not node.follow(_sequence(content)):
            return
        self._births.gaps += 1
        self._births.doubt(node)
        text = (
            f"messages of the Sparkplug node {shown(f'{origin.group}/{origin.node}')} are missing: after the sequence "
            f"number {before} came {node.sequence} (logged at most once a minute for each node)"
        )
        self._births.warn((origin.group, origin.node), text, self._elapsed())
        self._ask(origin)

    def _refuse_birth(self, origin: _Origin, error: UnusableError) -> None:
        """Note that a birth was refused. If that of before was refused too, the node is not asked for another one."""
        self._ask(origin)
        if origin.scope not in self._births.refused:
            name = shown("/".join(origin.scope).rstrip("/"))
            text = f"a birth of {name} was refused, so its data is refused until a birth of it can be used: {error}"
            self._births.warn(origin.scope, text, self._elapsed())
        self._births.refused.add(origin.scope)

    def _is_refused(self, origin: _Origin) -> bool:
        births = self._births.refused
        return origin.scope in births or (origin.group, origin.node, "") in births

    def _ask(self, origin: _Origin) -> None:
        """Ask a node for its births, unless it was asked within the last minute, or its last birth was refused."""
        if not self._template.rebirth or self._is_refused(origin):
            return
        if self._births.asked.is_due((origin.group, origin.node), self._elapsed()):
            topic = f"{SPARKPLUG}/{origin.group}/NCMD/{origin.node}"
            self._births.commands.append(Command(topic, rebirth_payload(self._context.clock() // _MS)))


class _Reading:
    """Reads the metrics of a message.

    ``records`` with their times in ns, the ``reasons`` of invalid metrics, and how many were ``skipped``.
    """

    def __init__(
        self, template: SparkplugSettings, context: Context, levels: Levels, origin: _Origin, content: Any
    ) -> None:
        self.records: list[tuple[int, Record]] = []
        self.reasons: list[str] = []
        self.skipped = 0
        self._context, self._origin, self._content = context, origin, content
        self._metrics: list[Any] = list(content.metrics)
        self._thing, self._quantity = template.thing, template.quantity
        if not origin.device:
            self._thing, self._quantity = (text.replace("/{device}", "") for text in (self._thing, self._quantity))
        self._named = levels.named | {"group": origin.group, "node": origin.node, "device": origin.device}

    def announced(self, taken: Container[int]) -> Scope:
        """Return the metrics of a birth. Refuses those without a usable name, or whose name or alias is not unique.

        ``taken``: the aliases of other devices of the node, and of the node itself.
        """
        scope, usable = Scope(), []
        names = Counter(one.name for one in self._metrics)
        aliases = Counter(one.alias for one in self._metrics if one.HasField("alias"))
        for metric in self._metrics:
            alias = metric.alias if metric.HasField("alias") else None
            try:
                name = measured(_name(metric), "the name of a metric in the birth")
                if names[metric.name] > 1:
                    message = f"the birth has several metrics with the name {shown(name)}"
                    raise UnusableError(message)
                if alias is not None and (aliases[alias] > 1 or alias in taken):
                    message = f"the metric {shown(name)} has the alias {alias}, which another metric of the node has"
                    raise UnusableError(message)
            except UnusableError as error:
                self.reasons.append(str(error))
                if alias is not None:
                    scope.by_alias[alias] = None
            else:
                scope.add(Announced(name, metric.datatype), alias)
                usable.append(metric)
        self._metrics = usable
        return scope

    def unknown_alias(self, scope: Scope) -> int | None:
        """Return the first alias that the birth did not announce."""
        aliases = (one.alias for one in self._metrics if not one.name and one.HasField("alias"))
        return next((alias for alias in aliases if alias not in scope.by_alias), None)

    def read(self, scope: Scope) -> None:
        """Read the values of all metrics."""
        for metric in self._metrics:
            try:
                self._read(metric, scope)
            except UnusableError as error:
                self.reasons.append(str(error))

    def _read(self, metric: Any, scope: Scope) -> None:
        name, datatype = _meaning(metric, scope)
        if name == _BD_SEQ or name.startswith(_CONTROLS):
            return
        value = _value(metric, datatype, name)
        if value is None or metric.is_transient:
            self.skipped += 1
            return
        time_ms = next((one.timestamp for one in (metric, self._content) if one.HasField("timestamp")), None)
        time_ns = self._context.now_ns() if time_ms is None else time_ms * _MS
        time = self._context.time_of(time_ns)
        named = self._named | {"metric": name}
        thing = measured(self._thing.format_map(named), "the thing in the MQTT topic")
        quantity = measured(self._quantity.format_map(named), f"the quantity of metric {shown(name)}")
        if time_ms is None:
            identity = self._context.arrival_id()
        else:
            # A rebirth repeats values. With this id, a value that was sent before, with the same time, is recognised.
            text = f"{self._origin.group}\0{self._origin.node}\0{self._origin.device}\0{name}\0{time_ns}\0{value!r}"
            identity = hashlib.sha256(text.encode()).hexdigest()[:32]
        self.records.append((time_ns, Record(thing, quantity, time, value, identity)))


def _is_ignored(topic: str) -> bool:
    levels = topic.split("/")
    return any(len(levels) == count and levels[at] == kind for count, at, kind in _IGNORED)


def _origin_of(topic: str) -> _Origin:
    """Return which message a topic has. Raises `UnusableError`."""
    levels = topic.split("/")
    if levels[0] != SPARKPLUG or levels[2:3] == [] or levels[2] not in _KINDS.get(len(levels), ()):
        raise UnusableError("the MQTT topic is none of Sparkplug B")
    for name in (levels[1], *levels[3:]):
        if set("+#\0") & set(measured(name, "a name in the MQTT topic")):
            message = f"the name {shown(name)} in the MQTT topic has a character that MQTT does not allow"
            raise UnusableError(message)
    return _Origin(levels[2], levels[1], levels[3], *levels[4:])


def _sequence(content: Any) -> int | None:
    return int(content.seq) if content.HasField("seq") else None


def _bd_seq(content: Any) -> int | None:
    """Return the number by which a death refers to a birth."""
    found = (one for one in content.metrics if one.name == _BD_SEQ.encode())
    metric = next(found, None)
    if metric is None:
        return None
    return int(metric.int_value if metric.WhichOneof("value") == "int_value" else metric.long_value)


def _name(metric: Any) -> str:
    given: bytes = metric.name
    if len(given) > 4 * NAME_LENGTH_MAX:
        message = f"the name of a metric has {len(given)} bytes, more than {4 * NAME_LENGTH_MAX}"
        raise UnusableError(message)
    try:
        return given.decode()
    except UnicodeDecodeError as error:
        message = f"the name of a metric is not UTF-8: {shown(given)}"
        raise UnusableError(message) from error


def _meaning(metric: Any, scope: Scope) -> tuple[str, int]:
    """Return the name and the datatype of a metric. Raises `UnusableError` if its name is not known."""
    if metric.name:
        name = _name(metric)
        return name, metric.datatype or scope.datatypes.get(name, 0)
    if not metric.HasField("alias"):
        raise UnusableError("a metric has neither a name nor an alias")
    known = scope.by_alias.get(metric.alias)
    if known is None:
        why = (
            "of a metric that was refused in the birth"
            if metric.alias in scope.by_alias
            else "not used until the next birth, because messages are missing, and a birth may be among them"
        )
        message = f"the alias {metric.alias} is {why}"
        raise UnusableError(message)
    return known.name, metric.datatype or known.datatype


def _value(metric: Any, datatype: int, name: str) -> float | None:
    """Return the number in a metric, or None if it has none. Raises `UnusableError` if it cannot be used."""
    kind = metric.WhichOneof("value")
    is_number = datatype in _SIGNED or datatype in _UNSIGNED or datatype in _REALS or datatype == _BOOLEAN
    if metric.is_null or kind is None or (not is_number and 0 < datatype <= _DATATYPE_MAX):
        return None
    given, found = getattr(metric, kind), None
    match kind:
        case "boolean_value" if datatype in {0, _BOOLEAN}:
            found = int(given)
        case "float_value" | "double_value" if datatype == 0 or datatype in _REALS:
            if not math.isfinite(given):
                message = f"metric {shown(name)} is {given}, which is no number in JSON"
                raise UnusableError(message)
            found = given
        case "int_value" | "long_value" if datatype == 0:
            message = f"metric {shown(name)} has no datatype, neither here nor in the birth, so its sign is not known"
            raise UnusableError(message)
        case "int_value" | "long_value":
            found = _integer(given, _FIELD_BITS[kind], datatype)
        case _ if datatype == 0:
            return None
    if found is None:
        message = (
            f"metric {shown(name)} has the datatype {datatype}, which its {kind} does not fit: {shown(str(given))}"
        )
        raise UnusableError(message)
    return found if abs(found) < _EXACT_INT_MAX else float(found)


def _integer(given: int, field_bits: int, datatype: int) -> int | None:
    """Return the integer with the given bits, or None if they do not fit its datatype.

    A negative number has the bits of its datatype. Some senders extend its sign to all ``field_bits``.
    """
    if datatype == _BOOLEAN:
        return given if given <= 1 else None
    if (bits := _UNSIGNED.get(datatype)) is not None:
        return given if given >> bits == 0 else None
    if (bits := _SIGNED.get(datatype)) is None:
        return None
    if bits > field_bits:
        return given if given >> (field_bits - 1) == 0 else None  # else nobody knows the sign
    if given >> bits == 0:
        return given - (given >> (bits - 1) << bits)
    extended = given - (1 << field_bits)
    return extended if extended >= -(1 << (bits - 1)) else None
