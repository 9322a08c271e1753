"""The events of an application: instances that join, leave and fail, and units that change their owner.

A fold over the records of the control topic and over checkpoints. It uses no clock: an event has the time at which
Kafka appended the record that tells of it.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final, TypeVar

import msgspec

from joiner.runtime.control import (
    Assignment,
    Back,
    Drain,
    Heartbeat,
    Left,
    MemberRecord,
    Record,
    Refused,
    Released,
    Request,
    Resumed,
    Scale,
)
from joiner.runtime.kafka.checkpoint_log import AppendedCheckpoint
from joiner.runtime.model import RESET_RUN, Checkpoint

EVENTS_MAX: Final = 1_000
"""How many events are kept. Older ones are forgotten."""

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

_MOVES_MAX: Final = 1_000
_RUNS_MAX: Final = 10_000


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that has happened.

    ``number``: grows by one with each event of this service's run. ``at_ms``: since the epoch. ``kind``: ``joined``,
    ``left``, ``failed`` or ``drained`` (an instance), ``assigned`` or ``scaled`` (a site), ``ordered``, ``released``,
    ``moved`` or ``refused`` (a move of units), ``owner`` (a unit has another owner). ``pause_ms``: for how long a unit
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
        self._runs: dict[tuple[str, str], str] = {}
        self._ordered: dict[str, None] = {}
        self._released_ms: dict[tuple[str, int], int] = {}

    def apply_member(self, record: MemberRecord, at_ms: int) -> None:
        """Apply a record about the members of a site."""
        match record:
            case Heartbeat(site=site, instance=instance, run=run):
                if self._runs.get((site, instance)) != run:
                    is_new = (site, instance) not in self._runs
                    _remember(self._runs, (site, instance), run, _RUNS_MAX)
                    text = "has joined" if is_new else "has joined again, as a new process"
                    self._add(at_ms, "joined", f"{instance} {text}", site=site, instance=instance)
            case Left(site=site, instance=instance, run=run):
                if self._runs.get((site, instance)) == run:
                    del self._runs[site, instance]
                    self._add(at_ms, "left", f"{instance} has left", site=site, instance=instance)
            case Assignment(site=site):
                for instance in record.gone:
                    text = f"{instance} was not heard of and is considered failed"
                    self._add(at_ms, "failed", text, site=site, instance=instance)
                text = f"assignment {record.epoch}: {record.reason or 'reason not known'}"
                self._add(at_ms, "assigned", text, site=site, instance=record.by)
            case Drain(site=site, instance=instance):
                text = "is to have no units" if record.drained else "may have units again"
                self._add(at_ms, "drained", f"{instance} {text}", site=site, instance=instance)
            case Scale(site=site, instance=instance):
                text = f"{instance} is to run {record.processes} worker processes"
                self._add(at_ms, "scaled", text, site=site, instance=instance)
            case _:
                pass

    def apply_move(self, record: Record, at_ms: int) -> None:
        """Apply a record about moves."""
        match record:
            case Request(move=move, to=to):
                if move not in self._ordered:
                    _remember(self._ordered, move, None, _MOVES_MAX)
                    units = " ".join(map(str, record.units))
                    self._add(at_ms, "ordered", f"units {units} are to move to {to}", site=to, move=move)
            case Released(move=move, unit=unit, to=to, instance=instance):
                _remember(self._released_ms, (move, unit), at_ms, _MOVES_MAX)
                text = f"unit {unit} was released by {instance}"
                self._add(at_ms, "released", text, site=to, instance=instance, unit=unit, move=move)
            case Resumed(move=move, unit=unit, to=to, instance=instance):
                released_ms = self._released_ms.get((move, unit))
                pause_ms = None if released_ms is None else max(0, at_ms - record.late_ms - released_ms)
                text = f"unit {unit} runs at {to}, served by {instance}"
                self._add(at_ms, "moved", text, site=to, instance=instance, unit=unit, move=move, pause_ms=pause_ms)
            case Refused(move=move, unit=unit, to=to, instance=instance):
                text = f"unit {unit} was not moved to {to}: {record.why}"
                self._add(at_ms, "refused", text, site=to, instance=instance, unit=unit, move=move)
            case Back(move=move, unit=unit, to=to, instance=instance):
                text = f"unit {unit} was claimed by nobody at {to}, and is back at {instance}"
                self._add(at_ms, "refused", text, site=to, instance=instance, unit=unit, move=move)
            case _:
                pass

    def apply_checkpoint(self, before: AppendedCheckpoint | None, now: AppendedCheckpoint) -> None:
        """Apply a unit's checkpoint. ``before``: the one before, or None if that is not known."""
        if before is None or _owner(before.checkpoint) == _owner(now.checkpoint) or not _has_owner(now.checkpoint):
            return
        unit, checkpoint = now.checkpoint.unit, now.checkpoint
        text = f"unit {unit}: {before.checkpoint.owner} was followed by {checkpoint.owner}"
        # Without an owner, the unit was stopped or moved on purpose, so the time without commits is no pause.
        was_served = _has_owner(before.checkpoint) and not before.checkpoint.stopped
        pause_ms = max(0, now.appended_ms - before.appended_ms) if was_served else None
        self._add(
            now.appended_ms,
            "owner",
            text,
            site=checkpoint.site,
            instance=checkpoint.instance,
            unit=unit,
            pause_ms=pause_ms,
        )

    def _add(self, at_ms: int, kind: str, text: str, **more: Any) -> None:
        self._number += 1
        self.events.append(Event(self._number, at_ms, kind, text, **more))


def _owner(checkpoint: Checkpoint) -> tuple[str, str, str]:
    return checkpoint.site, checkpoint.instance, checkpoint.run


def _has_owner(checkpoint: Checkpoint) -> bool:
    return checkpoint.run != RESET_RUN and checkpoint.on_the_way is None


def _remember(known: dict[_Key, _Value], key: _Key, value: _Value, at_most: int) -> None:
    """Add to a dictionary that forgets its oldest entries."""
    known.pop(key, None)
    known[key] = value
    while len(known) > at_most:
        del known[next(iter(known))]
