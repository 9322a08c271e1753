"""Random Avro schemas, with data of them and the documents that they contain."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from hypothesis import strategies as st

from tests.property.varints import zigzag

NAMES: Final = ("a", "b", "c", "é")
PRIMITIVES: Final = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
LOGICAL: Final = tuple(
    {"type": "long", "logicalType": f"{local}timestamp-{unit}"}
    for local in ("", "local-")
    for unit in ("millis", "micros", "nanos")
)
DECIMALS: Final = (
    {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 3},
    {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 0, "sizes": [165, 166]},
    {"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 3},  # invalid, so it has no logical type
)
"""``sizes`` means nothing in Avro: it says how long the data are."""

TOO_LONG: Final = (
    {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 0, "sizes": [0, 166, 167]},
    {"type": "fixed", "name": "Long", "size": 167, "logicalType": "decimal", "precision": 9, "scale": 0},
)
"""Decimals whose data can be invalid."""


def chain(levels: int, inner: Any, prefix: str) -> Any:
    """Return a schema of records in each other."""
    for level in range(levels):
        inner = {"type": "record", "name": f"{prefix}{level}", "fields": [{"name": "x", "type": inner}]}
    return inner


_INNER: Final = chain(60, "long", "D")
_NAMED: Final = {"D59": _INNER}


@st.composite
def deep_schemas(draw: Draw) -> Any:
    """Draw a schema of about 100 levels. No definition in it is as deep."""
    fields = [{"name": "a", "type": _INNER}, {"name": "b", "type": chain(draw(st.integers(36, 41)), "D59", "E")}]
    return {"type": "record", "name": "Deep", "fields": fields}


Draw = Callable[..., Any]


@st.composite
def schemas(draw: Draw, depth: int = 3) -> Any:
    """Draw a schema as Python objects. Its named types have names of their own."""
    return _schema(draw, depth, [0])


def _schema(draw: Draw, depth: int, count: list[int]) -> Any:  # noqa: PLR0911 - one for each kind
    kinds = (
        ["primitive"] * 3 + ["logical", "enum", "fixed"] + (["record"] * 4 + ["union", "array", "map"]) * (depth > 0)
    )
    kind = draw(st.sampled_from(kinds))
    count[0] += 1
    name = f"T{count[0]}"
    match kind:
        case "primitive":
            return draw(st.sampled_from(PRIMITIVES))
        case "logical":
            return draw(st.sampled_from(LOGICAL + DECIMALS))
        case "enum":
            return {"type": "enum", "name": name, "symbols": ["a", "b", "long_symbol"]}
        case "fixed":
            more = {"logicalType": "decimal", "precision": 4, "scale": 1} if draw(st.booleans()) else {}
            return {"type": "fixed", "name": name, "size": draw(st.integers(0, 3)), **more}
        case "record":
            names = draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=4))
            fields = [{"name": one, "type": _schema(draw, depth - 1, count)} for one in names]
            return {"type": "record", "name": name, "namespace": "some.where", "fields": fields}
        case "union":
            branches = [_schema(draw, depth - 1, count) for _ in range(draw(st.integers(0, 2)))]
            kept = {repr(one): one for one in ["null", *branches] if not isinstance(one, list)}
            by_kind = {one if isinstance(one, str) else one.get("name", one["type"]): one for one in kept.values()}
            return draw(st.permutations([*by_kind.values()]))
        case "array":
            return {"type": "array", "items": _schema(draw, depth - 1, count)}
        case _:
            return {"type": "map", "values": _schema(draw, depth - 1, count)}


INTS: Final = st.integers(-(2**31), 2**31 - 1) | st.integers(-3, 3)
LONGS: Final = st.integers(0, 10**12) | st.integers(-(2**63), 2**63 - 1) | st.sampled_from([0, -1, 17, 1_700_000_000])
DOUBLES: Final = st.floats(allow_subnormal=True) | st.sampled_from([0.0, -0.0, 1.5, 0.1, 1e300])
TEXTS: Final = (
    st.sampled_from(["x", "y"])
    | st.text(max_size=4)
    | st.sampled_from(["", "1", "-2.5", "2024-01-01T00:00:00Z", "x" * 300])
)


def number(draw: Draw, value: int) -> bytes:
    """Return an integer with a variable length: sometimes a longer one than necessary."""
    return zigzag(value, longer=draw(st.sampled_from([0, 0, 0, 0, 1, 2])))


def datum(draw: Draw, schema: Any) -> tuple[bytes, Any]:
    """Draw a datum of a schema. Return its bytes and its document."""
    if isinstance(schema, list):
        index = draw(st.integers(0, len(schema) - 1))
        data, document = datum(draw, schema[index])
        return number(draw, index) + data, document
    schema = _NAMED.get(schema, schema) if isinstance(schema, str) else schema
    kind = schema if isinstance(schema, str) else schema["type"]
    match kind:
        case "record":
            parts = [(field["name"], *datum(draw, field["type"])) for field in schema["fields"]]
            return b"".join(data for _, data, _ in parts), {name: document for name, _, document in parts}
        case "array" | "map":
            return _blocks(draw, schema)
        case "enum":
            index = draw(st.integers(0, len(schema["symbols"]) - 1))
            return number(draw, index), schema["symbols"][index]
        case "bytes" | "fixed":
            sizes = schema.get("sizes", range(5)) if isinstance(schema, dict) else range(5)
            size = schema["size"] if kind == "fixed" else draw(st.sampled_from(sizes))
            raw = draw(st.binary(min_size=size, max_size=size))
            return (raw if kind == "fixed" else number(draw, size) + raw), _decimal(schema, raw)
    return _scalar(draw, kind)


def _decimal(schema: Any, raw: bytes) -> Any:
    is_decimal = isinstance(schema, dict) and schema.get("logicalType") == "decimal"
    if not is_decimal or schema["scale"] > schema["precision"]:
        return raw
    sign, digits, _ = Decimal(int.from_bytes(raw, "big", signed=True)).as_tuple()
    return Decimal((sign, digits, -schema["scale"]))


def _blocks(draw: Draw, schema: Any) -> tuple[bytes, Any]:
    inner = schema["items"] if schema["type"] == "array" else schema["values"]
    data, items, members = b"", [], {}
    for _ in range(draw(st.integers(0, 2))):
        block, count = b"", draw(st.integers(1, 2))
        for _ in range(count):
            if schema["type"] == "map":
                name = draw(st.sampled_from(NAMES))
                text = name.encode()
                block += number(draw, len(text)) + text
            one, document = datum(draw, inner)
            block += one
            items.append(document)
            if schema["type"] == "map":
                members[name] = document
        is_sized = draw(st.booleans())
        data += (number(draw, -count) + number(draw, len(block)) if is_sized else number(draw, count)) + block
    return data + number(draw, 0), members if schema["type"] == "map" else items


def _scalar(draw: Draw, kind: str) -> tuple[bytes, Any]:
    match kind:
        case "null":
            return b"", None
        case "boolean":
            flag = draw(st.booleans())
            return bytes([flag]), flag
        case "int" | "long":
            integer = draw(INTS if kind == "int" else LONGS)
            return number(draw, integer), integer
        case "float" | "double":
            form = "<f" if kind == "float" else "<d"
            data = struct.pack(form, draw(st.floats(width=32)) if kind == "float" else draw(DOUBLES))
            (value,) = struct.unpack(form, data)
            return data, Decimal(repr(value)) if math.isfinite(value) else value
    text = draw(TEXTS)
    data = text.encode()
    return number(draw, len(data)) + data, text
