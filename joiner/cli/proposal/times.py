"""Finds the fields that contain an event time, and the unit of those that are numbers.

The joiner never guesses a unit from the size of a number. A proposal may do so, because a person checks it: it always
shows a time as a plain date.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Final, NamedTuple

from broker.times import UNIT_NS, iso_text, parse_time
from joiner.cli.proposal.fields import Field, Scalar

_EARLIEST_NS: Final = parse_time("1990-01-01T00:00:00Z", "ns")
_LATER_NS: Final = 366 * 86_400 * 10**9
"""How far in the future a time may be."""

_NAMES: Final = frozenset(
    [
        "time",
        "ts",
        "timestamp",
        "datetime",
        "eventtime",
        "phenomenontime",
        "sourcetimestamp",
        "measuredat",
        "recordedat",
        "observedat",
        "sampledat",
        "occurredat",
    ]
)
_PARTS: Final = ("time", "date", "stamp")
_ENDINGS: Final = ("at", "ts")
_OF_HANDLING: Final = (
    *("received", "enqueued", "ingest", "process", "server", "created", "updated", "modified", "kafka", "append"),
    *("expir", "start", "end", "last", "next", "sent"),
)
"""Parts of names of times at which a message was handled, not at which something was measured."""

_LESS_LIKELY: Final = frozenset(
    ["before", "schema", "source", "metadata", "rxmetadata", "settings", "headers", "systemproperties", "transaction"]
)


class TimeField(NamedTuple):
    """A field with times. ``unit``: the unit of numbers, or None for ISO-8601 strings."""

    field: Field
    unit: str | None
    score: float

    def ns(self, number: int) -> int:
        """Return the time in a document in ns."""
        return _ns(self.field.values[number], self.unit or "ns")

    @property
    def example(self) -> str:
        """One of the times as it is in the message and, if it is a number, as a date in the assumed unit."""
        number = next(iter(self.field.values))
        given = self.field.values[number]
        return f"{given}, which is {iso_text(self.ns(number))} if in {self.unit}" if self.unit else f"{given}"


def has_time_name(field: Field) -> bool:
    """Return whether the field is named like a time."""
    return _name_score(field) > 0


def time_fields(fields: Sequence[Field], count: int, now_ns: int) -> list[TimeField]:
    """Return the fields that contain a time in each document that has the field, the most likely first.

    ``count``: the number of documents.
    """
    found = []
    for field in fields:
        unit = "" if all(isinstance(value, str) for value in field.values.values()) else _unit(field, now_ns)
        if unit is None or (unit == "" and not _are_times(field.values.values(), "ns")):
            continue
        found.append(TimeField(field, unit or None, _score(field, count)))
    return sorted(found, key=lambda one: -one.score)


def in_each_unit(value: int | Decimal) -> str:
    """Return what a number would be as a time in each unit, as plain dates."""
    return ", ".join(f"{_date(value, unit)} if in {unit}" for unit in UNIT_NS)


def _unit(field: Field, now_ns: int) -> str | None:
    """Return the only unit in which all values are times since 1990, or None if there is none."""
    values = field.values.values()
    if not all(_is_number(value) for value in values) or field.name.lower().endswith("id"):
        return None
    for unit in UNIT_NS:
        if _are_times(values, unit, now_ns + _LATER_NS):
            # A number of seconds may as well be any other count.
            return unit if unit != "s" or has_time_name(field) else None
    return None


def _are_times(values: Iterable[Scalar], unit: str, latest_ns: int | None = None) -> bool:
    try:
        times = [_ns(value, unit) for value in values]
    except ValueError:
        return False
    return latest_ns is None or all(_EARLIEST_NS <= one <= latest_ns for one in times)


def _ns(value: Scalar, unit: str) -> int:
    if isinstance(value, Decimal):
        return parse_time(str(value).encode(), unit)
    if value is None or isinstance(value, bool):
        message = "not a time"
        raise ValueError(message)
    return parse_time(value, unit)


def _is_number(value: Scalar) -> bool:
    return isinstance(value, int | Decimal) and not isinstance(value, bool)


def _date(value: int | Decimal, unit: str) -> str:
    try:
        return iso_text(_ns(value, unit))
    except ValueError:
        return "no time"


def _name_score(field: Field) -> int:
    *_, name = field.words or ("",)
    if name in _NAMES:
        return 40
    return 25 if any(part in name for part in _PARTS) or name.endswith(_ENDINGS) else 0


def _score(field: Field, count: int) -> float:
    values = field.values
    score = _name_score(field) + 20 * len(values) / count + 10 * len(set(values.values())) / len(values)
    *around, name = field.words or ("",)
    score -= 15 * any(part in name for part in _OF_HANDLING)
    score -= 30 * bool(_LESS_LIKELY.intersection(around))
    score += 10 * ("after" in around)
    return score - len(field.segments)
