"""Decodes messages of Protocol Buffers in the wire format of Confluent's schema registry (see `framing`).

After the id of the schema, a message says which of the schema's messages it is: by its index in the file and, if it is
declared inside of others, the indexes in these. The list of indexes begins with its length. All are integers in zigzag
encoding, and a single byte 0 means the first message in the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from broker.wire.records import Unreadable
from joiner.mapping.documents import DEPTH_MAX
from joiner.mapping.framing import PROTOBUF_KIND, Schemas, SizedCache, known_schema, split_header
from joiner.mapping.protobuf.reading import FIELDS_MAX, MessageReader, decode_message, make_reader
from joiner.mapping.protobuf.wire import SCALARS, Cursor

KEPT_BYTES_MAX: Final = 4 * 1024 * 1024
"""The maximum size of the descriptors of all schemas whose types are kept. The types, with all of their readers, take
about 60 times as much memory."""

KEPT_MAX: Final = 1_000
"""How many schemas' types are kept. The oldest are forgotten."""

_TYPES_MAX: Final = 256
"""How many lists of indexes are kept for a schema, with the types that they mean."""

_REASON_LENGTH_MAX: Final = 300
_AMBIGUOUS: Final = "has different messages with the index {} for different programs, because a map is declared before"


def decode_framed(value: bytes, schemas: Schemas) -> Any:
    """Decode a message. Raises `Unreadable`, with the reason, if it is invalid, and the errors of `Schemas.get`."""
    schema_id, rest = split_header(value)
    schema = known_schema(schemas, schema_id, PROTOBUF_KIND)
    if schema.mistake:
        message = f"the schema {schema_id} cannot be used: {schema.mistake}"
        raise Unreadable(message)
    try:
        indexes, data = split_indexes(rest)
    except Unreadable as error:
        message = f"it does not say which message of the schema {schema_id} it is: {error}"
        raise Unreadable(message) from error
    try:
        reader = find_reader(schema.descriptors, indexes)
    except ValueError as error:
        message = f"the schema {schema_id} {error}"
        raise Unreadable(message) from error
    try:
        return decode_message(reader, data)
    except Unreadable as error:
        message = f"not Protobuf of the schema {schema_id}: {error}"
        raise Unreadable(message) from error


def split_indexes(data: bytes) -> tuple[tuple[int, ...], bytes]:
    """Return the indexes of a message's type, and the message. Raises `Unreadable`."""
    cursor, (_, read, _) = Cursor(data, 0), SCALARS["sint64"]
    count = read(cursor)
    if not 0 <= count <= DEPTH_MAX:
        raise Unreadable(f"the number of indexes is {count}")
    indexes = tuple(read(cursor) for _ in range(count)) or (0,)
    return indexes, data[cursor.at :]


def find_reader(descriptors: bytes, indexes: tuple[int, ...]) -> MessageReader:
    """Return what reads messages of a type. ``descriptors``: see `compiling.compile_schema`.

    Raises ValueError if there is no such type, or if it is too large. The message continues "the schema".
    """
    return reader_of(descriptors, find_type(descriptors, indexes))


def find_type(descriptors: bytes, indexes: tuple[int, ...]) -> Any:
    """Return the descriptor of a type. Raises ValueError, as `find_reader`."""
    return _schema_of(descriptors).type_at(indexes)


def reader_of(descriptors: bytes, descriptor: Any) -> MessageReader:
    """Return what reads messages of a type, which `find_type` has found. Raises ValueError, as `find_reader`."""
    return _schema_of(descriptors).reader_of(descriptor.full_name)


class _CompiledSchema:
    """The types of a schema, and the readers of those that have been needed.

    Mistakes are kept as well: each message would find them out again.
    """

    def __init__(self, descriptors: bytes) -> None:
        self._file, self._mistake = _load(descriptors)
        self._types: SizedCache[list[Any]] = SizedCache(_TYPES_MAX, _TYPES_MAX)
        self._readers: SizedCache[MessageReader | str] = SizedCache(FIELDS_MAX, FIELDS_MAX)

    def type_at(self, indexes: tuple[int, ...]) -> Any:
        """See `find_type`."""
        if self._mistake:
            message = f"cannot be used: {self._mistake}"
            raise ValueError(message)
        found = self._types.get(indexes)
        if found is None:
            found = self._types.put(indexes, self._types_at(indexes))
        if not found:
            message = f"has no message with the index {[*indexes]}"
            raise ValueError(message)
        if len(found) > 1:
            raise ValueError(_AMBIGUOUS.format([*indexes]))
        return found[0]

    def _types_at(self, indexes: tuple[int, ...]) -> list[Any]:
        """Return the descriptors of all messages that have these indexes for some program.

        Descriptors declare the entries of maps as messages, but ``.proto`` files do not. Some clients of the registry
        count them, and others do not.
        """
        found = (_find(self._file, indexes, has_entries=has_entries) for has_entries in (True, False))
        return [*{one.full_name: one for one in found if one is not None}.values()]

    def reader_of(self, name: str) -> MessageReader:
        """See `reader_of`. ``name``: the type's full name."""
        found = self._readers.get(name)
        if found is None:
            try:
                reader, fields = make_reader(self._file.pool.FindMessageTypeByName(name))
                found = self._readers.put(name, reader, 1 + fields)
            except ValueError as error:
                found = self._readers.put(name, str(error))
        if isinstance(found, str):
            message = f"cannot be used: {found}"
            raise ValueError(message)  # noqa: TRY004 - the schema has the wrong value, not a wrong type
        return found


_schemas: Final[SizedCache[_CompiledSchema]] = SizedCache(KEPT_BYTES_MAX, KEPT_MAX)


def _schema_of(descriptors: bytes) -> _CompiledSchema:
    found = _schemas.get(descriptors)
    return _schemas.put(descriptors, _CompiledSchema(descriptors), len(descriptors)) if found is None else found


def _load(descriptors: bytes) -> tuple[Any, str]:
    """Return the descriptor of a schema's file and an empty string, or None and why there is none."""
    pool, name = DescriptorPool(), ""
    try:
        for file in FileDescriptorSet.FromString(descriptors).file:
            pool.Add(file)
            name = file.name
        return (pool.FindFileByName(name), "") if name else (None, "it has not been compiled")
    except (DecodeError, KeyError, TypeError, ValueError) as error:
        # For example, because the runtime is older than the compiler.
        return None, f"its descriptors are invalid: {type(error).__name__}: {error}"[:_REASON_LENGTH_MAX]


def _find(file: Any, indexes: Sequence[int], *, has_entries: bool) -> Any:
    """Return the descriptor of a message, or None. ``has_entries``: whether the entries of maps count."""
    messages, found = [*file.message_types_by_name.values()], None
    for index in indexes:
        if not 0 <= index < len(messages):
            return None
        found = messages[index]
        messages = [one for one in found.nested_types if has_entries or not one.GetOptions().map_entry]
    return None if found is None or found.GetOptions().map_entry else found
