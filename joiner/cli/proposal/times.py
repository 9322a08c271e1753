"""Finds the fields that contain an event time, and the unit of those that are numbers.

The joiner never guesses a unit from the size of a number. A proposal may do so, because a person checks it: it always
shows a time as a plain date.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Final, NamedTuple

from broker.times import UNIT_NS, iso_text, parse_time
from joiner.cli.proposal.fields import NEARLY_ALL, TIME_NAMES, Field, Scalar, is_number
from joiner.mapping.documents import Instant

_EARLIEST_NS: Final = parse_time("2000-01-01T00:00:00Z", "ns")
_LATER_NS: Final = 366 * 86_400 * 10**9
"""How far in the future a time may be."""

_WORDS: Final = frozenset({"time", "ts", "timestamp", "date", "datetime"})

_OF_MEASUREMENT: Final = ("sampl", "measur", "observ", "phenomenon", "reading")
_OF_HANDLING: Final = (
    *("received", "enqueued", "ingest", "processed", "processing", "server", "created", "updated", "modified", "kafka"),
    *("append", "expir", "start", "end", "last", "next", "sent", "install", "calibrat", "born", "valid", "insert"),
    *("stored", "archiv", "publish", "arriv", "load", "writ", "deliver", "due"),
)
"""Parts of names of times other than that of a measurement."""

_PARTS: Final = ("timestamp", "datetime", "unixtime", "epoch")
"""Parts of names of times that are written without anything between the words."""

_MANY: Final = 10
"""With more messages, a time that never changes is not that of a measurement, unless its name says so."""


class TimeField(NamedTuple):
    """A field with times. ``usable``: how many values are times.

    ``unit``: of numbers, or None for times that need none: ISO-8601 strings, and timestamps of a schema.
    """

    field: Field
    unit: str | None
    usable: int
    score: float

    @property
    def example(self) -> str:
        """One of the times as it is in the message and, if it is a number, as a date in the assumed unit."""
        return as_date(first_usable(self.field), self.unit)


def is_of_handling(field: Field) -> bool:
    """Return whether the name says that this is when a message was handled, or another time than the measurement's."""
    return any(part in field.plain_name for part in _OF_HANDLING)


def is_surely_time(field: Field) -> bool:
    """Return whether the field cannot be anything but a time, judging by its name or its schema."""
    return field.is_named_like_time or _has_instants(field)


def is_of_things(field: Field, partitions: int) -> bool:
    """Return whether the times are rather those of things than of messages, such as dates of installation.

    That is so if many messages have the same time, or return again and again to a few times. ``partitions``: those of
    the topic. The messages of one come after those of another, which may have the same times, or be of other things.
    """
    partitions = max(1, partitions)
    if len(field.values) <= _MANY:
        return False
    seen: set[Scalar] = set()
    returns, last = 0, None
    for value in field.values.values():
        returns += value != last and value in seen
        seen.add(value)
        last = value
    are_few = len(seen) <= partitions and len(field.values) > _MANY * len(seen)
    return are_few or returns > 2 * partitions * len(seen)


def is_of_measurement(field: Field) -> bool:
    """Return whether nothing but the time of the measurement has such a name and such a place in a message."""
    is_named = field.is_named_like_time or any(part in field.plain_name for part in _OF_MEASUREMENT)
    return is_named and not (is_of_handling(field) or field.is_about_message)


def first_usable(field: Field) -> Scalar:
    """Return the first value that is a number or a string other than a zero or an empty one, or else the first."""
    values = field.values.values()
    return next((value for value in values if value and not isinstance(value, bool)), next(iter(values)))


def as_date(given: Scalar, unit: str | None) -> str:
    """Return a time as it is in the message and, if it is a number in ``unit``, as a date."""
    if isinstance(given, Instant):
        found = time_ns(given, given.unit)
        date = "no time" if found is None else iso_text(found)
        return f"{given}, which is {date}, because the schema says that it is in {given.unit}"
    if unit is None or isinstance(given, str | bytes):
        return given if isinstance(given, str) else repr(given)
    found = time_ns(given, unit)
    return f"{given}, which is {'no time' if found is None else iso_text(found)} if in {unit}"


def is_likely(given: Scalar, unit: str, now_ns: int) -> bool:
    """Return whether a number in ``unit`` is a time since 2000."""
    found = time_ns(given, unit)
    return found is not None and _EARLIEST_NS <= found <= now_ns + _LATER_NS


def time_fields(fields: Sequence[Field], count: int, now_ns: int) -> list[TimeField]:
    """Return the fields that contain a time in nearly all documents that have the field, the most likely first.

    ``count``: the number of documents.
    """
    found = []
    for field in fields:
        plain = sum(isinstance(value, str | Instant) for value in field.values.values())
        units = [None] if 2 * plain > len(field.values) else [*UNIT_NS]
        for unit in units:
            usable = _count_times(field, unit, now_ns)
            if usable and usable >= NEARLY_ALL * len(field.values):
                found.append(TimeField(field, unit, usable, _score(field, count)))
                break
    return sorted(found, key=lambda one: -one.score)


def hidden_times(fields: Sequence[Field], now_ns: int) -> list[TimeField]:
    """Return the fields whose numbers may be times although their names do not say so, with the unit of each."""
    found = []
    for field in fields:
        first = first_usable(field)
        unit = next((one for one in UNIT_NS if is_number(first) and is_likely(first, one, now_ns)), None)
        if unit is not None and not field.is_constant:
            usable = sum(is_number(value) and is_likely(value, unit, now_ns) for value in field.values.values())
            if usable >= NEARLY_ALL * len(field.values):
                found.append(TimeField(field, unit, usable, 0.0))
    return found


def in_each_unit(value: int | Decimal) -> str:
    """Return what a number would be as a time in each unit, as plain dates."""
    dates = ((time_ns(value, unit), unit) for unit in UNIT_NS)
    return ", ".join(f"{'no time' if found is None else iso_text(found)} if in {unit}" for found, unit in dates)


def time_ns(value: Scalar, unit: str) -> int | None:
    """Return a time in ns, or None if the value is none. ``unit``: of numbers that do not know theirs."""
    if isinstance(value, bool) or not isinstance(value, str | int | Decimal):
        return None
    try:
        if isinstance(value, Instant):
            return parse_time(int(value), value.unit)
        return parse_time(str(value).encode() if isinstance(value, Decimal) else value, unit)
    except ValueError:
        return None


def _count_times(field: Field, unit: str | None, now_ns: int) -> int:
    """Return how many values are times: numbers in ``unit`` since 2000 in a field named like a time.

    Without a unit: ISO-8601, or timestamps of a schema.
    """
    values = field.values.values()
    if unit is None:
        return sum(isinstance(value, str | Instant) and time_ns(value, "ns") is not None for value in values)
    if not _may_be_named_like_time(field):
        # It may as well be a counter.
        return 0
    return sum(is_number(value) and is_likely(value, unit, now_ns) for value in values)


def _may_be_named_like_time(field: Field) -> bool:
    is_named = not _WORDS.isdisjoint(field.words) or any(part in field.plain_name for part in _PARTS)
    return is_named or field.is_named_like_time


def _has_instants(field: Field) -> bool:
    return any(isinstance(value, Instant) for value in field.values.values())


def _score(field: Field, count: int) -> float:
    values = field.values
    is_named = _may_be_named_like_time(field) or _has_instants(field)
    score = 40.0 * (field.plain_name in TIME_NAMES) or 25.0 * is_named
    score += 20 * len(values) / count + 10 * len(set(values.values())) / len(values)
    score += 10 * any(part in field.plain_name for part in _OF_MEASUREMENT)
    score -= 15 * is_of_handling(field) + 100 * (field.is_constant and len(values) > _MANY)
    score -= 30 * field.is_about_message
    score += 10 * ("after" in field.segments)
    return score - len(field.segments)
