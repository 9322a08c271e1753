"""Lists the fields of decoded messages: the paths that select a scalar, and the values that they select."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, NamedTuple

from joiner.mapping.documents import Instant
from joiner.mapping.paths import SEGMENTS_MAX, Missing, Segment, parse_path

FIELDS_MAX: Final = 2_000
"""The maximum number of fields that are listed."""

PATH_LENGTH_MAX: Final = 400
"""The maximum length of a field's path in characters, so that a condition on three of them is not too long."""

VALUE_LENGTH_MAX: Final = 60
"""How many characters of a value a message or a note shows."""

NEARLY_ALL: Final = 0.95
"""The share of messages that must agree, because single messages may be damaged."""

NOT_MEASURED_IN: Final = frozenset(
    {
        *("schema", "before", "source", "metadata", "rxmetadata", "settings", "headers", "transaction"),
        *("systemproperties", "metadataversion"),
    }
)
"""Names of objects that describe a message, in lower case and without punctuation."""

TIME_NAMES: Final = frozenset(
    {"t", "time", "ts", "timestamp", "datetime", "eventtime", "sourcetimestamp", "measuredat"}
)
"""Names of times, in lower case and without punctuation."""

SHOWN_MAX: Final = 8
"""How many fields a message or a note lists."""

_TIME_WORDS: Final = frozenset({"at", "ts", "timestamp"})
"""Last words of the names of times."""

KEY_NAMES: Final = {
    name: score
    for score, names in {
        30: "thing machine machineid device deviceid connectiondeviceid deveui asset assetid equipment station host "
        "hostname vehicle vehicleid vin publisherid partitionkey",
        20: "source subject sensor sensorid clientid customer customerid order orderid account accountid symbol",
    }.items()
    for name in names.split()
}
"""How likely a field with such a name, in lower case and without punctuation, is the key."""

_ELEMENTS_MAX: Final = 100
"""How many elements of an array are looked at. Longer arrays are probably curves, whose elements mean nothing alone."""

_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WORDS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")

Scalar = str | int | float | Decimal | bool | bytes | None
"""A value of a field. A float is not finite, because others are decimals. Bytes are only in Avro, and so are times that
know their unit (`Instant`)."""


class Field(NamedTuple):
    """A field. ``values``: its value in each document that has it, by the document's number."""

    segments: tuple[Segment, ...]
    values: Mapping[int, Scalar]

    @property
    def path(self) -> str:
        """The path that selects the field (see `joiner.mapping.paths`)."""
        return path_text(self.segments)

    @property
    def name(self) -> str:
        """The name of the innermost member that contains the value."""
        return next((one for one in reversed(self.segments) if isinstance(one, str)), "")

    @property
    def words(self) -> list[str]:
        """The words of the name in lower case: ``device`` and ``id`` for ``deviceId``, ``device_id`` or ``DEVICE_ID``.

        There is at least one.
        """
        return [word.lower() for word in _WORDS.findall(self.name)] or [""]

    @property
    def plain_name(self) -> str:
        """The name in lower case, with nothing but letters and digits."""
        return plain(self.name)

    @property
    def is_constant(self) -> bool:
        """Whether all values are the same."""
        return len(set(self.values.values())) == 1

    @property
    def is_named_like_key(self) -> bool:
        """Whether the field may be the key of messages, judging by its name."""
        return self.plain_name in KEY_NAMES or self.words[-1] == "id"

    @property
    def is_named_like_time(self) -> bool:
        """Whether the field cannot be anything but a time, judging by its name. A ``cycle_time`` can."""
        return self.plain_name in TIME_NAMES or self.words[-1] in _TIME_WORDS

    @property
    def is_about_message(self) -> bool:
        """Whether the field is in an object that describes the message rather than a measurement."""
        return not NOT_MEASURED_IN.isdisjoint(plain(one) for one in self.segments[:-1] if isinstance(one, str))


def is_number(value: Scalar) -> bool:
    """Return whether a value is a finite number, other than a time that knows its unit."""
    return isinstance(value, int | Decimal) and not isinstance(value, bool | Instant)


def listed(fields: Sequence[Field]) -> str:
    """Return the paths of fields with a value of each, for a message."""
    found = [f"{field.path} ({shown(next(iter(field.values.values())))})" for field in fields[:SHOWN_MAX]]
    return ", ".join([*found, f"and {len(fields) - SHOWN_MAX} more"] if len(fields) > SHOWN_MAX else found)


def shown(value: Scalar) -> str:
    """Return the beginning of a value, for a message."""
    text = repr(value)
    return text if len(text) <= VALUE_LENGTH_MAX else f"{text[:VALUE_LENGTH_MAX]}..."


def find_given(documents: Sequence[Any], given: Sequence[str]) -> Field | None:
    """Return the field that the first of the given paths selects that any document has, or None."""
    for text in given:
        path = parse_path(text)
        found = {number: path.find(document) for number, document in enumerate(documents)}
        values = {number: value for number, value in found.items() if not isinstance(value, Missing | dict | list)}
        if values:
            return Field(path.segments, values)
    return None


def plain(name: str) -> str:
    """Return a name in lower case, with nothing but letters and digits."""
    return "".join(letter for letter in name.lower() if letter.isalnum())


def path_text(segments: Sequence[Segment]) -> str:
    """Return the path with these segments as text."""
    return "$" + "".join(
        f".{one}" if isinstance(one, str) and _PLAIN.fullmatch(one) else f"[{literal(one)}]" for one in segments
    )


def literal(value: str | int) -> str:
    """Return an integer or a string as a literal of a path or condition, or a Boolean as one of a condition."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    # Single quotes need no escapes in TOML's basic strings.
    is_simple = value.isprintable() and "'" not in value and "\\" not in value
    return f"'{value}'" if is_simple else json.dumps(value)


def fields_of(documents: Sequence[Any]) -> list[Field]:
    """Return the fields of decoded documents, in order of their first occurrence.

    Fields beyond the first `FIELDS_MAX`, and those whose path would be too long or too deep, are left out. So are those
    that are an object or an array in more than single documents, because no condition would tell these apart.
    """
    found: dict[tuple[Segment, ...], dict[int, Scalar]] = {}
    containers: Counter[tuple[Segment, ...]] = Counter()
    for number, document in enumerate(documents):
        for segments, value in _values(document, ()):
            if isinstance(value, (dict, list)):
                if segments in containers or len(containers) < FIELDS_MAX:
                    containers[segments] += 1
            elif segments in found or len(found) < FIELDS_MAX:
                found.setdefault(segments, {})[number] = value
    return [
        Field(segments, values)
        for segments, values in found.items()
        if len(path_text(segments)) <= PATH_LENGTH_MAX
        and len(values) >= NEARLY_ALL * (len(values) + containers.get(segments, 0))
    ]


def _values(value: Any, segments: tuple[Segment, ...]) -> Iterator[tuple[tuple[Segment, ...], Any]]:
    """Yield a value, and all inside of it, with their paths."""
    yield segments, value
    if isinstance(value, (dict, list)) and len(segments) < SEGMENTS_MAX:
        members = value.items() if isinstance(value, dict) else enumerate(value[:_ELEMENTS_MAX])
        for segment, member in members:
            yield from _values(member, (*segments, segment))
