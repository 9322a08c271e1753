"""Parses the messages of Sparkplug B: births, data and deaths of nodes and their devices.

A birth announces the metrics of a node or a device with their names, aliases and types, and data messages refer to it.
The parser remembers the births (`connector.formats.births`). A message that refers to an unknown birth or alias is
refused as a whole, because other aliases may have changed too, and the node is asked for its births. Commands and the
state of hosts are ignored.

The size of the output is linear in the size of a message; see `connector.formats.contents.check_copies`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from broker.wire.records import NAME_LENGTH_MAX, Record
from connector.formats.births import Announced, Askings, Births, Node, Scope
from connector.formats.contents import (
    NO_NUMBER,
    RETAINED,
    Context,
    Found,
    Levels,
    check_copies,
    parts_of,
    refused,
)
from connector.formats.events import UnusableError, measured, shown
from connector.formats.payload import decode, rebirth_payload
from connector.templates import SPARKPLUG, SparkplugSettings

_NODE_TYPES: Final = frozenset({"NBIRTH", "NDATA", "NDEATH"})
_DEVICE_TYPES: Final = frozenset({"DBIRTH", "DDATA", "DDEATH"})
_LEVELS_OF_NODE: Final = 4
_LEVELS_OF_DEVICE: Final = 5

_SIGNED_BITS: Final = {1: 8, 2: 16, 3: 32, 4: 64}
"""The types Int8 to Int64. Their values arrive as the bits of an unsigned number, some senders extending the sign."""

_UNSIGNED: Final = frozenset({5, 6, 7, 8})
_REALS: Final = frozenset({9, 10})
_BOOLEAN: Final = 11
_NUMBERS: Final = frozenset({*_SIGNED_BITS, *_UNSIGNED, *_REALS, _BOOLEAN})
_EXACT_INT_MAX: Final = 2**53

_BD_SEQ: Final = "bdSeq"
_CONTROLS: Final = ("Node Control/", "Device Control/")

_MS: Final = 10**6


class Command(NamedTuple):
    """A message to publish at QoS 0."""

    topic: str
    payload: bytes


class _Origin(NamedTuple):
    """Which message it is, as its topic says. ``device`` is empty for a node's own messages."""

    kind: str
    group: str
    node: str
    device: str


class SparkplugParser:
    """Parses messages of Sparkplug B, and remembers the births of their nodes.

    ``elapsed`` returns the time in seconds from any origin. ``births``: what the nodes have announced, which several
    parsers may share. ``gaps`` and ``rebirths`` count the gaps in the sequences and the commands to nodes.
    """

    def __init__(
        self, template: SparkplugSettings, context: Context, elapsed: Callable[[], float], births: Births
    ) -> None:
        self.gaps = self.rebirths = 0
        self._template, self._context, self._elapsed, self._births = template, context, elapsed, births
        self._asked, self._logged = Askings(), Askings()
        self._commands: list[Command] = []
        self._warnings: list[str] = []

    def take_commands(self) -> list[Command]:
        """Return the commands to publish since the last call."""
        commands, self._commands = self._commands, []
        return commands

    def take_warnings(self) -> list[str]:
        """Return the warnings to log since the last call: gaps in sequences, at most one a minute for each node."""
        warnings, self._warnings = self._warnings, []
        return warnings

    def parse(self, levels: Levels, payload: bytes, *, is_retained: bool) -> Found:
        """Return the records of a message, and a refusal of what cannot be used. Never raises.

        A retained message is skipped: the specification forbids it, and it may contain aliases that have changed.
        """
        origin = _origin_of(levels.topic)
        if origin is None:
            return Found()
        if is_retained:
            return Found(skipped=1, why_skipped=RETAINED)
        try:
            for name in origin[1:]:
                if len(name) > NAME_LENGTH_MAX:
                    message = f"a name in the MQTT topic has {len(name)} characters, more than {NAME_LENGTH_MAX}"
                    raise UnusableError(message)
            self._context.check_length(payload)
            content = decode(payload)
            if origin.kind in {"NDEATH", "DDEATH"}:
                self._end(origin, content)
                return Found()
            reading = _Reading(self._template, self._context, levels, origin, content)
            if origin.kind in {"NBIRTH", "DBIRTH"}:
                self._begin(origin, content, reading)
            else:
                self._continue(origin, content, reading)
            check_copies((record for _, record in reading.records), len(payload) + len(levels.topic.encode()))
        except UnusableError as error:
            return Found((refused(levels.topic, payload, str(error)),))
        parts = parts_of(reading.records)
        if reading.reasons:
            reason = reading.reasons[0]
            if len(reading.reasons) > 1:
                reason = f"{len(reading.reasons)} metrics of the message are invalid; the first error: {reason}"
            parts.append(refused(levels.topic, payload, reason))
        return Found(parts, skipped=reading.skipped, why_skipped=NO_NUMBER)

    def _begin(self, origin: _Origin, content: Any, reading: _Reading) -> None:
        """Remember a birth in place of the earlier one, even if that fails, and read its values."""
        if origin.kind == "NBIRTH":
            self._births.drop_node(origin.group, origin.node)
            scope = reading.announced()
            node = self._births.add_node(origin.group, origin.node, scope, _bd_seq(content))
            node.follow(_sequence(content))
        else:
            node = self._known(origin)
            self._follow(origin, node, content)
            self._births.drop_device(node, origin.device)
            scope = reading.announced()
            self._births.add_device(node, origin.device, scope)
        reading.read(scope)

    def _continue(self, origin: _Origin, content: Any, reading: _Reading) -> None:
        """Read a data message. Raises `UnusableError` if its birth, or one of its aliases, is not known."""
        node = self._known(origin)
        self._follow(origin, node, content)
        scope = node.scopes.get(origin.device)
        if scope is None:
            self._ask(origin)
            message = f"the birth of the device {shown(origin.device)} is not known{self._next_step()}"
            raise UnusableError(message)
        unknown = reading.unknown_alias(scope)
        if unknown is not None:
            self._ask(origin)
            message = f"the alias {unknown} is in no birth that the connector has received{self._next_step()}"
            raise UnusableError(message)
        reading.read(scope)

    def _end(self, origin: _Origin, content: Any) -> None:
        """Forget a node or a device that has died. A death that belongs to an earlier birth of the node is ignored."""
        node = self._births.node(origin.group, origin.node)
        if node is None:
            return
        if origin.kind == "NDEATH":
            if node.bd_seq is None or _bd_seq(content) == node.bd_seq:
                self._births.drop_node(origin.group, origin.node)
            return
        self._follow(origin, node, content)
        self._births.drop_device(node, origin.device)

    def _known(self, origin: _Origin) -> Node:
        node = self._births.node(origin.group, origin.node)
        if node is None:
            self._ask(origin)
            message = f"the birth of the node {shown(f'{origin.group}/{origin.node}')} is not known{self._next_step()}"
            raise UnusableError(message)
        return node

    def _next_step(self) -> str:
        return "; the connector asks for it" if self._template.rebirth else " (connector.topic: rebirth is false)"

    def _follow(self, origin: _Origin, node: Node, content: Any) -> None:
        before = node.sequence
        if not node.follow(_sequence(content)):
            return
        self.gaps += 1
        if self._logged.is_due((origin.group, origin.node), self._elapsed()):
            name = shown(f"{origin.group}/{origin.node}")
            self._warnings.append(
                f"messages of the Sparkplug node {name} are missing: after the sequence number {before} came "
                f"{node.sequence} (logged at most once a minute for each node)"
            )
        self._ask(origin)

    def _ask(self, origin: _Origin) -> None:
        """Ask a node for its births, unless it was asked within the last minute."""
        if self._template.rebirth and self._asked.is_due((origin.group, origin.node), self._elapsed()):
            self.rebirths += 1
            topic = f"{SPARKPLUG}/{origin.group}/NCMD/{origin.node}"
            self._commands.append(Command(topic, rebirth_payload(self._context.clock() // _MS)))


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
        self._thing, self._quantity = template.thing, template.quantity
        if not origin.device:
            self._thing, self._quantity = (text.replace("/{device}", "") for text in (self._thing, self._quantity))
        self._named = levels.named | {"group": origin.group, "node": origin.node, "device": origin.device}

    def announced(self) -> Scope:
        """Return the metrics of a birth. Raises `UnusableError` if one has no usable name."""
        scope = Scope()
        for metric in self._content.metrics:
            name = measured(_name(metric), "the name of a metric in the birth")
            scope.add(Announced(name, metric.datatype), metric.alias if metric.HasField("alias") else None)
        return scope

    def unknown_alias(self, scope: Scope) -> int | None:
        """Return the first alias that the birth did not announce."""
        aliases = (one.alias for one in self._content.metrics if not one.HasField("name"))
        return next((alias for alias in aliases if alias not in scope.by_alias), None)

    def read(self, scope: Scope) -> None:
        """Read the values of all metrics."""
        for metric in self._content.metrics:
            try:
                self._read(metric, scope)
            except UnusableError as error:
                self.reasons.append(str(error))

    def _read(self, metric: Any, scope: Scope) -> None:
        if metric.HasField("name"):
            name = _name(metric)
            known = scope.by_name.get(name, Announced(name, 0))
        else:
            known = scope.by_alias[metric.alias]
        name, datatype = known.name, metric.datatype or known.datatype
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
        # A rebirth repeats values. With this id, a value that was sent before, with the same time, is recognised.
        identity = f"{self._origin.group}\0{self._origin.node}\0{self._origin.device}\0{name}\0{time_ns}\0{value!r}"
        digest = hashlib.sha256(identity.encode()).hexdigest()[:32]
        self.records.append((time_ns, Record(thing, quantity, time, value, digest)))


def _origin_of(topic: str) -> _Origin | None:
    """Return which message a topic has, or None if the connector does not read it."""
    levels = topic.split("/")
    if len(levels) not in {_LEVELS_OF_NODE, _LEVELS_OF_DEVICE} or levels[0] != SPARKPLUG:
        return None
    expected = _NODE_TYPES if len(levels) == _LEVELS_OF_NODE else _DEVICE_TYPES
    if levels[2] not in expected:
        return None
    device = levels[4] if len(levels) == _LEVELS_OF_DEVICE else ""
    return _Origin(levels[2], levels[1], levels[3], device)


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


def _value(metric: Any, datatype: int, name: str) -> float | None:
    """Return the number in a metric, or None if it has none. Raises `UnusableError` if it cannot be used."""
    kind = metric.WhichOneof("value")
    if metric.is_null or kind is None or (datatype and datatype not in _NUMBERS):
        return None
    match kind:
        case "boolean_value":
            return int(metric.boolean_value)
        case "float_value" | "double_value":
            real: float = getattr(metric, kind)
            if not math.isfinite(real):
                message = f"metric {shown(name)} is {real}, which is no number in JSON"
                raise UnusableError(message)
            return real
        case "int_value" | "long_value":
            return _integer(getattr(metric, kind), datatype, name)
        case _:
            return None


def _integer(given: int, datatype: int, name: str) -> float:
    if not datatype:
        message = f"metric {shown(name)} has no datatype, neither here nor in the birth, so its sign is not known"
        raise UnusableError(message)
    if (bits := _SIGNED_BITS.get(datatype)) is not None:
        given &= (1 << bits) - 1
        given -= (given >> (bits - 1)) << bits
    return given if abs(given) < _EXACT_INT_MAX else float(given)
