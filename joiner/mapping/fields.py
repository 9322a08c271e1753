"""Reads the fields of mapped streams from columns, whatever the format of the messages is.

The messages of a topic that have the same fields in the same form are described by a skeleton: their decoded document
with a `Scalar` in the place of each scalar. `Columns` are their scalars.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import numpy as np

from broker.times import parse_time
from broker.wire.columns import StringColumn
from broker.wire.numbers import Numbers, to_ns
from broker.wire.records import NAME_LENGTH_MAX, Unreadable
from joiner.mapping.conditions import parse_condition, parse_literal
from joiner.mapping.layouts import DOUBLE, ENUM, FLOAT, LONG, NUMBER, OPAQUE, STRING, Scalar
from joiner.mapping.paths import MISSING, Path, parse_path
from joiner.mapping.settings import KAFKA_KEY, KAFKA_TIMESTAMP, StreamSettings

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Flags = NDArray[np.bool_]

_GROUPS_SHARE: Final = 4
"""A condition is evaluated once for each combination of the values that it depends on. If a batch has more combinations
than one for this many messages, its messages are read one by one, which is then faster."""

_BLOCK: Final = 64
"""If some messages have unusual values, all are read in blocks of this size, and only those in the blocks with such
messages are read one by one."""

_NOT_ASCII: Final = 0x80
"""Bytes from here on are part of longer characters."""

_NAMES: Final = frozenset({STRING, NUMBER, LONG, ENUM})
_TIMES: Final = frozenset({STRING, NUMBER, LONG})
_VALUES: Final = frozenset({NUMBER, LONG, FLOAT, DOUBLE})


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


class KafkaColumns(NamedTuple):
    """What n messages have besides their values.

    ``append_ms``: when Kafka appended each message, in ms since the epoch. ``keys``: their keys, or None if no stream
    needs them.
    """

    append_ms: Ints
    keys: StringColumn | None = None

    def take(self, which: Ints) -> KafkaColumns:
        """Return those of the messages at the given indices."""
        return KafkaColumns(self.append_ms.take(which), None if self.keys is None else self.keys.take(which))


class Columns(Protocol):
    """The scalars of n messages with the same skeleton. ``which``: indices of messages."""

    @property
    def rows(self) -> Ints:
        """The rows of the messages, ascending."""
        ...

    @property
    def kafka(self) -> KafkaColumns:
        """What the messages have besides their values."""
        ...

    def raw(self, scalar: int) -> StringColumn:
        """Return bytes that determine the value of a scalar in each message."""
        ...

    def documents(self, which: Ints) -> list[Any]:
        """Decode messages. Raises `Unreadable` if one of them is invalid."""
        ...

    def names(self, place: Scalar, which: Ints) -> StringColumn | None:
        """Return integers or enums as text, or strings. Return None if one of them is unusual."""
        ...

    def numbers(self, place: Scalar, which: Ints) -> Numbers | None:
        """Return numbers as doubles, or None if one of them is unusual."""
        ...

    def times(self, place: Scalar, which: Ints) -> tuple[Ints, str] | None:
        """Return integers and, if the format defines it, their unit. Return None if one of them is unusual."""
        ...


class _Scalars(NamedTuple):
    """The scalars that are a stream's fields. None: the field is not read from messages."""

    thing: Scalar | None
    time: Scalar | None
    value: Scalar
    identity: Scalar | None


class Places(NamedTuple):
    """Where a stream's fields are in messages with the same skeleton.

    ``fields``: None if they have no record of the stream that can be read as columns. ``condition``: the numbers of the
    scalars that the stream's condition depends on, or None if it depends on more.
    """

    fields: _Scalars | None
    condition: list[int] | None


Groups = dict[tuple[int, ...], tuple["Ints", "Ints"]]
"""Messages grouped by the values of some scalars: for the numbers of these, the group of each message, and the index of
a message of each group."""


class Fields:
    """Reads the records of one stream from columns."""

    def __init__(self, settings: StreamSettings, time_unit: str) -> None:
        """``time_unit``: the application's, for a stream without one of its own."""
        self._time_unit = settings.time_unit or time_unit
        self._where = None if settings.where is None else parse_condition(settings.where)
        self._literal = parse_literal(settings.key)
        self._has_kafka_key = settings.key == KAFKA_KEY
        self._key = None if self._literal is not None or self._has_kafka_key else parse_path(settings.key)
        self._time = None if settings.time == KAFKA_TIMESTAMP else parse_path(settings.time)
        self._value = parse_path(settings.value)
        self._id = None if settings.id is None else parse_path(settings.id)

    @property
    def paths(self) -> list[Path]:
        """All paths that the stream needs."""
        paths = [path for path in (self._key, self._time, self._value, self._id) if path is not None]
        return paths if self._where is None else [*paths, *self._where.paths]

    def resolve(self, skeleton: Any) -> Places:
        """Return where the fields are in messages with a skeleton."""
        condition: list[int] | None = []
        for path in () if self._where is None else self._where.paths:
            found = _scalars_in(_find(skeleton, path))
            condition = None if condition is None or found is None else condition + found
        return Places(self._scalars(skeleton), condition and sorted(set(condition)))

    def _scalars(self, skeleton: Any) -> _Scalars | None:
        wanted = ((self._key, _NAMES), (self._time, _TIMES), (self._value, _VALUES), (self._id, _NAMES))
        scalars = [None if path is None else _scalar_at(skeleton, path, kinds) for path, kinds in wanted]
        thing, time, value, identity = scalars
        is_complete = all(path is None or scalar is not None for (path, _), scalar in zip(wanted, scalars, strict=True))
        return _Scalars(thing, time, value, identity) if is_complete and value is not None else None

    def selected(self, columns: Columns, places: Places, groups: Groups) -> Flags | None:
        """Return which messages belong to the stream, or None if it is faster to find out one by one.

        ``groups``: those of the same messages for other streams' conditions, to which this stream's are added.
        """
        count = len(columns.rows)
        if self._where is None:
            return np.ones(count, dtype=bool)
        if places.condition is None:
            return None
        scalars = tuple(places.condition)
        if scalars not in groups:
            groups[scalars] = _group(columns, scalars)
        group, first = groups[scalars]
        if len(first) > 1 + count // _GROUPS_SHARE:
            return None
        try:
            holds = [self._where.holds(document) for document in columns.documents(first)]
        except Unreadable:
            return None
        return np.array(holds, dtype=bool).take(group)

    def read(self, columns: Columns, places: Places, which: Ints) -> tuple[list[StreamRecords], list[int]]:
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

    def _read(self, columns: Columns, fields: _Scalars, which: Ints) -> StreamRecords | None:
        """Return the records of the messages at the given indices, or None if one of them is unusual."""
        result = columns.numbers(fields.value, which)
        identity = None if fields.identity is None else _names(columns, fields.identity, which)
        thing = self._things(columns, fields.thing, which)
        if result is None or thing is None or (fields.identity is not None and identity is None):
            return None
        ts_ns = self._times_ns(columns, fields.time, which)  # last, because it can be slow
        return None if ts_ns is None else StreamRecords(columns.rows.take(which), thing, ts_ns, result, identity)

    def _things(self, columns: Columns, place: Scalar | None, which: Ints) -> StringColumn | None:
        if self._literal is not None:
            return StringColumn.repeated(self._literal.encode(), len(which))
        if self._has_kafka_key:
            return None if columns.kafka.keys is None else _names_in_keys(columns.kafka.keys.take(which))
        return None if place is None else _names(columns, place, which)

    def _times_ns(self, columns: Columns, place: Scalar | None, which: Ints) -> Ints | None:
        if place is None:
            return columns.kafka.append_ms.take(which) * 1_000_000
        if place.kind == STRING:
            texts = columns.names(place, which)
            if texts is None:
                return None
            try:
                return np.array([parse_time(text.decode(), "ns") for text in texts.each()], dtype=np.int64)
            except ValueError:
                return None
        found = columns.times(place, which)
        return None if found is None else to_ns(found[0], found[1] or self._time_unit)


def read_alike(
    streams: Sequence[Fields], columns: Columns, places: Sequence[Places], found: list[list[StreamRecords]], left: Flags
) -> None:
    """Read messages with the same skeleton. Add their records to ``found``, and remove their rows from ``left``."""
    usable = np.ones(len(columns.rows), dtype=bool)
    parts: list[list[StreamRecords]] = []
    groups: Groups = {}
    for fields, of_fields in zip(streams, places, strict=True):
        selected = fields.selected(columns, of_fields, groups)
        if selected is None:
            return
        read, unusual = fields.read(columns, of_fields, selected.nonzero()[0])
        usable[unusual] = False
        parts.append(read)
    left[columns.rows[usable]] = False
    for read, of_stream in zip(parts, found, strict=True):
        for part in read:
            kept = part if usable.all() else part.take(usable[np.searchsorted(columns.rows, part.row)].nonzero()[0])
            if len(kept.row):
                of_stream.append(kept)


def _group(columns: Columns, scalars: tuple[int, ...]) -> tuple[Ints, Ints]:
    """Group messages by the bytes of some scalars. Equal numbers with different text cost time, and nothing else."""
    group, first = np.zeros(len(columns.rows), dtype=np.int64), np.zeros(1, dtype=np.int64)
    for scalar in scalars:
        of_scalar, first_of_scalar = columns.raw(scalar).distinct()
        if len(first) == 1:
            group, first = of_scalar, first_of_scalar
        elif len(first_of_scalar) > 1:
            both = group * len(first_of_scalar) + of_scalar
            _, first, group = np.unique(both, return_index=True, return_inverse=True)
    return group, first


def _find(skeleton: Any, path: Path) -> Any:
    """Return what a path selects in a skeleton: `OPAQUE` if it leads into an array or a map."""
    found = skeleton
    for segment in path.segments:
        if found is OPAQUE:
            return OPAQUE
        found = Path((segment,)).find(found)
        if found is MISSING:
            break
    return found


def _scalar_at(skeleton: Any, path: Path, kinds: frozenset[int]) -> Scalar | None:
    """Return the scalar of one of these kinds at a path, or None if there is something else."""
    found = _find(skeleton, path)
    return found if isinstance(found, Scalar) and found.kind in kinds else None


def _scalars_in(skeleton: Any) -> list[int] | None:
    """Return the numbers of all scalars in a part of a skeleton, or None if not all of it is known."""
    if skeleton is OPAQUE:
        return None
    if isinstance(skeleton, Scalar):
        return [skeleton.number]
    parts = skeleton.values() if isinstance(skeleton, dict) else skeleton if isinstance(skeleton, list) else ()
    found: list[int] = []
    for part in parts:
        inside = _scalars_in(part)
        if inside is None:
            return None
        found += inside
    return found


def _names(columns: Columns, place: Scalar, which: Ints) -> StringColumn | None:
    """Return names, or None if one of them is not a name or is unusual."""
    texts = columns.names(place, which)
    if texts is None or place.kind not in {STRING, ENUM}:
        return texts
    lengths = texts.lengths()
    return texts if lengths.min() >= 1 and lengths.max() <= NAME_LENGTH_MAX else None


def _names_in_keys(keys: StringColumn) -> StringColumn | None:
    """Return the keys of messages as names, or None if one of them is not a name in ASCII."""
    lengths = keys.lengths()
    if lengths.min() < 1 or lengths.max() > NAME_LENGTH_MAX:
        return None
    keys = keys.packed()
    return keys if bool((keys.data < _NOT_ASCII).all()) else None
