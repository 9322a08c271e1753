"""The reader of streams in Protocol Buffers, for `tests.fuzz.targets`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from google.protobuf import struct_pb2, timestamp_pb2
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto

from broker.wire.columns import StringColumn
from broker.wire.records import Unreadable, encode
from joiner.mapping.bulk.protobuf import ProtobufBulkReader
from joiner.mapping.fields import KafkaColumns
from joiner.mapping.framing import RegisteredSchema, SchemaTable, add_header
from joiner.mapping.reading import MappedTopic
from joiner.mapping.settings import StreamSettings
from tests.fuzz.result_targets import assert_clear
from tests.property.protobuf_data import Field, class_of, descriptors_of, file_of, kind_of

if TYPE_CHECKING:
    from tests.fuzz.mutation import Mutator

AT_S: Final = 1_700_000_000


def _file() -> Any:
    found = DescriptorProto(name="M")
    types = {".google.protobuf.Timestamp": "at", ".google.protobuf.Struct": "more", ".t.M": "inner"}
    for number, (name, kind) in enumerate((("thing", "string"), ("value", "double"), ("raw", "bytes")), 1):
        found.field.add(name=name, number=number, label=Field.LABEL_OPTIONAL, type=kind_of(kind))
    for number, (kind, name) in enumerate(types.items(), 4):
        found.field.add(name=name, number=number, label=Field.LABEL_OPTIONAL, type=Field.TYPE_MESSAGE, type_name=kind)
    found.field.add(name="many", number=7, label=Field.LABEL_REPEATED, type=Field.TYPE_MESSAGE, type_name=".t.M")
    found.field.add(name="numbers", number=8, label=Field.LABEL_REPEATED, type=Field.TYPE_SINT64)
    imports = ["google/protobuf/timestamp.proto", "google/protobuf/struct.proto"]
    return file_of(found, dependency=imports)


def _imported() -> list[Any]:
    return [FileDescriptorProto.FromString(one.DESCRIPTOR.serialized_pb) for one in (timestamp_pb2, struct_pb2)]


_FILES: Final = (*_imported(), _file())
_MESSAGE: Final = class_of(*_FILES)
_SCHEMAS: Final = SchemaTable({1: RegisteredSchema("PROTOBUF", "", descriptors=descriptors_of(*_FILES))})
_STREAMS: Final = [
    StreamSettings(name=name, topic="t", format="protobuf", key="$.thing", time="$.at", value=value, where=where)
    for name, value, where in (("speed", "$.value", None), ("torque", "$.inner.value", "$.inner.value < 0"))
]
_BULK: Final = ProtobufBulkReader(_STREAMS, "ms", _SCHEMAS)


def protobuf_message(mutator: Mutator) -> bytes:
    """Return a message with changed bytes: in it, or before it."""
    count = mutator.one_of(0, 3, 40) if not mutator.is_large() else 20_000
    message = _MESSAGE(thing="a", value=1.5, raw=b"\0\xff", numbers=[1, -2, 2**62], many=[_MESSAGE()] * count)
    message.at.FromNanoseconds(AT_S * 10**9 + 1)
    message.more.update({"a": [1, None, {"b": "c"}], "d": True})
    message.inner.value = -0.5
    data: bytes = message.SerializeToString()
    if mutator.draw.random() < 0.7:
        return add_header(1, b"\0" + mutator.data(data))
    return mutator.data(add_header(1, mutator.one_of(b"\0", b"\2\0") + data))


def read_protobuf(value: bytes) -> str:
    """Check that a message has records, or a clear reason why it has none, and as many if it is read in bulk."""
    in_bulk, is_left = _BULK.read(StringColumn.of([value]), KafkaColumns(np.array([7], dtype=np.int64)))
    try:
        found = MappedTopic(_STREAMS, "ms", _SCHEMAS).read(value, 5, 7)
    except Unreadable as error:
        assert_clear(error)
        assert is_left[0], "refused, although it can be read in bulk"
        return "refused"
    if not is_left[0]:
        assert sum(len(part.row) for parts in in_bulk for part in parts) == len(found)
    assert all(len(encode(one.record)) < 10_000 for one in found)
    return "nothing" if not found else "records" if is_left[0] else "records in bulk"
