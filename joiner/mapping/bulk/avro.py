"""Reads the records of mapped streams from many Avro messages at once, with the same result as `reading`.

The messages of each schema are read as columns (see `avro.program`), grouped by the branches of the unions that matter.
Whatever is unusual is left to `reading`: a message that is invalid, a wanted string that is not printable ASCII, a
field that needs a conversion, a field in an array or a map, a schema without a program.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from broker.wire.columns import StringColumn, decimals, glue
from broker.wire.numbers import Numbers
from broker.wire.records import encode_lines
from joiner.mapping.avro.messages import avro_schema
from joiner.mapping.avro.program import Program, read_longs, read_words
from joiner.mapping.avro.reading import decode_datum
from joiner.mapping.avro.schema import AvroType
from joiner.mapping.bulk.readers import PLAIN_MAX, SCHEMAS_MAX, KnownProgram, ProgramReader, framed, schema_ids
from joiner.mapping.fields import KafkaColumns, StreamRecords
from joiner.mapping.framing import HEADER_BYTES, Schemas
from joiner.mapping.layouts import ENUM, FLOAT, LONG, STRING, Scalar
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
        return KnownProgram(program, partial(_Columns, schema, program.types), {})


class _Columns(NamedTuple):
    """The scalars of messages with the same schema and branches.

    ``types``: of the scalars. ``data``: the messages without their headers. ``spans``: see `layouts.Found`. The rest:
    see `fields.Columns`.
    """

    schema: AvroType
    types: list[AvroType]
    data: StringColumn
    spans: Ints
    rows: Ints
    kafka: KafkaColumns

    def raw(self, scalar: int) -> StringColumn:
        return StringColumn(self.data.data, self.spans[2 * scalar], self.spans[2 * scalar + 1])

    def _scalar(self, place: Scalar, which: Ints) -> StringColumn:
        found = self.raw(place.number)
        # The indices ascend, so these are all.
        return found if len(which) == len(found) else found.take(which)

    def documents(self, which: Ints) -> list[Any]:
        return [decode_datum(self.schema, datum) for datum in self.data.take(which).each()]

    def names(self, place: Scalar, which: Ints) -> StringColumn | None:
        texts = self._scalar(place, which)
        if place.kind == STRING:
            return texts
        if place.kind == ENUM:
            symbols = self.types[place.number].symbols
            return StringColumn.of([symbol.encode() for symbol in symbols]).take(read_longs(texts))
        return decimals(read_longs(texts))

    def numbers(self, place: Scalar, which: Ints) -> Numbers | None:
        texts = self._scalar(place, which)
        if place.kind == LONG:
            integers = read_longs(texts)
            values = integers.astype(np.float64)
            if integers.min() > -PLAIN_MAX and integers.max() < PLAIN_MAX:
                return Numbers(values, glue(decimals(integers), b".0"))
        elif place.kind == FLOAT:
            with np.errstate(invalid="ignore"):  # signalling NaN, which are refused below
                values = read_words(texts, 4).astype(np.uint32).view(np.float32).astype(np.float64)
        else:
            values = read_words(texts, 8).view(np.float64)
        if not np.isfinite(values).all():
            return None
        return Numbers(values, StringColumn.of_lines(encode_lines(values.tolist())))

    def times(self, place: Scalar, which: Ints) -> tuple[Ints, str] | None:
        unit = self.types[place.number].time_unit
        return read_longs(self._scalar(place, which)), unit
