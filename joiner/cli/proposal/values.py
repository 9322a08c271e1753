"""Finds the fields that contain measured values, and divides the messages of a topic into streams."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Final, NamedTuple

from broker.wire.records import JSON_NUMBER
from joiner.cli.proposal.fields import NEARLY_ALL, SHOWN_MAX, Field, Scalar, is_number, literal, plain
from joiner.mapping.documents import NUMBER_LENGTH_MAX

STREAMS_MAX: Final = 20
"""The maximum number of streams that are proposed for a topic."""

_KINDS: Final = (
    *("quantity", "metric", "measurement", "signal", "sensor", "tag", "variable", "parameter", "channel", "point"),
    *("property", "type", "kind", "name", "event", "n"),
)
"""Last words of the names of fields that say what a message is about, the most telling first."""

_VAGUE: Final = frozenset({"property", "type", "kind", "name", "event", "n"})
"""Those that need another word in front of them, or stand alone beside the value or further out."""

_MOST: Final = 0.8
"""The share of messages that have a field which says what they are about."""

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


def streams_of(
    topic: str, fields: Sequence[Field], key: Field | None, count: int
) -> tuple[list[StreamGuess], list[str]]:
    """Return the streams in a topic, and notes. ``fields``: without the key, times and ids. ``count``: of messages."""
    numbers = [field for field in fields if _are_numbers(field)]
    values = [field for field in numbers if _is_measured(field)]
    varying = [field for field in values if not field.is_constant]
    values = varying or values
    kind = _kind(fields, values, key, count)
    found = [*_by_kind(topic, kind, values)] if kind is not None else [*_streams(topic, values, range(count))]
    named: dict[str, StreamGuess] = {}
    for stream in found[:STREAMS_MAX]:
        name = stream.name if stream.name not in named else f"{stream.name}.{len(named)}"
        named[name] = stream._replace(name=name)
    used = {stream.value for stream in named.values()}
    notes = []
    if len(found) > STREAMS_MAX:
        notes.append(f"it has {len(found)} streams, of which {STREAMS_MAX} are proposed")
    unused = [field.path for field in numbers if field.path not in used and not field.is_about_message]
    if unused:
        notes.append(f"numbers that are not proposed, such as constants and counters: {', '.join(unused[:SHOWN_MAX])}")
    if kind is not None and len(kind.values) < count:
        notes.append(f"{count - len(kind.values)} messages have no {kind.path}, and are in no stream")
    dividers = [field for field in fields if field is not kind and _may_divide(field, values, count)]
    return [*named.values()], [*notes, *map(_divider_note, dividers[:SHOWN_MAX])]


def _may_divide(field: Field, values: Sequence[Field], count: int) -> bool:
    """Return whether a field that was not chosen may tell quantities apart nevertheless."""
    different = {value for value in field.values.values() if isinstance(value, str | bool)}
    is_complete = len(field.values) >= _MOST * count
    few = min(_FEW_KINDS, count // 2)
    return 1 < len(different) <= few and is_complete and not field.is_named_like_key and _divides(field, values)


def _divider_note(field: Field) -> str:
    texts = sorted({value for value in field.values.values() if isinstance(value, str)})
    if not texts:
        return (
            f"if {field.path} (true, false) says which messages are to be joined, select them with "
            f'where = "{field.path} == true"'
        )
    return (
        f"if {field.path} ({', '.join(texts[:3])}) says what is measured, divide the streams with "
        f'where = "{field.path} == {literal(texts[0])}", and so on'
    )


def _are_numbers(field: Field) -> bool:
    values = [value for value in field.values.values() if value is not None]
    numbers = sum(map(_is_numeric, values))
    return numbers > 0 and numbers >= NEARLY_ALL * len(values)


def _is_measured(field: Field) -> bool:
    is_named_otherwise = field.plain_name in _NOT_MEASURED or field.words[-1] in {"id", "version"}
    is_number_of_kind = field.words[-1] in _KINDS and _is_kind(field)
    return not (is_named_otherwise or is_number_of_kind or field.is_about_message or field.is_named_like_time)


def _is_numeric(value: Scalar) -> bool:
    """Return whether the joiner can read a value as a double. (It can read a Boolean too, but nobody measures one.)"""
    is_text = isinstance(value, str) and len(value) <= NUMBER_LENGTH_MAX and JSON_NUMBER.fullmatch(value) is not None
    if not isinstance(value, str | int | Decimal) or not (is_text or is_number(value)):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def _kind(fields: Sequence[Field], values: Sequence[Field], key: Field | None, count: int) -> Field | None:
    """Return the field that says what each message is about, or None if no value needs it.

    A value needs it if messages of different kinds have it at the same path.
    """
    candidates = [
        field
        for field in fields
        if field.words[-1] in _KINDS
        and (field.words[-1] not in _VAGUE or len(field.words) == 1 or field.words[-2] in _KINDS)
        and len(field.values) >= _MOST * count
        and _is_kind(field)
        and not _follows_from(field, key)
    ]
    for field in sorted(candidates, key=lambda one: (_KINDS.index(one.words[-1]), len(one.segments))):
        if _divides(field, values, anywhere=field.words[-1] not in _VAGUE):
            return field
    return None


def _is_kind(field: Field) -> bool:
    values = [*field.values.values()]
    # In a condition, true is not 1, as it is in Python.
    are_alike = len({isinstance(one, bool) for one in values}) == 1
    are_names = are_alike and all(isinstance(one, str | int) for one in values)
    is_repeated = 1 < len(set(values)) <= len(values) // 2
    return are_names and is_repeated and max(len(str(one)) for one in values) <= _NAME_LENGTH_MAX


def _follows_from(field: Field, key: Field | None) -> bool:
    """Return whether each thing always has the same value, such as a name of its own. Then it is not a kind."""
    if key is None or key.is_constant:
        return False
    known: dict[Scalar, Scalar] = {}
    return all(known.setdefault(key.values.get(number), value) == value for number, value in field.values.items())


def _divides(kind: Field, values: Sequence[Field], *, anywhere: bool = False) -> bool:
    """Return whether messages in which ``kind`` differs share a value: beside it, further in or ``anywhere``."""
    around = () if anywhere else kind.segments[:-1]
    return any(
        value.segments[: len(around)] == around
        and len({kind.values[number] for number in value.values if number in kind.values}) > 1
        for value in values
    )


def _by_kind(topic: str, kind: Field, values: Sequence[Field]) -> Iterator[StreamGuess]:
    for which, _ in Counter(kind.values.values()).most_common():
        messages = [number for number, value in kind.values.items() if value == which]
        streams = [*_streams(topic, values, messages)]
        name = f"{kind.name}.{literal(which)}" if isinstance(which, int) else str(which)
        for stream in streams:
            selects = f"{kind.path} == {literal(which if isinstance(which, int) else name)}"
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
    """Return a name for the stream of a value: the innermost name along its path that says something.

    Indices of arrays that follow it are appended.
    """
    name, indices = topic.rpartition(".")[2] or topic, ""
    for one in field.segments:
        if isinstance(one, int):
            indices += f".{one}"
        elif plain(one) not in _ANY_VALUE:
            name, indices = one, ""
    return f"{name[:_NAME_LENGTH_MAX]}{indices[:_NAME_LENGTH_MAX]}"
