"""Simulates the instances of a site: a control topic, instances that stall, die and return, and units that they claim.

Only `joiner.runtime.membership` is real. Claims, restores and commits take random times. As with Kafka, the last claim
of a unit fences every earlier one, and an instance learns at its next commit that it has been fenced. A unit may be
broken at an instance: then its batches, its claims and its warm-ups fail there.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from math import inf
from random import Random
from typing import Final

from joiner.runtime.control import (
    Assignment,
    Drain,
    Heartbeat,
    Left,
    Logged,
    MemberRecord,
    Pin,
    Retry,
    Standbys,
    StandingOrder,
)
from joiner.runtime.membership.member import Identity, Member, Orders, Timing, Work

LOOK_S: Final = 2.0
"""How often an instance looks for processes of an older release in the consumer group."""

SESSION_S: Final = 6.0
LOOP_S: Final = 0.03
COMMIT_S: Final = 0.1
OBSERVED_S: Final = 0.05
LEAVING_S: Final = 5.0
CATCH_UP_S: Final = 0.1
CLIENT_WAITS_S: Final = 1.0
RECONNECT_S: Final = 0.4
UNABLE_S: Final = 5.0
"""How long an instance says that it cannot build the state of a unit. It may then be asked to try again."""


@dataclass
class Instance:
    """One run of an instance. ``serves``: units with the serial number of their claim."""

    name: str
    member: Member
    serves: dict[int, int] = field(default_factory=dict)
    claims: dict[int, int] = field(default_factory=dict)
    follows: set[int] = field(default_factory=set)
    warm: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    """Units that it should serve, and cannot."""
    unable: set[int] = field(default_factory=set)
    """Units whose state it cannot build."""
    in_doubt: set[int] = field(default_factory=set)
    """Units that it has lost to another instance, and has not been told what to do with."""
    position: int = 0
    until_s: float = 0.0
    """Suspended until this time."""
    sees_s: float = 0.0
    """Until this time, it has not yet received what was written while it was suspended."""
    leaves_s: float = inf
    """Stops at this time, whether or not other instances have claimed its units."""
    is_dead: bool = False
    slowness: float = 1.0
    building: float = 1.0
    """How many times as long it takes to build a state."""
    paces: dict[int, float] = field(default_factory=dict)
    """By unit, the slowness with which it is being claimed. A step that has begun does not become faster."""
    looked_s: float = -inf

    def work(self) -> Work:
        """Return what the instance does."""
        failed = self.failed | self.unable
        return Work(
            frozenset(self.serves),
            frozenset(self.claims),
            frozenset(self.warm),
            frozenset(failed),
            frozenset(self.in_doubt),
        )


@dataclass
class Older:
    """A process of an older release, which takes its units from the consumer group alone."""

    serves: dict[int, int] = field(default_factory=dict)
    is_dead: bool = False


class ControlTopic:
    """The log of a site, whose records may be lost or delayed, what operators have ordered there, and the time."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now_s = 0.0
        self.log: list[tuple[MemberRecord, float]] = []
        """The records, each with the time at which readers can see it."""
        self.loss = 0.0
        """The probability that a record is lost."""
        self.outage_s = 0.0
        """Until this time, Kafka is unreachable for everybody."""
        self.pins: dict[int, str] = {}
        """By unit, the instance to which it is pinned."""
        self.standbys_ordered: int | None = None
        self._away_s: dict[str, float] = {}
        self._waiting: list[tuple[str, MemberRecord, float]] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = 0

    def after(self, delay_s: float, event: Callable[[], None]) -> None:
        """Call ``event`` after a delay."""
        self._serial += 1
        heapq.heappush(self._events, (self.now_s + delay_s, self._serial, event))

    def run(self, until_s: float) -> None:
        """Let the time pass."""
        while self._events and self._events[0][0] <= until_s:
            self.now_s, _, event = heapq.heappop(self._events)
            event()
        self.now_s = until_s

    def write(self, record: MemberRecord) -> None:
        """Append a record, unless it is lost. Readers see it after a delay."""
        author: str = getattr(record, "by", "") or getattr(record, "instance", "")
        if self.now_s < self._away_s.get(author, 0.0):
            self._waiting.append((author, record, self.now_s))
        elif self.random.random() >= self.loss:
            delay_s = self.random.choice([0.002, 0.005, 0.05])
            before_s = self.log[-1][1] if self.log else 0.0
            self.log.append((record, max(before_s, self.now_s + delay_s)))

    def cut(self, for_s: float, clients: Iterable[str]) -> None:
        """Make Kafka unreachable. Clients then reconnect one after another.

        They write what they have waited with for less than a second.
        """
        self.outage_s = self.now_s + for_s
        for name in clients:
            self._away_s[name] = self.outage_s + self.random.uniform(0, RECONNECT_S)
            self.after(self._away_s[name] - self.now_s, partial(self._reconnect, name))

    def _reconnect(self, name: str) -> None:
        mine = [(record, at_s) for author, record, at_s in self._waiting if author == name]
        self._waiting = [one for one in self._waiting if one[0] != name]
        for record, at_s in mine:
            if self.now_s - at_s < CLIENT_WAITS_S:
                self.write(record)

    def order(self, order: StandingOrder | Retry) -> None:
        """Give an order. It is not lost, because whoever gives it waits until Kafka has it."""
        match order:
            case Pin(unit=unit, instance=""):
                self.pins.pop(unit, None)
            case Pin(unit=unit, instance=instance):
                self.pins[unit] = instance
            case Standbys(count=count):
                self.standbys_ordered = count
            case _:
                pass
        loss, self.loss = self.loss, 0.0
        self.write(order)
        self.loss = loss

    def drain(self, name: str, *, drained: bool) -> None:
        """Drain an instance, or end that."""
        self.order(Drain(site="plain", instance=name, drained=drained))


class World(ControlTopic):
    """The site and its instances."""

    def __init__(self, seed: int, units: int, standbys: int) -> None:
        super().__init__(seed)
        self.units, self.standbys = units, standbys
        self.standbys_of: dict[str, int] = {}
        """Instances whose settings name another number of standbys."""
        self.instances: dict[str, Instance] = {}
        self.fence = dict.fromkeys(range(units), 0)
        """The serial number of the last claim of each unit."""
        self.claims = 0
        self.runs = 0
        self.unserved_s = dict.fromkeys(range(units), 0.0)
        """How long each unit has not been served. See `_observe` for what is not counted in full."""
        self.longest_pause_s = 0.0
        self.longest_ready_pause_s = 0.0
        """The longest pause of a unit for which an instance was warm all along."""
        self._ready: dict[int, set[str]] = {unit: set() for unit in range(units)}
        """The instances that have been warm since each unit was last served."""
        self.duels = 0
        """How often an instance was fenced that was not suspended."""
        self.older: dict[str, Older] = {}
        self.broken: set[tuple[str, int]] = set()
        """The instances and units that fail there."""
        self._left_group_s: dict[str, float] = {}
        self.after(0.0, self._observe)

    def start(self, name: str) -> None:
        """Start an instance, or replace the run of one that has died."""
        self.runs += 1
        standbys = self.standbys_of.get(name, self.standbys)
        identity = Identity("plain", name, f"run{self.runs}", host=name[:1], standbys=standbys)
        member = Member(identity, self.units, Timing(), self.now_s)
        one = self.instances[name] = Instance(name, member)
        one.position = max(0, len(self.log) - 300)
        self._turn(one)

    def start_older(self, name: str) -> None:
        """Start a process of an older release."""
        one = self.older[name] = Older()
        self._turn_older(name, one)

    def stop_older(self, name: str) -> None:
        """Stop a process of an older release."""
        self.older.pop(name).is_dead = True
        self._left_group_s[name] = self.now_s

    def units_by_group(self, name: str) -> set[int]:
        """Return the units that the consumer group assigns to a member."""
        dead = {other for other, at_s in self._left_group_s.items() if self.now_s - at_s < SESSION_S}
        members = sorted({*self.instances, *self.older, *dead})
        return {unit for unit in range(self.units) if members[unit % len(members)] == name}

    def kill(self, name: str, *, reported: bool = False) -> None:
        """Kill an instance. ``reported``: whether its supervising process tells the others at once."""
        one = self.instances.pop(name)
        one.is_dead = True
        if reported:
            self.write(one.member.leave())
        self._left_group_s[name] = self.now_s

    def leave(self, name: str) -> None:
        """Let an instance hand over its units and stop."""
        one = self.instances[name]
        one.member.leaving, one.leaves_s = True, self.now_s + LEAVING_S

    def stall(self, name: str, for_s: float, *, log_kept: int | None = None) -> None:
        """Suspend an instance. ``log_kept``: how many records the log still has when it continues; None: all."""
        one = self.instances[name]
        one.until_s = self.now_s + for_s
        one.sees_s = one.until_s + CATCH_UP_S
        if log_kept is not None:
            self.after(for_s, lambda: setattr(one, "position", max(one.position, len(self.log) - log_kept)))

    def fail(self, name: str, unit: int) -> None:
        """Let a unit fail at an instance from now on, until it is mended."""
        self.broken.add((name, unit))
        one = self.instances.get(name)
        if one is not None and one.serves.pop(unit, None) is not None:
            one.failed.add(unit)

    def healthy(self) -> list[Instance]:
        """Return the instances that run and are not suspended."""
        return [one for one in self.instances.values() if one.until_s <= self.now_s]

    def servers(self, unit: int) -> list[str]:
        """Return the instances that believe that they serve a unit."""
        older = [name for name, one in self.older.items() if unit in one.serves]
        return [*older, *(one.name for one in self.instances.values() if unit in one.serves)]

    def _observe(self) -> None:
        """Measure the pauses.

        A slow instance takes longer to build the state of a unit that it claims. The assignment cannot know that, and
        leaves the unit to it. If no instance has had the state since the pause began, the time for which a slow one
        claims the unit is therefore divided by its slowness. All other time counts in full.
        """
        healthy = self.healthy()
        everyone: list[Instance | Older] = [*healthy, *self.older.values()]
        served = {unit for one in everyone for unit, claim in one.serves.items() if claim == self.fence[unit]}
        warm: dict[int, set[str]] = {}
        for one in healthy:
            for unit in one.warm:
                warm.setdefault(unit, set()).add(one.name)
        for unit in range(self.units):
            if unit in served or not healthy:
                self.unserved_s[unit], self._ready[unit] = 0.0, warm.get(unit, set())
                continue
            self._ready[unit] &= warm.get(unit, set())
            slowness = max((one.paces[unit] for one in healthy if unit in one.claims), default=1.0)
            self.unserved_s[unit] += OBSERVED_S if self._ready[unit] else OBSERVED_S / slowness
            self.longest_pause_s = max(self.longest_pause_s, self.unserved_s[unit])
            if self._ready[unit]:
                self.longest_ready_pause_s = max(self.longest_ready_pause_s, self.unserved_s[unit])
        self.after(OBSERVED_S, self._observe)

    def _turn(self, one: Instance) -> None:
        if one.is_dead:
            return
        if one.until_s > self.now_s:
            self.after(one.until_s - self.now_s, lambda: self._turn(one))
            return
        sees_s = max(one.sees_s, self._away_s.get(one.name, 0.0))
        while self.now_s >= sees_s and one.position < len(self.log) and self.log[one.position][1] <= self.now_s:
            record, seen_s = self.log[one.position]
            one.member.hear(Logged(record, one.position, int(1000 * seen_s)), self.now_s)
            one.position += 1
        if self.now_s - one.looked_s >= LOOK_S:
            one.looked_s, one.member.sees_older = self.now_s, bool(self.older)
        self._retry(one, one.member.take_retries())
        for record in one.member.beat(one.work(), self.now_s):
            self.write(record)
        self._follow(one, self._orders(one))
        if one.leaves_s <= self.now_s or (one.member.leaving and not one.serves and not one.claims):
            self.write(one.member.leave())
            one.is_dead = True
            del self.instances[one.name]
            self._left_group_s[one.name] = self.now_s
            return
        self.after(LOOP_S * one.slowness * self.random.uniform(0.5, 2), lambda: self._turn(one))

    def _orders(self, one: Instance) -> Orders:
        orders = one.member.orders(one.work(), self.now_s)
        if not one.member.is_mixed:
            return orders
        units = frozenset(self.units_by_group(one.name))
        return Orders(units, frozenset(one.serves) - units, orders.follow - units)

    def _retry(self, one: Instance, units: set[int]) -> None:
        """Forget why units have failed. Those that are to be served are claimed with the next orders."""
        one.failed -= units
        one.unable -= units
        for unit in units & one.follows - one.warm:
            self._warm_up(one, unit)

    def _turn_older(self, name: str, one: Older) -> None:
        if one.is_dead:
            return
        units = self.units_by_group(name)
        for unit in list(one.serves):
            if unit not in units or one.serves[unit] != self.fence[unit]:
                del one.serves[unit]
        for unit in units - one.serves.keys():
            self.claims += 1
            one.serves[unit] = self.fence[unit] = self.claims
        self.after(self.random.uniform(0.5, 1.5), lambda: self._turn_older(name, one))

    def _follow(self, one: Instance, orders: Orders) -> None:
        """Do what the orders say."""
        for unit in orders.release:
            del one.serves[unit]
        for unit in one.claims.keys() - orders.serve:
            del one.claims[unit]
        one.failed &= orders.serve
        one.in_doubt &= (orders.serve | orders.hold) - one.serves.keys()
        for unit in orders.serve - one.serves.keys() - one.claims.keys() - one.failed:
            self._claim(one, unit)
        for unit in orders.follow - one.follows:
            one.follows.add(unit)
            self._warm_up(one, unit)
        for unit in one.follows - orders.follow - orders.serve:
            one.follows.discard(unit)
            one.warm.discard(unit)

    def _warm_up(self, one: Instance, unit: int) -> None:
        self._later(one, one.building * self.random.uniform(0.05, 0.5), partial(self._warmed, one, unit))

    def _warmed(self, one: Instance, unit: int) -> None:
        if unit not in one.follows:
            return
        if (one.name, unit) in self.broken:
            one.unable.add(unit)
            self._later(one, UNABLE_S, partial(one.unable.discard, unit))
        else:
            one.warm.add(unit)

    def _claim(self, one: Instance, unit: int) -> None:
        self.claims += 1
        mine = self.claims
        one.claims[unit], one.paces[unit] = mine, one.slowness * one.building
        one.unable.discard(unit)
        restore_s = 0.02 if unit in one.warm else one.building * self.random.uniform(0.1, 1.0)

        def fenced() -> None:
            if self.now_s < self.outage_s:
                self._later(one, self.outage_s - self.now_s + self.random.uniform(0, 0.1), fenced)
            elif one.claims.get(unit) == mine:
                self.duels += any(other.serves.get(unit) == self.fence[unit] for other in self.healthy())
                self.fence[unit], one.paces[unit] = mine, one.slowness * one.building
                self._later(one, restore_s, served)

        def served() -> None:
            if one.claims.get(unit) == mine and self._end_claim(one, unit):
                one.serves[unit] = mine
                self._later(one, COMMIT_S, commit)

        def commit() -> None:
            if one.serves.get(unit) != mine:
                return
            if self.fence[unit] != mine:
                del one.serves[unit]
                one.in_doubt.add(unit)
            else:
                self._later(one, COMMIT_S, commit)

        self._later(one, self.random.uniform(0.02, 0.15), fenced)

    def _end_claim(self, one: Instance, unit: int) -> bool:
        """End a claim. Return whether the unit can be served."""
        mine = one.claims.pop(unit)
        one.follows.discard(unit)
        one.warm.discard(unit)
        if (one.name, unit) in self.broken:
            one.failed.add(unit)
        return unit not in one.failed and self.fence[unit] == mine

    def _later(self, one: Instance, delay_s: float, event: Callable[[], None]) -> None:
        """Call ``event`` after a delay, once the instance is not suspended, unless it has died."""

        def happen() -> None:
            if one.is_dead:
                return
            if one.until_s > self.now_s:
                self.after(one.until_s - self.now_s, happen)
            else:
                event()

        self.after(delay_s * one.slowness, happen)


def accepted_in(world: World) -> list[Assignment]:
    """Return the assignments that count, by a definition that shares no code with the fold."""
    heard: dict[str, int] = {}
    found: list[Assignment] = []
    for offset, (record, _) in enumerate(world.log):
        if isinstance(record, Heartbeat):
            heard[record.instance] = offset
        elif isinstance(record, Left):
            heard.pop(record.instance, None)
        elif isinstance(record, Assignment):
            is_newer = not found or record.epoch > found[-1].epoch
            if is_newer and all(heard.get(name, -1) <= at for name, at in record.gone.items()):
                found.append(record)
    return found
