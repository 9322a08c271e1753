"""Are many messages read at once within limits?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto

from broker.wire.columns import StringColumn
from joiner.mapping.bulk import readers
from joiner.mapping.bulk.protobuf import ProtobufBulkReader
from joiner.mapping.fields import KafkaColumns
from joiner.mapping.framing import RegisteredSchema, SchemaTable, add_header
from joiner.mapping.layouts import Found
from joiner.mapping.protobuf.program import Program
from joiner.mapping.settings import StreamSettings
from tests.property.protobuf_data import Field, descriptors_of, file_of, kind_of

BRANCHES = 1_000


def branching() -> Any:
    """Return a file with a message that contains one with so many messages that can be absent."""
    outer, inner = DescriptorProto(name="M"), DescriptorProto(name="Inner")
    for number, (name, kind) in enumerate((("a", "string"), ("b", "int64"), ("c", "double")), 1):
        outer.field.add(name=name, number=number, label=Field.LABEL_OPTIONAL, type=kind_of(kind))
    message = {"label": Field.LABEL_OPTIONAL, "type": Field.TYPE_MESSAGE}
    outer.field.add(name="d", number=4, type_name=".t.Inner", **message)
    for number in range(1, BRANCHES + 1):
        inner.field.add(name=f"x{number}", number=number, type_name=".t.Empty", **message)
    return file_of(outer, inner, DescriptorProto(name="Empty"))


def test_many_messages_with_many_branches_are_located_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    located: list[Found] = []
    run = Program.run

    def noted(self: Program, data: StringColumn) -> Found:
        located.append(run(self, data))
        return located[-1]

    monkeypatch.setattr(Program, "run", noted)
    stream = StreamSettings(
        name="s", topic="t", format="protobuf", key="$.a", time="$.b", value="$.c", where="$.d == $.d"
    )
    table = SchemaTable({1: RegisteredSchema("PROTOBUF", "", descriptors=descriptors_of(branching()))})
    value = add_header(1, b"\0\x0a\x01a\x10\x01\x22\x00")
    count = 2_000
    found, is_left = ProtobufBulkReader([stream], "ms", table).read(
        StringColumn.of([value] * count), KafkaColumns(np.zeros(count, dtype=np.int64))
    )
    assert not is_left.any()
    assert sum(len(part.row) for part in found[0]) == count
    assert sum(len(one.is_read) for one in located) == count
    # A scalar takes two numbers, and a branch one.
    assert max(one.spans.size + one.branches.size for one in located) <= 2 * vars(readers)["_SPANS_MAX"]
