"""Finds the fields that contain measured values, and divides the messages of a topic into streams."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from decimal import Decimal
from itertools import count, islice
from typing import Final, NamedTuple

from broker.wire.records import JSON_NUMBER
from joiner.cli.proposal.fields import NEARLY_ALL, SHOWN_MAX, Field, Scalar, is_number, literal, plain
from joiner.mapping.documents import NUMBER_LENGTH_MAX

STREAMS_MAX: Final = 20
"""The maximum number of streams that are proposed for a topic."""

COUNTED_MAX: Final = 1000
"""Up to how many streams of a topic are counted."""

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

_DIVIDERS_MAX: Final = 50
"""How many fields are compared with all values, to see whether they tell quantities apart."""

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
    topic: str, fields: Sequence[Field], key: Field | None, messages: int
) -> tuple[list[StreamGuess], list[str]]:
    """Return the streams in a topic, and notes.

    ``fields``: without the key, times and ids. ``messages``: how many there are.
    """
    numbers = [field for field in fields if _are_numbers(field)]
    values = [field for field in numbers if _is_measured(field)]
    varying = [field for field in values if not field.is_constant]
    values = varying or values
    kind = _kind(fields, values, key, messages)
    streams = _streams(topic, values, range(messages)) if kind is None else _by_kind(topic, kind, values)
    found = [*islice(streams, COUNTED_MAX + 1)]
    named: dict[str, StreamGuess] = {}
    for stream in found[:STREAMS_MAX]:
        name = next(one for one in numbered(stream.name) if one not in named)
        named[name] = stream._replace(name=name)
    used = {stream.value for stream in named.values()}
    notes = []
    if len(found) > STREAMS_MAX:
        number = f"more than {COUNTED_MAX}" if len(found) > COUNTED_MAX else len(found)
        notes.append(f"it has {number} streams, of which {STREAMS_MAX} are proposed")
    unused = [field.path for field in numbers if field.path not in used and not field.is_about_message]
    if unused:
        notes.append(f"numbers that are not proposed, such as constants and counters: {', '.join(unused[:SHOWN_MAX])}")
    elements = [
        field.path for field in values if field.path in used and any(isinstance(one, int) for one in field.segments)
    ]
    if elements:
        notes.append(
            f"{elements[0]} is in an array, of which a stream reads one element: if each element is a message of its "
            "own, the producer must send it as one"
        )
    if kind is not None and len(kind.values) < messages:
        notes.append(f"{messages - len(kind.values)} messages have no {kind.path}, and are in no stream")
    likely = (field for field in fields if field is not kind and _has_few_values(field, messages))
    dividers = (field for field in islice(likely, _DIVIDERS_MAX) if _divides(field, values))
    return [*named.values()], [*notes, *map(_divider_note, islice(dividers, SHOWN_MAX))]


def numbered(name: str) -> Iterator[str]:
    """Yield a name, and then the name with numbers from 2."""
    yield name
    yield from (f"{name}.{number}" for number in count(2))


def _has_few_values(field: Field, messages: int) -> bool:
    """Return whether a field that was not chosen may tell quantities apart nevertheless. ``messages``: their number."""
    different = {value for value in field.values.values() if isinstance(value, str | bool)}
    is_complete = len(field.values) >= _MOST * messages
    are_few = 1 < len(different) <= min(_FEW_KINDS, messages // 2)
    are_short = all(len(str(value)) <= _NAME_LENGTH_MAX for value in different)
    return is_complete and are_few and are_short and not field.is_named_like_key


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


def _kind(fields: Sequence[Field], values: Sequence[Field], key: Field | None, messages: int) -> Field | None:
    """Return the field that says what each message is about, or None if no value needs it.

    A value needs it if messages of different kinds have it at the same path.
    """
    candidates = [
        field
        for field in fields
        if field.words[-1] in _KINDS
        and (field.words[-1] not in _VAGUE or len(field.words) == 1 or field.words[-2] in _KINDS)
        and len(field.values) >= _MOST * messages
        and _is_kind(field)
        and not _follows_from(field, key)
    ]
    candidates.sort(key=lambda one: (_KINDS.index(one.words[-1]), len(one.segments)))
    for field in candidates[:_DIVIDERS_MAX]:
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
    of_kind: defaultdict[Scalar, list[int]] = defaultdict(list)
    for number, value in kind.values.items():
        of_kind[value].append(number)
    # The most frequent ones first.
    for which, messages in sorted(of_kind.items(), key=lambda one: -len(one[1])):
        streams = [*_streams(topic, values, messages)]
        name = f"{kind.name[:_NAME_LENGTH_MAX]}.{literal(which)}" if isinstance(which, int) else str(which)
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
