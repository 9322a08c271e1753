"""How a unit moves from one site to another: the two sides as state machines. No Kafka here, no clock.

Records of the control topic and moments go in, what the runner has to do comes out; every runner can drive them, the
plain process and the stage in Spark alike (see `coordinator` for one that does).

    order     Request, again every `REPEAT_S`: a lease, which everybody counts by a clock of its own
    target    WarmUp: build the state beside the owner; then Ready, again with each Request
    source    at Ready, while the lease lasts: Release, a last transaction whose checkpoint says that the unit is
              nobody's, of the target's site; then Released
    target    Claim, by the ordinary procedure; Claiming, again and again, where that lasts; Taken when it goes on
    source    nobody was heard of for `RECLAIM_AFTER_S`, or the target refused: TakeBack; Back

What counts is the checkpoint, so messages may be lost, late or doubled: each side also tells what it finds in the
log (`Source.found`), and a target that missed Released finds the unit to be its site's when it looks. A crash
needs no rule of its own: a machine that begins anew knows nothing, and is told everything again.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple

from joiner.runtime.control import Back, Cancelled, Claiming, Ready, Record, Refused, Released, Request, Resumed
from joiner.runtime.model import OnTheWay

REPEAT_S: Final = 0.5
"""From one Request of an order to the next: so long does a side that was not there wait at most to be told."""

LEASE_S: Final = 5.0
"""An order that was not heard of for so long is over: whoever gave it is gone."""

RECLAIMED: Final = "nobody claimed it, so it was taken back"
"""Of a unit that is where it was."""

RECLAIM_AFTER_S: Final = 5.0
"""A target that is ready claims in a fraction of this, or says that it is still at it, and one that has just been
started looks more often."""

_DOUBLINGS_MAX: Final = 4


class Write(NamedTuple):
    """Write a record to the control topic."""

    record: Record


class Release(NamedTuple):
    """Write the unit's last transaction, with a checkpoint of ``way``; then ``told``, and `Source.released`.

    Where that fails: `Source.kept`, unless it is unknown, which the log will tell (`Source.found`).
    """

    unit: int
    way: OnTheWay
    to: str
    told: Released


class Reclaim(NamedTuple):
    """Claim the unit with the right to take back what is on this way; then `Source.is_back` or `Source.gone`."""

    unit: int
    way: OnTheWay


class WarmUp(NamedTuple):
    """Build the unit's state beside its owner; then `Target.warmed`, `Target.failed` or `Target.dropped`."""

    unit: int


class CoolDown(NamedTuple):
    """What was prepared for the unit is not needed."""

    unit: int


class Claim(NamedTuple):
    """Claim the unit, with what was prepared for it if there is any; then `Target.goes_on`, or `Target.failed`."""

    unit: int


Action = Write | Release | Reclaim | WarmUp | CoolDown | Claim


class _Leaving(Enum):
    """A unit on the side of its source."""

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
    """Attempts in vain. The wait before each next one is twice as long, so that the target goes first."""

    @property
    def reclaim_at_s(self) -> float:
        """When it is taken back, if nobody is heard of."""
        return self.since_s + RECLAIM_AFTER_S * 2.0 ** min(self.reclaims, _DOUBLINGS_MAX)


class Source:
    """The side of a runner from which units go. ``now_s`` is of any clock that rises."""

    def __init__(self, site: str, instance: str) -> None:
        self._site, self._instance = site, instance
        self._units: dict[int, _Departure] = {}

    @property
    def underway(self) -> set[int]:
        """Units that are being released, or were and are not known to be taken."""
        return {unit for unit, one in self._units.items() if one.step is not _Leaving.ASKED}

    def hear(self, record: Record, now_s: float, owned: Collection[int]) -> list[Action]:
        """Take a record of the control topic; ``owned``: the units that this runner serves."""
        match record:
            case Request():
                return self._ask(record, now_s, owned)
            case Cancelled():
                self._cancel(record)
                return []
            case Claiming():
                self._wait_for(record, now_s)
                return []
        one = self._of(record.unit, record)
        return self._hear_of(one, record, now_s, owned) if one is not None else []

    def tick(self, now_s: float) -> list[Action]:
        """Let time pass."""
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
        """The last transaction is committed."""
        one = self._units.get(unit)
        if one is not None and one.step is _Leaving.RELEASING:
            one.step, one.since_s = _Leaving.RELEASED, now_s

    def found(self, unit: int, way: OnTheWay, to: str, now_s: float) -> list[Action]:
        """The log says that the unit is on its way to ``to``, whoever of this site has released it."""
        one = self._units.get(unit)
        if way.source != self._site:
            return []
        if one is not None and one.way == way and one.step is _Leaving.RELEASED:
            return []
        in_vain = one.reclaims + 1 if one is not None and one.step is _Leaving.RECLAIMING else 0
        self._units[unit] = _Departure(way, to, _Leaving.RELEASED, now_s, in_vain)
        return [Write(Released(move=way.move, unit=unit, to=to, instance=self._instance))]

    def kept(self, unit: int) -> None:
        """The last transaction was not written: the unit is still this site's."""
        self._units.pop(unit, None)

    def gone(self, unit: int) -> None:
        """Somebody has the unit, or it is another runner's business."""
        self._units.pop(unit, None)

    def is_back(self, unit: int) -> list[Action]:
        """The unit was claimed back."""
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
        """The target is at it, however long that takes."""
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
                why = f"it is being moved to {one.to} (move {one.way.move}): wait for that, or cancel it"
                refused = Refused(move=record.move, unit=unit, to=record.to, instance=self._instance, why=why)
                actions.append(Write(refused))
            elif one is not None and one.step is _Leaving.ASKED:
                one.since_s = now_s
        return actions

    def _release(self, ready: Ready, one: _Departure, now_s: float, owned: Collection[int]) -> list[Action]:
        if ready.unit not in owned or now_s - one.since_s > LEASE_S:
            return []
        one.step, one.since_s = _Leaving.RELEASING, now_s
        told = Released(move=ready.move, unit=ready.unit, to=one.to, instance=self._instance)
        return [Release(ready.unit, one.way, one.to, told)]

    def _reclaim(self, unit: int, one: _Departure) -> list[Action]:
        one.step = _Leaving.RECLAIMING
        return [Reclaim(unit, one.way)]


class _Coming(Enum):
    """A unit on the side of its target."""

    WARMING = auto()
    WARM = auto()
    CLAIMING = auto()


@dataclass
class _Arrival:
    move: str
    step: _Coming
    heard_s: float
    is_released: bool = False


class Target:
    """The side of a runner to which units come."""

    def __init__(self, site: str, instance: str) -> None:
        self._site, self._instance = site, instance
        self._units: dict[int, _Arrival] = {}

    @property
    def claiming(self) -> set[int]:
        """Units that are being claimed for a move, or were and have not been said to go on."""
        return {unit for unit, one in self._units.items() if one.step is _Coming.CLAIMING}

    def hear(self, record: Record, now_s: float, absent: Collection[int]) -> list[Action]:
        """Take a record of the control topic; ``absent``: units that this runner is to serve and does not."""
        if isinstance(record, Request) and record.to == self._site:
            units = [unit for unit in record.units if unit in absent]
            return [action for unit in units for action in self._ask(unit, record, now_s)]
        if isinstance(record, Released) and record.to == self._site and record.unit in absent:
            return self._claim(record.unit, record.move, now_s)
        if isinstance(record, Cancelled):
            return [action for unit in record.units for action in self._cancel(unit, record.move)]
        return []

    def tick(self, now_s: float) -> list[Action]:
        """Let time pass."""
        old = [unit for unit, one in self._units.items() if self._waits(one) and now_s - one.heard_s > LEASE_S]
        return [action for unit in old for action in self.lost(unit)]

    def warmed(self, unit: int) -> list[Action]:
        """The state is built and waits."""
        one = self._units.get(unit)
        if one is None:
            return [CoolDown(unit)]
        if one.is_released:
            one.step = _Coming.CLAIMING
            return [Claim(unit)]
        one.step = _Coming.WARM
        return [self._ready(unit, one)]

    def dropped(self, unit: int) -> list[Action]:
        """Warming up did not work for now, or is not needed: the next Request begins anew."""
        one = self._units.get(unit)
        if one is not None and one.is_released:
            one.step = _Coming.CLAIMING
            return [Claim(unit)]
        self._units.pop(unit, None)
        return []

    def failed(self, unit: int, why: str) -> list[Action]:
        """The unit cannot be continued here; ``why`` says what to do."""
        one = self._units.pop(unit, None)
        if one is None:
            return []
        refused = Refused(move=one.move, unit=unit, to=self._site, instance=self._instance, why=why)
        return [Write(refused), CoolDown(unit)]

    def goes_on(self, unit: int, late_ms: int = 0) -> list[Action]:
        """The unit is claimed and has made its first commit, or has nothing to commit; so long ago."""
        one = self._units.pop(unit, None)
        if one is None:
            return []
        taken = Resumed(move=one.move, unit=unit, to=self._site, instance=self._instance, late_ms=late_ms)
        return [Write(taken), CoolDown(unit)]

    def lost(self, unit: int) -> list[Action]:
        """The unit is not this runner's to serve any more."""
        return [] if self._units.pop(unit, None) is None else [CoolDown(unit)]

    def _waits(self, one: _Arrival) -> bool:
        return one.step is not _Coming.CLAIMING and not one.is_released

    def _ask(self, unit: int, record: Request, now_s: float) -> list[Action]:
        one = self._units.get(unit)
        if one is None:
            self._units[unit] = _Arrival(record.move, _Coming.WARMING, now_s)
            return [WarmUp(unit)]
        if self._waits(one):
            one.move, one.heard_s = record.move, now_s
            return [self._ready(unit, one)] if one.step is _Coming.WARM else []
        return []

    def _ready(self, unit: int, one: _Arrival) -> Write:
        return Write(Ready(move=one.move, unit=unit, to=self._site, instance=self._instance))

    def _claim(self, unit: int, move: str, now_s: float) -> list[Action]:
        one = self._units.setdefault(unit, _Arrival(move, _Coming.WARM, now_s))
        if one.step is _Coming.CLAIMING:
            return []
        one.move, one.is_released = move, True
        if one.step is _Coming.WARMING:
            return []
        one.step = _Coming.CLAIMING
        return [Claim(unit)]

    def _cancel(self, unit: int, move: str) -> list[Action]:
        one = self._units.get(unit)
        return self.lost(unit) if one is not None and one.move == move and self._waits(one) else []
