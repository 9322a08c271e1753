"""The records of the control topic ``<application>.control``.

They request and coordinate moves (`Record`), stop a stage in Spark (`Stop`), report units that are not being served
(`NotServed`), and state what a site's instances are doing and which of them should serve each unit (`MemberRecord`).

Correctness does not depend on these records. Only the checkpoint names a unit's owner, so a lost record, or one that is
read twice, causes a delay at worst. Readers can therefore start at the end of the log, and records that matter are
repeated (see `migration.protocol`). The topic has one partition, so that all readers see the records in the same order.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple, TypeVar

import msgspec

TAIL: Final = 2_000
"""How many earlier records an instance reads at startup. They include a summary if any instance is running."""

STANDBYS_MAX: Final = 2
"""The maximum number of standbys per unit. The settings enforce the same limit."""

FORMAT_VERSION: Final = 1
"""The format version of these records. Readers skip records of a higher version and of unknown kinds."""


class _Record(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag=str.lower):
    """A record that belongs to the move ``move``, or to no move if ``move`` is empty."""

    format: int = FORMAT_VERSION
    move: str


class Request(_Record, frozen=True, kw_only=True):
    """Orders ``units`` to be moved to the site ``to``. Repeated until the move has ended."""

    units: list[int]
    to: str


class Cancelled(_Record, frozen=True, kw_only=True):
    """Withdraws the order to move ``units``. Units already released are not affected."""

    units: list[int]


class _OfUnit(_Record, frozen=True, kw_only=True):
    """A record about one unit being moved to the site ``to``, written by the runner ``instance``."""

    unit: int
    to: str
    instance: str


class Ready(_OfUnit, frozen=True, kw_only=True):
    """The target has built the unit's state and is waiting for the source to release the unit."""


class Released(_OfUnit, frozen=True, kw_only=True):
    """The source has committed its last transaction for the unit. It now has no owner, and is reserved for ``to``."""


class Resumed(_OfUnit, frozen=True, kw_only=True, tag="taken"):
    """The target has claimed the unit. Its join resumed ``late_ms`` milliseconds before this record was written."""

    late_ms: int = 0


class Refused(_OfUnit, frozen=True, kw_only=True):
    """The source or the target cannot move the unit. ``why`` gives the cause and the remedy."""

    why: str


class Back(_OfUnit, frozen=True, kw_only=True):
    """No runner of the target site claimed the unit, so its source, the runner ``instance``, has reclaimed it."""


class Claiming(_Record, frozen=True, kw_only=True):
    """The run ``run``, at the site ``to``, is claiming ``units``. Repeated until the claims have ended.

    ``move`` is empty because the record is not limited to one move: every runner waiting for one of these units keeps
    waiting.
    """

    move: str = ""
    units: list[int]
    to: str
    run: str


class Stop(_Record, frozen=True, kw_only=True):
    """Asks the instances of the Spark stage ``run`` to stop. Repeated until they have stopped. ``move`` is empty."""

    move: str = ""
    run: str


_Span = Annotated[int, msgspec.Meta(ge=0, le=100 * 365 * 24 * 3600 * 1000)]
"""A time span in milliseconds, at most a hundred years, so that adding it to a timestamp gives a valid date."""


class NotServed(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag=str.lower):
    """Reports, for ``joiner status``, that the runner ``instance`` cannot serve a unit. Not part of any move.

    ``why`` is empty once the runner can serve the unit again, or the unit is assigned to another runner. ``lasts_ms``:
    how long the unit had gone unserved when the report was written. ``retry_ms``: the time from the report until the
    next retry, or None if no retry is planned. See `ownership.unit_reports`.
    """

    format: int = FORMAT_VERSION
    unit: int
    instance: str
    site: str = msgspec.field(name="placement")
    why: str
    lasts_ms: _Span = 0
    retry_ms: _Span | None = None


class _OfSite(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag=str.lower):
    """A record about the members of a site."""

    format: int = FORMAT_VERSION
    site: str


class Heartbeat(_OfSite, frozen=True, kw_only=True):
    """Reports that the run ``run`` of an instance is alive, and what it is doing. Any change is written immediately.

    ``serves``: the units it runs. ``claims``: the units it is claiming. ``warm``: the units whose state it holds as of
    their last checkpoint and which it could claim without a replay. ``failed``: the units that cannot run on it.
    ``capacity``: its share of the units relative to the other instances. ``leaving``: it is shutting down. ``mixed``:
    it sees processes of an older release in the consumer group, so the group assigns the units. ``standbys``: the
    number of standbys per unit in its settings. The largest number among all instances applies. ``began``: the offset
    of the run's first heartbeat, or -1 until the instance has read it.
    """

    instance: str
    run: str
    host: str = ""
    capacity: float = 1.0
    serves: list[int] = []
    claims: list[int] = []
    warm: list[int] = []
    failed: list[int] = []
    leaving: bool = False
    mixed: bool = False
    standbys: int = 0
    began: int = -1


class Left(_OfSite, frozen=True, kw_only=True):
    """The run ``run`` of an instance has ended and serves no units. Written by the instance or by its supervisor."""

    instance: str
    run: str


class UnitAssignment(msgspec.Struct, frozen=True, array_like=True):
    """A unit's owner, or an empty string if no instance can own it, and its standbys in takeover order."""

    owner: str
    standbys: list[str] = []


EPOCH_MAX: Final = 2**53
"""The epoch after this one is the same. Only a program other than the joiner can have begun with one so high."""

_Epoch = Annotated[int, msgspec.Meta(ge=0, le=EPOCH_MAX)]


class Assignment(_OfSite, frozen=True, kw_only=True):
    """Assigns the units of a site, in order of unit number.

    It replaces all assignments with smaller epochs, and with `EPOCH_MAX` all before it. ``gone``: instances that have
    been silent for too long, each with the offset of its last heartbeat. ``by``: the instance that wrote it.
    ``reason``: what has changed, for operators.
    """

    epoch: _Epoch
    units: list[UnitAssignment]
    gone: dict[str, int] = {}
    by: str = ""
    reason: str = ""


class Drain(_OfSite, frozen=True, kw_only=True):
    """Orders an instance to be drained, or withdraws that order if ``drained`` is false."""

    instance: str
    drained: bool = True


_Unit = Annotated[int, msgspec.Meta(ge=0, le=2**31)]
_Standbys = Annotated[int, msgspec.Meta(ge=0, le=STANDBYS_MAX)]


class Pin(_OfSite, frozen=True, kw_only=True):
    """Pins a unit to an instance, which should own it whenever it can. An empty name removes the pin."""

    unit: _Unit
    instance: str = ""


class Standbys(_OfSite, frozen=True, kw_only=True):
    """Sets how many standbys each unit of the site should have. None: the number in the settings."""

    count: _Standbys | None = None


class Retry(_OfSite, frozen=True, kw_only=True):
    """Tells all instances to forget why they could not serve a unit, and its owner to claim it now.

    Instances that start later ignore it. It changes neither the members nor the assignment of a site.
    """

    unit: _Unit


class Scale(_OfSite, frozen=True, kw_only=True):
    """Tells the supervisor ``instance`` how many worker processes to run."""

    instance: str
    processes: int


class Workers(_OfSite, frozen=True, kw_only=True):
    """Reports the worker processes of the supervisor ``instance``: how many are running, and how many should be."""

    instance: str
    host: str
    running: int
    wanted: int


class Summary(_OfSite, frozen=True, kw_only=True):
    """Summarises the records up to the offset ``read``, so that a new instance need not read all of them.

    ``drained``: the drained instances. ``pinned``: for each pinned unit, the instance that should own it. ``standbys``:
    how many standbys each unit should have, or None to use the settings. ``ordered``: the offset of the last order on
    each subject, which is ``drain <instance>``, ``pin <unit>`` or ``standbys``. ``reason``: the reason for the last
    assignment. Heartbeats are not included, because they are repeated.
    """

    read: int
    epoch: _Epoch
    units: list[UnitAssignment]
    drained: list[str] = []
    pinned: dict[_Unit, str] = {}
    standbys: _Standbys | None = None
    ordered: dict[str, int] = {}
    reason: str = ""


Record = Request | Cancelled | Ready | Released | Resumed | Refused | Back | Claiming | Stop
StandingOrder = Drain | Pin | Standbys
"""An operator's order that stays in force until it is withdrawn."""
MemberRecord = Heartbeat | Left | Assignment | StandingOrder | Retry | Scale | Workers | Summary


class Logged(NamedTuple):
    """A record about members, with its offset and its append time in ms since the epoch."""

    record: MemberRecord
    offset: int
    appended_ms: int


_Decoded = TypeVar("_Decoded")


class _Format(msgspec.Struct):
    format: int = 1


_encoder = msgspec.json.Encoder()
_format = msgspec.json.Decoder(_Format)
_decoder = msgspec.json.Decoder(Record)
_member_decoder = msgspec.json.Decoder(MemberRecord)


def encode(record: msgspec.Struct) -> bytes:
    """Encode a record as JSON."""
    return _encoder.encode(record)


def decode(value: bytes | None) -> Record | None:
    """Decode a record about moves. Return None for all others, for newer formats, and for anything unreadable."""
    return _decode(value, _decoder)


def decode_member(value: bytes | None) -> MemberRecord | None:
    """Decode a record about members. Return None for all others, for newer formats, and for anything unreadable."""
    return _decode(value, _member_decoder)


def _decode(value: bytes | None, decoder: msgspec.json.Decoder[_Decoded]) -> _Decoded | None:
    try:
        if _format.decode(value or b"").format > FORMAT_VERSION:
            return None
        return decoder.decode(value or b"")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
