"""The records of the control topic ``<application>.control``: what a move's order, source and target tell each other.

It accelerates and explains; it decides nothing. Whose a unit is stands in its checkpoint alone, so a message that
is lost, read twice or never costs time at most. Therefore a reader begins at the end of the log: whoever has to know
something is told it again (see `migration.protocol`). One partition, so that all readers see one order.
"""

from __future__ import annotations

from typing import Final

import msgspec

FORMAT_VERSION: Final = 1
"""Of the records here; a reader passes over higher ones, and over kinds that it does not know."""


class _Record(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag=str.lower):
    """What all of them carry: the ``move`` they belong to."""

    format: int = FORMAT_VERSION
    move: str


class Request(_Record, frozen=True, kw_only=True):
    """The order: ``units`` are to go to the placement ``to``. Repeated for as long as it is wanted."""

    units: list[int]
    to: str


class Cancelled(_Record, frozen=True, kw_only=True):
    """The order is withdrawn for what has not been released."""

    units: list[int]


class _OfUnit(_Record, frozen=True, kw_only=True):
    """Of one unit; ``instance``: who writes it."""

    unit: int
    to: str
    instance: str


class Ready(_OfUnit, frozen=True, kw_only=True):
    """The target has built the unit's state, and waits for it."""


class Released(_OfUnit, frozen=True, kw_only=True):
    """The source has written its last transaction: the unit is nobody's, on its way to ``to``."""


class Taken(_OfUnit, frozen=True, kw_only=True):
    """The target has claimed the unit and goes on; ``late_ms``: so long before this was written."""

    late_ms: int = 0


class Refused(_OfUnit, frozen=True, kw_only=True):
    """Source or target cannot do it; ``why`` says what to do."""

    why: str


class Back(_OfUnit, frozen=True, kw_only=True):
    """Nobody claimed the unit, so it has been taken back by ``instance``."""


class Claiming(_Record, frozen=True, kw_only=True):
    """The run ``run`` of placement ``to`` is in the middle of claiming these units. Repeated for as long as it is.

    ``move`` is empty: whoever waits for one of the units waits on, whatever for.
    """

    move: str = ""
    units: list[int]
    to: str
    run: str


Record = Request | Cancelled | Ready | Released | Taken | Refused | Back | Claiming

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Record)


class _Format(msgspec.Struct):
    format: int


def encode(record: msgspec.Struct) -> bytes:
    """The JSON bytes of a record."""
    return _encoder.encode(record)


def decode(value: bytes | None) -> Record | None:
    """A record; None where it is none that this release knows."""
    try:
        if msgspec.json.decode(value or b"", type=_Format).format > FORMAT_VERSION:
            return None
        record: Record = _decoder.decode(value or b"")
        return record
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
