"""Finds a value in a JSON document by a path: a singular query of JSONPath (RFC 9535, section 2.3.5.1).

A path starts with ``$``. Each segment selects a member of an object (``.name`` or ``['any name']``) or an element of an
array (``[0]``, or ``[-1]`` for the last one). A path therefore selects at most one value.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

import msgspec

LENGTH_MAX: Final = 2000
"""The maximum length of a path in characters."""

SEGMENTS_MAX: Final = 32
"""The maximum number of segments in a path."""

INDEX_MAX: Final = 2**53 - 1
"""The largest index, as in RFC 9535."""

STRING: Final = re.compile(r"'(?P<single>(?:[^'\\]|\\.)*)'|\"(?P<double>(?:[^\"\\]|\\.)*)\"", re.DOTALL)
"""A string literal. `string_value` returns its value."""

BLANKS: Final = re.compile(r"[ \t\n\r]*")
_strings: Final = msgspec.json.Decoder(str)

_NAME: Final = re.compile(r"\.(?P<name>[A-Za-z_\u0080-\U0010ffff][A-Za-z0-9_\u0080-\U0010ffff]*)")
_INDEX: Final = re.compile(r"0|-?[1-9][0-9]{0,15}(?![0-9])")

Segment = str | int


class Missing:
    """The type of `MISSING`."""

    def __repr__(self) -> str:
        """Return the name of the constant."""
        return "MISSING"


MISSING: Final = Missing()
"""What a path selects if the document has no such value. It differs from ``null``."""


class Path(NamedTuple):
    """A parsed path. ``segments``: a member's name or an element's index each."""

    segments: tuple[Segment, ...]

    def find(self, document: Any) -> Any:
        """Return the value that the path selects in a decoded JSON document, or `MISSING`."""
        found = document
        for segment in self.segments:
            if isinstance(segment, str):
                if not isinstance(found, dict) or segment not in found:
                    return MISSING
                found = found[segment]
            else:
                if not isinstance(found, list) or not -len(found) <= segment < len(found):
                    return MISSING
                found = found[segment]
        return found


def parse_path(text: str) -> Path:
    """Parse a path. Raises ValueError if ``text`` contains anything else."""
    if len(text) > LENGTH_MAX:
        message = f"the path has {len(text)} characters, more than {LENGTH_MAX}"
        raise ValueError(message)
    path, end = read_path(text, 0)
    if end != len(text):
        message = f"{text!r} is not a path at {text[end:]!r}: write $.name, $['any name'] or $[0]"
        raise ValueError(message)
    return path


def read_path(text: str, at: int) -> tuple[Path, int]:
    """Parse the path that begins at ``at``. Return it and the position after it. Raises ValueError if there is none."""
    if not text.startswith("$", at):
        message = f"{text[at:]!r} is not a path: a path starts with $, as in $.machine.id"
        raise ValueError(message)
    at += 1
    segments: list[Segment] = []
    while (found := _read_segment(text, _skip_blanks(text, at))) is not None:
        segment, at = found
        segments.append(segment)
    if len(segments) > SEGMENTS_MAX:
        message = f"{text!r} has {len(segments)} segments, more than {SEGMENTS_MAX}"
        raise ValueError(message)
    return Path(tuple(segments)), at


def _read_segment(text: str, at: int) -> tuple[Segment, int] | None:
    """Parse the segment that begins at ``at``. Return it and the position after it, or None if there is none."""
    if (match := _NAME.match(text, at)) is not None:
        return match["name"], match.end()
    if not text.startswith("[", at):
        return None
    at = _skip_blanks(text, at + 1)
    segment: Segment
    if (match := STRING.match(text, at)) is not None:
        segment = string_value(match)
    elif (match := _INDEX.match(text, at)) is not None:
        segment = int(match[0])
        if abs(segment) > INDEX_MAX:
            message = f"the index {segment} is too large"
            raise ValueError(message)
    else:
        return None
    at = _skip_blanks(text, match.end())
    return (segment, at + 1) if text.startswith("]", at) else None


def _skip_blanks(text: str, at: int) -> int:
    match = BLANKS.match(text, at)
    return at if match is None else match.end()


def string_value(match: re.Match[str]) -> str:
    """Return the value of a string literal, which `STRING` has matched. Raises ValueError if it is invalid."""
    if match["double"] is not None:
        quoted, is_valid = match[0], "\\'" not in match[0].replace("\\\\", "")
    else:
        inner = match["single"]
        is_valid = '\\"' not in inner.replace("\\\\", "")
        # JSON has only double quotes: those inside need an escape there, and single ones must have none.
        quoted = '"' + re.sub(r"\\(.)|\"", _for_double_quotes, inner, flags=re.DOTALL) + '"'
    try:
        value = _strings.decode(quoted)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        message = f"{match[0]} is not a valid string: {error}"
        raise ValueError(message) from error
    if not is_valid:
        message = f"{match[0]} is not a valid string: it escapes a quote that needs no escape"
        raise ValueError(message)
    return value


def _for_double_quotes(match: re.Match[str]) -> str:
    if match[0] == '"':
        return '\\"'
    return "'" if match[1] == "'" else match[0]
