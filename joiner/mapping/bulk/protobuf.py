"""Reads the records of mapped streams from many Protobuf messages at once, with the same result as `reading`.

The messages of each type are read as columns (see `protobuf.program`), grouped by which of their parts are there.
Whatever is unusual is left to one-by-one reading: a message that is invalid, a wanted string that is not printable
ASCII, a field that needs a conversion, a field in an array or a map, a type without a program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from broker.wire.columns import StringColumn, decimals
from broker.wire.numbers import Numbers
from joiner.mapping.bulk.readers import (
    SCHEMAS_MAX,
    FoundColumns,
    KnownProgram,
    ProgramReader,
    floats_as_numbers,
    framed,
    integers_as_numbers,
    schema_ids,
)
from joiner.mapping.fields import KafkaColumns, StreamRecords
from joiner.mapping.framing import HEADER_BYTES, PROTOBUF_KIND, Schemas, known_schema
from joiner.mapping.layouts import ENUM, LONG, STRING, Scalar
from joiner.mapping.protobuf.messages import find_type, reader_of, split_indexes
from joiner.mapping.protobuf.program import Program, ScalarType, read_integers, read_words
from joiner.mapping.protobuf.reading import MessageReader, decode_message
from joiner.mapping.settings import StreamSettings

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Flags = NDArray[np.bool_]

_INDEX_BYTES: Final = (1, 2, 3)
"""How many bytes the indexes have in messages that are read as columns: one or two small indexes, or a single 0."""

_SECOND_NS: Final = 10**9
_SECONDS_MAX: Final = 9 * 10**9
"""Timestamps with fewer seconds, before or after 1970, are int64 in nanoseconds."""


class ProtobufBulkReader:
    """Reads Protobuf messages of one topic for its mapped streams, and remembers the programs of their types."""

    def __init__(self, streams: Sequence[StreamSettings], time_unit: str, schemas: Schemas) -> None:
        """``time_unit``: the application's, for streams without one of their own."""
        self._reader = ProgramReader(streams, time_unit)
        self._schemas = schemas

    def read(self, values: StringColumn, kafka: KafkaColumns) -> tuple[list[list[StreamRecords]], Flags]:
        """See `readers.BulkReader.read`. Raises the errors of `Schemas.get`."""
        is_left = np.ones(len(values), dtype=bool)
        found: list[list[StreamRecords]] = [[] for _ in self._reader.streams]
        rows = framed(values).nonzero()[0]
        # The first byte says how many indexes there are, twice. Each of them takes one more.
        begin = values.start.take(rows) + HEADER_BYTES
        more = values.data.take(begin).astype(np.int64) >> 1
        is_short = (more < len(_INDEX_BYTES)) & (begin + more < values.end.take(rows))
        rows, begin, more = rows[is_short], begin[is_short], more[is_short]
        key = schema_ids(values, rows)
        for place in range(len(_INDEX_BYTES)):
            key = key * 256 + np.where(place <= more, values.data.take(begin + np.minimum(place, more)), 0)
        keys, first, counts = np.unique(key, return_index=True, return_counts=True)
        for which in (-counts).argsort(kind="stable")[:SCHEMAS_MAX].tolist():
            mine = key == keys[which]
            size = HEADER_BYTES + 1 + int(more[first[which]])
            header = values[int(rows[first[which]])][:size]
            known = self._reader.known(header, partial(self._program, header))
            if known is not None:
                of_type = rows[mine]
                messages = values if len(of_type) == len(values) else values.take(of_type)
                data = StringColumn(messages.data, messages.start + size, messages.end)
                self._reader.read(known, data, of_type, kafka, found, is_left)
        return found, is_left

    def _program(self, header: bytes) -> KnownProgram:
        """Return the program for the messages that begin in this way.

        Raises ValueError if there is none, and the errors of `Schemas.get`.
        """
        schema = known_schema(self._schemas, int.from_bytes(header[1:HEADER_BYTES], "big"), PROTOBUF_KIND)
        indexes, rest = split_indexes(header[HEADER_BYTES:])
        if rest:
            message = "the indexes have another length"
            raise ValueError(message)
        descriptor = find_type(schema.descriptors, indexes)
        program = Program(descriptor, self._reader.wanted)
        reader = reader_of(schema.descriptors, descriptor)
        return KnownProgram(program, partial(_Columns, reader=reader, types=program.types), {})


@dataclass(frozen=True)
class _Columns(FoundColumns):
    """The scalars of messages with the same type and the same parts. ``types``: of the scalars."""

    reader: MessageReader
    types: list[ScalarType]

    def documents(self, which: Ints) -> list[Any]:
        return [decode_message(self.reader, one) for one in self.data.take(which).each()]

    def _integers(self, place: Scalar, which: Ints) -> Ints | None:
        """Return integers, or None if one of them is not an int64."""
        kind = self.types[place.number].name
        if kind != "timestamp":
            found, is_right = read_integers(self.scalar(place.number, which), kind)
            return found if is_right else None
        seconds, _ = read_integers(self.scalar(place.number + 1, which), "int64")
        nanos, _ = read_integers(self.scalar(place.number + 2, which), "int32")
        is_right = seconds.min() > -_SECONDS_MAX and seconds.max() < _SECONDS_MAX
        return seconds * _SECOND_NS + nanos if is_right else None

    def names(self, place: Scalar, which: Ints) -> StringColumn | None:
        if place.kind == STRING:
            return self.scalar(place.number, which)
        integers = self._integers(place, which)
        if integers is None or place.kind != ENUM:
            return None if integers is None else decimals(integers)
        numbers, inverse = np.unique(integers, return_inverse=True)
        names = [self.types[place.number].names.get(number) for number in numbers.tolist()]
        known = [name.encode() for name in names if name is not None]
        return StringColumn.of(known).take(inverse) if len(known) == len(names) else None

    def numbers(self, place: Scalar, which: Ints) -> Numbers | None:
        if place.kind == LONG:
            integers = self._integers(place, which)
            return None if integers is None else integers_as_numbers(integers)
        return floats_as_numbers(partial(read_words, self.scalar(place.number, which)), place.kind)

    def times(self, place: Scalar, which: Ints) -> tuple[Ints, str] | None:
        integers = self._integers(place, which)
        unit = "ns" if self.types[place.number].name == "timestamp" else ""
        return None if integers is None else (integers, unit)
