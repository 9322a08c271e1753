"""The protocol of a move between sites. Both sides are state machines, which use neither Kafka nor a clock.

Their input is control records and times. Their output is actions for the runner, which drives them through
`coordinator`.

    order     sends Request, repeated every `REPEAT_S`: a lease, which each side times by its own clock
    target    WarmUp: builds the state while the owner still serves the unit; sends Ready, repeated with each Request
    source    on Ready, while the lease lasts: Release, a last transaction whose checkpoint names no owner and the
              target's site; sends Released
    target    Claim, an ordinary claim; sends Claiming, repeated until the claim ends, and Resumed once the join resumes
    source if no target reports within `RECLAIM_AFTER_S`, or the target refuses: Reclaim; sends Back

Only the checkpoint is authoritative, so control records may be lost, delayed or duplicated. Each side also takes into
account what it finds in the state topic (`Source.found`): if a target misses Released, it finds out at its next check
that the unit was released to its site. Crashes need no special handling: a restarted state machine learns all it needs
from the repeated records.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple

from joiner.runtime.control import Back, Cancelled, Claiming, Ready, Record, Refused, Released, Request, Resumed, Stop
from joiner.runtime.model import OnTheWay

REPEAT_S: Final = 0.5
"""Interval between the Requests of an order. A side that was unavailable learns of it at most this much later."""

LEASE_S: Final = 5.0
"""An order expires after this long without a Request."""

RECLAIMED: Final = "no one claimed it, so its source reclaimed it"
"""The reason reported for a unit that was not moved because its source reclaimed it."""

RECLAIM_AFTER_S: Final = 5.0
"""How long the target may take to claim the unit or to report that it is doing so. A target that is ready needs only a
fraction of this time, and a target that has just started checks at shorter intervals for units released to it."""

_DOUBLINGS_MAX: Final = 4


class Write(NamedTuple):
    """Write a record to the control topic."""

    record: Record


class Release(NamedTuple):
    """Write the unit's last transaction, whose checkpoint names ``way`` in place of an owner; then write ``record``.

    After that, call `Source.released`, or `Source.kept` if the transaction failed. If its outcome is unknown, the state
    topic will show it (`Source.found`).
    """

    unit: int
    way: OnTheWay
    to: str
    record: Released


class Reclaim(NamedTuple):
    """Reclaim the unit that was released for this move; then call `Source.is_back` or `Source.gone`."""

    unit: int
    way: OnTheWay


class WarmUp(NamedTuple):
    """Build the unit's state before its release; then call `Target.warmed`, `Target.failed` or `Target.dropped`."""

    unit: int


class CoolDown(NamedTuple):
    """Discard the state prepared for the unit."""

    unit: int


class Claim(NamedTuple):
    """Claim the unit, with its prepared state if there is one; then call `Target.resumed` or `Target.failed`."""

    unit: int


Action = Write | Release | Reclaim | WarmUp | CoolDown | Claim


class _Leaving(Enum):
    """The steps of a unit at its source."""

    ASKED = auto()
    RELEASING = auto()
    RELEASED = auto()
    RECLAIMING = auto()


@dataclass
class _Departure:
    way: OnTheWay
    to: str
    step: _Leaving
    since_s: float
    reclaims: int = 0
    """Number of failed attempts to reclaim the unit. Each doubles the wait, so that the target can claim the unit."""

    @property
    def reclaim_at_s(self) -> float:
        """When the source reclaims the unit, unless a target has reported by then."""
        return self.since_s + RECLAIM_AFTER_S * 2.0 ** min(self.reclaims, _DOUBLINGS_MAX)


class Source:
    """The source's side of moves. ``now_s`` may come from any monotonic clock."""

    def __init__(self, site: str, instance: str) -> None:
        self._site, self._instance = site, instance
        self._units: dict[int, _Departure] = {}

    @property
    def underway(self) -> set[int]:
        """Units that are being released, or have been released and are not known to have been claimed."""
        return {unit for unit, one in self._units.items() if one.step is not _Leaving.ASKED}

    def hear(self, record: Record, now_s: float, owned: Collection[int]) -> list[Action]:
        """Process a record from the control topic, and return the actions due. ``owned``: units this runner serves."""
        match record:
            case Request():
                return self._ask(record, now_s, owned)
            case Cancelled():
                self._cancel(record)
                return []
            case Claiming():
                self._wait_for(record, now_s)
                return []
            case Stop():  # not part of a move
                return []
        one = self._of(record.unit, record)
        return self._hear_of(one, record, now_s, owned) if one is not None else []

    def tick(self, now_s: float) -> list[Action]:
        """Return the actions due at ``now_s``."""
        for unit, one in list(self._units.items()):
            if one.step is _Leaving.ASKED and now_s - one.since_s > LEASE_S:
                del self._units[unit]
        late = [
            (unit, one)
            for unit, one in self._units.items()
            if one.step is _Leaving.RELEASED and now_s >= one.reclaim_at_s
        ]
        return [action for unit, one in late for action in self._reclaim(unit, one)]

    def released(self, unit: int, now_s: float) -> None:
        """Record that the unit's last transaction has been committed."""
        one = self._units.get(unit)
        if one is not None and one.step is _Leaving.RELEASING:
            one.step, one.since_s = _Leaving.RELEASED, now_s

    def found(self, unit: int, way: OnTheWay, to: str, now_s: float) -> list[Action]:
        """Record that a runner of this site, not necessarily this one, has released the unit to the site ``to``.

        Ignored if ``way`` names another source, or if the release is already known.
        """
        one = self._units.get(unit)
        if way.source != self._site:
            return []
        if one is not None and one.way == way and one.step is _Leaving.RELEASED:
            return []
        failed = one.reclaims + 1 if one is not None and one.step is _Leaving.RECLAIMING else 0
        self._units[unit] = _Departure(way, to, _Leaving.RELEASED, now_s, failed)
        return [Write(Released(move=way.move, unit=unit, to=to, instance=self._instance))]

    def kept(self, unit: int) -> None:
        """Record that the last transaction was not written, so the unit still belongs to this site."""
        self._units.pop(unit, None)

    def gone(self, unit: int) -> None:
        """Record that the unit has an owner again, or is now handled by another runner."""
        self._units.pop(unit, None)

    def is_back(self, unit: int) -> list[Action]:
        """Record that the unit was reclaimed."""
        one = self._units.pop(unit, None)
        if one is None or one.step is not _Leaving.RECLAIMING:
            return []
        return [Write(Back(move=one.way.move, unit=unit, to=one.to, instance=self._instance))]

    def _cancel(self, record: Cancelled) -> None:
        for unit in record.units:
            one = self._of(unit, record)
            if one is not None and one.step is _Leaving.ASKED:
                del self._units[unit]

    def _hear_of(
        self, one: _Departure, record: Ready | Released | Resumed | Refused | Back, now_s: float, owned: Collection[int]
    ) -> list[Action]:
        if isinstance(record, Ready) and one.step is _Leaving.ASKED:
            return self._release(record, one, now_s, owned)
        if isinstance(record, Resumed) and one.step is not _Leaving.ASKED:
            del self._units[record.unit]
        if isinstance(record, Refused) and one.step is _Leaving.RELEASED:
            return self._reclaim(record.unit, one)
        return []

    def _wait_for(self, record: Claiming, now_s: float) -> None:
        """Wait longer before reclaiming units that the target is still claiming."""
        for unit in record.units:
            one = self._units.get(unit)
            if one is not None and one.step is _Leaving.RELEASED and one.to == record.to:
                one.since_s = now_s

    def _of(self, unit: int, record: Record) -> _Departure | None:
        one = self._units.get(unit)
        return one if one is not None and one.way.move == record.move else None

    def _ask(self, record: Request, now_s: float, owned: Collection[int]) -> list[Action]:
        if record.to == self._site:
            return []
        actions: list[Action] = []
        for unit in record.units:
            one = self._units.get(unit)
            if one is None and unit in owned:
                way = OnTheWay(record.move, self._site)
                self._units[unit] = _Departure(way, record.to, _Leaving.ASKED, now_s)
            elif one is not None and one.way.move != record.move:
                why = f"it is already being moved to {one.to} (move {one.way.move}): wait for that move or cancel it"
                refused = Refused(move=record.move, unit=unit, to=record.to, instance=self._instance, why=why)
                actions.append(Write(refused))
            elif one is not None and one.step is _Leaving.ASKED:
                one.since_s = now_s
        return actions

    def _release(self, ready: Ready, one: _Departure, now_s: float, owned: Collection[int]) -> list[Action]:
        if ready.unit not in owned or now_s - one.since_s > LEASE_S:
            return []
        one.step, one.since_s = _Leaving.RELEASING, now_s
        record = Released(move=ready.move, unit=ready.unit, to=one.to, instance=self._instance)
        return [Release(ready.unit, one.way, one.to, record)]

    def _reclaim(self, unit: int, one: _Departure) -> list[Action]:
        one.step = _Leaving.RECLAIMING
        return [Reclaim(unit, one.way)]


class _Arriving(Enum):
    """The steps of a unit at its target."""

    WARMING = auto()
    WARM = auto()
    CLAIMING = auto()


@dataclass
class _Arrival:
    move: str
    step: _Arriving
    heard_s: float
    is_released: bool = False


class Target:
    """The target's side of moves."""

    def __init__(self, site: str, instance: str) -> None:
        self._site, self._instance = site, instance
        self._units: dict[int, _Arrival] = {}

    @property
    def claiming(self) -> set[int]:
        """Units that are being claimed for a move, or have been claimed but not yet reported as resumed."""
        return {unit for unit, one in self._units.items() if one.step is _Arriving.CLAIMING}

    def hear(self, record: Record, now_s: float, absent: Collection[int]) -> list[Action]:
        """Process a record from the control topic, and return the actions due.

        ``absent``: the units assigned to this runner but not served by it.
        """
        if isinstance(record, Request) and record.to == self._site:
            units = [unit for unit in record.units if unit in absent]
            return [action for unit in units for action in self._ask(unit, record, now_s)]
        if isinstance(record, Released) and record.to == self._site and record.unit in absent:
            return self._claim(record.unit, record.move, now_s)
        if isinstance(record, Cancelled):
            return [action for unit in record.units for action in self._cancel(unit, record.move)]
        return []

    def tick(self, now_s: float) -> list[Action]:
        """Return the actions due at ``now_s``."""
        old = [unit for unit, one in self._units.items() if self._waits(one) and now_s - one.heard_s > LEASE_S]
        return [action for unit in old for action in self.lost(unit)]

    def warmed(self, unit: int) -> list[Action]:
        """Record that the unit's state has been built."""
        one = self._units.get(unit)
        if one is None:
            return [CoolDown(unit)]
        if one.is_released:
            one.step = _Arriving.CLAIMING
            return [Claim(unit)]
        one.step = _Arriving.WARM
        return [self._ready(unit, one)]

    def dropped(self, unit: int) -> list[Action]:
        """Record that the state was not built: building it failed or is unnecessary.

        If the unit has been released, it is claimed without prepared state. If not, the next Request tries again.
        """
        one = self._units.get(unit)
        if one is not None and one.is_released:
            one.step = _Arriving.CLAIMING
            return [Claim(unit)]
        self._units.pop(unit, None)
        return []

    def failed(self, unit: int, why: str) -> list[Action]:
        """Record that the unit cannot continue on this runner. ``why`` states the cause and what to do about it."""
        one = self._units.pop(unit, None)
        if one is None:
            return []
        refused = Refused(move=one.move, unit=unit, to=self._site, instance=self._instance, why=why)
        return [Write(refused), CoolDown(unit)]

    def resumed(self, unit: int, late_ms: int = 0) -> list[Action]:
        """Record that the unit was claimed and has resumed.

        ``late_ms``: the time since its first commit. If no commit followed soon after the claim, the time since the
        claim.
        """
        one = self._units.pop(unit, None)
        if one is None:
            return []
        record = Resumed(move=one.move, unit=unit, to=self._site, instance=self._instance, late_ms=late_ms)
        return [Write(record), CoolDown(unit)]

    def lost(self, unit: int) -> list[Action]:
        """Record that the unit is no longer assigned to this runner."""
        return [] if self._units.pop(unit, None) is None else [CoolDown(unit)]

    def _waits(self, one: _Arrival) -> bool:
        return one.step is not _Arriving.CLAIMING and not one.is_released

    def _ask(self, unit: int, record: Request, now_s: float) -> list[Action]:
        one = self._units.get(unit)
        if one is None:
            self._units[unit] = _Arrival(record.move, _Arriving.WARMING, now_s)
            return [WarmUp(unit)]
        if self._waits(one):
            one.move, one.heard_s = record.move, now_s
            return [self._ready(unit, one)] if one.step is _Arriving.WARM else []
        return []

    def _ready(self, unit: int, one: _Arrival) -> Write:
        return Write(Ready(move=one.move, unit=unit, to=self._site, instance=self._instance))

    def _claim(self, unit: int, move: str, now_s: float) -> list[Action]:
        one = self._units.setdefault(unit, _Arrival(move, _Arriving.WARM, now_s))
        if one.step is _Arriving.CLAIMING:
            return []
        one.move, one.is_released = move, True
        if one.step is _Arriving.WARMING:
            return []
        one.step = _Arriving.CLAIMING
        return [Claim(unit)]

    def _cancel(self, unit: int, move: str) -> list[Action]:
        one = self._units.get(unit)
        return self.lost(unit) if one is not None and one.move == move and self._waits(one) else []
