"""The orders that users may give, as sent to the service and recorded in the audit topic."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final

import msgspec
from msgspec import Meta

from broker.wire.records import RECORD_BYTES_MAX, Name
from control.roles import Role
from joiner.runtime.control import STANDBYS_MAX
from joiner.runtime.settings import PROCESSES_MAX, SITE_PATTERN

UNITS_MAX: Final = 1_000
DEAD_LETTERS_MAX: Final = 100

Unit = Annotated[int, Meta(ge=0, lt=UNITS_MAX, description="The number of a unit.")]
Site = Annotated[str, Meta(pattern=SITE_PATTERN, description="The name of a site.")]
Instance = Annotated[str, Meta(min_length=1, max_length=200, description="The name of an instance.")]
DeadLetterPlace = tuple[Annotated[int, Meta(ge=0, lt=100_000)], Annotated[int, Meta(ge=0, le=2**62)]]
Timeout = Annotated[float, Meta(ge=1, le=600, description="How long to wait for the outcome, in seconds.")]
Epochs = Annotated[
    dict[Annotated[str, Meta(max_length=32)], Annotated[int, Meta(ge=0, le=2**53)]],
    Meta(
        max_length=64,
        description=(
            "By site, the number of the assignment that the user saw. The order is refused if one of them has "
            "been replaced since. Sites that are not named may have any assignment."
        ),
    ),
]


class _Order(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag=str.lower):
    """An order. ``role``: the lowest role that may give it."""

    role: ClassVar[Role] = Role.OPERATOR


class Move(_Order, frozen=True, kw_only=True):
    """Move units to another site. ``units``: null means all units not there yet."""

    to: Site
    units: Annotated[list[Unit], Meta(min_length=1, max_length=UNITS_MAX)] | None = None
    epochs: Epochs
    timeout_s: Timeout = 60.0


class Drain(_Order, frozen=True, kw_only=True):
    """Drain an instance or, with ``undo``, let it have units again."""

    site: Site
    instance: Instance
    undo: bool = False
    epochs: Epochs
    timeout_s: Timeout = 60.0


class Scale(_Order, frozen=True, kw_only=True):
    """Set how many worker processes a supervisor runs. ``instance``: the supervisor."""

    site: Site
    instance: Instance
    processes: Annotated[int, Meta(ge=1, le=PROCESSES_MAX)]
    epochs: Epochs
    timeout_s: Timeout = 60.0


class Pin(_Order, frozen=True, kw_only=True):
    """Pin a unit to an instance, which then serves it whenever it can. ``instance``: null ends a pin."""

    site: Site
    unit: Unit
    instance: Instance | None
    epochs: Epochs
    timeout_s: Timeout = 60.0


class Standbys(_Order, frozen=True, kw_only=True):
    """Set how many standbys each unit of a site has. ``count``: null means as many as the settings say."""

    site: Site
    count: Annotated[int, Meta(ge=0, le=STANDBYS_MAX)] | None
    epochs: Epochs
    timeout_s: Timeout = 60.0


class Retry(_Order, frozen=True, kw_only=True):
    """Make the instances of a site try again to serve a unit, or to keep it warm."""

    site: Site
    unit: Unit
    epochs: Epochs
    timeout_s: Timeout = 60.0


class ReleaseSilent(_Order, frozen=True, kw_only=True, tag="watermark"):
    """Write a watermark to an input topic, so that records waiting for a silent stream are joined.

    ``time``: no older record will follow, in the application's time unit or as ISO 8601. ``thing`` and ``quantity``:
    which records it covers; null means all. ``topic``: null means ``topics.data``.
    """

    role: ClassVar[Role] = Role.ADMIN

    time: Annotated[int, Meta(ge=-(2**62), le=2**62)] | Annotated[str, Meta(max_length=40)]
    thing: Name | None = None
    quantity: Name | None = None
    topic: Annotated[str, Meta(max_length=249)] | None = None


class PutRecordsBack(_Order, frozen=True, kw_only=True, tag="putback"):
    """Put the records of dead letters back into the partitions they came from.

    ``dead_letters``: the partition and offset of each dead letter. ``value``: a corrected value, for exactly one.
    ``again``: include records put back before.
    """

    role: ClassVar[Role] = Role.ADMIN

    dead_letters: Annotated[list[DeadLetterPlace], Meta(min_length=1, max_length=DEAD_LETTERS_MAX)]
    value: Annotated[str, Meta(max_length=RECORD_BYTES_MAX)] | None = None
    again: bool = False


Order = Move | Drain | Scale | Pin | Standbys | Retry | ReleaseSilent | PutRecordsBack
StandingOrder = Drain | Scale | Pin | Standbys
"""An order that remains in force even if nobody waits for its outcome."""

_decoder: Final[msgspec.json.Decoder[Order]] = msgspec.json.Decoder(Order)
_fields: Final = msgspec.json.Decoder(dict[str, Any])


def decode_order(body: bytes) -> Order:
    """Decode an order. Raises msgspec.DecodeError or UnicodeDecodeError if it is invalid or has unknown fields."""
    order = _decoder.decode(body)
    # Audit records may have fields from a later release. Requests may not, because such fields would be ignored.
    if unknown := _fields.decode(body).keys() - {*order.__struct_fields__, "kind"}:
        raise msgspec.ValidationError(f"unknown field {', '.join(map(repr, sorted(unknown)))}")
    return order
