"""Reads the records of mapped streams from the messages of one topic.

A message yields a record for each stream whose ``where`` is true. If one of these records cannot be read, the whole
message is rejected, so that it is either joined completely or becomes one dead letter. The records have the same form
as the pipeline's own (`broker.wire.records.Record`): the thing is the key, the quantity is the stream's name, and the
time is a number in the application's unit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, NamedTuple, TypeVar, cast

import msgspec

from broker.times import UNIT_NS, mean_text, parse_time
from broker.wire.records import JSON_NUMBER, NAME_LENGTH_MAX, Record, Unreadable
from broker.wire.start_records import read_start
from joiner.mapping.conditions import Condition, parse_condition, parse_literal
from joiner.mapping.documents import NUMBER_LENGTH_MAX, Instant
from joiner.mapping.formats import JSON, document_decoder
from joiner.mapping.framing import Schemas, SchemaTable
from joiner.mapping.paths import MISSING, Path, parse_path
from joiner.mapping.settings import KAFKA_KEY, KAFKA_TIMESTAMP, StreamSettings

_Value = TypeVar("_Value")


class MappedRecord(NamedTuple):
    """A record and its event time in ns."""

    record: Record
    ts_ns: int


class MappedTopic:
    """Reads the messages of a topic for its mapped streams."""

    def __init__(self, streams: Sequence[StreamSettings], time_unit: str, schemas: Schemas | None = None) -> None:
        """``time_unit``: the unit of the records' times, a key of `UNIT_NS`. ``schemas``: for formats that need any."""
        self._streams = [_Stream(stream, time_unit) for stream in streams]
        # All streams of a topic have the same format.
        self._decode = document_decoder(streams[0].format if streams else JSON, schemas or SchemaTable())

    def read(self, value: bytes | None, offset: int, append_ms: int, key: bytes | None = None) -> list[MappedRecord]:
        """Return the records in a message, at most one for each stream.

        A null message, such as a tombstone, has none. Neither has a start record (see `broker.wire.start_records`),
        unless the streams can read it: the topic may be the output of an application with replicas.

        ``append_ms``: when Kafka appended the message, in ms since the epoch. ``key``: the message's key, which only
        streams with `KAFKA_KEY` need. Raises `Unreadable` with the reason if the message is not of the streams' format,
        or if a stream's record in it cannot be read, and the errors of `Schemas.get`.
        """
        if value is None:
            return []
        try:
            document = self._decode(value)
            chosen = [stream for stream in self._streams if stream.selects(document)]
            return [stream.read(document, offset, append_ms, key) for stream in chosen]
        except Unreadable:
            if read_start(value) is None:
                raise
            return []

    def thing_of(self, value: bytes | None, key: bytes | None) -> str | None:
        """Return the thing that a message is about, or None if it cannot be read.

        All streams of the topic must have the same ``key``. ``value`` and ``key``: those of the message. Raises the
        errors of `Schemas.get`.
        """
        thing = self._streams[0].thing
        try:
            return name_in_key(key) if thing is None else thing(self._decode(value or b""))
        except ValueError:
            return None


class _Stream:
    """Reads the records of one stream."""

    def __init__(self, settings: StreamSettings, time_unit: str) -> None:
        self._name = settings.name
        self._unit, self._unit_there = time_unit, settings.time_unit or time_unit
        self._where: Condition | None = None if settings.where is None else parse_condition(settings.where)
        literal = parse_literal(settings.key)
        self.thing: Callable[[Any], str] | None = None
        if settings.key != KAFKA_KEY:
            self.thing = _constant(literal) if literal is not None else _reading("key", settings.key, _name)
        from_kafka = settings.time == KAFKA_TIMESTAMP
        self._time = None if from_kafka else _reading("time", settings.time, self._time_ns)
        self._value = _reading("value", settings.value, _double)
        self._id = None if settings.id is None else _reading("id", settings.id, _name)

    def selects(self, document: Any) -> bool:
        return self._where is None or self._where.holds(document)

    def read(self, document: Any, offset: int, append_ms: int, key: bytes | None) -> MappedRecord:
        """Return the stream's record in a document. Raises `Unreadable`, with the name of the stream."""
        try:
            thing = name_in_key(key) if self.thing is None else self.thing(document)
            ts_ns = append_ms * 1_000_000 if self._time is None else self._time(document)
            result = self._value(document)
            identity = str(offset) if self._id is None else self._id(document)
        except ValueError as error:
            message = f"stream {self._name!r}: {error}"
            raise Unreadable(message) from error
        return MappedRecord(Record(thing, self._name, _in_unit(ts_ns, self._unit), result, identity), ts_ns)

    def _time_ns(self, value: Any) -> int:
        if isinstance(value, Instant):
            return parse_time(int(value), value.unit)
        if isinstance(value, Decimal):
            return parse_time(str(value).encode(), self._unit_there)
        if isinstance(value, bool) or not isinstance(value, int | str):
            message = "expected a number or an ISO-8601 string"
            raise ValueError(message)  # noqa: TRY004 - the input is wrong, not the program
        return parse_time(value, self._unit_there)


def name_in_key(key: bytes | None) -> str:
    """Return a message's key as a name. Raises ValueError if the message has no key, or if the key is not a name."""
    if not key:
        raise ValueError("the message has no key")
    try:
        return _name(key.decode())
    except UnicodeDecodeError as error:
        raise ValueError("the message's key is not UTF-8") from error
    except ValueError as error:
        message = f"the message's key: {error}"
        raise ValueError(message) from error


def _constant(value: str) -> Callable[[Any], str]:
    thing = _name(value)
    return lambda _: thing


def _reading(field: str, path_text: str, convert: Callable[[Any], _Value]) -> Callable[[Any], _Value]:
    path: Path = parse_path(path_text)

    def read(document: Any) -> _Value:
        found = path.find(document)
        if found is MISSING:
            message = f"there is no {field} at {path_text}"
            raise ValueError(message)
        try:
            return convert(found)
        except ValueError as error:
            message = f"{field} at {path_text}: {error}"
            raise ValueError(message) from error

    return read


def _name(value: Any) -> str:
    """Convert a string, or an integer, to a name. Raises ValueError if it is neither, empty or too long."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        message = "expected a string or an integer"
        raise ValueError(message)  # noqa: TRY004 - as above
    text = str(value)
    if not 1 <= len(text) <= NAME_LENGTH_MAX:
        message = f"expected 1 to {NAME_LENGTH_MAX} characters, got {len(text)}"
        raise ValueError(message)
    return text


def _double(value: Any) -> float:
    """Convert a number, a string that is a JSON number, or a Boolean (as 1 or 0) to a double."""
    if isinstance(value, str):
        if len(value) > NUMBER_LENGTH_MAX or JSON_NUMBER.fullmatch(value) is None:
            message = f"{value[:40]!r} is not a number"
            raise ValueError(message)
        if value == "-0":  # an integer, as without quotes
            return 0.0
    elif isinstance(value, float):  # others are decimals
        message = f"{value} is not a finite number"
        raise ValueError(message)  # noqa: TRY004 - as above
    elif not isinstance(value, bool | int | Decimal):
        message = "expected a number"
        raise ValueError(message)  # noqa: TRY004 - as above
    try:
        found = float(value)
    except OverflowError:
        found = math.inf
    if not math.isfinite(found):
        message = f"the number {str(value)[:40]} is too large for a double"
        raise ValueError(message)
    return found


def _in_unit(time_ns: int, unit: str) -> int:
    """Return a time as an integer in ``unit`` or, if that is not exact, as the text of a decimal number."""
    whole, rest = divmod(time_ns, UNIT_NS[unit])
    # The annotation of `Record` omits the type of exact times; see there.
    return cast("int", msgspec.Raw(mean_text(time_ns, time_ns, unit).encode())) if rest else whole
