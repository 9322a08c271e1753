"""Finds out which fields of a topic's messages are the key, the time, the id and the values of streams."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final, NamedTuple

from broker.partitioner import partition_of
from broker.wire.records import NAME_LENGTH_MAX, Unreadable
from joiner.cli.proposal.fields import Field, Scalar, fields_of, literal
from joiner.cli.proposal.samples import Sample, Source, UnusableSource
from joiner.cli.proposal.times import TimeField, has_time_name, in_each_unit, time_fields
from joiner.cli.proposal.values import StreamGuess, streams_of
from joiner.mapping.reading import decode_document
from joiner.mapping.settings import KAFKA_TIMESTAMP

OWN_FIELDS: Final = frozenset({"thing", "quantity", "phenomenonTime", "result", "id"})
"""The fields of the pipeline's own records."""

_SHOWN_MAX: Final = 8
"""How many fields an error message lists."""

_KEY_NAMES: Final = frozenset(
    [
        "thing",
        "machine",
        "machineid",
        "device",
        "deviceid",
        "connectiondeviceid",
        "deveui",
        "sensor",
        "sensorid",
        "asset",
        "assetid",
        "equipment",
        "station",
        "host",
        "hostname",
        "source",
        "subject",
        "vehicle",
        "vehicleid",
        "vin",
        "publisherid",
        "clientid",
        "customer",
        "customerid",
        "order",
        "orderid",
        "account",
        "accountid",
        "symbol",
    ]
)
_IDS: Final = ("id", "uuid", "guid")
_CHANCE: Final = 1000
_FEW: Final = 3
"""With fewer values, it cannot be told whether they are repeated."""

_NEARLY_ALL: Final = 0.98
"""The share of distinct ids, because some messages may have been delivered twice."""


class Question(Exception):
    """Raised if only a person can decide. The message is the question, and says how to answer it."""


class Answers(NamedTuple):
    """What a person has decided: paths, the unit of times that are numbers, and whether there are ids."""

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


def guess(source: Source, answers: Answers, now_ns: int) -> TopicGuess:
    """Return a proposal for a topic. ``now_ns``: the current time.

    Raises `UnusableSource` if the messages cannot be joined, and `Question`.
    """
    samples, documents, notes = _documents_of(source)
    fields = fields_of(documents)
    count = len(documents)
    if sum(isinstance(one, dict) and one.keys() >= OWN_FIELDS for one in documents) == count:
        return _own(source, fields, count, now_ns)
    times = time_fields(fields, count, now_ns)
    time, unit, example = _time(source, fields, times, answers, notes)
    is_time = {one.field.path for one in times} | {time}
    key = _key(source, samples, [field for field in fields if field.path not in is_time], answers, notes)
    identity = answers.id
    if identity is None and time != KAFKA_TIMESTAMP:
        identity = _id([field for field in fields if field.path not in {*is_time, key}], count)
    streams = streams_of(source.topic, [one for one in fields if one.path not in {*is_time, key, identity}], count)
    if not streams:
        shown = ", ".join(field.path for field in fields[:_SHOWN_MAX])
        message = f"{source.topic}: no field of its messages is a measured number (fields: {shown})"
        raise UnusableSource(message)
    if answers.time is None:
        streams = [_with_own_time(stream, fields, times, time) for stream in streams]
    return TopicGuess(source, key, time, unit, identity, example, streams, notes)


def _with_own_time(
    stream: StreamGuess, fields: Sequence[Field], times: Sequence[TimeField], of_message: str
) -> StreamGuess:
    """If a value has a time beside it, such as ``SourceTimestamp``, use this one instead of the message's."""
    value = next(field for field in fields if field.path == stream.value)
    around = value.segments[:-1]
    beside = [one for one in times if one.field.segments[:-1] == around]
    if not beside or any(one.field.path == of_message for one in beside):
        return stream
    own = beside[0]
    is_complete = own.field.values.keys() >= value.values.keys()
    return stream._replace(time=own.field.path, time_unit=own.unit) if is_complete else stream


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
    return ""


def _own(source: Source, fields: Sequence[Field], count: int, now_ns: int) -> TopicGuess:
    by_path = {field.path: field for field in fields}
    times = time_fields([by_path["$.phenomenonTime"]], count, now_ns)
    unit = times[0].unit if times else None
    if not times:
        raise Question(_about_unit(source, by_path["$.phenomenonTime"]))
    streams = [StreamGuess(str(name), "", None) for name in dict.fromkeys(by_path["$.quantity"].values.values())]
    return TopicGuess(source, "", "", unit, None, times[0].example, streams, is_own=True)


def _time(
    source: Source, fields: Sequence[Field], times: Sequence[TimeField], answers: Answers, notes: list[str]
) -> tuple[str, str | None, str]:
    """Return the path of the time, its unit, and an example."""
    if answers.time == KAFKA_TIMESTAMP:
        return KAFKA_TIMESTAMP, None, "when Kafka appended the message"
    wanted = [field for field in fields if answers.time in (None, field.path)]
    if not wanted:
        raise Question(_no_such_field(source, "time", str(answers.time), fields))
    found = [one for one in times if answers.time in (None, one.field.path)]
    if answers.time is not None and answers.time_unit is not None:
        value = next(iter(wanted[0].values.values()))
        return answers.time, answers.time_unit, f"{value}, in {answers.time_unit}"
    if found:
        best, *others = found
        if others and answers.time is None:
            notes.append("other times: " + ", ".join(one.field.path for one in others[:_SHOWN_MAX]))
        return best.field.path, best.unit, best.example
    doubtful = [field for field in wanted if has_time_name(field) or answers.time is not None]
    numbers = [field for field in doubtful if _are_numbers(field.values.values())]
    if numbers:
        raise Question(_about_unit(source, numbers[0]))
    if source.is_file:
        raise Question(_no_such_field(source, "time", "", fields))
    if doubtful:
        value = next(iter(doubtful[0].values.values()))
        notes.append(f"{doubtful[0].path} cannot be used as the time: {value!r} has no offset from UTC, or is no time")
    notes.append("no field contains a usable time, so the time is when Kafka appended the message")
    return KAFKA_TIMESTAMP, None, "when Kafka appended the message"


def _about_unit(source: Source, field: Field) -> str:
    value = next(value for value in field.values.values() if isinstance(value, int | Decimal))
    return (
        f"{source.topic}: in which unit is the time {field.path}? {value} is {in_each_unit(value)}. "
        f"Answer with --time '{field.path}' --time-unit UNIT"
    )


def _no_such_field(source: Source, what: str, path: str, fields: Sequence[Field]) -> str:
    shown = ", ".join(f"{field.path} ({next(iter(field.values.values()))!r:.40})" for field in fields[:_SHOWN_MAX])
    why = f"no message has a field {path}" if path else f"which field is the {what}?"
    return f"{source.topic}: {why} Fields: {shown}. Answer with --{what} PATH"


def _key(source: Source, samples: Sequence[Sample], fields: Sequence[Field], answers: Answers, notes: list[str]) -> str:
    """Return the path of the key, or a string in quotes if the topic has one partition and no key."""
    candidates = [field for field in fields if all(_is_name(value) for value in field.values.values())]
    if answers.key is not None:
        return answers.key
    right = [field for field in candidates if source.is_file or _determines_partition(field, samples, source)]
    scored = sorted(((_key_score(field, samples, source), field) for field in right), key=lambda one: -one[0])
    if scored and scored[0][0] > 0:
        return scored[0][1].path
    if source.is_file:
        raise Question(_no_such_field(source, "key", "", candidates))
    if right and source.partitions > 1:
        raise Question(_no_such_field(source, "key", "", right))
    if source.partitions == 1:
        notes.append("no field looks like a key, so all messages have the same one")
        return literal(source.topic)
    message = (
        f"{source.topic}: its messages are not partitioned by any of their fields, so the joiner would reject most of "
        "them: the producer must use a field as the message's key, as plain text, with Kafka's default partitioner "
        "(librdkafka: partitioner=murmur2_random)"
    )
    raise UnusableSource(message)


def _determines_partition(field: Field, samples: Sequence[Sample], source: Source) -> bool:
    return all(
        partition_of(str(value).encode(), source.partitions) == samples[number].partition
        for number, value in field.values.items()
    )


def _key_score(field: Field, samples: Sequence[Sample], source: Source) -> float:
    """Return how likely a field is the key; 0 or less if it is not. It must determine the partition."""
    values = field.values
    share = len(values) / len(samples)
    if all(samples[number].key == str(value).encode() for number, value in values.items()):
        return 1000 * share - len(field.segments)
    *_, name = field.words or ("",)
    distinct = len(set(values.values()))
    score = 30 * (name in _KEY_NAMES) + 10 * name.endswith("id")
    # A field that has nothing to do with the partition determines that of every value only by a rare chance.
    score += 5 * (not source.is_file and source.partitions**distinct >= _CHANCE)
    # Values that are all different identify messages rather than things.
    is_repeated = distinct <= max(1, len(values) // 2) or len(values) < _FEW
    return (score + 5 - len(field.segments)) * share if score and is_repeated else 0


def _id(fields: Sequence[Field], count: int) -> str | None:
    """Return the path of the field that identifies messages, or None if there is none."""
    for field in sorted(fields, key=lambda one: len(one.segments)):
        *_, name = field.words or ("",)
        values = [*field.values.values()]
        is_complete = len(values) == count and all(_is_name(value) for value in values)
        if name.endswith(_IDS) and is_complete and count > 1 and len(set(values)) >= _NEARLY_ALL * count:
            return field.path
    return None


def _is_name(value: Scalar) -> bool:
    return isinstance(value, int | str) and not isinstance(value, bool) and 1 <= len(str(value)) <= NAME_LENGTH_MAX


def _are_numbers(values: Any) -> bool:
    return all(isinstance(value, int | Decimal) and not isinstance(value, bool) for value in values)
