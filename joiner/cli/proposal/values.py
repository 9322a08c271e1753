"""Finds the fields that contain measured values, and divides the messages of a topic into streams."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Final, NamedTuple

from broker.wire.records import JSON_NUMBER
from joiner.cli.proposal.fields import NEARLY_ALL, SHOWN_MAX, Field, Scalar, literal, plain

STREAMS_MAX: Final = 20
"""The maximum number of streams that are proposed for a topic."""

_KINDS: Final = (
    *("quantity", "metric", "measurement", "signal", "sensor", "tag", "variable", "parameter", "channel", "point"),
    *("property", "type", "kind", "name", "event", "n"),
)
"""Last words of the names of fields that say what a message is about, the most telling first."""

_FEW_KINDS: Final = 10
"""A string with at most this many values may be what divides the messages, whatever its name."""

_NAME_LENGTH_MAX: Final = 100
"""The maximum length of a proposed name, which is part of further names."""

_ANY_VALUE: Final = frozenset({"", "value", "val", "v", "result", "reading", "data", "measurement"})
"""Names of fields that say nothing about the value."""

_NOT_MEASURED: Final = frozenset(
    {
        *("version", "seq", "sequence", "sequencenumber", "seqno", "offset", "partition", "lsn", "txid", "fport"),
        *("fcnt", "txorder"),
    }
)
_RARE: Final = 0.02
"""A field that fewer messages have is not proposed."""


class StreamGuess(NamedTuple):
    """A stream: its name, the path of its value, and the condition that selects its messages, if not all.

    ``time`` and ``time_unit``: of this value alone, with an ``example``, or None if it has the time of the message.
    """

    name: str
    value: str
    where: str | None
    time: str | None = None
    time_unit: str | None = None
    example: str = ""


def streams_of(topic: str, fields: Sequence[Field], count: int) -> tuple[list[StreamGuess], list[str]]:
    """Return the streams in a topic, and notes. ``fields``: without the key, times and ids. ``count``: of messages."""
    numbers = [field for field in fields if _are_numbers(field)]
    values = [field for field in numbers if _is_measured(field)]
    varying = [field for field in values if len(set(field.values.values())) > 1]
    values = varying or values
    kind = _kind(fields, values, count)
    found = [*_by_kind(topic, kind, values)] if kind is not None else [*_streams(topic, values, range(count))]
    named: dict[str, StreamGuess] = {}
    for stream in found[:STREAMS_MAX]:
        name = stream.name if stream.name not in named else f"{stream.name}.{len(named)}"
        named[name] = stream._replace(name=name)
    used = {stream.value for stream in named.values()}
    return [*named.values()], [*_notes(fields, numbers, values, used, kind, count, len(found))]


def _notes(
    fields: Sequence[Field],
    numbers: Sequence[Field],
    values: Sequence[Field],
    used: set[str],
    kind: Field | None,
    count: int,
    found: int,
) -> Iterator[str]:
    if found > STREAMS_MAX:
        yield f"it has {found} streams, of which {STREAMS_MAX} are proposed"
    unused = [field.path for field in numbers if field.path not in used and not field.is_about_message]
    if unused:
        yield f"numbers that are not proposed, such as constants and counters: {', '.join(unused[:SHOWN_MAX])}"
    if kind is None:
        for field in fields:
            texts = {value for value in field.values.values() if isinstance(value, str)}
            is_complete = len(field.values) >= NEARLY_ALL * count
            if 1 < len(texts) <= min(_FEW_KINDS, count // 2) and is_complete and _divides(field, values):
                yield (
                    f"if {field.path} ({', '.join(sorted(texts)[:3])}) says what is measured, divide the stream with "
                    f'where = "{field.path} == {literal(min(texts))}"'
                )


def _are_numbers(field: Field) -> bool:
    values = [value for value in field.values.values() if value is not None]
    numbers = sum(map(_is_number, values))
    return numbers > 0 and numbers >= NEARLY_ALL * len(values)


def _is_measured(field: Field) -> bool:
    is_named_otherwise = field.plain_name in _NOT_MEASURED or field.words[-1] in {"id", "version"}
    return not (is_named_otherwise or field.is_about_message or field.is_named_like_time)


def _is_number(value: Scalar) -> bool:
    if isinstance(value, str):
        return JSON_NUMBER.fullmatch(value) is not None
    return isinstance(value, int | Decimal) and not isinstance(value, bool)


def _kind(fields: Sequence[Field], values: Sequence[Field], count: int) -> Field | None:
    """Return the field that says what each message is about, or None if no value needs it.

    A value needs it if messages of different kinds have it at the same path. The field is beside the value, or further
    out.
    """
    candidates = [
        field
        for field in fields
        if field.words[-1] in _KINDS
        and len(field.values) >= NEARLY_ALL * count
        and all(isinstance(value, str) and len(value) <= _NAME_LENGTH_MAX for value in field.values.values())
        and 1 < len(set(field.values.values())) <= count // 2
    ]
    for field in sorted(candidates, key=lambda one: (_KINDS.index(one.words[-1]), len(one.segments))):
        if _divides(field, values):
            return field
    return None


def _divides(kind: Field, values: Sequence[Field]) -> bool:
    """Return whether messages in which ``kind`` differs have the same value, beside it or further in."""
    around = kind.segments[:-1]
    return any(
        value.segments[: len(around)] == around
        and len({kind.values[number] for number in value.values if number in kind.values}) > 1
        for value in values
    )


def _by_kind(topic: str, kind: Field, values: Sequence[Field]) -> Iterator[StreamGuess]:
    for name, _ in Counter(map(str, kind.values.values())).most_common():
        messages = [number for number, value in kind.values.items() if value == name]
        streams = [*_streams(topic, values, messages)]
        for stream in streams:
            selects = f"{kind.path} == {literal(name)}"
            yield StreamGuess(
                name if name and len(streams) == 1 else f"{name}.{stream.name}",
                stream.value,
                selects if stream.where is None else f"{selects} && {stream.where}",
            )


def _streams(topic: str, values: Sequence[Field], messages: Sequence[int]) -> Iterator[StreamGuess]:
    """Yield the streams of some messages, one for each value."""
    for field in values:
        found = [field.values[number] for number in messages if number in field.values]
        numbers = sum(value is not None for value in found)
        if not numbers or numbers < _RARE * len(messages):
            continue
        conditions = [field.path] if len(found) < len(messages) else []
        conditions += [f"{field.path} != null"] if numbers < len(found) else []
        yield StreamGuess(_name_of(topic, field), field.path, " && ".join(conditions) or None)


def _name_of(topic: str, field: Field) -> str:
    """Return a name for the stream of a value: the innermost name along its path that says something."""
    names = [one for one in field.segments if isinstance(one, str)]
    telling = [one for one in names if plain(one) not in _ANY_VALUE]
    return (telling[-1] if telling else topic.rpartition(".")[2] or topic)[:_NAME_LENGTH_MAX]
