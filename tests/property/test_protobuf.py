"""For any type and any data, messages of Protocol Buffers are read as by the runtime of Google, within limits."""

from __future__ import annotations

import contextlib
from typing import Any, Final

import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.wire.columns import StringColumn
from broker.wire.records import Unreadable
from joiner.mapping.documents import DEPTH_MAX
from joiner.mapping.framing import RegisteredSchema, SchemaTable, add_header
from joiner.mapping.protobuf.messages import decode_framed, find_reader, find_type, split_indexes
from joiner.mapping.protobuf.program import Program
from joiner.mapping.protobuf.reading import ABSENT_MAX, VALUES_PER_BYTE, decode_message
from tests.property.bulk_reading import Counts, assert_read_alike, damaged, plain
from tests.property.protobuf_data import (
    IMPORTED,
    Field,
    class_of,
    descriptors_of,
    document_of,
    encoded,
    file_of,
    files,
    tame,
    topic_files,
    usual,
)
from tests.property.varints import varint, zigzag


def decoded(file: Any, data: bytes) -> Any:
    return decode_message(find_reader(descriptors_of(file), (0,)), data)


@given(st.data())
def test_a_message_is_decoded_as_by_the_runtime(data: st.DataObject) -> None:
    file = data.draw(files())
    kind = class_of(file)
    message = encoded(data.draw, kind.DESCRIPTOR)
    assert plain(decoded(file, message)) == plain(document_of(kind.FromString(message)))


@given(st.data())
def test_what_the_runtime_writes_is_read(data: st.DataObject) -> None:
    file = data.draw(files())
    kind = class_of(file)
    first, second = (kind.FromString(encoded(data.draw, kind.DESCRIPTOR)) for _ in range(2))
    written = first.SerializeToString() + second.SerializeToString()
    first.MergeFrom(second)
    assert plain(decoded(file, first.SerializeToString())) == plain(document_of(first))
    # Messages one after the other are merged.
    assert plain(decoded(file, written)) == plain(document_of(kind.FromString(written)))


HOSTILE: Final = (
    b"\xff" * 10,
    b"\xff" * 9 + b"\x01",
    b"\x00",
    b"\x07",
    b"\x0b",
    b"\x0c",
    varint(2**32),
    b"\x0a\xff\x01",
)


def without_maps(file: Any) -> bool:
    return not any(one.options.map_entry for message in file.message_type for one in message.nested_type)


@given(st.data(), st.binary(max_size=40))
def test_damaged_messages_are_refused_as_by_the_runtime(data: st.DataObject, noise: bytes) -> None:
    # In entries of maps and in strings of proto2, the runtime does not check as much.
    file = data.draw(files("proto3").filter(without_maps))
    kind = class_of(file)
    message = encoded(data.draw, kind.DESCRIPTOR)
    at = data.draw(st.integers(0, len(message)))
    inserted = data.draw(st.sampled_from(HOSTILE) | st.just(noise) | st.binary(min_size=1, max_size=2))
    for wrong in (message[:at], message[:at] + inserted + message[at:], message[:at] + inserted + message[at + 1 :]):
        try:
            theirs = kind.FromString(wrong)
        except DecodeError:
            with pytest.raises(Unreadable):
                decoded(file, wrong)
        else:
            assert plain(decoded(file, wrong)) == plain(document_of(theirs))


@given(st.data(), st.binary(max_size=60))
def test_whatever_the_data_are_they_are_a_message_or_unreadable(data: st.DataObject, noise: bytes) -> None:
    file = data.draw(files())
    table = SchemaTable({1: RegisteredSchema("PROTOBUF", "", descriptors=descriptors_of(file))})
    with contextlib.suppress(Unreadable):
        decode_framed(add_header(1, noise), table)
    with contextlib.suppress(Unreadable):
        decode_framed(add_header(1, b"\0" + noise), table)


@given(st.lists(st.integers(0, 2**31), min_size=1, max_size=5), st.binary(max_size=5))
def test_the_indexes_of_a_message_are_read(indexes: list[int], rest: bytes) -> None:
    data = zigzag(len(indexes)) + b"".join(map(zigzag, indexes))
    assert split_indexes(data + rest) == (tuple(indexes), rest)
    for size in range(len(data)):
        with pytest.raises(Unreadable, match="end too early"):
            split_indexes(data[:size])


def with_many_fields(count: int) -> Any:
    """Return a file with a message that contains others with so many fields."""
    inner = descriptor_pb2.DescriptorProto(name="Inner")
    for number in range(1, count + 1):
        inner.field.add(name=f"f{number}", number=number, label=Field.LABEL_OPTIONAL, type=Field.TYPE_INT32)
    outer = descriptor_pb2.DescriptorProto(name="M")
    outer.field.add(name="x", number=1, label=Field.LABEL_REPEATED, type=Field.TYPE_MESSAGE, type_name=".t.Inner")
    return file_of(outer, inner)


@given(st.integers(1, 60), st.integers(0, 30_000))
def test_the_number_of_absent_values_is_in_proportion_to_the_data(fields: int, messages: int) -> None:
    file, data = with_many_fields(fields), b"\x0a\0" * messages
    # With the outer message, and the list in it.
    is_much = 2 + (1 + fields) * messages > ABSENT_MAX + VALUES_PER_BYTE * len(data)
    if is_much:
        with pytest.raises(Unreadable, match="too many messages in it whose fields are absent"):
            decoded(file, data)
    else:
        assert len(decoded(file, data)["x"]) == messages


def test_messages_are_nested_to_the_same_depth_as_in_the_runtime() -> None:
    message = descriptor_pb2.DescriptorProto(name="M")
    message.field.add(name="x", number=1, label=Field.LABEL_OPTIONAL, type=Field.TYPE_MESSAGE, type_name=".t.M")
    file = file_of(message)
    kind = class_of(file)
    for levels in (DEPTH_MAX, DEPTH_MAX + 1):
        nested = b""
        for _ in range(levels):
            nested = b"\x0a" + varint(len(nested)) + nested
        groups = varint(9 << 3 | 3) * levels + varint(9 << 3 | 4) * levels
        if levels == DEPTH_MAX:
            assert plain(decoded(file, nested)) == plain(document_of(kind.FromString(nested)))
            assert decoded(file, groups) == {}
            continue
        with pytest.raises(DecodeError):
            kind.FromString(nested)
        for data in (nested, groups):
            with pytest.raises(Unreadable, match="nested more than 100 levels deep"):
                decoded(file, data)


def path_of(segments: list[Any]) -> str:
    return "$" + "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in segments)


SEGMENTS: Final = st.lists(st.sampled_from(["a", "b", "c", "d", "e", "f"]) | st.integers(-1, 1), max_size=3)
CONDITIONS: Final = (
    *(
        "$.c",
        "!$.c",
        "$.c != 0",
        "$.a == 'x'",
        "$.e",
        "$.e.c > 1",
        "$.d == $.e",
        "$.f",
        "$.d",
        "$.a == 'ONE' || $.b > 0",
    ),
)


def topic_streams(draw: Any, *, is_tame: bool) -> list[dict[str, Any]]:
    """Draw two streams of a topic. ``is_tame``: with paths to usual fields alone."""
    inside = draw(st.sampled_from(["$", "$", "$", "$.e", "$.e.e"]))
    usual_paths = {"key": f"{inside}.a", "time": f"{inside}.b", "value": f"{inside}.c"}
    stream = {
        name: path if is_tame or draw(st.integers(0, 15)) else path_of(draw(SEGMENTS))
        for name, path in usual_paths.items()
    }
    stream["key"] = "'a'" if draw(st.booleans()) else stream["key"]
    ids = ["$.a", f"{inside}.a"] if is_tame else ["$.a", f"{inside}.a", "$.d"]
    identity = {"id": draw(st.sampled_from(ids))} if draw(st.booleans()) else {}
    where = {"where": draw(st.sampled_from(CONDITIONS))} if draw(st.booleans()) else {}
    first = {**stream, "name": "speed"} | ({} if draw(st.booleans()) else {"where": "$.c"})
    second = {**stream, **identity, **where, "name": "torque"}
    return [{"topic": "t", "format": "protobuf", **one} for one in (first, second)]


OTHERS: Final = (None, b"", b"\0", b"{}", add_header(1, b""), add_header(99, b"\0"), add_header(98, b"\0"))
"""What the topic contains besides messages of a known schema."""


def check_bulk_reading(draw: Any) -> Counts:
    """Read messages of a random topic in both ways. Return how many have been read in bulk, and how many one by one."""
    # Of six topics, one has anything in it.
    is_tame = draw(st.integers(0, 5)) < 5
    file = draw(topic_files(is_tame=is_tame))
    table = SchemaTable(
        {
            1: RegisteredSchema("PROTOBUF", "", descriptors=descriptors_of(*IMPORTED, file)),
            98: RegisteredSchema("JSON", "{}"),
        }
    )
    kind = class_of(*IMPORTED, file)
    nested = {"t.M": [b"\0", zigzag(1) + zigzag(0)], "t.N": [zigzag(1) + zigzag(1)]}
    if not is_tame:  # an index that is longer than necessary
        nested["t.M"].append(zigzag(1) + varint(0, 2))
    pool = kind.DESCRIPTOR.file.pool
    is_damaged = not is_tame or draw(st.integers(0, 3)) == 3
    values: list[bytes | None] = []
    for _ in range(draw(st.integers(1, 4))):
        name = draw(st.sampled_from(["t.M", "t.M", "t.N"]))
        message = (tame if is_tame else usual)(draw, pool.FindMessageTypeByName(name))
        whole = add_header(1, draw(st.sampled_from(nested[name])) + message)
        # Conditions are evaluated in bulk only if many messages have the same values.
        values += [
            damaged(draw, whole, HOSTILE, OTHERS) if is_damaged else whole for _ in range(draw(st.integers(1, 9)))
        ]
    return assert_read_alike(topic_streams(draw, is_tame=is_tame), table, values)


def test_protobuf_messages_are_read_in_bulk_as_one_by_one() -> None:
    counts = Counts()

    @given(st.data())
    @settings(max_examples=300)
    def check(data: st.DataObject) -> None:
        nonlocal counts
        counts = counts.plus(check_bulk_reading(data.draw))

    check()
    # Otherwise, this would hardly compare anything. Random runs differ: 0.51 on average, standard deviation 0.06.
    assert 0.2 < counts.share < 0.95, counts


def test_what_a_protobuf_program_understands_is_valid() -> None:
    counts = Counts()

    @given(st.data())
    @settings(max_examples=200)
    def check(data: st.DataObject) -> None:
        nonlocal counts
        is_tame = data.draw(st.booleans())
        file = data.draw(topic_files(is_tame=True) if is_tame else topic_files() | files())
        descriptors = descriptors_of(*IMPORTED, file)
        descriptor = find_type(descriptors, (0,))
        whole = (
            tame(data.draw, descriptor) if is_tame else usual(data.draw, descriptor) + encoded(data.draw, descriptor)
        )
        message = damaged(data.draw, whole, HOSTILE, [b"", b"\0"])
        is_read = bool(Program(descriptor, []).run(StringColumn.of([message])).is_read[0])
        counts = counts.plus(Counts(int(is_read), int(not is_read)))
        if is_read:
            try:
                decode_message(find_reader(descriptors, (0,)), message)
            except Unreadable as reason:
                pytest.fail(f"the program understands it, but {reason}")

    check()
    assert 0.3 < counts.share < 0.95, counts
