"""The records of the control topic ``<application>.control``, by which the order, source and target of a move talk.

They speed up a move and explain it; they decide nothing. A unit's owner is named by its checkpoint alone, so a record
that is lost, or read twice, costs time at most. A reader therefore begins at the end of the log, and what others need
to know is repeated (see `migration.protocol`). One partition, so that all readers see the same order.
"""

from __future__ import annotations

from typing import Final

import msgspec

FORMAT_VERSION: Final = 1
"""Of the records here; a reader passes over higher ones, and over kinds that it does not know."""


class _Record(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag=str.lower):
    """What all of them have: the ``move`` they belong to."""

    format: int = FORMAT_VERSION
    move: str


class Request(_Record, frozen=True, kw_only=True):
    """The order to move ``units`` to the site ``to``; repeated until the move has ended."""

    units: list[int]
    to: str


class Cancelled(_Record, frozen=True, kw_only=True):
    """The order is withdrawn for those of the ``units`` that have not been released."""

    units: list[int]


class _OfUnit(_Record, frozen=True, kw_only=True):
    """About one unit; ``instance`` writes it."""

    unit: int
    to: str
    instance: str


class Ready(_OfUnit, frozen=True, kw_only=True):
    """The target has built the unit's state and waits for its release."""


class Released(_OfUnit, frozen=True, kw_only=True):
    """The source has committed its last transaction: the unit has no owner, and is reserved for ``to``."""


class Resumed(_OfUnit, frozen=True, kw_only=True, tag="taken"):
    """The target has claimed the unit and resumed the join, ``late_ms`` before this was written."""

    late_ms: int = 0


class Refused(_OfUnit, frozen=True, kw_only=True):
    """The source or the target cannot move the unit; ``why`` says what to do."""

    why: str


class Back(_OfUnit, frozen=True, kw_only=True):
    """Nobody claimed the unit, so ``instance``, its source, has reclaimed it."""


class Claiming(_Record, frozen=True, kw_only=True):
    """The run ``run`` of the site ``to`` is claiming these units; repeated until it has done so.

    ``move`` is empty: whoever waits for one of the units, in any move, keeps waiting.
    """

    move: str = ""
    units: list[int]
    to: str
    run: str


Record = Request | Cancelled | Ready | Released | Resumed | Refused | Back | Claiming

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Record)


class _Format(msgspec.Struct):
    format: int


def encode(record: msgspec.Struct) -> bytes:
    """The JSON bytes of a record."""
    return _encoder.encode(record)


def decode(value: bytes | None) -> Record | None:
    """A record; None for bytes that are no record of this release."""
    try:
        if msgspec.json.decode(value or b"", type=_Format).format > FORMAT_VERSION:
            return None
        record: Record = _decoder.decode(value or b"")
        return record
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
