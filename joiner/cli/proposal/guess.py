"""Finds out which fields of a topic's messages are the key, the time, the id and the values of streams."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final, NamedTuple

from broker.wire.records import Unreadable
from joiner.cli.proposal.fields import SHOWN_MAX, Field, fields_of
from joiner.cli.proposal.keys import find_id, find_key
from joiner.cli.proposal.samples import Question, Sample, Source, UnusableSource
from joiner.cli.proposal.times import TimeField, as_date, in_each_unit, time_fields, time_ns
from joiner.cli.proposal.values import StreamGuess, streams_of
from joiner.mapping.paths import parse_path
from joiner.mapping.reading import decode_document
from joiner.mapping.settings import KAFKA_TIMESTAMP

_OWN_FIELDS: Final = frozenset({"thing", "quantity", "phenomenonTime", "result", "id"})
"""The fields of the pipeline's own records."""

_OF_KAFKA: Final = "when Kafka appended the message"


class Answers(NamedTuple):
    """What a person has decided: paths, and the unit of times that are numbers.

    A path applies to the topics whose messages have such a field. ``key`` can also be a string in quotes.
    """

    key: str | None = None
    time: str | None = None
    time_unit: str | None = None
    id: str | None = None


class TopicGuess(NamedTuple):
    """A proposal for a topic. ``key``, ``time``, ``time_unit`` and ``id`` are the settings of its streams.

    ``example``: a time as a plain date. ``notes``: what a person should know. ``is_own``: whether the messages are the
    pipeline's own records, which need no ``[[stream]]``; the streams are then quantities.
    """

    source: Source
    key: str
    time: str
    time_unit: str | None
    id: str | None
    example: str
    streams: Sequence[StreamGuess]
    notes: Sequence[str] = ()
    is_own: bool = False


class _Time(NamedTuple):
    """The time of a topic's messages. ``field``: None if it is that of Kafka."""

    field: Field | None
    unit: str | None
    example: str

    @property
    def path(self) -> str:
        return KAFKA_TIMESTAMP if self.field is None else self.field.path


def guess(source: Source, answers: Answers, now_ns: int) -> TopicGuess:
    """Return a proposal for a topic. ``now_ns``: the current time.

    Raises `UnusableSource` if the messages cannot be joined, and `Question`.
    """
    samples, documents, notes = _documents_of(source)
    fields = fields_of(documents)
    count = len(documents)
    if all(isinstance(one, dict) and one.keys() >= _OWN_FIELDS for one in documents):
        return _own(source, fields, count, answers, now_ns)
    times = time_fields(fields, count, now_ns)
    time = _time(source, fields, times, answers, notes)
    is_time = {one.field.path for one in times} | {time.path}
    others = [field for field in fields if field.path not in is_time]
    key = find_key(source, samples, others, answers.key, notes)
    others = [field for field in others if field.path != key]
    identity = None
    if time.field is not None:
        by_path = {field.path: field for field in fields}
        identity = find_id(others, fields, answers.id, by_path.get(key), time.field, documents)
    others = [field for field in others if field.path != identity]
    streams, more = streams_of(source.topic, others, count)
    if not streams:
        shown = ", ".join(field.path for field in fields[:SHOWN_MAX])
        message = f"{source.topic}: no field of its messages is a measured number (fields: {shown})"
        raise UnusableSource(message)
    if answers.time is None and time.field is not None:
        streams = [_with_own_time(stream, streams, fields, times, time.field) for stream in streams]
    return TopicGuess(source, key, time.path, time.unit, identity, time.example, streams, [*notes, *more])


def _with_own_time(
    stream: StreamGuess,
    streams: Sequence[StreamGuess],
    fields: Sequence[Field],
    times: Sequence[TimeField],
    of_message: Field,
) -> StreamGuess:
    """If an object holds a single value and its time, such as ``SourceTimestamp``, use this time for the value."""
    by_path = {field.path: field for field in fields}
    value = by_path[stream.value]
    around = value.segments[:-1]
    is_alone = sum(by_path[path].segments[:-1] == around for path in {one.value for one in streams}) == 1
    beside = [one for one in times if one.field.segments[:-1] == around]
    if not (around and is_alone and beside) or any(one.field is of_message for one in beside):
        return stream
    own = beside[0]
    is_complete = own.field.values.keys() >= value.values.keys()
    if not is_complete or own.is_of_handling or own.is_constant:
        return stream
    return stream._replace(time=own.field.path, time_unit=own.unit, example=own.example)


def _documents_of(source: Source) -> tuple[list[Sample], list[Any], list[str]]:
    """Return the messages that are JSON objects or arrays, decoded, and notes about the others."""
    samples, documents, reason = [], [], ""
    for sample in source.samples:
        if sample.value is None:
            continue
        try:
            document = decode_document(sample.value)
            if not isinstance(document, (dict, list)):
                message = "not a JSON object"
                raise Unreadable(message)
        except Unreadable as error:
            reason = reason or f"{error}{_format_of(sample.value)}"
            continue
        samples.append(sample)
        documents.append(document)
    if not documents:
        why = f"none of its messages is JSON: {reason}" if reason else "there are no messages to look at"
        message = f"{source.topic}: {why}"
        raise UnusableSource(message)
    if source.is_file and any(isinstance(one, list) and one and isinstance(one[0], dict) for one in documents):
        message = f"{source.topic}: a line is an array of messages, but each message needs a line (jq -c '.[]' FILE)"
        raise UnusableSource(message)
    bad = sum(sample.value is not None for sample in source.samples) - len(documents)
    return samples, documents, [f"{bad} of {len(source.samples)} messages are not JSON ({reason})"] if bad else []


def _format_of(value: bytes) -> str:
    """Return what a message that is not JSON probably is, to be appended to an error message."""
    if value[:1] == b"\0" and len(value) > 5:  # noqa: PLR2004 - the magic byte, and the schema's id of four bytes
        return (
            f"; it begins like a message with a schema (id {int.from_bytes(value[1:5])}) in a schema registry, such as "
            "Avro: have it written as JSON without a schema"
        )
    if value[:4] == b"\xff\xff\xff\xff":
        return "; it begins like Arrow: see topics.data_format"
    if value[:2] == b"\x1f\x8b":
        return "; it is compressed with gzip: decompress it first"
    return "; each message needs a line of its own (jq -c . FILE)" if value in {b"{", b"["} else ""


def _own(source: Source, fields: Sequence[Field], count: int, answers: Answers, now_ns: int) -> TopicGuess:
    by_path = {field.path: field for field in fields}
    time, quantity = by_path.get("$.phenomenonTime"), by_path.get("$.quantity")
    if time is None or quantity is None or not all(isinstance(one, str) and one for one in quantity.values.values()):
        message = f"{source.topic}: its messages look like records, but a phenomenonTime or quantity is not a scalar"
        raise UnusableSource(message)
    times = time_fields([time], count, now_ns)
    unit = times[0].unit if times else answers.time_unit
    given = next(iter(time.values.values()))
    if not times:
        if not isinstance(given, int | Decimal) or isinstance(given, bool):
            message = f"{source.topic}: {given!r} in phenomenonTime is not a time with an offset from UTC"
            raise UnusableSource(message)
        if unit is None:
            raise Question(_about_unit(source, time, given))
    streams = [StreamGuess(str(name), "", None) for name in dict.fromkeys(quantity.values.values())]
    return TopicGuess(source, "", "", unit, None, as_date(given, unit), streams, is_own=True)


def _time(
    source: Source, fields: Sequence[Field], times: Sequence[TimeField], answers: Answers, notes: list[str]
) -> _Time:
    """Return the time of the messages. Raises `Question`, and `UnusableSource` if the given field has no times."""
    if answers.time == KAFKA_TIMESTAMP:
        return _Time(None, None, _OF_KAFKA)
    wanted = None if answers.time is None else parse_path(answers.time).segments
    given = next((field for field in fields if field.segments == wanted), None)
    if given is not None:
        return _given_time(source, given, times, answers.time_unit)
    if times:
        best, *others = times
        if others:
            notes.append("other times: " + ", ".join(one.field.path for one in others[:SHOWN_MAX]))
        if unusable := len(best.field.values) - best.usable:
            notes.append(f"{unusable} of {len(best.field.values)} messages have no likely time in {best.field.path}")
        return _Time(best.field, best.unit, best.example)
    doubtful = next((field for field in fields if field.is_named_like_time), None)
    example = None if doubtful is None else next(iter(doubtful.values.values()))
    if doubtful is not None and isinstance(example, int | Decimal) and not isinstance(example, bool):
        raise Question(_about_unit(source, doubtful, example))
    why = ""
    if doubtful is not None:
        why = f"{doubtful.path} cannot be the time, because {example!r} has no offset from UTC, or is no time"
    if source.is_file:
        shown = ", ".join(f"{field.path} ({next(iter(field.values.values()))!r:.40})" for field in fields[:SHOWN_MAX])
        message = f"{source.topic}: which field is the time? {why}. Fields: {shown}. Answer with --time PATH"
        raise Question(message)
    notes.append(why or "no field contains a usable time")
    return _Time(None, None, _OF_KAFKA)


def _given_time(source: Source, given: Field, times: Sequence[TimeField], unit: str | None) -> _Time:
    found = next((one for one in times if one.field is given), None)
    if unit is None and found is not None:
        return _Time(given, found.unit, found.example)
    example = next(iter(given.values.values()))
    if isinstance(example, int | Decimal) and not isinstance(example, bool):
        if unit is None:
            raise Question(_about_unit(source, given, example))
        return _Time(given, unit, as_date(example, unit))
    if time_ns(example, "ns") is None:
        message = f"{source.topic}: {given.path} cannot be the time: {example!r} has no offset from UTC, or is no time"
        raise UnusableSource(message)
    return _Time(given, None, as_date(example, None))


def _about_unit(source: Source, field: Field, example: int | Decimal) -> str:
    kafka = "" if source.is_file else f", or with --time {KAFKA_TIMESTAMP} if it is not the time of the measurement"
    return (
        f"{source.topic}: in which unit is the time {field.path}? {example} is {in_each_unit(example)}. "
        f"Answer with --time '{field.path}' --time-unit UNIT{kafka}"
    )
