"""The header of a copied message, which says where the original is.

It is the text ``<topic>/<partition>/<offset>/<id of the topic>``, because a topic's name cannot contain a slash. The id
tells the messages of a topic from those of an earlier one of the same name. It is in Base64 and may contain slashes.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

ORIGIN_HEADER: Final = "lsb-origin"

_ORIGIN: Final = re.compile(
    rb"([A-Za-z0-9._-]{1,249})/(0|[1-9][0-9]{0,9})/(0|[1-9][0-9]{0,18})(?:/([A-Za-z0-9+/_-]{1,40}))?"
)


class Origin(NamedTuple):
    """The place of the message that was copied. ``topic_id``: that of the topic, or empty if it is not known."""

    topic: str
    partition: int
    offset: int
    topic_id: str = ""


def encode_origin(origin: Origin) -> bytes:
    """Return the value of the header."""
    place = b"%b/%d/%d" % (origin.topic.encode(), origin.partition, origin.offset)
    return b"%b/%b" % (place, origin.topic_id.encode()) if origin.topic_id else place


def decode_origin(value: bytes) -> Origin:
    """Return the place that a header's value names. Raises ValueError if it names none."""
    match = _ORIGIN.fullmatch(value)
    if match is None:
        message = f"{value[:80]!r} is not the place of a message"
        raise ValueError(message)
    return Origin(match[1].decode(), int(match[2]), int(match[3]), (match[4] or b"").decode())
