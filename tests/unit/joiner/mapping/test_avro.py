"""What paths and conditions see of each Avro type, and what becomes of messages that are not valid."""

from __future__ import annotations

import json
import math
import struct
import warnings
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from broker.wire.columns import StringColumn
from broker.wire.records import Unreadable
from joiner.mapping.avro import schema as schema_module
from joiner.mapping.avro.program import Program
from joiner.mapping.avro.reading import DECIMAL_BYTES_MAX, decode_datum
from joiner.mapping.avro.schema import parse_schema
from joiner.mapping.bulk.avro import AvroBulkReader
from joiner.mapping.documents import DEPTH_MAX, MESSAGE_BYTES_MAX
from joiner.mapping.fields import KafkaColumns
from joiner.mapping.formats import document_decoder
from joiner.mapping.framing import SCHEMA_LENGTH_MAX, RegisteredSchema, SchemaTable, add_header, split_header
from joiner.mapping.reading import MappedTopic
from joiner.mapping.settings import StreamSettings
from tests.property.varints import zigzag

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
    data = zigzag(1) + zigzag(time) + zigzag(3)
    assert record_of(fields, data, time="$.t", time_unit="s") == ("a", time * factor, 3.0, "5")


def test_a_plain_long_is_in_the_unit_of_the_stream() -> None:
    fields = {"t": "long", "v": "int"}
    assert record_of(fields, zigzag(17) + zigzag(3), time="$.t", time_unit="s")[1] == 17 * 10**9
    assert record_of(fields, zigzag(17) + zigzag(3), time="$.t")[1] == 17 * 10**6


@pytest.mark.parametrize("kind", ["bytes", {"type": "fixed", "name": "F", "size": 3}])
def test_a_decimal_is_an_exact_number(kind: Any) -> None:
    base = kind if isinstance(kind, dict) else {"type": kind}
    schema = base | {"logicalType": "decimal", "precision": 9, "scale": 2}
    raw = (-123_456).to_bytes(3, "big", signed=True)
    data = raw if isinstance(kind, dict) else zigzag(3) + raw
    assert decoded(schema, data) == Decimal("-1234.56")
    assert record_of({"v": schema}, data)[2] == -1234.56


def test_a_decimal_has_a_limit() -> None:
    schema = logical("bytes", "decimal", precision=400, scale=0)
    for size in (DECIMAL_BYTES_MAX, DECIMAL_BYTES_MAX + 1):
        data = zigzag(size) + b"\x7f" * size
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
    data = struct.pack(form, value) + zigzag(2)
    assert record_of({"x": kind, "v": "int"}, data, where="!($.x > 1) && !($.x < 1) && $.x != 1")[2] == 2.0


@pytest.mark.parametrize(
    ("kind", "data", "condition"),
    [
        ("string", zigzag(2) + b"ok", "$.x == 'ok'"),
        ({"type": "enum", "name": "E", "symbols": ["off", "on"]}, zigzag(1), "$.x == 'on'"),
        ("boolean", b"\1", "$.x == true"),
        ("double", struct.pack("<d", 0.1), "$.x == 0.1"),
        (["null", "int"], zigzag(0), "$.x == null"),
        (
            {"type": "array", "items": "int"},
            zigzag(2) + zigzag(7) + zigzag(8) + zigzag(0),
            "$.x[1] == 8 && $.x[-2] == 7",
        ),
        ({"type": "map", "values": "int"}, zigzag(1) + zigzag(1) + b"k" + zigzag(7) + zigzag(0), "$.x.k == 7"),
        (["null", NODE], zigzag(1) + zigzag(1) + zigzag(0), "$.x.next.next == null && !$.x.next.next.next"),
        ("bytes", zigzag(1) + b"x", "$.x == $.x && $.x != 'x'"),
        (logical("int", "date"), zigzag(19_000), "$.x == 19000"),
        (logical("long", "timestamp-millis"), zigzag(17), "$.x == 17"),
    ],
)
def test_what_a_condition_sees(kind: Any, data: bytes, condition: str) -> None:
    assert record_of({"x": kind, "v": "int"}, data + zigzag(3), where=condition)[2] == 3.0
    with pytest.raises(ValueError, match="not enough values"):
        record_of({"x": kind, "v": "int"}, data + zigzag(3), where=f"!({condition})")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "the value is empty"),
        (b"{}", "does not begin with the byte 0"),
        (b"\0\0\0\0", "it has 4 bytes, too few for the byte 0 and the id of a schema"),
        (b"\0" * (MESSAGE_BYTES_MAX + 1), "more than 1048576"),
        (add_header(1, b""), "not Avro of the schema 1: the data end too early"),
        (add_header(1, zigzag(3) + b"ab"), "3 bytes should follow byte 1, but there are 2"),
        (add_header(1, zigzag(-1)), "-1 bytes should follow byte 1"),
        (add_header(1, zigzag(2**62)), "bytes should follow byte"),
        (add_header(1, zigzag(1) + b"\xff"), "a string is not UTF-8"),
        (add_header(1, zigzag(1) + b"ab"), "1 bytes follow the data"),
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
        ("int", zigzag(2**31), "more than 32 bits"),
        (["null"], zigzag(1), "a union with 1 branches has the branch 1"),
        ({"type": "enum", "name": "E", "symbols": ["a"]}, zigzag(-1), "an enum with 1 symbols has the value -1"),
        (NODE, zigzag(1) * DEPTH_MAX + zigzag(0), "nested more than 100 levels deep"),
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
    assert decode_datum(parse_schema(outer, (inner,)), zigzag(0)) == {"e": "a"}
    assert decode_datum(parse_schema('"x.E"', (inner,)), zigzag(0)) == "a"


@pytest.mark.parametrize("schema", [NODE, {"type": "array", "items": NODE}])
def test_a_record_that_contains_itself_has_no_program(schema: Any) -> None:
    with pytest.raises(ValueError, match="contains itself"):
        Program(parse_schema(json.dumps(schema)), [])


def test_a_record_that_is_in_many_places_does_not_make_the_program_endless() -> None:
    schema: Any = {"type": "record", "name": "R0", "fields": [{"name": f"v{n}", "type": "int"} for n in range(13)]}
    for level in range(1, 10):
        fields = [{"name": "one", "type": schema}, {"name": "two", "type": f"R{level - 1}"}]
        schema = {"type": "record", "name": f"R{level}", "fields": fields}
    with pytest.raises(ValueError, match="more than 5000 instructions"):
        Program(parse_schema(json.dumps(schema)), [])


def nested(levels: int, inner: Any, prefix: str) -> Any:
    for level in range(levels):
        inner = {"type": "record", "name": f"{prefix}{level}", "fields": [{"name": "x", "type": inner}]}
    return inner


def run_alike(schema: Any, data: bytes) -> bool:
    """Return whether a program understands data. Check that only valid data are understood."""
    parsed = parse_schema(json.dumps(schema))
    is_read = bool(Program(parsed, []).run(StringColumn.of([data])).is_read[0])
    if is_read:
        decode_datum(parsed, data)
    return is_read


def test_a_schema_that_is_nested_too_deeply_has_no_program() -> None:
    # Each definition is within the limit, but they contain each other.
    fields = [nested(60, "long", "A"), nested(DEPTH_MAX - 61, "A59", "B"), nested(1, f"B{DEPTH_MAX - 62}", "C")]
    for count, is_deep in ((2, False), (3, True)):
        schema = {"type": "record", "name": "R", "fields": [{"name": f"f{n}", "type": fields[n]} for n in range(count)]}
        data = zigzag(5) * count
        if is_deep:
            with pytest.raises(ValueError, match="nested too deeply"):
                run_alike(schema, data)
            with pytest.raises(Unreadable, match="nested more than 100 levels deep"):
                decoded(schema, data)
        else:
            assert run_alike(schema, data)


def test_a_chain_of_any_length_has_no_program_and_is_not_decoded() -> None:
    chain = [nested(1, "long" if not n else f"T{n - 1}_0", f"T{n}_") for n in range(3_000)]
    last = {"type": "record", "name": "R", "fields": [{"name": "x", "type": "T2999_0"}]}
    # Of several thousand levels, so their types are more than a schema can have.
    with pytest.raises(ValueError, match="more than 10000 types"):
        parse_schema(json.dumps([*chain, last]))
    few = parse_schema(json.dumps(last).replace("2999", "120"), tuple(json.dumps(one) for one in chain[:121]))
    with pytest.raises(ValueError, match="nested too deeply"):
        Program(few, [])
    with pytest.raises(Unreadable, match="nested more than 100 levels deep"):
        decode_datum(few, zigzag(5))


@pytest.mark.parametrize("size", [DECIMAL_BYTES_MAX, DECIMAL_BYTES_MAX + 1])
def test_the_limit_of_decimals_applies_to_those_that_nobody_needs(size: int) -> None:
    is_valid = size == DECIMAL_BYTES_MAX
    schema = logical("bytes", "decimal", precision=400, scale=0)
    assert run_alike(schema, zigzag(size) + b"\x7f" * size) is is_valid
    assert run_alike("bytes", zigzag(size) + b"\x7f" * size)
    fixed = schema | {"type": "fixed", "name": "F", "size": size}
    if is_valid:
        assert run_alike(fixed, b"\x7f" * size)
    else:
        with pytest.raises(ValueError, match="a decimal of more than 166 bytes"):
            run_alike(fixed, b"\x7f" * size)


def doubled(levels: int) -> Any:
    found: Any = {"type": "record", "name": "D0", "fields": [{"name": "z", "type": "null"}]}
    for level in range(1, levels):
        pair = [{"name": "a", "type": found}, {"name": "b", "type": f"D{level - 1}"}]
        found = {"type": "record", "name": f"D{level}", "fields": pair}
    return found


def test_a_schema_is_as_large_as_what_it_describes() -> None:
    assert parse_schema(json.dumps(doubled(12))).count == 3 * 2**11 - 1
    with pytest.raises(ValueError, match="more than 10000 types"):
        parse_schema(json.dumps(doubled(16)))


def test_the_number_of_values_is_in_proportion_to_the_data() -> None:
    wide = {"type": "record", "name": "R", "fields": [{"name": f"f{n}", "type": "null"} for n in range(99)]}
    schema = {"type": "array", "items": wide}
    for count, is_valid in ((1, True), (1000, False)):
        data = zigzag(count) + zigzag(0)
        if is_valid:
            assert len(decoded(schema, data)) == count
        else:
            with pytest.raises(Unreadable, match="more than 4 values for each byte"):
                decoded(schema, data)
            assert not run_alike(schema, data)
    pairs = {"type": "array", "items": {"type": "record", "name": "P", "fields": [{"name": "a", "type": "boolean"}]}}
    assert run_alike(pairs, zigzag(500) + b"\1" * 500 + zigzag(0))


@pytest.mark.parametrize(
    "text",
    ['{"type":"fixed","name":"F","size":1e999}', "[" * 100_000, '{"type":' * 90 + '"int"', '"\\ud800"', "3", "{}"],
)
def test_a_schema_is_refused_with_one_kind_of_error(text: str) -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match=r"schema|line 1"):
            parse_schema(text)


def test_a_schema_that_was_refused_is_not_parsed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="does not define the type 'never_seen'"):
            parse_schema('"never_seen"')
        monkeypatch.setattr(schema_module, "_parse", None)


def test_the_caller_may_be_deep_in_calls() -> None:
    text = json.dumps(nested(95, "long", "Deep"))

    def parse_at(depth: int) -> str:
        return parse_at(depth - 1) if depth else parse_schema(text).kind

    assert parse_at(200) == "record"


def test_a_type_may_be_defined_twice_only_alike() -> None:
    one = {"type": "record", "name": "A", "fields": [{"name": "x", "type": "int"}]}
    other = {"type": "record", "name": "A", "fields": [{"name": "x", "type": "long"}]}
    both = {"type": "record", "name": "R", "fields": [{"name": "a", "type": one}, {"name": "b", "type": one}]}
    documented = one | {"doc": "what it is"}
    assert decode_datum(parse_schema(json.dumps(both), (json.dumps(documented),)), bytes([2, 4])) == {
        "a": {"x": 1},
        "b": {"x": 2},
    }
    with pytest.raises(ValueError, match="defines the type 'A' twice, and differently"):
        parse_schema(json.dumps(both), (json.dumps(other),))


def test_json_with_the_id_of_a_schema_is_json() -> None:
    decode = document_decoder("json_schema", SchemaTable())
    assert decode(add_header(7, b'{"a": 1.5}')) == {"a": Decimal("1.5")}
    with pytest.raises(Unreadable, match="not JSON"):
        decode(add_header(7, b"{"))
    with pytest.raises(Unreadable, match="does not begin with the byte 0"):
        decode(b'{"a": 1.5}')


def test_a_header_can_be_read_back() -> None:
    assert split_header(add_header(2**32 - 1, b"x")) == (2**32 - 1, b"x")


def test_a_signalling_nan_is_read_without_a_warning() -> None:
    given = {"type": "record", "name": "R", "fields": [{"name": "v", "type": "float"}]}
    table = SchemaTable({1: RegisteredSchema("AVRO", json.dumps(given))})
    stream = {"name": "s", "topic": "t", "format": "avro", "key": "'a'", "time": "kafka.timestamp", "value": "$.v"}
    reader = AvroBulkReader([StreamSettings.model_validate(stream)], "ms", table)
    values = StringColumn.of([add_header(1, b"\x01\x00\x80\x7f")])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found, is_left = reader.read(values, KafkaColumns(np.array([7])))
    assert (found, is_left.tolist()) == ([[]], [True])
