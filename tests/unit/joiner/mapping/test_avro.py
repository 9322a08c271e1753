"""What paths and conditions see of each Avro type, and what becomes of messages that are not valid."""

from __future__ import annotations

import json
import math
import struct
from decimal import Decimal
from typing import Any

import pytest

from broker.wire.records import Unreadable
from joiner.mapping.avro.program import Program
from joiner.mapping.avro.reading import DECIMAL_BYTES_MAX, decode_datum
from joiner.mapping.avro.schema import SCHEMA_LENGTH_MAX, parse_schema
from joiner.mapping.documents import DEPTH_MAX, MESSAGE_BYTES_MAX
from joiner.mapping.formats import document_decoder
from joiner.mapping.framing import RegisteredSchema, SchemaTable, add_header, split_header
from joiner.mapping.reading import MappedTopic
from joiner.mapping.settings import StreamSettings
from tests.property.avro_data import varint

NODE = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


def decoded(schema: Any, data: bytes) -> Any:
    return decode_datum(parse_schema(json.dumps(schema)), data)


def record_of(fields: dict[str, Any], data: bytes, **stream: Any) -> tuple[str, int, float, str]:
    """Return the thing, the time in ns, the value and the id of the record that a stream has in a message."""
    schema = {"type": "record", "name": "R", "fields": [{"name": n, "type": t} for n, t in fields.items()]}
    table = SchemaTable({1: RegisteredSchema("AVRO", json.dumps(schema))})
    usual = {"name": "s", "topic": "t", "format": "avro", "key": "'a'", "time": "kafka.timestamp", "value": "$.v"}
    topic = MappedTopic([StreamSettings.model_validate(usual | stream)], "ms", table)
    ((record, ts_ns),) = topic.read(add_header(1, data), 5, 7)
    return record.thing, ts_ns, record.result, record.id


@pytest.mark.parametrize("local", ["", "local-"])
@pytest.mark.parametrize(("unit", "factor"), [("millis", 10**6), ("micros", 10**3), ("nanos", 1)])
def test_a_timestamp_is_exact_and_knows_its_unit(unit: str, factor: int, local: str) -> None:
    time = 1_700_000_000_000_000_001 // factor
    fields = {"t": ["null", logical("long", f"{local}timestamp-{unit}")], "v": "long"}
    data = varint(1) + varint(time) + varint(3)
    assert record_of(fields, data, time="$.t", time_unit="s") == ("a", time * factor, 3.0, "5")


def test_a_plain_long_is_in_the_unit_of_the_stream() -> None:
    fields = {"t": "long", "v": "int"}
    assert record_of(fields, varint(17) + varint(3), time="$.t", time_unit="s")[1] == 17 * 10**9
    assert record_of(fields, varint(17) + varint(3), time="$.t")[1] == 17 * 10**6


@pytest.mark.parametrize("kind", ["bytes", {"type": "fixed", "name": "F", "size": 3}])
def test_a_decimal_is_an_exact_number(kind: Any) -> None:
    base = kind if isinstance(kind, dict) else {"type": kind}
    schema = base | {"logicalType": "decimal", "precision": 9, "scale": 2}
    raw = (-123_456).to_bytes(3, "big", signed=True)
    data = raw if isinstance(kind, dict) else varint(3) + raw
    assert decoded(schema, data) == Decimal("-1234.56")
    assert record_of({"v": schema}, data)[2] == -1234.56


def test_a_decimal_has_a_limit() -> None:
    schema = logical("bytes", "decimal", precision=400, scale=0)
    for size in (DECIMAL_BYTES_MAX, DECIMAL_BYTES_MAX + 1):
        data = varint(size) + b"\x7f" * size
        if size > DECIMAL_BYTES_MAX:
            with pytest.raises(Unreadable, match="a decimal has 167 bytes"):
                decoded(schema, data)
        else:
            assert len(str(decoded(schema, data))) == 400


def test_the_value_of_a_float_is_the_double_that_equals_it() -> None:
    assert record_of({"v": "float"}, struct.pack("<f", 0.1))[2] == struct.unpack("<f", struct.pack("<f", 0.1))[0]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(("kind", "form"), [("double", "<d"), ("float", "<f")])
def test_a_value_that_is_not_finite_is_rejected(value: float, kind: str, form: str) -> None:
    with pytest.raises(Unreadable, match=r"value at \$\.v: (nan|inf|-inf) is not a finite number"):
        record_of({"v": kind}, struct.pack(form, value))
    # Elsewhere, it does not matter, and is in no order with numbers.
    data = struct.pack(form, value) + varint(2)
    assert record_of({"x": kind, "v": "int"}, data, where="!($.x > 1) && !($.x < 1) && $.x != 1")[2] == 2.0


@pytest.mark.parametrize(
    ("kind", "data", "condition"),
    [
        ("string", varint(2) + b"ok", "$.x == 'ok'"),
        ({"type": "enum", "name": "E", "symbols": ["off", "on"]}, varint(1), "$.x == 'on'"),
        ("boolean", b"\1", "$.x == true"),
        ("double", struct.pack("<d", 0.1), "$.x == 0.1"),
        (["null", "int"], varint(0), "$.x == null"),
        (
            {"type": "array", "items": "int"},
            varint(2) + varint(7) + varint(8) + varint(0),
            "$.x[1] == 8 && $.x[-2] == 7",
        ),
        ({"type": "map", "values": "int"}, varint(1) + varint(1) + b"k" + varint(7) + varint(0), "$.x.k == 7"),
        (["null", NODE], varint(1) + varint(1) + varint(0), "$.x.next.next == null && !$.x.next.next.next"),
        ("bytes", varint(1) + b"x", "$.x == $.x && $.x != 'x'"),
        (logical("int", "date"), varint(19_000), "$.x == 19000"),
        (logical("long", "timestamp-millis"), varint(17), "$.x == 17"),
    ],
)
def test_what_a_condition_sees(kind: Any, data: bytes, condition: str) -> None:
    assert record_of({"x": kind, "v": "int"}, data + varint(3), where=condition)[2] == 3.0
    with pytest.raises(ValueError, match="not enough values"):
        record_of({"x": kind, "v": "int"}, data + varint(3), where=f"!({condition})")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "the value is empty"),
        (b"{}", "does not begin with the byte 0"),
        (b"\0\0\0\0", "it has 4 bytes, too few for the byte 0 and the id of a schema"),
        (b"\0" * (MESSAGE_BYTES_MAX + 1), "more than 1048576"),
        (add_header(1, b""), "not Avro of the schema 1: the data end too early"),
        (add_header(1, varint(3) + b"ab"), "3 bytes should follow byte 1, but there are 2"),
        (add_header(1, varint(-1)), "-1 bytes should follow byte 1"),
        (add_header(1, varint(2**62)), "bytes should follow byte"),
        (add_header(1, varint(1) + b"\xff"), "a string is not UTF-8"),
        (add_header(1, varint(1) + b"ab"), "1 bytes follow the data"),
        (add_header(1, b"\xff" * 10), "has more than 64 bits"),
        (add_header(2, b""), "the schema registry has no schema with the id 2"),
        (add_header(3, b""), "the schema 3 is not of the type AVRO, but PROTOBUF"),
        (add_header(4, b""), "the schema 4 cannot be used: the schema does not define the type 'Other'"),
    ],
)
def test_what_cannot_be_decoded_says_why(value: bytes, reason: str) -> None:
    table = SchemaTable(
        {
            1: RegisteredSchema("AVRO", '"string"'),
            3: RegisteredSchema("PROTOBUF", "syntax"),
            4: RegisteredSchema("AVRO", '"Other"'),
        }
    )
    with pytest.raises(Unreadable) as refused:
        document_decoder("avro", table)(value)
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("schema", "data", "reason"),
    [
        ("boolean", b"\2", "neither true nor false"),
        ("int", varint(2**31), "more than 32 bits"),
        (["null"], varint(1), "a union with 1 branches has the branch 1"),
        ({"type": "enum", "name": "E", "symbols": ["a"]}, varint(-1), "an enum with 1 symbols has the value -1"),
        (NODE, varint(1) * DEPTH_MAX + varint(0), "nested more than 100 levels deep"),
    ],
)
def test_each_type_is_checked(schema: Any, data: bytes, reason: str) -> None:
    with pytest.raises(Unreadable, match=reason):
        decoded(schema, data)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "Expecting"),
        ("5", "not one of Avro"),
        ('{"type": "record", "name": "R"}', "not one of Avro: KeyError"),
        ('{"type": "array"}', "not one of Avro: KeyError"),
        ("[]", "a union that is empty"),
        ('["null", ["int"]]', "contains a union"),
        ('{"type": "enum", "name": "E", "symbols": ["a b"]}', "symbols that Avro does not allow"),
        ('{"type": "fixed", "name": "F", "size": -1}', "a fixed of -1 bytes"),
        (f'{{"type": "fixed", "name": "F", "size": {10**30}}}', "a fixed of 1000"),
        ('{"type": "array", "items": ' * 200 + '"int"' + "}" * 200, "more than 100 levels deep"),
        ('{"type": "array", "items": ' * 30_000, "100 levels deep|Expecting"),
        (" " * (SCHEMA_LENGTH_MAX + 1), "more than 1048576 characters"),
        (json.dumps(["null"] * 20_000), "more than 10000 types"),
    ],
)
def test_a_schema_that_cannot_be_used_says_why(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_schema(text)


def test_a_schema_uses_the_types_of_those_that_it_refers_to() -> None:
    inner = '{"type": "enum", "name": "E", "namespace": "x", "symbols": ["a"]}'
    outer = '{"type": "record", "name": "R", "namespace": "x", "fields": [{"name": "e", "type": "E"}]}'
    assert decode_datum(parse_schema(outer, (inner,)), varint(0)) == {"e": "a"}
    assert decode_datum(parse_schema('"x.E"', (inner,)), varint(0)) == "a"


@pytest.mark.parametrize("schema", [NODE, {"type": "array", "items": NODE}])
def test_a_record_that_contains_itself_has_no_program(schema: Any) -> None:
    with pytest.raises(ValueError, match="contains itself"):
        Program(parse_schema(json.dumps(schema)), [])


def test_a_record_that_is_in_many_places_does_not_make_the_program_endless() -> None:
    schema: Any = {"type": "record", "name": "R0", "fields": [{"name": "v", "type": "int"}]}
    for level in range(1, 30):
        fields = [{"name": "one", "type": schema}, {"name": "two", "type": f"R{level - 1}"}]
        schema = {"type": "record", "name": f"R{level}", "fields": fields}
    with pytest.raises(ValueError, match="more than 5000 instructions"):
        Program(parse_schema(json.dumps(schema)), [])


def test_json_with_the_id_of_a_schema_is_json() -> None:
    decode = document_decoder("json_schema", SchemaTable())
    assert decode(add_header(7, b'{"a": 1.5}')) == {"a": Decimal("1.5")}
    with pytest.raises(Unreadable, match="not JSON"):
        decode(add_header(7, b"{"))
    with pytest.raises(Unreadable, match="does not begin with the byte 0"):
        decode(b'{"a": 1.5}')


def test_a_header_can_be_read_back() -> None:
    assert split_header(add_header(2**32 - 1, b"x")) == (2**32 - 1, b"x")
