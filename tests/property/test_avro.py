"""For any schema and any data, Avro messages are read alike one by one, in bulk, and by another implementation."""

from __future__ import annotations

import contextlib
import io
import json
import math
import struct
from decimal import Decimal
from typing import Any, Final

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.wire.columns import StringColumn
from broker.wire.records import Unreadable
from joiner.mapping.avro.program import Program
from joiner.mapping.avro.reading import decode_datum
from joiner.mapping.avro.schema import parse_schema
from joiner.mapping.framing import RegisteredSchema, SchemaTable, add_header
from tests.property.avro_data import NAMES, TOO_LONG, datum, deep_schemas, schemas
from tests.property.bulk_reading import Counts, assert_read_alike, damaged, plain
from tests.property.varints import zigzag


@given(st.data())
def test_a_datum_is_decoded_to_what_it_was_made_from(data: st.DataObject) -> None:
    schema = data.draw(schemas())
    encoded, document = datum(data.draw, schema)
    assert plain(decode_datum(parse_schema(json.dumps(schema)), encoded)) == plain(document)


def without_logical_types(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {name: without_logical_types(one) for name, one in schema.items() if name != "logicalType"}
    return [without_logical_types(one) for one in schema] if isinstance(schema, list) else schema


@given(st.data())
def test_another_implementation_reads_the_same(data: st.DataObject) -> None:
    schema = without_logical_types(data.draw(schemas()))
    encoded, _ = datum(data.draw, schema)
    theirs = fastavro.schemaless_reader(io.BytesIO(encoded), fastavro.parse_schema(schema), None)
    ours = decode_datum(parse_schema(json.dumps(schema)), encoded)
    # The shortest decimal number that identifies a double.
    assert plain(ours) == plain(shortest(theirs))


def shortest(document: Any) -> Any:
    if isinstance(document, dict):
        return {name: shortest(one) for name, one in document.items()}
    if isinstance(document, list):
        return [shortest(one) for one in document]
    return Decimal(repr(document)) if isinstance(document, float) and math.isfinite(document) else document


@given(st.data(), st.binary(max_size=60))
def test_whatever_the_data_are_they_are_a_datum_or_unreadable(data: st.DataObject, noise: bytes) -> None:
    schema = parse_schema(json.dumps(data.draw(schemas())))
    with contextlib.suppress(Unreadable):
        decode_datum(schema, noise)


SEGMENTS: Final = st.lists(st.sampled_from(NAMES) | st.integers(-1, 1), max_size=3)
HOSTILE: Final = (
    *(b"\xff" * 9 + b"\x01", b"\xff" * 9 + b"\x7f", b"\x80" * 9 + b"\x01", b"\xff"),
    *(zigzag(2**62), zigzag(-1)),
)


def path_of(segments: list[Any]) -> str:
    return "$" + "".join(f"[{one}]" if isinstance(one, int) else f"['{one}']" for one in segments)


OTHERS: Final = (None, b"", b"\0", b"\0\0\0\0", b"{}", add_header(99, b"\0"), add_header(98, b""))
"""What the topic contains besides messages of a known schema."""


@st.composite
def topics(draw: st.DrawFn) -> tuple[dict[int, Any], list[dict[str, Any]]]:
    """Draw schemas that have usable fields more often than random ones, and streams that read them."""
    key: list[Any] = ["string", "int", {"type": "enum", "name": "K", "symbols": ["a", "b"]}, ["null", "string"]]
    timestamp = {"type": "long", "logicalType": "timestamp-micros"}
    time: list[Any] = ["long", "int", timestamp, timestamp, ["null", timestamp, "double"], "string"]
    value: list[Any] = ["double", "float", "long", "int", ["null", "double"], ["int", "string", "float", "boolean"]]
    found: dict[int, Any] = {}
    for number in range(1, draw(st.integers(1, 2)) + 1):
        fields = [
            {"name": name, "type": draw(st.sampled_from(kinds))}
            for name, kinds in (("a", key), ("b", time), ("c", value))
        ]
        match draw(st.integers(0, 7)):
            case 0 | 1 as which:  # usual in all else, so that they are read in bulk
                fields = [{"name": name, "type": kind} for name, kind in (("a", key[2]), ("b", "int"), ("c", "int"))]
                other: Any = draw(deep_schemas() if which else st.sampled_from(TOO_LONG))
            case _:
                other = draw(schemas(depth=2))
        fields.insert(draw(st.integers(0, 3)), {"name": "é", "type": other})
        whole: Any = {"type": "record", "name": "R", "fields": fields}
        found[number] = whole if draw(st.integers(0, 9)) else draw(schemas())
    if not draw(st.integers(0, 9)):  # more than are read in bulk
        for number in range(len(found) + 1, 12):
            like = found[draw(st.sampled_from([*found]))]
            found[number] = like | {"doc": str(number)} if isinstance(like, dict) else like
    usual = {"key": "$.a", "time": "$.b", "value": "$.c"}
    stream = {name: path_of(draw(SEGMENTS)) if not draw(st.integers(0, 15)) else path for name, path in usual.items()}
    stream["key"] = "'a'" if draw(st.booleans()) else stream["key"]
    condition = draw(st.sampled_from(["$.c", "$.c != null", "$.a == 'a'", "$['é']", "$['é'] == $.a", "$.c > 1 || $.b"]))
    identity = {"id": draw(st.sampled_from(["$.a", "$.a", path_of(draw(SEGMENTS))]))} if draw(st.booleans()) else {}
    second = {**stream, **identity, "name": "torque", **({"where": condition} if draw(st.booleans()) else {})}
    first = {**stream, "name": "speed"} | ({} if draw(st.booleans()) else {"where": "$.c != null"})
    return found, [{"topic": "t", "format": "avro", **one} for one in (first, second)]


def check_bulk_reading(draw: Any, topic: tuple[dict[int, Any], list[dict[str, Any]]]) -> Counts:
    """Read messages of a topic in both ways. Return how many have been read in bulk, and how many one by one."""
    drawn, streams = topic
    table = SchemaTable(
        {
            **{number: RegisteredSchema("AVRO", json.dumps(schema)) for number, schema in drawn.items()},
            98: RegisteredSchema("JSON", "{}"),
        }
    )
    values = []
    more = draw(st.lists(st.sampled_from([*drawn]), max_size=3))
    for number in [*drawn, *more]:
        message = add_header(number, datum(draw, drawn[number])[0])
        # Conditions are evaluated in bulk only if many messages have the same values.
        values += [damaged(draw, message, HOSTILE, OTHERS) for _ in range(draw(st.integers(1, 9)))]
    return assert_read_alike(streams, table, values)


def test_messages_are_read_in_bulk_as_one_by_one() -> None:
    counts = Counts()

    @given(topics(), st.data())
    @settings(max_examples=300)
    def check(topic: tuple[dict[int, Any], list[dict[str, Any]]], data: st.DataObject) -> None:
        nonlocal counts
        counts = counts.plus(check_bulk_reading(data.draw, topic))

    check()
    # Otherwise, this would hardly compare anything. Random runs differ: 0.22 on average, standard deviation 0.04.
    assert 0.05 < counts.share < 0.95, counts


@given(st.data())
def test_what_a_program_understands_is_valid(data: st.DataObject) -> None:
    schema = data.draw(schemas() | st.sampled_from(TOO_LONG) | deep_schemas())
    encoded = damaged(data.draw, datum(data.draw, schema)[0], HOSTILE, OTHERS)
    parsed = parse_schema(json.dumps(schema))
    with contextlib.suppress(ValueError):  # there is no program
        if encoded is not None and Program(parsed, []).run(StringColumn.of([encoded])).is_read[0]:
            try:
                decode_datum(parsed, encoded)
            except Unreadable as reason:
                pytest.fail(f"the program understands it, but {reason}")


def test_an_array_has_few_items_for_each_byte_of_its_data() -> None:
    schema = parse_schema('{"type": "array", "items": "null"}')
    assert decode_datum(schema, zigzag(10) + zigzag(0)) == [None] * 10
    for count in (11, 2**62):
        with pytest.raises(Unreadable, match="more than 4 values for each byte of the data"):
            decode_datum(schema, zigzag(count) + zigzag(0))


def test_a_float_is_the_double_that_equals_it() -> None:
    (wanted,) = struct.unpack("<f", struct.pack("<f", 0.1))
    assert float(decode_datum(parse_schema('"float"'), struct.pack("<f", 0.1))) == wanted != 0.1
