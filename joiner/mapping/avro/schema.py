"""Parses Avro schemas. The types of a schema are a graph, because a record can contain itself."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from joiner.mapping.documents import DEPTH_MAX, is_deeper
from joiner.mapping.framing import SCHEMA_LENGTH_MAX, SizedCache

TYPES_MAX: Final = 10_000
"""The maximum number of types in a schema, counted again in each place where they are used."""

_BRACKETS_MAX: Final = 3 * DEPTH_MAX
"""How deeply brackets can be nested. A record in a record is nested three brackets deeper."""

SIZE_MAX: Final = 2**31 - 1
"""The maximum size of a fixed in bytes."""

SCALE_MAX: Final = 400
"""The maximum scale of a decimal. With a larger one, the logical type is ignored."""

KEPT_MAX: Final = 1_000
"""How many schemas are kept after parsing. The oldest are forgotten."""

KEPT_BYTES_MAX: Final = 64 * 1024 * 1024
"""The maximum size of all these schemas, roughly: a byte for each character, and `_TYPE_BYTES` for each type."""

_TYPE_BYTES: Final = 500

PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})

_REASON_LENGTH_MAX: Final = 300

_NOT_COMPARED: Final = frozenset({"doc", "aliases"})
"""What two definitions of the same type can differ in."""

_SYMBOL: Final = re.compile("[A-Za-z_][A-Za-z0-9_]*")

_TIME_UNITS: Final = {
    f"{prefix}timestamp-{name}": unit
    for prefix in ("", "local-")
    for name, unit in (("millis", "ms"), ("micros", "us"), ("nanos", "ns"))
}


@dataclass(eq=False)
class AvroType:
    """A type. ``kind``: the name of a primitive or complex type, or ``union``.

    ``time_unit``: of a timestamp (a key of `broker.times.UNIT_NS`), otherwise empty. ``scale``: of a decimal, otherwise
    None. ``size``: of a fixed. ``symbols``: of an enum. ``fields``: of a record. ``items``: what an array or a map
    contains. ``branches``: of a union. ``count``: how many types it consists of, counted in each place where they are
    used; a type that contains itself counts as one inside of itself. ``read``: the function that reads it, once
    `reading` has made one.
    """

    kind: str
    time_unit: str = ""
    scale: int | None = None
    size: int = 0
    symbols: tuple[str, ...] = ()
    fields: list[tuple[str, AvroType]] = field(default_factory=list)
    items: AvroType | None = None
    branches: list[AvroType] = field(default_factory=list)
    count: int = 1
    read: Callable[[Any], Any] | None = None


_schemas: Final[SizedCache[AvroType | str]] = SizedCache(KEPT_BYTES_MAX, KEPT_MAX)
"""What schemas describe, or why they are none: each message would find that out again."""


def parse_schema(text: str, references: tuple[str, ...] = ()) -> AvroType:
    """Parse a schema. ``references``: the schemas whose types it uses, each after those whose types it uses itself.

    Raises ValueError if it is invalid or too large.
    """
    found = _schemas.get((text, references))
    if found is None:
        found = _parsed(text, references)
        size = len(text) + sum(map(len, references)) + (0 if isinstance(found, str) else _TYPE_BYTES * found.count)
        _schemas.put((text, references), found, size)
    if isinstance(found, str):
        raise ValueError(found)  # noqa: TRY004 - the schema has the wrong value, not a wrong type
    return found


def _parsed(text: str, references: tuple[str, ...]) -> AvroType | str:
    """Return the type that a schema describes, or why there is none."""
    try:
        return _parse(text, references)
    except ValueError as error:
        return str(error)[:_REASON_LENGTH_MAX]
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        return f"the schema is not one of Avro: {type(error).__name__}: {error}"[:_REASON_LENGTH_MAX]


def _parse(text: str, references: tuple[str, ...]) -> AvroType:
    if len(text) + sum(map(len, references)) > SCHEMA_LENGTH_MAX:
        message = f"the schema has more than {SCHEMA_LENGTH_MAX} characters"
        raise ValueError(message)
    parser = _Parser()
    for reference in references:
        parser.parse(_loaded(reference), "", 0)
    return parser.parse(_loaded(text), "", 0)


def _loaded(text: str) -> Any:
    # Checked before decoding: the parser's own limit depends on the caller's stack.
    if is_deeper(text.encode("utf-8", "surrogatepass"), _BRACKETS_MAX):
        message = f"the schema is nested more than {DEPTH_MAX} levels deep"
        raise ValueError(message)
    return json.loads(text)


class _Parser:
    def __init__(self) -> None:
        self._named: dict[str, AvroType] = {}
        # By the same names: what the types were made from.
        self._definitions: dict[str, Any] = {}
        self._count = 0

    def parse(self, given: Any, namespace: str, depth: int) -> AvroType:
        """Return the type that a part of a schema describes."""
        self._count += 1
        if self._count > TYPES_MAX:
            message = f"the schema has more than {TYPES_MAX} types"
            raise ValueError(message)
        if depth > DEPTH_MAX:
            message = f"the schema is nested more than {DEPTH_MAX} levels deep"
            raise ValueError(message)
        if isinstance(given, str):
            return AvroType(given) if given in PRIMITIVES else self._known(given, namespace)
        if isinstance(given, list):
            return self._union(given, namespace, depth)
        kind = given["type"]
        if not isinstance(kind, str):
            return self.parse(kind, namespace, depth + 1)
        if kind in {"record", "error", "enum", "fixed"}:
            return self._named_type(kind, given, namespace, depth)
        if kind in {"array", "map"}:
            inner = given["items" if kind == "array" else "values"]
            items = self.parse(inner, namespace, depth + 1)
            return AvroType(kind, items=items, count=_counted([items]))
        found = self.parse(kind, namespace, depth + 1)
        return _with_logical_type(found, given) if kind in PRIMITIVES else found

    def _known(self, name: str, namespace: str) -> AvroType:
        for full in (_full_name(name, namespace), name):
            if full in self._named:
                return self._named[full]
        message = f"the schema does not define the type {name[:100]!r}"
        raise ValueError(message)

    def _union(self, given: Sequence[Any], namespace: str, depth: int) -> AvroType:
        branches = [self.parse(one, namespace, depth + 1) for one in given]
        if not branches or any(branch.kind == "union" for branch in branches):
            message = "the schema has a union that is empty or contains a union"
            raise ValueError(message)
        return AvroType("union", branches=branches, count=_counted(branches))

    def _named_type(self, kind: str, given: dict[str, Any], namespace: str, depth: int) -> AvroType:
        name, own = str(given["name"]), given.get("namespace")
        full = _full_name(name, namespace if own is None else str(own))
        if full in self._named:
            if not _is_same(self._definitions[full], given):
                message = f"the schema defines the type {full[:100]!r} twice, and differently"
                raise ValueError(message)
            return self._named[full]
        found = self._named[full] = AvroType("record" if kind == "error" else kind)
        self._definitions[full] = given
        if kind == "enum":
            found.symbols = tuple(given["symbols"])
            if not all(_SYMBOL.fullmatch(symbol) for symbol in found.symbols):
                message = f"the schema has an enum {name[:100]!r} with symbols that Avro does not allow"
                raise ValueError(message)
        elif kind == "fixed":
            found.size = int(given["size"])
            if not 0 <= found.size <= SIZE_MAX:
                message = f"the schema has a fixed of {found.size} bytes"
                raise ValueError(message)
            return _with_logical_type(found, given)
        else:
            inner = full.rpartition(".")[0]
            found.fields += [(str(one["name"]), self.parse(one["type"], inner, depth + 1)) for one in given["fields"]]
            if len(dict(found.fields)) < len(found.fields):
                message = f"the schema has a record {name[:100]!r} with two fields of the same name"
                raise ValueError(message)
            found.count = _counted([one for _, one in found.fields])
        return found


def _counted(parts: Sequence[AvroType]) -> int:
    """Return how many types one consists of that has these parts."""
    count = 1 + sum(one.count for one in parts)
    if count > TYPES_MAX:
        message = f"the schema has more than {TYPES_MAX} types"
        raise ValueError(message)
    return count


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two definitions describe the same type."""
    pairs = [(one, other)]
    while pairs:
        left, right = pairs.pop()
        if isinstance(left, dict) and isinstance(right, dict):
            pairs += [(left.get(name), right.get(name)) for name in (left.keys() | right.keys()) - _NOT_COMPARED]
        elif isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
            pairs += zip(left, right, strict=True)
        elif left != right:
            return False
    return True


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _with_logical_type(found: AvroType, given: dict[str, Any]) -> AvroType:
    """Add a logical type. As Avro demands, one that is unknown or does not fit its type is ignored."""
    logical = given.get("logicalType")
    if found.kind == "long" and isinstance(logical, str):
        found.time_unit = _TIME_UNITS.get(logical, "")
    elif found.kind in {"bytes", "fixed"} and logical == "decimal":
        scale, precision = given.get("scale", 0), given.get("precision")
        if type(scale) is int and type(precision) is int and 0 <= scale <= min(precision, SCALE_MAX):
            found.scale = scale
    return found
