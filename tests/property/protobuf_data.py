"""Random types of Protocol Buffers, with messages of them, and what they contain by the runtime of Google."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, Final

from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    message_factory,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import strategies as st

from tests.property.varints import varint

Draw = Callable[..., Any]
Field = descriptor_pb2.FieldDescriptorProto

NAMES: Final = ("a", "b", "c", "d", "e", "f")
SCALARS: Final = (
    *("int32", "int64", "uint32", "uint64", "sint32", "sint64", "bool", "fixed32", "fixed64", "sfixed32", "sfixed64"),
    *("float", "double", "bytes", "string"),
)
_KEYS: Final = tuple(name for name in SCALARS if name not in {"float", "double", "bytes"})
_ENUM: Final = {"ZERO": 0, "NULL": 0, "ONE": 1, "MINUS": -1, "LARGE": 2**31 - 1}
_UNPACKED: Final = frozenset({"bytes", "string"})


def file_of(*messages: Any, syntax: str = "proto3", name: str = "t.proto", **more: Any) -> Any:
    """Return a file with messages. ``messages``: as ``DescriptorProto``."""
    return descriptor_pb2.FileDescriptorProto(name=name, package="t", syntax=syntax, message_type=messages, **more)


def descriptors_of(*files: Any) -> bytes:
    """Return files as compiled schemas are kept."""
    encoded: bytes = descriptor_pb2.FileDescriptorSet(file=files).SerializeToString()
    return encoded


def class_of(*files: Any, name: str = "t.M") -> Any:
    """Return the runtime's class of a message."""
    pool = descriptor_pool.DescriptorPool()
    for file in files:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def kind_of(name: str) -> Any:
    """Return the number of a scalar type."""
    return getattr(Field, f"TYPE_{name.upper()}")


@st.composite
def files(draw: Draw, syntax: str | None = None) -> Any:
    """Draw a file with the messages `M`, and `N` in it, which contain each other, and an enum `E`."""
    chosen = syntax or draw(st.sampled_from(["proto2", "proto3"]))
    outer, inner = (_message(draw, name, chosen) for name in ("M", "N"))
    found = file_of(outer, inner, syntax=chosen)
    enum = found.enum_type.add(name="E")
    enum.options.allow_alias = True
    for name, number in _ENUM.items():
        enum.value.add(name=name, number=number)
    return found


IMPORTED: Final = tuple(
    descriptor_pb2.FileDescriptorProto.FromString(one.DESCRIPTOR.serialized_pb)
    for one in (timestamp_pb2, duration_pb2, struct_pb2, wrappers_pb2)
)
"""Files that `topic_files` imports."""

_KEY_TYPES: Final = ("string", "string", "int32", "uint64", "sint64", "fixed32", "E", "StringValue")
_TIME_TYPES: Final = ("int64", "uint64", "sfixed64", "sint32", "string", "double", *["Timestamp"] * 4)
_VALUE_TYPES: Final = (
    *("double", "float", "int32", "sint32", "sint64", "uint32", "fixed64", "sfixed32", "bool", "string", "E"),
    *("DoubleValue", "FloatValue", "Int64Value", "UInt32Value", "Duration"),
)
_OTHER_TYPES: Final = ("bytes", "Struct", "Timestamp", "Duration", "Value", "N", "M", "string", "int32")
_USUAL: Final = {"a": _KEY_TYPES, "b": _TIME_TYPES, "c": _VALUE_TYPES, "d": _OTHER_TYPES, "e": ("N",)}
_TAME: Final = _USUAL | {
    "b": tuple(kind for kind in _TIME_TYPES if kind not in {"string", "double"}),
    "c": tuple(kind for kind in _VALUE_TYPES if kind not in {"bool", "string", "E", "Duration"}),
}
"""The same, without types that are read one by one."""


@st.composite
def topic_files(draw: Draw, *, is_tame: bool = False) -> Any:
    """Draw a file whose messages `M` and `N` have usable fields `a`, `b` and `c` more often than random ones.

    `e` is a message `N`, and `f` anything. ``is_tame``: whether `a`, `b` and `c` can be read in bulk.
    """
    found = draw(files())
    for message in found.message_type:
        if message.name == "N" and not is_tame and not draw(st.integers(0, 3)):
            continue
        other = descriptor_pb2.FieldDescriptorProto()
        other.CopyFrom(message.field[-1])
        other.name, other.number = "f", 6
        other.ClearField("oneof_index")
        inner = [one for one in message.nested_type if other.type_name.endswith(f".{one.name}")]
        message.CopyFrom(descriptor_pb2.DescriptorProto(name=message.name, nested_type=inner, field=[other]))
        for place, (name, kinds) in enumerate((_TAME if is_tame else _USUAL).items()):
            field = message.field.add(name=name, number=place + 1, label=Field.LABEL_OPTIONAL)
            kind = draw(st.sampled_from(kinds))
            if kind in SCALARS:
                field.type = kind_of(kind)
            else:
                field.type = Field.TYPE_ENUM if kind == "E" else Field.TYPE_MESSAGE
                field.type_name = f".t.{kind}" if kind in {"E", "M", "N"} else f".google.protobuf.{kind}"
        if _rarely(draw) if is_tame else draw(st.booleans()):
            message.oneof_decl.add(name="choice")
            members = [field for field in message.field if field.name in ("cde" if is_tame else "abcde")]
            for field in draw(st.lists(st.sampled_from(members), min_size=1, max_size=3)):
                field.oneof_index = 0
    found.dependency.extend(one.name for one in IMPORTED)
    return found


def usual(draw: Draw, descriptor: Any) -> bytes:
    """Draw a message that has most of its usual fields, and sometimes others, or some of them again."""
    names = [name for name in ("a", "b", "c", "e") if draw(st.integers(0, 7)) and name in descriptor.fields_by_name]
    parts = [_field(draw, descriptor.fields_by_name[name], 2) for name in draw(st.permutations(names))]
    if not draw(st.integers(0, 2)):
        parts.append(encoded(draw, descriptor, 2))
    return b"".join(draw(st.permutations(parts)) if draw(st.booleans()) else parts)


def tame(draw: Draw, descriptor: Any, depth: int = 2) -> bytes:
    """Draw a message whose usual fields can be read in bulk: as they are, again, or one of them in two parts.

    Other fields are random, so that some messages cannot be read in bulk because of these.
    """
    chosen = {
        oneof.index: draw(st.sampled_from([*oneof.fields])) if _rarely(draw, 3) else min(oneof.fields, key=_number_of)
        for oneof in descriptor.oneofs
    }
    parts: list[bytes] = []
    for field in descriptor.fields:
        oneof, is_random = field.containing_oneof, field.name in {"d", "f"}
        is_absent = not _rarely(draw, 12) if is_random else field.name != "a" and _rarely(draw, 30)
        if (
            is_absent
            or (oneof is not None and chosen[oneof.index].number != field.number)
            or (field.name == "e" and depth == 0)
        ):
            continue
        count = 2 if _rarely(draw) else 1
        parts += [_field(draw, field, 1) if is_random else _tame_field(draw, field, depth) for _ in range(count)]
        if _rarely(draw):
            parts.append(_unknown(draw, with_groups=False))
    return b"".join(draw(st.permutations(parts)) if _rarely(draw) else parts)


def _number_of(field: Any) -> int:
    return int(field.number)


def _rarely(draw: Draw, one_in: int = 8) -> bool:
    """Return whether something rare is to be drawn. Hypothesis likes zeros."""
    return bool(draw(st.integers(0, one_in - 1)) == one_in - 1)


def _tame_field(draw: Draw, field: Any, depth: int) -> bytes:
    message = field.message_type
    if message is None:
        wire, value = _tame_scalar(draw, field)
        return varint(field.number << 3 | wire) + value
    if message.full_name == "google.protobuf.Timestamp":
        seconds, nanos = draw(st.integers(-(10**9), 2 * 10**9)), draw(st.integers(0, 10**9 - 1))
        fields = [varint(1 << 3) + varint(seconds), varint(2 << 3) + varint(nanos)]
        inner = b"".join(draw(st.sampled_from([fields, fields, fields[::-1], fields[:1], fields[1:], []])))
    elif message.file.package == "google.protobuf":  # a wrapper
        inner = b"" if _rarely(draw, 30) else _tame_field(draw, message.fields[0], 0)
    else:
        inner = tame(draw, message, depth - 1)
    return varint(field.number << 3 | 2) + _sized(draw, inner)


def _tame_scalar(draw: Draw, field: Any) -> tuple[int, bytes]:
    """Draw the wire type and the bytes of a thing, a time in ms or a value that are usual. Integers can be longer."""
    name = "enum" if field.enum_type is not None else next(one for one in SCALARS if kind_of(one) == field.type)
    match name:
        case "string":
            return 2, _sized(draw, draw(st.sampled_from([b"x", b"y", b"press 4"])))
        case "float" | "double":
            value = draw(st.floats(allow_nan=False, allow_infinity=False, width=32 if name == "float" else 64))
            return (5, struct.pack("<f", value)) if name == "float" else (1, struct.pack("<d", value))
        case "fixed32" | "sfixed32":
            return 5, draw(st.binary(min_size=4, max_size=4))
        case "fixed64" | "sfixed64":
            return 1, draw(st.integers(0, 10**12)).to_bytes(8, "little")
    usual_ones = {
        "enum": st.sampled_from([*_ENUM.values()]),
        # What exceeds 32 bits is cut off.
        **dict.fromkeys(("int32", "sint32", "uint32"), st.integers(0, 2**64 - 1)),
    }
    number = draw(usual_ones.get(name, st.integers(0, 10**12)) | st.sampled_from([0, 1]))
    return 0, varint(number, draw(st.sampled_from([0, 0, 0, 2])))


def _stamp(draw: Draw) -> bytes:
    """Draw a timestamp or a duration."""
    seconds = draw(st.integers(0, 2 * 10**9) | st.sampled_from([9 * 10**9, 10**10, 2**64 - 1, 2**63, 0]))
    nanos = draw(st.integers(0, 10**9 - 1) | st.sampled_from([0, 10**9, 2**64 - 1, 2**32]))
    fields = [varint(1 << 3) + varint(seconds), varint(2 << 3) + varint(nanos)]
    return b"".join(draw(st.sampled_from([fields, fields, fields, fields[:1], fields[1:], [], fields * 2])))


def _message(draw: Draw, name: str, syntax: str) -> Any:
    found = descriptor_pb2.DescriptorProto(name=name)
    numbers = draw(
        st.lists(st.integers(1, 20) | st.sampled_from([2**29 - 1, 1000]), unique=True, min_size=1, max_size=6)
    )
    for member, number in zip(NAMES, numbers, strict=False):
        field = found.field.add(name=member, number=number, label=Field.LABEL_OPTIONAL)
        match draw(st.sampled_from(["one", "one", "many", "map", "oneof", "optional", "group"])):
            case "many":
                field.label = Field.LABEL_REPEATED
                _type(draw, field)
                is_packable = field.type not in {kind_of(one) for one in (*_UNPACKED, "message")}
                if is_packable and draw(st.booleans()):
                    field.options.packed = draw(st.booleans())
            case "map":
                _map(draw, found, field, name)
            case "oneof":
                if not found.oneof_decl:
                    found.oneof_decl.add(name="choice")
                _type(draw, field)
                field.oneof_index = 0
            case "optional":
                _type(draw, field)
            case "group" if syntax == "proto2":
                group = found.nested_type.add(name=f"G{number}")
                group.field.add(name="x", number=1, label=Field.LABEL_OPTIONAL, type=Field.TYPE_INT32)
                field.type, field.type_name = Field.TYPE_GROUP, f".t.{name}.G{number}"
            case _:
                _type(draw, field)
    return found


def _type(draw: Draw, field: Any, kinds: tuple[str, ...] = SCALARS) -> None:
    match draw(st.sampled_from([*kinds, "enum", "message", "message"])):
        case "enum":
            field.type, field.type_name = Field.TYPE_ENUM, ".t.E"
        case "message":
            field.type, field.type_name = Field.TYPE_MESSAGE, draw(st.sampled_from([".t.M", ".t.N"]))
        case kind:
            field.type = kind_of(kind)


def _map(draw: Draw, message: Any, field: Any, name: str) -> None:
    entry = message.nested_type.add(name=f"{field.name.upper()}Entry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=Field.LABEL_OPTIONAL, type=kind_of(draw(st.sampled_from(_KEYS))))
    _type(draw, entry.field.add(name="value", number=2, label=Field.LABEL_OPTIONAL))
    field.label, field.type, field.type_name = Field.LABEL_REPEATED, Field.TYPE_MESSAGE, f".t.{name}.{entry.name}"


def encoded(draw: Draw, descriptor: Any, depth: int = 3) -> bytes:
    """Draw the bytes of a message: fields in any order, some of them again, packed or not, and unknown ones."""
    found = b""
    for _ in range(draw(st.integers(0, 5))):
        field = draw(st.sampled_from([*descriptor.fields]))
        if field.message_type is not None and depth == 0:
            continue
        found += _field(draw, field, depth)
        if not draw(st.integers(0, 7)):
            found += _unknown(draw)
    return found


def _field(draw: Draw, field: Any, depth: int) -> bytes:
    if field.type == FieldDescriptor.TYPE_GROUP:
        return (
            varint(field.number << 3 | 3) + encoded(draw, field.message_type, depth - 1) + varint(field.number << 3 | 4)
        )
    if field.message_type is not None:
        is_map = field.message_type.GetOptions().map_entry
        if field.message_type.full_name in {"google.protobuf.Timestamp", "google.protobuf.Duration"}:
            inner = _stamp(draw)
        elif is_map:
            inner = _pair(draw, field.message_type, depth)
        else:
            inner = encoded(draw, field.message_type, depth - 1)
        tag = varint(field.number << 3 | 2)
        return varint(field.number << 3 | 2, _longer(draw, 5 - len(tag))) + _sized(draw, inner)
    wire, value = scalar(draw, field)
    if field.is_repeated and wire != 2 and draw(st.booleans()):
        more = b"".join(scalar(draw, field)[1] for _ in range(draw(st.integers(0, 3))))
        return varint(field.number << 3 | 2) + _sized(draw, value + more)
    return varint(field.number << 3 | wire) + value


def _pair(draw: Draw, entry: Any, depth: int) -> bytes:
    # No unknown fields: the runtime does not add an entry that has any, while others do.
    fields = draw(st.lists(st.sampled_from([*entry.fields]), max_size=3))
    return b"".join(_field(draw, field, depth) for field in fields if field.message_type is None or depth > 0)


def _longer(draw: Draw, most: int) -> int:
    return draw(st.sampled_from([0, 0, 0, most])) if most else 0


def _sized(draw: Draw, data: bytes) -> bytes:
    size = varint(len(data))
    return varint(len(data), _longer(draw, 5 - len(size))) + data


def _unknown(draw: Draw, *, with_groups: bool = True) -> bytes:
    tag = 300 << 3
    group = varint(tag | 3) + varint(77 << 3) + b"\1" + varint(tag | 4)
    fixed = [varint(tag | 1) + b"\0" * 8, varint(tag | 5) + b"\0" * 4, varint(tag | 2) + b"\2ab"]
    found: bytes = draw(st.sampled_from([varint(tag) + b"\7", *fixed, *([group] if with_groups else [])]))
    return found


def scalar(draw: Draw, field: Any) -> tuple[int, bytes]:
    """Draw the wire type and the bytes of a value. Integers can have more bits than their type."""
    if field.enum_type is not None:
        return 0, varint(draw(st.sampled_from([*_ENUM.values(), 2, -7])))
    name = next(one for one in SCALARS if kind_of(one) == field.type)
    match name:
        case "fixed32" | "sfixed32" | "float":
            return 5, draw(st.binary(min_size=4, max_size=4))
        case "fixed64" | "sfixed64" | "double":
            return 1, draw(st.binary(min_size=8, max_size=8))
        case "string":
            texts = st.sampled_from(["x", "y", "", "1", "2024-01-01T00:00:00Z", "x" * 300]) | st.text(max_size=3)
            return 2, _sized(draw, draw(texts).encode())
        case "bytes":
            return 2, _sized(draw, draw(st.binary(max_size=3)))
    value = draw(st.integers(0, 3) | st.integers(0, 2**64 - 1) | st.sampled_from([2**31, 2**32, 2**63]))
    return 0, varint(value, draw(st.sampled_from([0, 0, 0, 2])))


def document_of(message: Any) -> Any:
    """Return the document of a message, from what the runtime has decoded."""
    return {field.name: value for field in message.DESCRIPTOR.fields for value in _members(message, field)}


def _members(message: Any, field: Any) -> Iterator[Any]:
    if field.is_repeated:
        values = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            inner = field.message_type.fields_by_number[2]
            yield {
                str(key).lower() if isinstance(key, bool) else str(key): _plain(inner, values[key]) for key in values
            }
        else:
            yield [_plain(field, value) for value in values]
    elif not field.has_presence or message.HasField(field.name):
        yield _plain(field, getattr(message, field.name))


def _plain(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return document_of(value)
    if field.enum_type is not None:
        named = field.enum_type.values_by_number.get(value)
        return value if named is None else next(one.name for one in field.enum_type.values if one.number == value)
    return Decimal(repr(value)) if isinstance(value, float) and math.isfinite(value) else value
