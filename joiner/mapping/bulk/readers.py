"""Reads the records of mapped streams from many messages at once, with the same result as `reading`.

`BulkReader` reads JSON. Messages whose layout is known (see `layouts`) are read as columns. Whatever is unusual is left
to `reading`: a message with another layout, a field that is missing or needs a conversion, a number in an unusual form.

`ProgramReader` does the same for formats with schemas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import numpy as np

from broker.wire.columns import StringColumn, decimals, glue
from broker.wire.numbers import Numbers, read_numbers
from broker.wire.records import encode_lines
from joiner.mapping.documents import MESSAGE_BYTES_MAX, decode_document
from joiner.mapping.fields import Columns, Fields, KafkaColumns, Places, StreamRecords, read_alike
from joiner.mapping.framing import HEADER_BYTES
from joiner.mapping.layouts import FLOAT, STRING, Found, Layout, Scalar, learn_layout
from joiner.mapping.settings import StreamSettings

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Doubles = NDArray[np.float64]
    Flags = NDArray[np.bool_]

_LAYOUTS_MAX: Final = 32
"""How many layouts of a topic are remembered. The least recently used are forgotten."""

_ATTEMPTS_MAX: Final = 8
"""How often a batch is searched for a message with a new layout. Learning one is as slow as decoding some messages."""

_SPANS_MAX: Final = 200_000
"""How many scalars and branches are located at once. Each takes 32 bytes for a while."""

_PROGRAMS_MAX: Final = 32
"""How many programs of a topic are remembered. The least recently used are forgotten."""

SCHEMAS_MAX: Final = 8
"""How many schemas of a batch are read as columns."""

_SKELETONS_MAX: Final = 64
"""How many combinations of branches of a schema are known, and how many of a batch are read as columns."""

_PLAIN_MAX: Final = 10**15
"""Integers below this number are encoded with their digits and ``.0``."""

_PLAIN_INTEGER_MAX: Final = 18
"""The maximum number of characters of an integer that is used as a name."""


class BulkReader:
    """Reads JSON messages of one topic for its mapped streams, and remembers their layouts."""

    def __init__(self, streams: Sequence[StreamSettings], time_unit: str, *, has_header: bool = False) -> None:
        """``time_unit``: the application's, for streams without one of their own. ``has_header``: see `framing`."""
        self._streams = [Fields(stream, time_unit) for stream in streams]
        self._layouts: list[_Known] = []
        self._has_header = has_header

    def read(self, values: StringColumn, kafka: KafkaColumns) -> tuple[list[list[StreamRecords]], Flags]:
        """Return the records of each stream, and which messages were not read.

        The records of a stream are in parts, by layout. A message that was not read has no record in any of them.
        """
        is_left = np.ones(len(values), dtype=bool)
        found: list[list[StreamRecords]] = [[] for _ in self._streams]
        lengths = values.lengths()
        if self._has_header:
            todo = framed(values).nonzero()[0]
            values = StringColumn(values.data, values.start + HEADER_BYTES, values.end)
        else:
            todo = ((lengths > 0) & (lengths <= MESSAGE_BYTES_MAX)).nonzero()[0]
        attempts = place = 0
        while len(todo):
            if place == len(self._layouts):
                if attempts == _ATTEMPTS_MAX:
                    break
                attempts += 1
                if not self._learn(values[int(todo[0])]):
                    todo = todo[1:]
                    continue
                place = len(self._layouts) - 1
            known = self._layouts[place]
            size = max(1, _SPANS_MAX // (1 + len(known.layout.kinds)))
            others = []
            for begin in range(0, len(todo), size):
                part = todo[begin : begin + size]
                matches, spans = known.layout.match(values, part)
                others.append(part[~matches])
                if matches.any():
                    rows, spans = part[matches], np.ascontiguousarray(spans[:, matches])
                    columns = _Columns(values, spans, rows, kafka.take(rows))
                    read_alike(self._streams, columns, known.places, found, is_left)
            if sum(map(len, others)) < len(todo):
                # The most recently used layouts come first.
                self._layouts.insert(0, self._layouts.pop(place))
            todo = np.concatenate(others)
            place += 1
        return found, is_left

    def _learn(self, value: bytes) -> bool:
        """Learn the layout of a message. Return whether it has one."""
        try:
            decode_document(value)
        except ValueError:
            return False
        layout = learn_layout(value)
        if layout is None:
            return False
        del self._layouts[_LAYOUTS_MAX - 1 :]
        self._layouts.append(_Known(layout, [one.resolve(layout.skeleton) for one in self._streams]))
        return True


class Program(Protocol):
    """Finds the scalars of data of one schema (see `layouts.Found`)."""

    @property
    def width(self) -> int:
        """How many scalars and branches are located in each message."""
        ...

    def run(self, data: StringColumn) -> Found:
        """Find the scalars of data."""
        ...

    def skeleton(self, branches: Sequence[int]) -> Any:
        """Return the skeleton of data with these branches (see `fields`)."""
        ...


class KnownProgram(NamedTuple):
    """A program, what makes columns from what it has found, and where the streams' fields are, by the branches.

    ``columns``: takes data, the spans of their scalars, the rows of the messages, and `KafkaColumns`.
    """

    program: Program
    columns: Callable[[StringColumn, Ints, Ints, KafkaColumns], Columns]
    by_branches: dict[tuple[int, ...], list[Places]]

    def places(self, branches: tuple[int, ...], streams: Sequence[Fields]) -> list[Places]:
        """Return where the fields of streams are in messages with these branches."""
        found = self.by_branches.get(branches)
        if found is None:
            if len(self.by_branches) == _SKELETONS_MAX:
                del self.by_branches[next(iter(self.by_branches))]
            skeleton = self.program.skeleton(branches)
            found = self.by_branches[branches] = [fields.resolve(skeleton) for fields in streams]
        return found


class ProgramReader:
    """Reads messages of one topic by the programs of their schemas, and remembers these.

    ``wanted``: the positions that the streams' paths select.
    """

    def __init__(self, streams: Sequence[StreamSettings], time_unit: str) -> None:
        """``time_unit``: the application's, for streams without one of their own."""
        self.streams = [Fields(stream, time_unit) for stream in streams]
        self.wanted = [path.segments for fields in self.streams for path in fields.paths]
        self._known: dict[Any, KnownProgram | None] = {}

    def known(self, key: Any, make: Callable[[], KnownProgram]) -> KnownProgram | None:
        """Return a program by its key. ``make``: makes it, or raises ValueError if there is none."""
        if key in self._known:
            # The most recently used are last.
            self._known[key] = known = self._known.pop(key)
            return known
        try:
            known = make()
        except ValueError:  # the reference says why
            known = None
        while len(self._known) >= _PROGRAMS_MAX:
            del self._known[next(iter(self._known))]
        self._known[key] = known
        return known

    def read(
        self,
        known: KnownProgram,
        data: StringColumn,
        rows: Ints,
        kafka: KafkaColumns,
        found: list[list[StreamRecords]],
        is_left: Flags,
    ) -> None:
        """Read messages of one schema. Add their records to ``found``. ``data``: of the messages in ``rows``."""
        size = max(1, _SPANS_MAX // (1 + known.program.width))
        for begin in range(0, len(rows), size):
            part = data
            if len(rows) > size:
                part = StringColumn(data.data, data.start[begin : begin + size], data.end[begin : begin + size])
            self._read(known, part, rows[begin : begin + size], kafka, found, is_left)

    def _read(
        self,
        known: KnownProgram,
        data: StringColumn,
        rows: Ints,
        kafka: KafkaColumns,
        found: list[list[StreamRecords]],
        is_left: Flags,
    ) -> None:
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
            places = known.places(tuple(scalars.branches[:, which[at]].tolist()), self.streams)
            spans = scalars.spans if len(mine) == len(rows) else np.ascontiguousarray(scalars.spans[:, mine])
            some = (data, rows) if len(mine) == len(rows) else (data.take(mine), rows.take(mine))
            columns = known.columns(some[0], spans, some[1], kafka.take(some[1]))
            read_alike(self.streams, columns, places, found, is_left)


@dataclass(frozen=True)
class FoundColumns:
    """The scalars that a program has found in messages of one schema.

    ``data``: the messages without their headers. ``spans``: see `layouts.Found`. The rest: see `fields.Columns`.
    """

    data: StringColumn
    spans: Ints
    rows: Ints
    kafka: KafkaColumns

    def raw(self, scalar: int) -> StringColumn:
        """See `fields.Columns`."""
        return StringColumn(self.data.data, self.spans[2 * scalar], self.spans[2 * scalar + 1])

    def scalar(self, number: int, which: Ints) -> StringColumn:
        """Return the bytes of a scalar in the messages at the given indices, which ascend."""
        found = self.raw(number)
        return found if len(which) == len(found) else found.take(which)


def integers_as_numbers(integers: Ints) -> Numbers:
    """Return integers as doubles."""
    values = integers.astype(np.float64)
    if integers.min() > -_PLAIN_MAX and integers.max() < _PLAIN_MAX:
        return Numbers(values, glue(decimals(integers), b".0"))
    return _encoded(values)


def floats_as_numbers(words: Callable[[int], Ints], kind: int) -> Numbers | None:
    """Return floats or doubles as doubles, or None if one of them is not finite. ``words``: their bits, by size."""
    if kind == FLOAT:
        with np.errstate(invalid="ignore"):  # signalling NaN, which are refused below
            values = words(4).astype(np.uint32).view(np.float32).astype(np.float64)
    else:
        values = words(8).view(np.float64)
    return _encoded(values) if np.isfinite(values).all() else None


def _encoded(values: Doubles) -> Numbers:
    return Numbers(values, StringColumn.of_lines(encode_lines(values.tolist())))


def schema_ids(values: StringColumn, rows: Ints) -> Ints:
    """Return the ids of the schemas of messages that begin with one. ``rows``: of these messages."""
    start, found = values.start.take(rows), np.zeros(len(rows), dtype=np.int64)
    for place in range(1, HEADER_BYTES):
        found = found * 256 + values.data[start + place]
    return found


def framed(values: StringColumn) -> Flags:
    """Return which messages begin with a byte 0 and the id of a schema, have data, and are not too long."""
    lengths = values.lengths()
    found: Flags = (lengths > HEADER_BYTES) & (lengths <= MESSAGE_BYTES_MAX)
    which = found.nonzero()[0]
    found[which] = values.data[values.start.take(which)] == 0
    return found


class _Known(NamedTuple):
    """A layout, and where each stream's fields are in it."""

    layout: Layout
    places: list[Places]


class _Columns(NamedTuple):
    """The scalars of messages with the same layout. ``spans``: see `Layout.match`. The rest: see `fields.Columns`."""

    values: StringColumn
    spans: Ints
    rows: Ints
    kafka: KafkaColumns

    def raw(self, scalar: int) -> StringColumn:
        return StringColumn(self.values.data, self.spans[2 * scalar], self.spans[2 * scalar + 1])

    def documents(self, which: Ints) -> list[Any]:
        return [decode_document(message) for message in self.values.take(self.rows.take(which)).each()]

    def names(self, place: Scalar, which: Ints) -> StringColumn | None:
        texts = self.raw(place.number).take(which)
        if place.kind == STRING:
            return texts
        # An integer whose text is that of its value: not -0, and without an exponent.
        integers = texts.integers() if texts.lengths().max() <= _PLAIN_INTEGER_MAX else None
        return None if integers is None or _has_negative_zero(texts, integers) else texts

    def numbers(self, place: Scalar, which: Ints) -> Numbers | None:
        texts = self.raw(place.number).take(which)
        found = read_numbers(texts)
        # -0 is an integer, so that it means 0, while -0.0 does not.
        return None if found is None or _has_negative_zero(texts, found.value) else found

    def times(self, place: Scalar, which: Ints) -> tuple[Ints, str] | None:
        found = self.raw(place.number).take(which).integers()
        return None if found is None else (found, "")


def _has_negative_zero(texts: StringColumn, values: Any) -> bool:
    zero = (values == 0).nonzero()[0]
    return bool(len(zero)) and bool((texts.data[texts.start.take(zero)] == ord("-")).any())
