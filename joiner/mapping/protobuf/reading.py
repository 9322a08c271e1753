"""Decodes one message of Protocol Buffers into a document, on which paths and conditions work as on JSON.

A message is an object whose members are its fields, by the names in the schema. A field without presence that is absent
has its default; one with presence has no member. Integers are numbers, and so are finite floats and doubles, as in Avro
(see `joiner.mapping.avro.reading`). Enums are strings, or numbers if the schema has no name for them. Messages of some
types are values of their own (see `wellknown`). Unknown fields and extensions are ignored.

The runtime of Google decodes messages as well, but allocates each with all of its fields: a few bytes for each message
in an array can take gigabytes. Here, whatever the data contain, decoding them takes time and memory in proportion to
their size and that of their schema. Tests compare the two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from google.protobuf.descriptor import FieldDescriptor

from broker.wire.records import Unreadable
from joiner.mapping.protobuf.wellknown import Convert, converter_of
from joiner.mapping.protobuf.wire import (
    DELIMITED,
    END_GROUP,
    SCALARS,
    START_GROUP,
    TAG_BITS,
    VARINT,
    Cursor,
    Read,
    names_of,
    tag_of,
)

FIELDS_MAX: Final = 10_000
"""The maximum number of fields and enum values of a type, with those of all types in it."""

ABSENT_MAX: Final = 100_000
"""How many values a document can contain that are not in the data, because they are defaults."""

VALUES_PER_BYTE: Final = 4
"""How many more of them it can contain for each byte of the data."""

_NO_ONEOF: Final = -1
_UNKNOWN: Final = object()
"""Instead of a value that a closed enum does not have."""

_BY_TYPE: Final = {getattr(FieldDescriptor, f"TYPE_{name.upper()}"): found for name, found in SCALARS.items()}

_Object = dict[str, Any]
_Handle = Callable[[Cursor, _Object], None]


class MessageReader:
    """Reads messages of one type.

    ``by_tag``: what reads each field. ``scalars``, ``lists`` and ``maps``: the members of a message without any fields.
    ``convert``: see `wellknown`.
    """

    __slots__ = ("by_tag", "convert", "lists", "maps", "scalars")

    def __init__(self, convert: Convert | None = None) -> None:
        self.by_tag: dict[int, _Handle] = {}
        self.scalars: _Object = {}
        self.lists: list[str] = []
        self.maps: list[str] = []
        self.convert = convert

    def new(self, cursor: Cursor) -> _Object:
        """Return a message without any fields."""
        cursor.add(1 + len(self.scalars) + len(self.lists) + len(self.maps))
        found = self.scalars.copy()
        for name in self.lists:
            found[name] = []
        for name in self.maps:
            found[name] = {}
        return found

    def begin(self, cursor: Cursor, owner: Any, place: str | int) -> _Object:
        """Return a new message that is to be in ``owner`` at ``place``."""
        found = self.new(cursor)
        if self.convert is not None:
            cursor.special.append((owner, place, found, self.convert))
        return found

    def read(self, cursor: Cursor, found: _Object, group: int = 0) -> None:
        """Read fields up to the end, or up to the end of the group with the number ``group``."""
        by_tag = self.by_tag
        while cursor.at < cursor.end:
            tag = cursor.tag()
            handle = by_tag.get(tag)
            if handle is not None:
                handle(cursor, found)
            elif group and tag == group << TAG_BITS | END_GROUP:
                return
            else:
                cursor.skip(tag)
        if group:
            raise Unreadable("a group does not end")

    def read_inner(self, cursor: Cursor, found: _Object, group: int = 0) -> None:
        """Read a message in another one: the group with the number ``group``, or what follows its length."""
        cursor.enter()
        outer = cursor.end
        if not group:
            size = cursor.size()
            cursor.end = cursor.at + size
        self.read(cursor, found, group)
        cursor.end = outer
        cursor.depth -= 1


def decode_message(reader: MessageReader, data: bytes) -> _Object:
    """Decode a message. Raises `Unreadable`, with the reason, if the data are not one."""
    cursor = Cursor(data, ABSENT_MAX + VALUES_PER_BYTE * len(data))
    found = reader.new(cursor)
    reader.read(cursor, found)
    # Those inside of others come later.
    for owner, place, message, convert in reversed(cursor.special):
        if isinstance(owner, list) or owner.get(place) is message:
            owner[place] = convert(message)
    return found


def make_reader(descriptor: Any) -> tuple[MessageReader, int]:
    """Return what reads messages of the type with a descriptor, and its size: see `FIELDS_MAX`.

    Raises ValueError if the type is too large.
    """
    readers = _Readers()
    found = readers.of(descriptor)
    readers.finish()
    return found, readers.count


class _Scalar(NamedTuple):
    """How the values of a scalar field are read. ``wire``: their wire type."""

    wire: int
    read: Read
    default: Any


class _Readers:
    """Makes the reader of a type, and those of the types in it. ``count``: see `FIELDS_MAX`."""

    def __init__(self) -> None:
        self._known: dict[str, MessageReader] = {}
        self._unfinished: list[Any] = []
        self._enums: dict[str, tuple[Read, dict[int, str]]] = {}
        self.count = 0

    def of(self, descriptor: Any) -> MessageReader:
        found = self._known.get(descriptor.full_name)
        if found is None:
            # It is filled later, because a message can contain itself, or others to any depth.
            found = MessageReader(converter_of(descriptor.full_name, descriptor.file.name))
            self._known[descriptor.full_name] = found
            self._unfinished.append(descriptor)
        return found

    def finish(self) -> None:
        """Add the fields of all types."""
        while self._unfinished:
            descriptor = self._unfinished.pop()
            reader = self._known[descriptor.full_name]
            self._add_up(len(descriptor.fields))
            for field in descriptor.fields:
                self._add(field, reader)

    def _add_up(self, count: int) -> None:
        self.count += count
        if self.count > FIELDS_MAX:
            message = f"the type has more than {FIELDS_MAX} fields and enum values, with those of the types in it"
            raise ValueError(message)

    def _add(self, field: Any, reader: MessageReader) -> None:
        name, by_tag = field.name, reader.by_tag
        if field.message_type is not None:
            if field.is_repeated and field.message_type.GetOptions().map_entry:
                reader.maps.append(name)
                by_tag[tag_of(field, DELIMITED)] = self._map(name, field.message_type)
            else:
                if field.is_repeated:
                    reader.lists.append(name)
                by_tag[tag_of(field, _wire_of_message(field))] = self._message(field)
            return
        scalar = self._scalar(field)
        if field.is_repeated:
            reader.lists.append(name)
            by_tag[tag_of(field, scalar.wire)] = _append(name, scalar.read)
            if scalar.wire != DELIMITED:
                by_tag[tag_of(field, DELIMITED)] = _extend(name, scalar.read)
            return
        if not field.has_presence:
            reader.scalars[name] = scalar.default
        by_tag[tag_of(field, scalar.wire)] = _set(name, scalar.read, _oneof_of(field))

    def _scalar(self, field: Any) -> _Scalar:
        if field.enum_type is None:
            return _Scalar(*_BY_TYPE[field.type])
        enum = field.enum_type
        if enum.full_name not in self._enums:
            self._add_up(len(enum.values))
            names = names_of(enum)
            self._enums[enum.full_name] = _enum(names, is_closed=enum.is_closed), names
        read, names = self._enums[enum.full_name]
        # That of a repeated field is a list.
        default = 0 if field.is_repeated else field.default_value
        return _Scalar(VARINT, read, names.get(default, default))

    def _message(self, field: Any) -> _Handle:
        inner = self.of(field.message_type)
        group = field.number if _wire_of_message(field) == START_GROUP else 0
        return _append_message(field.name, inner, group) if field.is_repeated else _merge(field, inner, group)

    def _map(self, name: str, entry: Any) -> _Handle:
        self._add_up(2)
        pair, key, value = MessageReader(), entry.fields_by_number[1], entry.fields_by_number[2]
        key_scalar = self._scalar(key)
        pair.by_tag[tag_of(key, key_scalar.wire)] = _set("key", key_scalar.read, _NO_ONEOF)
        if value.message_type is not None:
            inner = self.of(value.message_type)
            pair.by_tag[tag_of(value, _wire_of_message(value))] = self._message_in_pair(value, inner)
            return _put_message(name, pair, key_scalar.default, inner)
        scalar = self._scalar(value)
        pair.by_tag[tag_of(value, scalar.wire)] = _set_any("value", scalar.read)
        return _put(name, pair, key_scalar.default, scalar.default)

    def _message_in_pair(self, value: Any, inner: MessageReader) -> _Handle:
        group = value.number if _wire_of_message(value) == START_GROUP else 0

        def handle(cursor: Cursor, found: _Object) -> None:
            if "value" not in found:
                found["value"] = inner.new(cursor)
            inner.read_inner(cursor, found["value"], group)

        return handle


def _wire_of_message(field: Any) -> int:
    return START_GROUP if field.type == FieldDescriptor.TYPE_GROUP else DELIMITED


def _oneof_of(field: Any) -> int:
    """Return the number of the oneof that a field shares with others, or `_NO_ONEOF`."""
    oneof = field.containing_oneof
    # An optional field is the only one in a oneof of its own.
    return _NO_ONEOF if oneof is None or len(oneof.fields) == 1 else int(oneof.index)


def _choose(cursor: Cursor, found: _Object, oneof: int, name: str) -> None:
    """Remove the member of a oneof that was read before another one."""
    place = id(found), oneof
    # The message is remembered as well, so that no other one gets its id.
    _, before = cursor.chosen.get(place, (found, name))
    if before != name:
        found.pop(before, None)
    cursor.chosen[place] = found, name


def _enum(names: dict[int, str], *, is_closed: bool) -> Read:
    _, read_number, _ = SCALARS["int32"]

    def read(cursor: Cursor) -> Any:
        number = read_number(cursor)
        name = names.get(number)
        if name is None:
            return _UNKNOWN if is_closed else number
        return name

    return read


def _set(name: str, read: Read, oneof: int) -> _Handle:
    def handle(cursor: Cursor, found: _Object) -> None:
        value = read(cursor)
        if value is _UNKNOWN:
            return
        if oneof != _NO_ONEOF:
            _choose(cursor, found, oneof, name)
        found[name] = value

    return handle


def _set_any(name: str, read: Read) -> _Handle:
    def handle(cursor: Cursor, found: _Object) -> None:
        found[name] = read(cursor)

    return handle


def _append(name: str, read: Read) -> _Handle:
    def handle(cursor: Cursor, found: _Object) -> None:
        value = read(cursor)
        if value is not _UNKNOWN:
            found[name].append(value)

    return handle


def _extend(name: str, read: Read) -> _Handle:
    def handle(cursor: Cursor, found: _Object) -> None:
        size, outer, values = cursor.size(), cursor.end, found[name]
        cursor.end = cursor.at + size
        while cursor.at < cursor.end:
            value = read(cursor)
            if value is not _UNKNOWN:
                values.append(value)
        cursor.end = outer

    return handle


def _merge(field: Any, inner: MessageReader, group: int) -> _Handle:
    name, oneof = field.name, _oneof_of(field)

    def handle(cursor: Cursor, found: _Object) -> None:
        if oneof != _NO_ONEOF:
            _choose(cursor, found, oneof, name)
        if name not in found:
            found[name] = inner.begin(cursor, found, name)
        inner.read_inner(cursor, found[name], group)

    return handle


def _append_message(name: str, inner: MessageReader, group: int) -> _Handle:
    def handle(cursor: Cursor, found: _Object) -> None:
        values = found[name]
        values.append(inner.begin(cursor, values, len(values)))
        inner.read_inner(cursor, values[-1], group)

    return handle


def _put(name: str, pair: MessageReader, default_key: Any, default: Any) -> _Handle:
    def handle(cursor: Cursor, found: _Object) -> None:
        entry: _Object = {}
        pair.read_inner(cursor, entry)
        value = entry.get("value", default)
        if value is not _UNKNOWN:
            found[name][_text(entry.get("key", default_key))] = value

    return handle


def _put_message(name: str, pair: MessageReader, default_key: Any, inner: MessageReader) -> _Handle:
    def handle(cursor: Cursor, found: _Object) -> None:
        place = len(cursor.special)
        entry: _Object = {}
        if inner.convert is not None:
            # Its owner and its key are known later, but it comes before those inside of it.
            cursor.special.append(({}, "", None, inner.convert))
        pair.read_inner(cursor, entry)
        key = _text(entry.get("key", default_key))
        found[name][key] = value = entry["value"] if "value" in entry else inner.new(cursor)
        if inner.convert is not None:
            cursor.special[place] = found[name], key, value, inner.convert

    return handle


def _text(key: Any) -> str:
    """Return the key of a map as the name of a member."""
    return str(key).lower() if isinstance(key, bool) else str(key)
