"""Reads the records of mapped streams from many Avro messages at once, with the same result as `reading`.

The messages of each schema are read as columns (see `avro.program`), grouped by the branches of the unions that matter.
Whatever is unusual is left to `reading`: a message that is invalid, a wanted string that is not printable ASCII, a
field that needs a conversion, a field in an array or a map, a schema without a program.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from broker.wire.columns import StringColumn, decimals, glue
from broker.wire.numbers import Numbers
from broker.wire.records import encode_lines
from joiner.mapping.avro.program import Program, read_longs, read_words
from joiner.mapping.avro.reading import decode_datum
from joiner.mapping.avro.schema import AvroType
from joiner.mapping.bulk import framed
from joiner.mapping.fields import Fields, KafkaColumns, Places, StreamRecords, read_alike
from joiner.mapping.formats import avro_schema
from joiner.mapping.framing import HEADER_BYTES, Schemas
from joiner.mapping.layouts import ENUM, FLOAT, LONG, STRING, Scalar
from joiner.mapping.settings import StreamSettings

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Flags = NDArray[np.bool_]

_PROGRAMS_MAX: Final = 32
"""How many programs of a topic are remembered. The least recently used are forgotten."""

_SCHEMAS_MAX: Final = 8
"""How many schemas of a batch are read as columns."""

_SKELETONS_MAX: Final = 64
"""How many combinations of branches of a schema are known, and how many of a batch are read as columns."""

_SPANS_MAX: Final = 200_000
"""How many scalars and branches are located at once."""

_PLAIN_MAX: Final = 10**15
"""Integers below this number are encoded with their digits and ``.0``."""


class AvroBulkReader:
    """Reads Avro messages of one topic for its mapped streams, and remembers the programs of their schemas."""

    def __init__(self, streams: Sequence[StreamSettings], time_unit: str, schemas: Schemas) -> None:
        """``time_unit``: the application's, for streams without one of their own."""
        self._streams = [Fields(stream, time_unit) for stream in streams]
        self._wanted = [path.segments for fields in self._streams for path in fields.paths]
        self._schemas = schemas
        self._known: dict[int, _Known | None] = {}

    def read(self, values: StringColumn, kafka: KafkaColumns) -> tuple[list[list[StreamRecords]], Flags]:
        """See `bulk.BulkReader.read`. Raises the errors of `Schemas.get`."""
        is_left = np.ones(len(values), dtype=bool)
        found: list[list[StreamRecords]] = [[] for _ in self._streams]
        rows = framed(values).nonzero()[0]
        numbers = _schema_ids(values, rows)
        ids, counts = np.unique(numbers, return_counts=True)
        for schema_id in ids[(-counts).argsort(kind="stable")][:_SCHEMAS_MAX].tolist():
            known = self._program(schema_id)
            if known is None:
                continue
            of_schema = rows[numbers == schema_id]
            for begin in range(0, len(of_schema), known.rows_max):
                self._read(known, values, of_schema[begin : begin + known.rows_max], kafka, found, is_left)
        return found, is_left

    def _program(self, schema_id: int) -> _Known | None:
        """Return the program for a schema, or None if there is none."""
        if schema_id in self._known:
            # The most recently used are last.
            self._known[schema_id] = known = self._known.pop(schema_id)
            return known
        known = None
        try:
            schema = avro_schema(self._schemas, schema_id)
            known = _Known(schema, Program(schema, self._wanted), {})
        except ValueError:  # the reference says why
            pass
        while len(self._known) >= _PROGRAMS_MAX:
            del self._known[next(iter(self._known))]
        self._known[schema_id] = known
        return known

    def _read(
        self,
        known: _Known,
        values: StringColumn,
        rows: Ints,
        kafka: KafkaColumns,
        found: list[list[StreamRecords]],
        is_left: Flags,
    ) -> None:
        """Read messages of one schema. Add their records to ``found``."""
        messages = values if len(rows) == len(values) else values.take(rows)
        data = StringColumn(messages.data, messages.start + HEADER_BYTES, messages.end)
        scalars = known.program.run(data)
        which = scalars.is_read.nonzero()[0]
        if not len(which):
            return
        group = np.zeros(len(which), dtype=np.int64)
        for branches in scalars.branches:
            chosen = branches.take(which)
            if chosen.min() < chosen.max():
                _, group = np.unique(group * (int(chosen.max()) + 1) + chosen, return_inverse=True)
        _, first = np.unique(group, return_index=True)
        for number, at in enumerate(first.tolist()[:_SKELETONS_MAX]):
            mine = which if len(first) == 1 else which[group == number]
            places = known.places(tuple(scalars.branches[:, which[at]].tolist()), self._streams)
            spans = scalars.spans if len(mine) == len(rows) else np.ascontiguousarray(scalars.spans[:, mine])
            some = (data, rows) if len(mine) == len(rows) else (data.take(mine), rows.take(mine))
            columns = _Columns(known, some[0], spans, some[1], kafka.take(some[1]))
            read_alike(self._streams, columns, places, found, is_left)


def _schema_ids(values: StringColumn, rows: Ints) -> Ints:
    start, found = values.start.take(rows), np.zeros(len(rows), dtype=np.int64)
    for place in range(1, HEADER_BYTES):
        found = found * 256 + values.data[start + place]
    return found


class _Known(NamedTuple):
    """A schema, its program, and where the streams' fields are, by the branches of its unions."""

    schema: AvroType
    program: Program
    by_branches: dict[tuple[int, ...], list[Places]]

    @property
    def rows_max(self) -> int:
        """How many messages to read at once."""
        return max(1, _SPANS_MAX // (1 + len(self.program.types)))

    def places(self, branches: tuple[int, ...], streams: Sequence[Fields]) -> list[Places]:
        found = self.by_branches.get(branches)
        if found is None:
            if len(self.by_branches) == _SKELETONS_MAX:
                del self.by_branches[next(iter(self.by_branches))]
            skeleton = self.program.skeleton(branches)
            found = self.by_branches[branches] = [fields.resolve(skeleton) for fields in streams]
        return found


class _Columns(NamedTuple):
    """The scalars of messages with the same schema and branches.

    ``data``: the messages without their headers. ``spans``: see `avro.program.Found`. The rest: see `fields.Columns`.
    """

    known: _Known
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
        return [decode_datum(self.known.schema, datum) for datum in self.data.take(which).each()]

    def names(self, place: Scalar, which: Ints) -> StringColumn | None:
        texts = self._scalar(place, which)
        if place.kind == STRING:
            return texts
        if place.kind == ENUM:
            symbols = self.known.program.types[place.number].symbols
            return StringColumn.of([symbol.encode() for symbol in symbols]).take(read_longs(texts))
        return decimals(read_longs(texts))

    def numbers(self, place: Scalar, which: Ints) -> Numbers | None:
        texts = self._scalar(place, which)
        if place.kind == LONG:
            integers = read_longs(texts)
            values = integers.astype(np.float64)
            if integers.min() > -_PLAIN_MAX and integers.max() < _PLAIN_MAX:
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
        unit = self.known.program.types[place.number].time_unit
        return read_longs(self._scalar(place, which)), unit
