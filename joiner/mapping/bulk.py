"""Reads the records of mapped streams from many JSON messages at once, with the same result as `reading`.

Messages whose layout is known (see `layouts`) are read as columns. Whatever is unusual is left to `reading`: a message
with another layout, a field that is missing or needs a conversion, a number in an unusual form.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from broker.wire.columns import StringColumn
from broker.wire.numbers import Numbers, read_numbers
from joiner.mapping.documents import MESSAGE_BYTES_MAX, decode_document
from joiner.mapping.fields import Fields, KafkaColumns, Places, StreamRecords, read_alike
from joiner.mapping.framing import HEADER_BYTES
from joiner.mapping.layouts import STRING, Layout, Scalar, learn_layout
from joiner.mapping.settings import StreamSettings

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Flags = NDArray[np.bool_]

_LAYOUTS_MAX: Final = 32
"""How many layouts of a topic are remembered. The least recently used are forgotten."""

_ATTEMPTS_MAX: Final = 8
"""How often a batch is searched for a message with a new layout. Learning one is as slow as decoding some messages."""

_SPANS_MAX: Final = 200_000
"""How many scalars are located at once. Each takes 32 bytes for a while."""

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
