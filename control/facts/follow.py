"""Tracks an application through its topics: the last checkpoint of each unit, the members of its sites, its events.

A fold over the messages of the state topic and the control topic. It neither reads from Kafka nor uses a clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from control.facts.flow.meters import Move, UnitFlow, UnitMeter
from control.facts.timeline import Timeline
from joiner.runtime.control import (
    Assignment,
    Back,
    Cancelled,
    Heartbeat,
    Left,
    MemberRecord,
    Record,
    Refused,
    Request,
    Resumed,
    decode,
    decode_member,
)
from joiner.runtime.kafka.checkpoint_log import AppendedCheckpoint
from joiner.runtime.membership.observer import SINCE_S
from joiner.runtime.membership.state import Member, SiteState
from joiner.runtime.migration.protocol import LEASE_S
from joiner.runtime.model import UnitStopped, checkpoint_key, decode_checked, decode_checkpoint
from joiner.runtime.ownership.unit_reports import LASTS_S, describe
from joiner.runtime.ownership.unit_reports import decode as decode_notice

_NOTICES_MAX: Final = 10_000


class Followed:
    """The state of an application according to the messages so far. Not thread-safe."""

    def __init__(self, units: int, timeline: Timeline, rate_s: float) -> None:
        """``units``: how many units the application has. ``rate_s``: over how many seconds a unit's rate is measured.

        Events are added to ``timeline``.
        """
        self.checkpoints: list[AppendedCheckpoint | None] = [None] * units
        self.unreadable: dict[int, str] = {}
        """The units whose newest checkpoint is unreadable, with the cause."""
        self.is_live = False
        """Whether everything that was there at the start has been read. Until then, a message may report old events."""
        self._timeline = timeline
        self._offsets = [-1] * units
        self._sites: dict[str, SiteState] = {}
        self._heard_ms: dict[str, int] = {}
        self._meters = [UnitMeter(rate_s) for _ in range(units)]
        self._ordered: dict[int, tuple[str, int]] = {}
        """The units ordered to move: their target, and when the order was last repeated."""
        self._notices: deque[tuple[bytes | None, int]] = deque(maxlen=_NOTICES_MAX)

    def apply_control(self, value: bytes | None, offset: int, at_ms: int) -> None:
        """Apply a message of the control topic."""
        is_new = self._timeline.is_new(offset, at_ms)
        if (member := decode_member(value)) is not None:
            self._apply_member(member, offset, at_ms, is_new=is_new)
        elif (record := decode(value)) is not None:
            self._apply_order(record, at_ms)
            if is_new:
                self._timeline.apply_move(record, at_ms)
        elif decode_notice(value) is not None:
            self._notices.append((value, at_ms))

    def apply_state(self, unit: int, offset: int, key: bytes | None, value: bytes | None, at_ms: int) -> None:
        """Apply a message of the unit's partition of the state topic."""
        if key != checkpoint_key(unit).encode() or value is None or offset <= self._offsets[unit]:
            return
        self._offsets[unit] = offset
        try:
            now = AppendedCheckpoint(decode_checked(unit, decode_checkpoint, value), at_ms)
        except UnitStopped as error:
            self.unreadable[unit] = str(error)
            return
        self.unreadable.pop(unit, None)
        before = self.checkpoints[unit]
        if self.is_live and before is not None:
            self._timeline.apply_checkpoint(before, now)
        self.checkpoints[unit] = now

    def sample(self, now_s: float) -> None:
        """Note how far each unit has got. ``now_s``: from a monotonic clock."""
        for found, meter in zip(self.checkpoints, self._meters, strict=True):
            if found is not None:
                meter.note(found.checkpoint, now_s)

    def rates(self) -> list[float]:
        """Return how many records per second each unit has consumed lately, according to the samples."""
        return [meter.rate() for meter in self._meters]

    def flows(self, lags: Sequence[Mapping[str, int | None]]) -> list[UnitFlow | None]:
        """Return what each unit reads and writes, according to the samples. ``lags``: by unit, as in `UnitFlow`."""
        return [meter.flow(lag) for meter, lag in zip(self._meters, lags, strict=True)]

    def moves(self, now_ms: int) -> dict[int, Move]:
        """Return the units being moved: those that have been released, and those whose move has been ordered."""
        found = {}
        for unit, one in enumerate(self.checkpoints):
            if one is None:
                continue
            target, at_ms = self._ordered.get(unit, ("", 0))
            if (way := one.checkpoint.on_the_way) is not None:
                found[unit] = Move(way.source, one.checkpoint.site, is_released=True)
            elif at_ms >= now_ms - round(1000 * LEASE_S) and target not in {"", one.checkpoint.site}:
                found[unit] = Move(one.checkpoint.site, target, is_released=False)
        return found

    def sites(self, now_ms: int) -> dict[str, SiteState]:
        """Return the state of each site heard from lately, as `observer.read_sites` does."""
        since_ms = now_ms - round(1000 * SINCE_S)
        return {site: state for site, state in self._sites.items() if self._heard_ms[site] >= since_ms}

    def notices(self, now_ms: int) -> list[str]:
        """Return the current reports of unserved units, as text."""
        while self._notices and self._notices[0][1] < now_ms - round(1000 * LASTS_S):
            self._notices.popleft()
        return describe(self._notices)

    def _apply_order(self, record: Record, at_ms: int) -> None:
        match record:
            case Request(units=units, to=to):
                known = range(len(self.checkpoints))
                self._ordered |= {unit: (to, at_ms) for unit in units if unit in known}
            case Cancelled(units=units):
                for unit in units:
                    self._ordered.pop(unit, None)
            case Resumed(unit=unit) | Refused(unit=unit) | Back(unit=unit):
                self._ordered.pop(unit, None)
            case _:
                pass

    def _apply_member(self, record: MemberRecord, offset: int, at_ms: int, *, is_new: bool) -> None:
        state = self._sites.setdefault(record.site, SiteState(record.site))
        if offset <= state.read:
            return
        self._heard_ms[record.site] = at_ms
        before = _member(state, record)
        is_adopted = state.apply(record, offset)
        # An instance first heard from in a message that was there at the start may have joined long before.
        is_news = is_new and (self.is_live or not isinstance(record, Heartbeat))
        if is_news and (is_adopted or not isinstance(record, Assignment)):
            self._timeline.apply_member(record, at_ms, before, _member(state, record))


def _member(state: SiteState, record: MemberRecord) -> Member | None:
    return state.members.get(record.instance) if isinstance(record, Heartbeat | Left) else None
