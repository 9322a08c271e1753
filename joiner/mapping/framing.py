"""The wire format of Confluent's schema registry: a byte 0, the id of the schema (4 bytes, big endian), and the data.

`Schemas` is what a reader of such messages needs to know from the registry. This module does not ask the registry
itself: `joiner.runtime.kafka.batches.registry` does.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from broker.wire.records import Unreadable
from joiner.mapping.documents import MESSAGE_BYTES_MAX

_Value = TypeVar("_Value")

AVRO_KIND: Final = "AVRO"
PROTOBUF_KIND: Final = "PROTOBUF"
"""The kinds of schemas that are read, as the registry names them."""

SCHEMA_LENGTH_MAX: Final = 1024 * 1024
"""The maximum length of a schema, with those that it refers to, in characters."""

HEADER_BYTES: Final = 5
"""The size of the byte 0 and the id."""


class RegisteredSchema(NamedTuple):
    """A schema in a registry.

    ``kind``: ``AVRO``, ``JSON`` or ``PROTOBUF``. ``references``: the texts of the schemas that it refers to, each after
    those that it refers to itself. ``names``: the names by which these are referred to.

    A schema of the kind ``PROTOBUF`` is used once it has been compiled (see `joiner.mapping.protobuf.compiling`).
    ``descriptors``: the result. ``mistake``: why there is none, otherwise empty.
    """

    kind: str
    text: str
    references: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    descriptors: bytes = b""
    mistake: str = ""


class Schemas(Protocol):
    """Knows the schemas of a registry by their ids. The schema of an id never changes."""

    def get(self, schema_id: int) -> RegisteredSchema | None:
        """Return a schema, or None if the registry has none with this id and such messages are to be rejected.

        May wait for the registry. Raises an error that stops the unit, for now, if the schema cannot be known.
        """
        ...


class SchemaTable:
    """Schemas in memory, for tests and for streams that need no registry."""

    def __init__(self, schemas: Mapping[int, RegisteredSchema] | None = None) -> None:
        self._schemas = dict(schemas or {})

    def get(self, schema_id: int) -> RegisteredSchema | None:
        """See `Schemas`."""
        return self._schemas.get(schema_id)


class SizedCache(Generic[_Value]):
    """Keeps values by their keys. If they become too many, or too large as a whole, it forgets the oldest. Thread-safe.

    It is for schemas, and for what is made from them: their number says little about the memory that they take.
    """

    def __init__(self, size_max: int, count_max: int) -> None:
        """``size_max``: of all values together, in the same unit as the sizes that `put` is given."""
        self._size_max, self._count_max, self._size = size_max, count_max, 0
        # In order of age.
        self._known: dict[Hashable, tuple[_Value, int]] = {}
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> _Value | None:
        """Return a value, or None if there is none."""
        found = self._known.get(key)
        return None if found is None else found[0]

    def put(self, key: Hashable, value: _Value, size: int = 1) -> _Value:
        """Keep a value, whatever its size is, and return it."""
        with self._lock:
            _, before = self._known.pop(key, (None, 0))
            self._known[key] = value, size
            self._size += size - before
            while len(self._known) > 1 and (self._size > self._size_max or len(self._known) > self._count_max):
                self._size -= self._known.pop(next(iter(self._known)))[1]
        return value


def split_header(value: bytes) -> tuple[int, bytes]:
    """Return the id of a message's schema, and the data. Raises `Unreadable` if the message is not in this format."""
    if not value:
        raise Unreadable("the value is empty")
    if len(value) > MESSAGE_BYTES_MAX:
        message = f"the value has {len(value)} bytes, more than {MESSAGE_BYTES_MAX}"
        raise Unreadable(message)
    if value[0] != 0:
        message = f"it does not begin with the byte 0 and the id of a schema, but with the byte {value[0]}"
        raise Unreadable(message)
    if len(value) < HEADER_BYTES:
        message = f"it has {len(value)} bytes, too few for the byte 0 and the id of a schema"
        raise Unreadable(message)
    return int.from_bytes(value[1:HEADER_BYTES], "big"), value[HEADER_BYTES:]


def known_schema(schemas: Schemas, schema_id: int, kind: str) -> RegisteredSchema:
    """Return the schema with an id. Raises `Unreadable` if it is of another kind, and the errors of `Schemas.get`."""
    found = schemas.get(schema_id)
    if found is None:
        message = f"the schema registry has no schema with the id {schema_id}"
        raise Unreadable(message)
    if found.kind != kind:
        message = f"the schema {schema_id} is not of the type {kind}, but {found.kind[:40]}"
        raise Unreadable(message)
    return found


def add_header(schema_id: int, data: bytes) -> bytes:
    """Return a message with data in the format of a schema."""
    return b"\0" + schema_id.to_bytes(4, "big") + data
