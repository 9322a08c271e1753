"""Finds the scalars of many messages of Protocol Buffers at once.

A type is compiled to a program: a table for each message in it, which says what follows the tag of each field. The loop
in `scanning` applies it to each message. It checks the message as `reading` does, and stores where the wanted scalars
are and which of the parts are there that can be absent. Messages that it does not understand are not necessarily
invalid: they are decoded by `reading`. These are, for example, messages with groups, with a negative `Duration`, or
with several members of a oneof.

Wanted are scalars outside of arrays and maps, wrappers, and timestamps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from google.protobuf.descriptor import FieldDescriptor

from broker.wire.columns import StringColumn
from joiner.mapping.documents import DEPTH_MAX
from joiner.mapping.layouts import DOUBLE, ENUM, FLOAT, LONG, OPAQUE, OTHER, STRING, Found, Scalar
from joiner.mapping.protobuf import scanning
from joiner.mapping.protobuf.wellknown import converter_of
from joiner.mapping.protobuf.wire import DELIMITED, SCALARS, SIZES, START_GROUP, VARINT, names_of, tag_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

FIELDS_MAX: Final = 5_000
"""The maximum number of fields in a program. A message takes its own in each place where it is wanted."""

SCALARS_MAX: Final = 500
"""The maximum number of wanted scalars."""

Position = tuple[str | int, ...]

_MISSING: Final = -1
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_CHECKED: Final = {
    (_TIMESTAMP, "nanos"): scanning.NANOS,
    ("google.protobuf.Duration", "nanos"): scanning.NANOS,
    ("google.protobuf.Duration", "seconds"): scanning.NOT_NEGATIVE,
}
"""Fields whose values have to be checked because their message is converted."""

_NAMES: Final = {getattr(FieldDescriptor, f"TYPE_{name.upper()}"): name for name in SCALARS}
_KINDS: Final = {"float": FLOAT, "double": DOUBLE, "string": STRING, "bytes": OTHER, "bool": OTHER, "enum": ENUM}


class ScalarType(NamedTuple):
    """The type of a wanted scalar. ``name``: a key of `wire.SCALARS`, ``enum`` or ``timestamp``.

    ``names``: of an enum, by number. A timestamp has three scalars: its message, its seconds and its nanoseconds.
    """

    name: str
    names: dict[int, str]


class _Part(NamedTuple):
    """A member in a plan that can be absent. It is there if the branch with this number has this value."""

    number: int
    value: int
    plan: Any


class Program:
    """A compiled type. ``types``: the type of each wanted scalar."""

    def __init__(self, descriptor: Any, wanted: Sequence[Position]) -> None:
        """``wanted``: the positions of the values that are needed. Raises ValueError if there is no program."""
        compiler = _Compiler(wanted)
        self._plan = compiler.compile(descriptor)
        self.types = compiler.types
        self._parts = compiler.parts
        lines = [line for table in compiler.tables for line in sorted(table)] or [[0] * scanning.COLUMNS]
        self._lines = np.array(lines, dtype=np.int64)
        first = np.array([0, *map(len, compiler.tables)], dtype=np.int64).cumsum()
        self._tables = np.ascontiguousarray(np.stack([first, np.array([*compiler.absent, 0], dtype=np.int64)], axis=1))

    @property
    def width(self) -> int:
        """How many scalars and branches are located in each message."""
        return len(self.types) + self._parts

    def run(self, data: StringColumn) -> Found:
        """Find the scalars of messages. One that is absent is empty."""
        count = len(data)
        spans = np.zeros((2 * len(self.types), count), dtype=np.int64)
        branches = np.zeros((self._parts, count), dtype=np.int64)
        is_read = np.zeros(count, dtype=np.uint8)
        start, end = np.ascontiguousarray(data.start), np.ascontiguousarray(data.end)
        scanning.scan(data.data, start, end, self._lines, self._tables, spans, branches, is_read)
        return Found(is_read.astype(bool), spans, branches)

    def skeleton(self, branches: Sequence[int]) -> Any:
        """Return the document of messages with these branches, with a `Scalar` in the place of each scalar."""
        return _resolve(self._plan, branches)


def _resolve(plan: Any, branches: Sequence[int]) -> Any:
    if not isinstance(plan, dict):
        return plan
    found: dict[str, Any] = {}
    for name, part in plan.items():
        inner = part
        if isinstance(part, _Part):
            if branches[part.number] != part.value:
                continue
            inner = part.plan
        found[name] = _resolve(inner, branches)
    return found


class _Compiler:
    """Makes the tables. ``absent``: how many values a message of each table has that need not be in the data."""

    def __init__(self, wanted: Sequence[Position]) -> None:
        self._wanted = wanted
        self._opaque: dict[str, int] = {}
        self._unfinished: list[tuple[Any, int]] = []
        self._count = 0
        self.tables: list[list[list[int]]] = []
        self.absent: list[int] = []
        self.types: list[ScalarType] = []
        self.parts = 0

    def compile(self, descriptor: Any) -> Any:
        """Add the tables of a type, and return its plan."""
        _, plan = self._add(descriptor, (), ())
        while self._unfinished:
            inner, table = self._unfinished.pop()
            for field in inner.fields:
                self._add_line(table, field)
        return plan

    def _new_table(self, descriptor: Any) -> int:
        is_entry = descriptor.GetOptions().map_entry
        defaults = 0 if is_entry else 1 + sum(not field.has_presence for field in descriptor.fields)
        self.tables.append([])
        self.absent.append(defaults)
        return len(self.tables) - 1

    def _opaque_table(self, descriptor: Any) -> int:
        """Return the number of the table of messages of which nothing is wanted."""
        found = self._opaque.get(descriptor.full_name)
        if found is None:
            found = self._opaque[descriptor.full_name] = self._new_table(descriptor)
            self._unfinished.append((descriptor, found))
            if descriptor.GetOptions().map_entry and descriptor.fields_by_number[2].message_type is not None:
                # The value is there even if it is absent.
                inner = descriptor.fields_by_number[2].message_type
                self.absent[found] += 1 + sum(not field.has_presence for field in inner.fields)
        return found

    def _add(self, descriptor: Any, position: Position, around: tuple[str, ...]) -> tuple[int, dict[str, Any]]:
        """Add the table of a message of which something is wanted. Return its number and its plan."""
        if len(around) > DEPTH_MAX:
            message = f"the type is nested more than {DEPTH_MAX} levels deep"
            raise ValueError(message)
        table = self._new_table(descriptor)
        plan: dict[str, Any] = {}
        shared: dict[int, int] = {}
        for oneof in descriptor.oneofs:
            if len(oneof.fields) > 1 and any(self._matters((*position, field.name)) for field in oneof.fields):
                shared[oneof.index] = self._new_part()
        for field in descriptor.fields:
            plan[field.name] = self._member(table, field, position, shared, (*around, descriptor.full_name))
        return table, plan

    def _member(
        self, table: int, field: Any, position: Position, shared: dict[int, int], around: tuple[str, ...]
    ) -> Any:
        """Add the lines of a field of such a message, and return its plan."""
        there = (*position, field.name)
        part, value = _MISSING, 0
        oneof = field.containing_oneof
        if oneof is not None and oneof.index in shared:
            part, value = shared[oneof.index], 1 + [one.name for one in oneof.fields].index(field.name)
        elif field.has_presence and self._matters(there):
            part, value = self._new_part(), 1
        if field.is_repeated or not self._matters(there):
            self._add_line(table, field, part=part, value=value)
            return OPAQUE if part == _MISSING else _Part(part, value, OPAQUE)
        plan = self._wanted_member(table, field, there, (part, value), around)
        return plan if part == _MISSING else _Part(part, value, plan)

    def _wanted_member(
        self, table: int, field: Any, there: Position, branch: tuple[int, int], around: tuple[str, ...]
    ) -> Any:
        part, value = branch
        message = field.message_type
        if message is None:
            return self._scalar(table, field, there, branch)
        if converter_of(message.full_name, message.file.name) is not None:
            if message.full_name == _TIMESTAMP and self._is_wanted(there):
                return self._timestamp(table, field, branch)
            if [one.name for one in message.fields] == ["value"] and self._is_wanted(there):
                inner = self._new_table(message)
                self._add_line(table, field, target=inner, part=part, value=value)
                return self._scalar(inner, message.fields[0], there, (_MISSING, 0))
        elif field.type != FieldDescriptor.TYPE_GROUP and not (message.full_name in around and self._is_wanted(there)):
            inner, plan = self._add(message, there, around)
            self._add_line(table, field, target=inner, part=part, value=value)
            return plan
        self._add_line(table, field, part=part, value=value)
        return OPAQUE

    def _scalar(self, table: int, field: Any, there: Position, branch: tuple[int, int]) -> Any:
        part, value = branch
        enum = field.enum_type
        if not self._is_wanted(there) or (enum is not None and enum.is_closed):
            self._add_line(table, field, part=part, value=value)
            return OPAQUE
        name = "enum" if enum is not None else _NAMES[field.type]
        slot = self._new_slot(ScalarType(name, {} if enum is None else names_of(enum)))
        self._add_line(table, field, slot=slot, part=part, value=value)
        return Scalar(slot, _KINDS.get(name, LONG))

    def _timestamp(self, table: int, field: Any, branch: tuple[int, int]) -> Scalar:
        inner = self._new_table(field.message_type)
        slot, *others = (self._new_slot(ScalarType("timestamp", {})) for _ in range(3))
        part, value = branch
        # The bytes of one message determine its value. Several would be merged.
        self._add_line(table, field, slot=slot, target=inner, part=part, value=value, is_once=True)
        for one, other in zip((field.message_type.fields_by_number[n] for n in (1, 2)), others, strict=True):
            self._add_line(inner, one, slot=other)
        return Scalar(slot, LONG)

    def _add_line(
        self,
        table: int,
        field: Any,
        *,
        slot: int = _MISSING,
        target: int | None = None,
        part: int = _MISSING,
        value: int = 0,
        is_once: bool = False,
    ) -> None:
        """Add what follows the tags of a field. ``target``: the table of its message, if that is not an opaque one."""
        self._count += 1
        if self._count > FIELDS_MAX:
            message = f"the type needs more than {FIELDS_MAX} fields"
            raise ValueError(message)
        rest = [slot, part, value, int(is_once)]
        lines = self.tables[table]
        inner = field.message_type
        if inner is not None:
            if field.type == FieldDescriptor.TYPE_GROUP:
                lines.append([tag_of(field, START_GROUP), scanning.REFUSED, 0, *rest])
            elif inner.full_name == "confluent.type.Decimal" and converter_of(inner.full_name, inner.file.name):
                lines.append([tag_of(field, DELIMITED), scanning.REFUSED, 0, *rest])
            else:
                number = self._opaque_table(inner) if target is None else target
                lines.append([tag_of(field, DELIMITED), scanning.MESSAGE, number, *rest])
            return
        name = "int32" if field.enum_type is not None else _NAMES[field.type]
        wire = SCALARS[name][0]
        owner = field.containing_type
        kind = {VARINT: scanning.VARINT, DELIMITED: scanning.BYTES}.get(wire, scanning.FIXED)
        if converter_of(owner.full_name, owner.file.name) is not None:
            kind = _CHECKED.get((owner.full_name, field.name), kind)
        lines.append([tag_of(field, wire), scanning.TEXT if name == "string" else kind, SIZES.get(wire, 0), *rest])
        if field.is_repeated and wire != DELIMITED:
            many = scanning.VARINTS if wire == VARINT else scanning.FIXEDS
            lines.append([tag_of(field, DELIMITED), many, SIZES.get(wire, 0), *rest])

    def _matters(self, there: Position) -> bool:
        """Return whether a value at a position is wanted, or has others in it that are."""
        return any(there[: len(one)] == one or one[: len(there)] == there for one in self._wanted)

    def _is_wanted(self, there: Position) -> bool:
        return any(there[: len(one)] == one for one in self._wanted)

    def _new_part(self) -> int:
        self.parts += 1
        return self.parts - 1

    def _new_slot(self, kind: ScalarType) -> int:
        self.types.append(kind)
        if len(self.types) > SCALARS_MAX:
            message = f"the type has more than {SCALARS_MAX} scalars that are wanted"
            raise ValueError(message)
        return len(self.types) - 1


def read_integers(texts: StringColumn, kind: str) -> tuple[Ints, bool]:
    """Decode integers that a program has found. ``kind``: a key of `wire.SCALARS`, or ``enum``.

    Also returns whether all of them are int64. Those that are not are wrong in the result.
    """
    wire, _, _ = SCALARS["int32" if kind == "enum" else kind]
    found = read_words(texts, SIZES.get(wire, 0))
    match kind:
        case "int32" | "enum" | "sfixed32":
            return found.astype(np.int32).astype(np.int64), True
        case "uint64" | "fixed64":
            return found, bool((found >= 0).all())
        case "uint32":
            return found.astype(np.uint32).astype(np.int64), True
        case "sint32" | "sint64":
            words = found.astype(np.uint32).astype(np.int64) if kind == "sint32" else found
            return (words.view(np.uint64) >> np.uint64(1)).view(np.int64) ^ -(words & 1), True
    return found, True


def read_words(texts: StringColumn, size: int) -> Ints:
    """Return words of ``size`` bytes that a program has found, as bits. One that is absent is 0."""
    found = np.empty(len(texts), dtype=np.int64)
    scanning.read_words(texts.data, np.ascontiguousarray(texts.start), np.ascontiguousarray(texts.end), size, found)
    return found
