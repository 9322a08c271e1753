"""Reads the records of mapped streams from many Avro messages at once, with the same result as `reading`.

The messages of each schema are read as columns (see `avro.program`), grouped by the branches of the unions that matter.
Whatever is unusual is left to `reading`: a message that is invalid, a wanted string that is not printable ASCII, a
field that needs a conversion, a field in an array or a map, a schema without a program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from broker.wire.columns import StringColumn, decimals
from broker.wire.numbers import Numbers
from joiner.mapping.avro.messages import avro_schema
from joiner.mapping.avro.program import Program, read_longs, read_words
from joiner.mapping.avro.reading import decode_datum
from joiner.mapping.avro.schema import AvroType
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
from joiner.mapping.framing import HEADER_BYTES, Schemas
from joiner.mapping.layouts import ENUM, LONG, STRING, Scalar
from joiner.mapping.settings import StreamSettings

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Flags = NDArray[np.bool_]


class AvroBulkReader:
    """Reads Avro messages of one topic for its mapped streams, and remembers the programs of their schemas."""

    def __init__(self, streams: Sequence[StreamSettings], time_unit: str, schemas: Schemas) -> None:
        """``time_unit``: the application's, for streams without one of their own."""
        self._reader = ProgramReader(streams, time_unit)
        self._schemas = schemas

    def read(self, values: StringColumn, kafka: KafkaColumns) -> tuple[list[list[StreamRecords]], Flags]:
        """See `readers.BulkReader.read`. Raises the errors of `Schemas.get`."""
        is_left = np.ones(len(values), dtype=bool)
        found: list[list[StreamRecords]] = [[] for _ in self._reader.streams]
        rows = framed(values).nonzero()[0]
        numbers = schema_ids(values, rows)
        ids, counts = np.unique(numbers, return_counts=True)
        for schema_id in ids[(-counts).argsort(kind="stable")][:SCHEMAS_MAX].tolist():
            known = self._reader.known(schema_id, partial(self._program, schema_id))
            if known is not None:
                of_schema = rows[numbers == schema_id]
                messages = values if len(of_schema) == len(values) else values.take(of_schema)
                data = StringColumn(messages.data, messages.start + HEADER_BYTES, messages.end)
                self._reader.read(known, data, of_schema, kafka, found, is_left)
        return found, is_left

    def _program(self, schema_id: int) -> KnownProgram:
        """Return the program for a schema. Raises ValueError if there is none, and the errors of `Schemas.get`."""
        schema = avro_schema(self._schemas, schema_id)
        program = Program(schema, self._reader.wanted)
        return KnownProgram(program, partial(_Columns, schema=schema, types=program.types), {})


@dataclass(frozen=True)
class _Columns(FoundColumns):
    """The scalars of messages with the same schema and branches. ``types``: of the scalars."""

    schema: AvroType
    types: list[AvroType]

    def documents(self, which: Ints) -> list[Any]:
        return [decode_datum(self.schema, datum) for datum in self.data.take(which).each()]

    def names(self, place: Scalar, which: Ints) -> StringColumn | None:
        texts = self.scalar(place.number, which)
        if place.kind == STRING:
            return texts
        if place.kind == ENUM:
            symbols = self.types[place.number].symbols
            return StringColumn.of([symbol.encode() for symbol in symbols]).take(read_longs(texts))
        return decimals(read_longs(texts))

    def numbers(self, place: Scalar, which: Ints) -> Numbers | None:
        texts = self.scalar(place.number, which)
        if place.kind == LONG:
            return integers_as_numbers(read_longs(texts))
        return floats_as_numbers(partial(read_words, texts), place.kind)

    def times(self, place: Scalar, which: Ints) -> tuple[Ints, str] | None:
        unit = self.types[place.number].time_unit
        return read_longs(self.scalar(place.number, which)), unit
