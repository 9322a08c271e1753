"""Lists the fields of JSON messages: the paths that select a scalar, and the values that they select."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, NamedTuple

from joiner.mapping.paths import LENGTH_MAX, SEGMENTS_MAX, Segment

FIELDS_MAX: Final = 2_000
"""The maximum number of fields that are listed."""

_ELEMENTS_MAX: Final = 3
"""How many elements of an array are looked at."""

_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

Scalar = str | int | Decimal | bool | None


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
    def words(self) -> tuple[str, ...]:
        """The names along the path, in lower case and without punctuation: ``deviceid`` for ``device_id``."""
        return tuple(plain(one) for one in self.segments if isinstance(one, str))


def plain(name: str) -> str:
    """Return a name in lower case, with nothing but letters and digits."""
    return "".join(letter for letter in name.lower() if letter.isalnum())


def path_text(segments: Sequence[Segment]) -> str:
    """Return the path with these segments as text."""
    return "$" + "".join(
        f".{one}" if isinstance(one, str) and _PLAIN.fullmatch(one) else f"[{literal(one)}]" for one in segments
    )


def literal(value: str | int) -> str:
    """Return an integer, or a string as a literal of a path or condition."""
    if isinstance(value, int):
        return str(value)
    # Single quotes need no escapes in TOML's basic strings.
    is_simple = value.isprintable() and "'" not in value and "\\" not in value
    return f"'{value}'" if is_simple else json.dumps(value)


def fields_of(documents: Sequence[Any]) -> list[Field]:
    """Return the fields of decoded documents, in order of their first occurrence.

    Fields beyond the first `FIELDS_MAX`, and those whose path would be too long or too deep, are left out.
    """
    found: dict[tuple[Segment, ...], dict[int, Scalar]] = {}
    for number, document in enumerate(documents):
        for segments, value in _scalars(document, ()):
            if segments in found or len(found) < FIELDS_MAX:
                found.setdefault(segments, {})[number] = value
    return [Field(segments, values) for segments, values in found.items() if len(path_text(segments)) <= LENGTH_MAX]


def _scalars(value: Any, segments: tuple[Segment, ...]) -> Iterator[tuple[tuple[Segment, ...], Scalar]]:
    if not isinstance(value, (dict, list)):
        yield segments, value
    elif len(segments) < SEGMENTS_MAX:
        members = value.items() if isinstance(value, dict) else enumerate(value[:_ELEMENTS_MAX])
        for segment, member in members:
            yield from _scalars(member, (*segments, segment))
