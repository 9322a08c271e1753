"""Finds out which fields of a topic's messages are the key, the time, the id and the values of streams."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final, NamedTuple

from broker.wire.records import JSON_NUMBER, NAME_LENGTH_MAX
from joiner.cli.proposal.fields import NEARLY_ALL, SHOWN_MAX, Field, fields_of, find_given, is_number, listed, shown
from joiner.cli.proposal.formats import decode_samples
from joiner.cli.proposal.keys import find_id, find_key, given_key
from joiner.cli.proposal.samples import Question, Source, UnusableSource
from joiner.cli.proposal.times import (
    TimeField,
    as_date,
    first_usable,
    hidden_times,
    in_each_unit,
    is_likely,
    is_of_handling,
    is_of_measurement,
    is_of_things,
    is_surely_time,
    time_fields,
    time_ns,
)
from joiner.cli.proposal.values import STREAMS_MAX, StreamGuess, streams_of
from joiner.mapping.conditions import parse_literal
from joiner.mapping.formats import JSON
from joiner.mapping.settings import KAFKA_KEY, KAFKA_TIMESTAMP

_OWN_FIELDS: Final = frozenset({"thing", "quantity", "phenomenonTime", "result", "id"})
"""The fields of the pipeline's own records."""

_OF_KAFKA: Final = "when Kafka appended the message"
_HIDDEN_MAX: Final = 3


class Answers(NamedTuple):
    """What a person has decided: paths, and the unit of times that are numbers.

    The first path that a topic's messages have applies to the topic. ``key`` may also contain a string in quotes.
    """

    key: Sequence[str] = ()
    time: Sequence[str] = ()
    time_unit: str | None = None
    id: Sequence[str] = ()

    @property
    def paths(self) -> set[str]:
        """All paths."""
        return {one for one in (*self.key, *self.time, *self.id) if one.startswith("$")}


class TopicGuess(NamedTuple):
    """A proposal for a topic. ``key``, ``time``, ``time_unit``, ``id`` and ``format`` are the settings of its streams.

    ``example``: a time as a plain date. ``notes``: what a person should know. ``is_own``: whether the messages are the
    pipeline's own records, which need no ``[[stream]]``; the streams are then quantities. ``known``: which of the given
    paths the messages have. ``repartition``: whether the joiner must copy the topic, because its partitions are others.
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
    known: frozenset[str] = frozenset()
    repartition: bool = False
    format: str = JSON


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
    message_format, samples, documents, given_notes = decode_samples(source)
    notes = [*given_notes]
    known = frozenset(path for path in answers.paths if find_given(documents, [path]) is not None)
    records = [one for one in documents if isinstance(one, dict) and ("mark" not in one or "result" in one)]
    own = sum(one.keys() >= _OWN_FIELDS for one in records)
    if message_format == JSON and records and own >= NEARLY_ALL * len(records):
        return _own(source, fields_of(records), answers, notes, now_ns)._replace(known=known)
    fields = fields_of(documents)
    count = len(documents)
    times = time_fields(fields, count, now_ns)
    time = _time(source, fields, times, answers, find_given(documents, answers.time), notes, now_ns)
    is_time = {one.field.path for one in times} | {time.path}
    others = [field for field in fields if field.path not in is_time]
    key = next((one for one in answers.key if one == KAFKA_KEY or parse_literal(one) is not None), "")
    given = find_given(documents, [one for one in answers.key if one.startswith("$")])
    if key and given is None:
        found = given_key(key, source, samples)
    else:
        found = find_key(source, samples, others, given, notes)
    key = found.path
    key_field = given or next((field for field in fields if field.path == key), None)
    others = [field for field in others if field.path != key]
    identity = _identity(others, key_field, time, documents, answers, notes)
    others = [field for field in others if field.path != identity]
    streams, more = streams_of(source.topic, others, key_field, count)
    if not streams:
        message = f"{source.topic}: no field of its messages is a measured number. Fields: {listed(fields)}"
        raise UnusableSource(message)
    if not answers.time and time.field is not None:
        streams = [_with_own_time(stream, streams, fields, times, time.field) for stream in streams]
    return TopicGuess(
        source,
        key,
        time.path,
        time.unit,
        identity,
        time.example,
        streams,
        [*notes, *more],
        known=known,
        repartition=found.repartition,
        format=message_format,
    )


def _identity(
    others: Sequence[Field],
    key: Field | None,
    time: _Time,
    documents: Sequence[Any],
    answers: Answers,
    notes: list[str],
) -> str | None:
    given = find_given(documents, answers.id)
    if time.field is None:
        if given is not None:
            notes.append(f"{given.path} cannot be the id, because redelivered messages have other times of arrival")
        return None
    return given.path if given is not None else find_id(others, key, time.field, documents)


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
    if not is_complete or not own.field.is_named_like_time or is_of_handling(own.field) or own.field.is_constant:
        return stream
    return stream._replace(time=own.field.path, time_unit=own.unit, example=own.example)


def _own(source: Source, fields: Sequence[Field], answers: Answers, notes: Sequence[str], now_ns: int) -> TopicGuess:
    by_path = {field.path: field for field in fields}
    time, quantity = by_path.get("$.phenomenonTime"), by_path.get("$.quantity")
    if time is None or quantity is None or not all(isinstance(one, str) and one for one in quantity.values.values()):
        message = f"{source.topic}: its messages look like records, but a phenomenonTime or quantity is not a scalar"
        raise UnusableSource(message)
    times = time_fields([time], len(time.values), now_ns)
    unit = source.time_unit or (times[0].unit if times else answers.time_unit)
    given = first_usable(time)
    if not times and source.time_unit is None:
        if not is_number(given):
            raise UnusableSource(_no_time(source, time))
        if unit is None:
            raise Question(_about_unit(source, time))
    counts = Counter(str(name) for name in quantity.values.values() if len(str(name)) <= NAME_LENGTH_MAX)
    # The most frequent ones, in the order of their first occurrence.
    usual = {name for name, _ in counts.most_common(STREAMS_MAX)}
    streams = [StreamGuess(name, "", None) for name in counts if name in usual]
    if len(counts) > STREAMS_MAX:
        notes = [*notes, f"it has {len(counts)} quantities, of which the {STREAMS_MAX} most frequent are looked at"]
    return TopicGuess(source, "", "", unit, None, as_date(given, unit), streams, notes, is_own=True)


def _time(
    source: Source,
    fields: Sequence[Field],
    times: Sequence[TimeField],
    answers: Answers,
    given: Field | None,
    notes: list[str],
    now_ns: int,
) -> _Time:
    """Return the time of the messages. Raises `Question`, and `UnusableSource` if the given field has no times."""
    if given is not None:
        return _given_time(source, given, times, answers.time_unit, notes, now_ns)
    if KAFKA_TIMESTAMP in answers.time:
        return _Time(None, None, _OF_KAFKA)
    of_things = [one for one in times if _are_left_out(one.field, source)]
    times = [one for one in times if one not in of_things]
    doubtful = _doubtful(fields, times)
    if doubtful is not None and is_number(first_usable(doubtful)):
        if answers.time_unit is None:
            raise Question(_about_unit(source, doubtful))
        return _Time(doubtful, answers.time_unit, as_date(first_usable(doubtful), answers.time_unit))
    if doubtful is not None and (times or source.is_file):
        other = times[0].field.path if times else "PATH"
        message = f"{_no_time(source, doubtful)}. To use another time, answer with --time '{other}'"
        raise Question(message)
    if times:
        return _best_time(source, [*times, *of_things], answers.time_unit, notes)
    left_out = {one.field.path for one in of_things}
    others = [one for one in hidden_times(fields, now_ns) if one.field.path not in left_out]
    hidden = "".join(map(_about_hidden, [*of_things, *others][:_HIDDEN_MAX]))
    if source.is_file:
        message = f"{source.topic}: which field is the time? Fields: {listed(fields)}. Answer with --time PATH{hidden}"
        raise Question(message)
    no_time = _no_time(source, doubtful) if doubtful is not None else "no field contains a usable time"
    notes.append(f"{no_time}{hidden}")
    return _Time(None, None, _OF_KAFKA)


def _are_left_out(field: Field, source: Source) -> bool:
    return is_of_things(field, source.partitions) and not is_of_measurement(field)


def _best_time(source: Source, times: Sequence[TimeField], given_unit: str | None, notes: list[str]) -> _Time:
    best, *others = times
    if given_unit is not None and best.unit not in {None, given_unit}:
        notes.append(
            f"the times {best.field.path} are probably in {best.unit} rather than {given_unit}: if they are not, add "
            f"--time '{best.field.path}'"
        )
    if is_of_things(best.field, source.partitions):
        count = len(set(best.field.values.values()))
        notes.append(
            f"{len(best.field.values)} messages have only {count} different times {best.field.path}: check that they "
            "are those of the measurements"
        )
    if others:
        notes.append("other times: " + ", ".join(one.field.path for one in others[:SHOWN_MAX]))
    elif is_of_handling(best.field):
        notes.append(f"{best.field.path} may not be the time of the measurement, but there is no other")
    if unusable := len(best.field.values) - best.usable:
        notes.append(f"{unusable} of {len(best.field.values)} messages have no likely time in {best.field.path}")
    return _Time(best.field, best.unit, best.example)


def _doubtful(fields: Sequence[Field], times: Sequence[TimeField]) -> Field | None:
    """Return the field that looks more like the time of the measurement than any usable one, or None."""
    usable = {one.field.path for one in times}
    if times and is_surely_time(times[0].field) and not is_of_handling(times[0].field):
        return None
    doubtful = (
        field
        for field in fields
        if field.is_named_like_time
        and field.path not in usable
        and not (is_of_handling(field) or field.is_about_message)
        and any(value is not None and not isinstance(value, bool) for value in field.values.values())
    )
    return next(doubtful, None)


def _given_time(
    source: Source, given: Field, times: Sequence[TimeField], unit: str | None, notes: list[str], now_ns: int
) -> _Time:
    found = next((one for one in times if one.field.path == given.path), None)
    if unit is None and found is not None:
        return _Time(given, found.unit, found.example)
    example = first_usable(given)
    if is_number(example):
        if unit is None:
            raise Question(_about_unit(source, given))
        if not is_likely(example, unit, now_ns):
            notes.append(f"{given.path} would be {as_date(example, unit)}: check the unit")
        return _Time(given, unit, as_date(example, unit))
    if time_ns(example, "ns") is None:
        raise UnusableSource(_no_time(source, given))
    return _Time(given, None, as_date(example, None))


def _no_time(source: Source, field: Field) -> str:
    value = first_usable(field)
    why = f"{source.topic}: {field.path} cannot be the time, because {shown(value)} is"
    if isinstance(value, str) and JSON_NUMBER.fullmatch(value) is not None:
        return f"{why} a number in quotes, which cannot be read as a time; only the producer can remove them"
    return f"{why} not an ISO-8601 time with an offset from UTC; only the producer can add one"


def _about_hidden(time: TimeField) -> str:
    path, unit = time.field.path, "" if time.unit is None else f" --time-unit {time.unit}"
    return f"; if {path} is the time ({time.example}), answer with --time '{path}'{unit}"


def _about_unit(source: Source, field: Field) -> str:
    example = first_usable(field)
    dates = f"{example} is {in_each_unit(example)}" if isinstance(example, int | Decimal) else shown(example)
    kafka = "" if source.is_file else f", or with --time {KAFKA_TIMESTAMP} if it is not the time of the measurement"
    return (
        f"{source.topic}: in which unit is the time {field.path}? {dates}. "
        f"Answer with --time '{field.path}' --time-unit UNIT{kafka}"
    )
