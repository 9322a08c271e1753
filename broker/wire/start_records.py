"""Start records: where in its input a transaction of a replica began.

If an application has replicas (``application.replicas``), each transaction begins with a start record in the topics
that it writes to. It holds the vector C at which the transaction began: for each input topic of the unit, the offset of
the next message to consume. It says that what precedes it in its partition includes everything that the replica has to
write there for the input up to C. docs/formats.md defines which transactions have one in which topics.

A reader that only wants results skips start records. They tell a reader of several replicas which ids it can forget.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

_Topic = Annotated[str, msgspec.Meta(min_length=1, max_length=249)]
_Offset = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class StartRecord(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """A start record. ``start``: the vector at which the transaction began, by input topic.

    An empty vector says that the output does not continue from the last start record.
    """

    start: dict[_Topic, _Offset]


_encoder = msgspec.json.Encoder()
_starts = msgspec.json.Decoder(StartRecord)


def encode_start(offsets: Mapping[str, int]) -> bytes:
    """Encode the start record of a transaction that begins at these offsets, by input topic."""
    return _encoder.encode(StartRecord(dict(offsets)))


def read_start(value: bytes | None) -> dict[str, int] | None:
    """Return the offsets in a start record, by input topic, or None if a message is not a start record."""
    if value is None or b'"start"' not in value:
        return None
    try:
        return _starts.decode(value).start
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
