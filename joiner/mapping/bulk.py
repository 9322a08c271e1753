"""Reads the records of mapped streams from many messages at once, with the same result as `reading`.

Messages whose layout is known (see `layouts`) are read as columns. Whatever is unusual is left to `reading`: a message
with another layout, a field that is missing or needs a conversion, a number in an unusual form.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from broker.times import parse_time
from broker.wire.columns import StringColumn
from broker.wire.numbers import Numbers, read_numbers, to_ns
from broker.wire.records import NAME_LENGTH_MAX, Unreadable
from joiner.mapping.conditions import parse_condition, parse_literal
from joiner.mapping.layouts import NUMBER, STRING, WORD, Layout, Scalar, learn_layout
from joiner.mapping.paths import Path, parse_path
from joiner.mapping.reading import MESSAGE_BYTES_MAX, decode_document
from joiner.mapping.settings import KAFKA_KEY, KAFKA_TIMESTAMP, StreamSettings

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Flags = NDArray[np.bool_]

_LAYOUTS_MAX: Final = 32
"""How many layouts of a topic are remembered. The least recently used are forgotten."""

_ATTEMPTS_MAX: Final = 8
"""How often a batch is searched for a message with a new layout. Learning one is as slow as decoding some messages."""

_GROUPS_SHARE: Final = 4
"""A condition is evaluated once for each combination of the values that it depends on. If a batch has more combinations
than one for this many messages, its messages are read one by one, which is then faster."""

_BLOCK: Final = 64
"""If some messages have unusual values, all are read in blocks of this size, and only those in the blocks with such
messages are read one by one."""

_SPANS_MAX: Final = 200_000
"""How many scalars are located at once. Each takes 32 bytes for a while."""

_NOT_ASCII: Final = 0x80
"""Bytes from here on are part of longer characters."""

_PLAIN_INTEGER_MAX: Final = 18
"""The maximum number of characters of an integer that is used as a name."""


class StreamRecords(NamedTuple):
    """n records of one stream: the rows of their messages, things, times in ns, values, and ids.

    ``identity``: None if the stream has no ids, so that its records are identified by their offsets.
    """

    row: Ints
    thing: StringColumn
    ts_ns: Ints
    result: Numbers
    identity: StringColumn | None

    def take(self, which: Ints) -> StreamRecords:
        """Return the records at these indices."""
        numbers = Numbers(self.result.value.take(which), self.result.encoded.take(which))
        identity = None if self.identity is None else self.identity.take(which)
        return StreamRecords(self.row.take(which), self.thing.take(which), self.ts_ns.take(which), numbers, identity)


class BulkReader:
    """Reads messages of one topic for its mapped streams, and remembers their layouts."""

    def __init__(self, streams: Sequence[StreamSettings], time_unit: str) -> None:
        """``time_unit``: the application's, for streams without one of their own."""
        self._streams = [_Fields(stream, time_unit) for stream in streams]
        self._layouts: list[_Known] = []

    def read(
        self, values: StringColumn, append_ms: Ints, keys: StringColumn | None = None
    ) -> tuple[list[list[StreamRecords]], Flags]:
        """Return the records of each stream, and which messages were not read.

        ``append_ms``: when Kafka appended each message, in ms since the epoch. ``keys``: the keys of the messages,
        which only streams with `KAFKA_KEY` need. The records of a stream are in parts, by layout. A message that was
        not read has no record in any of them.
        """
        is_left = np.ones(len(values), dtype=bool)
        found: list[list[StreamRecords]] = [[] for _ in self._streams]
        lengths = values.lengths()
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
                    part_keys = None if keys is None else keys.take(rows)
                    columns = _Columns(known, values, spans, rows, append_ms.take(rows), part_keys)
                    self._read_alike(columns, found, is_left)
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
        self._layouts.append(_Known(layout, [one.resolve(layout) for one in self._streams]))
        return True

    def _read_alike(self, columns: _Columns, found: list[list[StreamRecords]], is_left: Flags) -> None:
        """Read messages with the same layout. Add their records to ``found``."""
        usable = np.ones(len(columns.rows), dtype=bool)
        parts: list[list[StreamRecords]] = []
        for fields, places in zip(self._streams, columns.known.places, strict=True):
            selected = fields.selected(columns, places)
            if selected is None:
                return
            read, unusual = fields.read(columns, places, selected.nonzero()[0])
            usable[unusual] = False
            parts.append(read)
        is_left[columns.rows[usable]] = False
        for read, of_stream in zip(parts, found, strict=True):
            for part in read:
                kept = part if usable.all() else part.take(usable[np.searchsorted(columns.rows, part.row)].nonzero()[0])
                if len(kept.row):
                    of_stream.append(kept)


class _Scalars(NamedTuple):
    """The scalars of a layout that are a stream's fields. None: the field is not read from messages."""

    thing: Scalar | None
    time: Scalar | None
    value: Scalar
    identity: Scalar | None


class _Places(NamedTuple):
    """Where a stream's fields are in a layout.

    ``fields``: None if messages with this layout have no record of the stream that can be read as columns.
    ``condition``: the numbers of the scalars that the stream's condition depends on.
    """

    fields: _Scalars | None
    condition: list[int]


class _Known(NamedTuple):
    """A layout, and where each stream's fields are in it."""

    layout: Layout
    places: list[_Places]


class _Columns(NamedTuple):
    """The scalars of messages with the same layout. ``spans``: see `Layout.match`. ``rows``: the rows, ascending.

    ``keys``: the keys of the Kafka messages, or None if no stream needs them.
    """

    known: _Known
    values: StringColumn
    spans: Ints
    rows: Ints
    append_ms: Ints
    keys: StringColumn | None

    def scalar(self, number: int, which: Ints | None = None) -> StringColumn:
        """Return a scalar of all messages, or of those at the given indices."""
        column = StringColumn(self.values.data, self.spans[2 * number], self.spans[2 * number + 1])
        return column if which is None else column.take(which)


class _Fields:
    """Reads the records of one stream from columns."""

    def __init__(self, settings: StreamSettings, time_unit: str) -> None:
        self._time_unit = settings.time_unit or time_unit
        self._where = None if settings.where is None else parse_condition(settings.where)
        self._literal = parse_literal(settings.key)
        self._has_kafka_key = settings.key == KAFKA_KEY
        self._key = None if self._literal is not None or self._has_kafka_key else parse_path(settings.key)
        self._time = None if settings.time == KAFKA_TIMESTAMP else parse_path(settings.time)
        self._value = parse_path(settings.value)
        self._id = None if settings.id is None else parse_path(settings.id)

    def resolve(self, layout: Layout) -> _Places:
        """Return where the fields are in a layout."""
        condition: list[int] = []
        for path in () if self._where is None else self._where.paths:
            condition += _scalars_in(path.find(layout.skeleton))
        return _Places(self._scalars(layout), sorted(set(condition)))

    def _scalars(self, layout: Layout) -> _Scalars | None:
        paths = (self._key, self._time, self._value, self._id)
        scalars = [None if path is None else _scalar_at(layout, path) for path in paths]
        thing, time, value, identity = scalars
        is_complete = all(path is None or scalar is not None for path, scalar in zip(paths, scalars, strict=True))
        if value is None or value.kind != NUMBER or not is_complete:
            return None
        return _Scalars(thing, time, value, identity)

    def selected(self, columns: _Columns, places: _Places) -> Flags | None:
        """Return which messages belong to the stream, or None if it is faster to find out one by one."""
        count = len(columns.rows)
        if self._where is None:
            return np.ones(count, dtype=bool)
        group = np.zeros(count, dtype=np.int64)
        for number in places.condition:
            # Numbers with different text may be equal, which costs only time.
            of_scalar, _ = columns.scalar(number).distinct()
            _, group = np.unique(group * (int(of_scalar.max()) + 1) + of_scalar, return_inverse=True)
        _, first = np.unique(group, return_index=True)
        if len(first) > 1 + count // _GROUPS_SHARE:
            return None
        messages = columns.values.take(columns.rows.take(first)).each()
        try:
            holds = [self._where.holds(decode_document(message)) for message in messages]
        except Unreadable:
            return None
        return np.array(holds, dtype=bool).take(group)

    def read(self, columns: _Columns, places: _Places, which: Ints) -> tuple[list[StreamRecords], list[int]]:
        """Return the records of the messages at the given indices, in parts, and the indices of those not read."""
        if places.fields is None:
            return [], which.tolist()
        if not len(which):
            return [], []
        whole = self._read(columns, places.fields, which)
        if whole is not None:
            return [whole], []
        read: list[StreamRecords] = []
        unusual: list[int] = []
        for begin in range(0, len(which), _BLOCK):
            block = which[begin : begin + _BLOCK]
            part = self._read(columns, places.fields, block) if len(which) > _BLOCK else None
            if part is None:
                unusual += block.tolist()
            else:
                read.append(part)
        return read, unusual

    def _read(self, columns: _Columns, fields: _Scalars, which: Ints) -> StreamRecords | None:
        """Return the records of the messages at the given indices, or None if one of them is unusual."""
        result = _doubles(columns, fields.value, which)
        identity = _names(columns, fields.identity, which)
        thing = self._things(columns, fields.thing, which)
        if result is None or thing is None or (fields.identity is not None and identity is None):
            return None
        ts_ns = self._times_ns(columns, fields.time, which)  # last, because it can be slow
        return None if ts_ns is None else StreamRecords(columns.rows.take(which), thing, ts_ns, result, identity)

    def _things(self, columns: _Columns, place: Scalar | None, which: Ints) -> StringColumn | None:
        if self._literal is not None:
            return StringColumn.repeated(self._literal.encode(), len(which))
        if self._has_kafka_key:
            return None if columns.keys is None else _names_in_keys(columns.keys.take(which))
        return _names(columns, place, which)

    def _times_ns(self, columns: _Columns, place: Scalar | None, which: Ints) -> Ints | None:
        if place is None:
            return columns.append_ms.take(which) * 1_000_000
        texts = columns.scalar(place.number, which)
        if place.kind == STRING:
            try:
                return np.array([parse_time(text.decode(), "ns") for text in texts.each()], dtype=np.int64)
            except ValueError:
                return None
        times = texts.integers()
        return None if times is None else to_ns(times, self._time_unit)


def _scalar_at(layout: Layout, path: Path) -> Scalar | None:
    """Return the string or the number at a path, or None if there is something else."""
    found = path.find(layout.skeleton)
    return found if isinstance(found, Scalar) and found.kind != WORD else None


def _scalars_in(skeleton: Any) -> list[int]:
    """Return the numbers of all scalars in a part of a layout's skeleton."""
    if isinstance(skeleton, Scalar):
        return [skeleton.number]
    parts = skeleton.values() if isinstance(skeleton, dict) else skeleton if isinstance(skeleton, list) else ()
    return [number for part in parts for number in _scalars_in(part)]


def _names(columns: _Columns, place: Scalar | None, which: Ints) -> StringColumn | None:
    """Return strings or integers as names, or None if one of them is not a name."""
    if place is None:
        return None
    texts = columns.scalar(place.number, which)
    lengths = texts.lengths()
    if place.kind == STRING:
        return texts if lengths.min() >= 1 and lengths.max() <= NAME_LENGTH_MAX else None
    # An integer whose text is that of its value: not -0, and without an exponent.
    integers = texts.integers() if lengths.max() <= _PLAIN_INTEGER_MAX else None
    return None if integers is None or _has_negative_zero(texts, integers) else texts


def _names_in_keys(keys: StringColumn) -> StringColumn | None:
    """Return the keys of messages as names, or None if one of them is not a name in ASCII."""
    lengths = keys.lengths()
    if lengths.min() < 1 or lengths.max() > NAME_LENGTH_MAX:
        return None
    keys = keys.packed()
    return keys if bool((keys.data < _NOT_ASCII).all()) else None


def _doubles(columns: _Columns, place: Scalar, which: Ints) -> Numbers | None:
    """Return numbers as doubles, or None if one of them is unusual."""
    texts = columns.scalar(place.number, which)
    found = read_numbers(texts)
    # -0 is an integer, so that it means 0, while -0.0 does not.
    return None if found is None or _has_negative_zero(texts, found.value) else found


def _has_negative_zero(texts: StringColumn, values: Any) -> bool:
    zero = (values == 0).nonzero()[0]
    return bool(len(zero)) and bool((texts.data[texts.start.take(zero)] == ord("-")).any())
