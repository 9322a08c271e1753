"""The start record of a transaction: from which offsets the unit has consumed its input.

With replicas, it is the first message that a transaction writes to an output topic: ``{"start": {"machine.data": 5}}``.
Before it, in this topic and partition, the replica has written all of its results up to that vector.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

import msgspec

RECORD_BYTES_MAX: Final = 64 * 1024
"""The maximum size of a start record in bytes."""


class _Start(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    start: dict[str, Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]]


_decoder: Final = msgspec.json.Decoder(_Start)
_encoder: Final = msgspec.json.Encoder(order="sorted")


def encode_start(offsets: Mapping[str, int]) -> bytes:
    """Return the start record for a vector of offsets, by input topic."""
    return _encoder.encode({"start": dict(offsets)})


def read_start(value: bytes | None) -> dict[str, int] | None:
    """Return the vector of a start record, or None if the message is something else."""
    if value is None or len(value) > RECORD_BYTES_MAX or b'"start"' not in value:
        return None
    try:
        return _decoder.decode(value).start
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
