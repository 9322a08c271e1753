"""The header of a copied message, which says where the original is.

It is the text ``<topic>/<partition>/<offset>``, because a topic's name cannot contain a slash.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

ORIGIN_HEADER: Final = "lsb-origin"

_ORIGIN: Final = re.compile(rb"([A-Za-z0-9._-]{1,249})/(0|[1-9][0-9]{0,9})/(0|[1-9][0-9]{0,18})")


class Origin(NamedTuple):
    """The place of the message that was copied."""

    topic: str
    partition: int
    offset: int


def encode_origin(origin: Origin) -> bytes:
    """Return the value of the header."""
    return b"%b/%d/%d" % (origin.topic.encode(), origin.partition, origin.offset)


def decode_origin(value: bytes) -> Origin:
    """Return the place that a header's value names. Raises ValueError if it names none."""
    match = _ORIGIN.fullmatch(value)
    if match is None:
        message = f"{value[:80]!r} is not the place of a message"
        raise ValueError(message)
    return Origin(match[1].decode(), int(match[2]), int(match[3]))
