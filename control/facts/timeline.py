"""An application's events: instances that join, leave and fail, and units that change owners.

An event carries the time when Kafka appended the record that reports it. Nothing here uses a clock.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from joiner.runtime.control import (
    Assignment,
    Back,
    Cancelled,
    Drain,
    Heartbeat,
    Left,
    MemberRecord,
    Pin,
    Record,
    Refused,
    Released,
    Request,
    Resumed,
    Retry,
    Scale,
    Standbys,
)
from joiner.runtime.model import RESET_RUN, Checkpoint

if TYPE_CHECKING:
    from joiner.runtime.kafka.checkpoint_log import AppendedCheckpoint
    from joiner.runtime.membership.state import Member

EVENTS_MAX: Final = 1_000
"""How many events are kept. Older ones are forgotten."""

_MOVES_MAX: Final = 10_000
"""How many units are remembered of each kind: ordered to move, released, or refused."""

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that happened.

    ``number``: counts the events since the service started, from 1. ``at_ms``: since the epoch. ``kind``:
    ``joined``, ``returned``, ``left``, ``failed`` or ``drained`` (an instance), ``assigned``, ``scaled`` or
    ``standbys`` (a site), ``pinned`` or ``retried`` (a unit), ``ordered``, ``released``, ``moved``, ``refused`` or
    ``cancelled`` (a move of units), ``owner`` (a unit is served by another process). ``pause_ms``: how long the unit
    did not commit because of it, or None if that is not known.
    """

    number: int
    at_ms: int
    kind: str
    text: str
    site: str = ""
    instance: str = ""
    unit: int | None = None
    move: str = ""
    pause_ms: int | None = None


class Timeline:
    """Collects events. Not thread-safe."""

    def __init__(self) -> None:
        self.events: deque[Event] = deque(maxlen=EVENTS_MAX)
        self._number = 0
        self._control: tuple[int, int] = (-1, -1)
        self._ordered: dict[str, None] = {}
        self._released_ms: dict[tuple[str, int], int] = {}
        self._refused: dict[tuple[str, int, str], None] = {}

    def is_new(self, offset: int, at_ms: int) -> bool:
        """Return whether a record of the control topic has not been seen before, and remember it.

        After a lost connection, the last records are read a second time. A recreated topic starts with small offsets
        but later times.
        """
        before, before_ms = self._control
        if offset <= before and at_ms <= before_ms:
            return False
        self._control = offset, at_ms
        return True

    def apply_member(self, record: MemberRecord, at_ms: int, before: Member | None, after: Member | None) -> None:
        """Apply a record about a site that the site's state has accepted.

        ``before``, ``after``: for a heartbeat or a departure, the member in the site's state before and after it.
        """
        match record:
            case Heartbeat(site=site, instance=instance):
                if after is not None and (before is None or before.heartbeat.run != after.heartbeat.run):
                    text = "has joined" if before is None else "has joined again, as another process"
                    self._add(at_ms, "joined", f"{instance} {text}", site=site, instance=instance)
                elif before is not None and after is not None and before.is_gone and not after.is_gone:
                    self._add(at_ms, "returned", f"{instance} is heard from again", site=site, instance=instance)
            case Left(site=site, instance=instance):
                if before is not None and after is None:
                    self._add(at_ms, "left", f"{instance} has left", site=site, instance=instance)
            case Assignment(site=site):
                for instance in record.gone:
                    text = f"{instance} was silent for too long and is considered failed"
                    self._add(at_ms, "failed", text, site=site, instance=instance)
                text = f"assignment {record.epoch}: {record.reason or 'reason not known'}"
                self._add(at_ms, "assigned", text, site=site, instance=record.by)
            case _:
                self._apply_order(record, at_ms)

    def _apply_order(self, record: MemberRecord, at_ms: int) -> None:
        match record:
            case Drain(site=site, instance=instance):
                text = "is to be drained" if record.drained else "is no longer drained"
                self._add(at_ms, "drained", f"{instance} {text}", site=site, instance=instance)
            case Pin(site=site, instance=instance, unit=unit):
                text = f"unit {unit} is {f'pinned to {instance}' if instance else 'no longer pinned'}"
                self._add(at_ms, "pinned", text, site=site, instance=instance, unit=unit)
            case Standbys(site=site, count=count):
                number = (
                    "as many standbys as the settings say" if count is None else f"{count} standby{'s' * (count != 1)}"
                )
                self._add(at_ms, "standbys", f"each unit of {site} is to have {number}", site=site)
            case Retry(site=site, unit=unit):
                self._add(at_ms, "retried", f"unit {unit} is to be tried again", site=site, unit=unit)
            case Scale(site=site, instance=instance):
                text = f"{instance} is to run {record.processes} worker processes"
                self._add(at_ms, "scaled", text, site=site, instance=instance)
            case _:
                pass

    def apply_move(self, record: Record, at_ms: int) -> None:
        """Apply a record about moves. Most of these records are repeated. Only the first one adds an event."""
        match record:
            case Request(move=move, to=to):
                if _is_new(self._ordered, move, None):
                    units = " ".join(map(str, record.units))
                    self._add(at_ms, "ordered", f"units {units} are to move to {to}", site=to, move=move)
            case Cancelled(move=move):
                units = " ".join(map(str, record.units))
                self._add(at_ms, "cancelled", f"the order to move units {units} was withdrawn", move=move)
            case Released(move=move, unit=unit, to=to, instance=instance):
                if _is_new(self._released_ms, (move, unit), at_ms):
                    text = f"unit {unit} was released by {instance}"
                    self._add(at_ms, "released", text, site=to, instance=instance, unit=unit, move=move)
            case Resumed(move=move, unit=unit, to=to, instance=instance):
                released_ms = self._released_ms.get((move, unit))
                pause_ms = None if released_ms is None else max(0, at_ms - record.late_ms - released_ms)
                text = f"unit {unit} runs at {to}, served by {instance}"
                self._add(at_ms, "moved", text, site=to, instance=instance, unit=unit, move=move, pause_ms=pause_ms)
            case Refused(move=move, unit=unit, to=to, instance=instance, why=why):
                if _is_new(self._refused, (move, unit, why), None):
                    text = f"unit {unit} was not moved to {to}: {why}"
                    self._add(at_ms, "refused", text, site=to, instance=instance, unit=unit, move=move)
            case Back(move=move, unit=unit, to=to, instance=instance):
                text = f"nobody at {to} claimed unit {unit}, so it is back at {instance}"
                self._add(at_ms, "refused", text, site=to, instance=instance, unit=unit, move=move)
            case _:
                pass

    def apply_checkpoint(self, before: AppendedCheckpoint, now: AppendedCheckpoint) -> None:
        """Apply a unit's checkpoint ``now``, which follows ``before``."""
        checkpoint = now.checkpoint
        if _process(before.checkpoint) == _process(checkpoint) or not _has_owner(checkpoint):
            return
        # A unit that was stopped or moved on purpose may have been without an owner for any length of time.
        had_owner = _has_owner(before.checkpoint)
        was_served = had_owner and not before.checkpoint.stopped
        former = f"; before: {before.checkpoint.owner}" if had_owner else ""
        self._add(
            now.appended_ms,
            "owner",
            f"unit {checkpoint.unit} is served by {checkpoint.owner}{former}",
            site=checkpoint.site,
            instance=checkpoint.instance,
            unit=checkpoint.unit,
            pause_ms=max(0, now.appended_ms - before.appended_ms) if was_served else None,
        )

    def _add(self, at_ms: int, kind: str, text: str, **more: Any) -> None:
        self._number += 1
        self.events.append(Event(self._number, at_ms, kind, text, **more))


def _process(checkpoint: Checkpoint) -> tuple[str, str, str]:
    return checkpoint.site, checkpoint.instance, checkpoint.run


def _has_owner(checkpoint: Checkpoint) -> bool:
    return checkpoint.run != RESET_RUN and checkpoint.on_the_way is None


def _is_new(known: dict[_Key, _Value], key: _Key, value: _Value) -> bool:
    """Remember a key and return whether it was new. The oldest keys are forgotten."""
    if key in known:
        return False
    known[key] = value
    while len(known) > _MOVES_MAX:
        del known[next(iter(known))]
    return True
