"""What the control topic says about a site: its members and its assignment.

The state is a fold over the records. It depends on nothing else, not even a clock, so instances that have read the same
records agree on it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from joiner.runtime.control import (
    EPOCH_MAX,
    Assignment,
    Drain,
    Heartbeat,
    Left,
    MemberRecord,
    Pin,
    Standbys,
    StandingOrder,
    Summary,
    UnitAssignment,
    Workers,
)

SETTLED_BEATS: Final = 5
"""A member gets units of other live members only after this many heartbeats, so that an instance that fails soon after
it starts does not cause units to move back and forth."""

_FORGOTTEN_AFTER: Final = 10_000
"""A member that is gone, or a supervisor, is forgotten after this many records without one of its own."""

_BEFORE_ALL: Final = -2
"""Lower than -1, which stands for the unknown offset of an order."""

_UNDONE_MAX: Final = 1_000
"""How many withdrawn drains are remembered, so that an old order does not come back into force."""

_RUNS_MAX: Final = 16
"""How many replaced runs of an instance are remembered."""


@dataclass(frozen=True)
class Member:
    """An instance that has been heard from and has not left.

    ``offset``: the offset of its last heartbeat. ``beats``: the number of heartbeats since it joined or came back.
    ``is_gone``: whether it was declared gone and has not been heard from since.
    """

    heartbeat: Heartbeat
    offset: int
    beats: int = 1
    is_gone: bool = False
    before: tuple[str, ...] = ()
    """The instance's last runs that this one has replaced, directly or indirectly."""
    began: int = 0
    """The offset of the run's first heartbeat, or of the first one that was read."""

    @property
    def is_settled(self) -> bool:
        """Whether it may be given units that other live members own."""
        return self.beats >= SETTLED_BEATS


@dataclass
class StandingOrders:
    """The operators' orders for a site. Of several orders on the same subject, the last one in the log applies.

    The orders known to two readers are merged by offset, so it does not matter which reader has missed which order.
    """

    drained: set[str] = field(default_factory=set)
    """The instances that should have no units."""
    pinned: dict[int, str] = field(default_factory=dict)
    """By unit, the instance that should own it."""
    standbys: int | None = None
    """How many standbys each unit should have, or None to use the settings."""
    offsets: dict[str, int] = field(default_factory=dict)
    """The offset of the last order on each subject, even if that order withdraws another one."""

    @classmethod
    def of(cls, summary: Summary) -> StandingOrders:
        """Return the orders listed in a summary."""
        orders = cls()
        orders.merge(summary)
        return orders

    def last_about(self, order: StandingOrder) -> int:
        """Return the offset of the last order on the same subject, or -1 if none is known."""
        return self.offsets.get(_subject(order), -1)

    def apply(self, order: StandingOrder, offset: int) -> None:
        """Apply the order at ``offset``."""
        self.offsets[_subject(order)] = offset
        match order:
            case Drain(instance=instance, drained=drained):
                (self.drained.add if drained else self.drained.discard)(instance)
                self._forget_the_oldest()
            case Pin(unit=unit, instance=""):
                self.pinned.pop(unit, None)
            case Pin(unit=unit, instance=instance):
                self.pinned[unit] = instance
            case Standbys(count=count):
                self.standbys = count

    def merge(self, summary: Summary) -> bool:
        """Apply the orders in a summary that are newer than the known ones. Return whether there are any."""
        newer = [
            (order, offset)
            for order, offset in _stated(summary)
            if offset > self.offsets.get(_subject(order), _BEFORE_ALL)
        ]
        for order, offset in newer:
            self.apply(order, offset)
        return bool(newer)

    def are_missing_in(self, summary: Summary) -> bool:
        """Return whether a summary's author has missed an order that was removed before the author could read it."""
        return any(
            summary.ordered.get(subject, _BEFORE_ALL) < offset <= summary.read
            for subject, offset in self.offsets.items()
        )

    def _forget_the_oldest(self) -> None:
        """Forget the oldest withdrawn drains if there are too many. There may be one per instance name ever used."""
        undone = [subject for subject in self.offsets if (name := _instance_of(subject)) and name not in self.drained]
        for subject in sorted(undone, key=self.offsets.__getitem__)[:-_UNDONE_MAX]:
            del self.offsets[subject]

    def are_as(self, order: StandingOrder) -> bool:
        """Return whether this order is in force."""
        match order:
            case Drain(instance=instance, drained=drained):
                return (instance in self.drained) == drained
            case Pin(unit=unit, instance=instance):
                return self.pinned.get(unit, "") == instance
            case Standbys(count=count):
                return self.standbys == count


def _subject(order: StandingOrder) -> str:
    """Return the subject of an order. Of two orders on the same subject, the later one applies."""
    match order:
        case Drain(instance=instance):
            return f"drain {instance}"
        case Pin(unit=unit):
            return f"pin {unit}"
        case Standbys():
            return "standbys"


def _instance_of(subject: str) -> str:
    """Return the instance that a subject refers to, or an empty string if it refers to something else."""
    kind, _, instance = subject.partition(" ")
    return instance if kind == "drain" else ""


def _stated(summary: Summary) -> Iterator[tuple[StandingOrder, int]]:
    """Yield the last order on each subject in a summary, with its offset, or -1 if the summary does not give it."""
    site, instances, units = summary.site, set(summary.drained), set(summary.pinned)
    for subject in summary.ordered:
        kind, _, what = subject.partition(" ")
        if kind == "drain":
            instances.add(what)
        elif kind == "pin" and re.fullmatch(r"[0-9]{1,10}", what):
            units.add(int(what))
    orders: list[StandingOrder] = [
        *(Drain(site=site, instance=name, drained=name in summary.drained) for name in sorted(instances)),
        *(Pin(site=site, unit=unit, instance=summary.pinned.get(unit, "")) for unit in sorted(units)),
        Standbys(site=site, count=summary.standbys),
    ]
    for order in orders:
        if order != Standbys(site=site) or "standbys" in summary.ordered:
            yield order, summary.ordered.get(_subject(order), -1)


@dataclass
class SiteState:
    """The members of a site, by instance, and its last assignment."""

    site: str
    members: dict[str, Member] = field(default_factory=dict)
    epoch: int = 0
    """The epoch of the last assignment; 0 before the first."""
    units: list[UnitAssignment] = field(default_factory=list)
    orders: StandingOrders = field(default_factory=StandingOrders)
    _claimants: dict[int, tuple[str, str]] = field(default_factory=dict)
    """By unit, the instance that was the last one to begin to claim or serve it, and its run."""
    _ended: dict[str, tuple[int, tuple[str, ...]]] = field(default_factory=dict)
    """The last runs of each instance that has left, and the offset at which it left. A heartbeat that one of these runs
    wrote earlier may still be appended."""
    _reported: dict[str, int] = field(default_factory=dict)
    """The offset of the last report of each supervisor."""
    workers: dict[str, Workers] = field(default_factory=dict)
    """The last report of each supervisor of worker processes."""
    reason: str = ""
    read: int = -1
    """The offset of the last record applied."""
    version: int = 0
    """Increases whenever something changes that `assign.next_assignment` depends on."""
    wrong_suspicions: int = 0
    """How many members have come back after they were declared gone."""
    refuted: int = 0
    """How many assignments were ignored because an instance that they declared gone had been heard from."""

    def apply(self, record: MemberRecord, offset: int) -> bool:
        """Apply the record at ``offset``. Return whether it is a new assignment, or a summary that was adopted."""
        self.read = offset
        if record.site != self.site:
            return False
        match record:
            case Heartbeat():
                self._hear(record, offset)
            case Left():
                member = self.members.get(record.instance)
                if member is not None and member.heartbeat.run == record.run:
                    self._ended[record.instance] = offset, (*member.before, record.run)[-_RUNS_MAX:]
                    del self.members[record.instance]
                    self.version += 1
            case Drain() | Pin() | Standbys():
                self.orders.apply(record, offset)
                self.version += 1
            case Workers(instance=instance):
                self.workers[instance], self._reported[instance] = record, offset
            case Summary():
                return self._adopt(record)
            case Assignment():
                self._forget(offset)
                return self._assign(record)
        return False

    @classmethod
    def of(cls, summary: Summary) -> SiteState:
        """Return the state that a summary describes, without members."""
        return cls(
            summary.site,
            epoch=summary.epoch,
            units=list(summary.units),
            orders=StandingOrders.of(summary),
            reason=summary.reason,
            read=summary.read,
        )

    def summary(self) -> Summary:
        """Return a summary of the records applied so far."""
        return Summary(
            site=self.site,
            read=self.read,
            epoch=self.epoch,
            units=self.units,
            drained=sorted(self.orders.drained),
            pinned=dict(sorted(self.orders.pinned.items())),
            standbys=self.orders.standbys,
            ordered=dict(sorted(self.orders.offsets.items())),
            reason=self.reason,
        )

    @property
    def drained(self) -> set[str]:
        """The drained instances."""
        return self.orders.drained

    @property
    def live(self) -> dict[str, Heartbeat]:
        """The last heartbeats of the members that are not gone."""
        # Other threads read this while the runner's thread applies records.
        return {name: member.heartbeat for name, member in [*self.members.items()] if not member.is_gone}

    @property
    def is_mixed(self) -> bool:
        """Whether the consumer group assigns the units, because processes of an older release are running."""
        return any(heartbeat.mixed for heartbeat in self.live.values())

    def server(self, unit: int) -> str | None:
        """Return the live member that serves a unit, or None. If there are several, the one heard from last."""
        everyone = [*self.members.values()]
        serving = [member for member in everyone if not member.is_gone and unit in member.heartbeat.serves]
        return max(serving, key=lambda member: member.offset).heartbeat.instance if serving else None

    def is_taken(self, unit: int, *, but: str) -> bool:
        """Return whether a live member serves or claims a unit. ``but``: the one that does not count."""
        return any(name != but and (unit in beat.serves or unit in beat.claims) for name, beat in self.live.items())

    def has_replaced(self, instance: str, run: str) -> bool:
        """Return whether a run of an instance has ended, or a later one has begun, so that nobody listens to it."""
        member = self.members.get(instance)
        return run in (self._ended.get(instance, (0, ()))[1] if member is None else member.before)

    def is_abandoned(self, unit: int) -> bool:
        """Return whether the last one to begin to claim or serve a unit is not its owner's current run.

        If nobody serves the unit, its server has ended before the owner could claim it, or the owner has been fenced. A
        unit that its owner has stopped serving for another reason is not abandoned: the owner tries again, or the unit
        has failed there.
        """
        owner = self._owner(unit)
        said = self.members[owner].heartbeat if owner in self.members else None
        if said is not None and unit in said.failed:
            return False
        claimant = owner, said.run if said is not None else ""
        return self._claimants.get(unit, claimant) != claimant

    def _owner(self, unit: int) -> str:
        return self.units[unit].owner if 0 <= unit < len(self.units) else ""

    def _forget(self, offset: int) -> None:
        """Forget those that have not been heard from for a long time. Otherwise, every crash would add to them."""
        for name, member in [*self.members.items()]:
            if member.is_gone and member.offset < offset - _FORGOTTEN_AFTER:
                del self.members[name]
        for name, (left, _) in [*self._ended.items()]:
            if left < offset - _FORGOTTEN_AFTER:
                del self._ended[name]
        for name, reported in [*self._reported.items()]:
            if reported < offset - _FORGOTTEN_AFTER:
                del self.workers[name], self._reported[name]

    def _hear(self, heartbeat: Heartbeat, offset: int) -> None:
        before = self.members.get(heartbeat.instance)
        _, ended = self._ended.get(heartbeat.instance, (0, ()))
        if before is None and heartbeat.run in ended:
            return
        began = heartbeat.began if 0 <= heartbeat.began <= offset else offset
        if before is None:
            now = Member(heartbeat, offset, before=ended, began=began)
        elif heartbeat.run in before.before:
            return  # it was replaced, but has not noticed yet
        elif before.heartbeat.run != heartbeat.run:
            if began < before.began <= offset:
                return  # it was replaced before the first record that was read (unless the topic has been recreated)
            now = Member(heartbeat, offset, before=(*before.before, before.heartbeat.run)[-_RUNS_MAX:], began=began)
        elif before.is_gone:
            self.wrong_suspicions += 1
            now = Member(heartbeat, offset, before=before.before, began=before.began)
        else:
            now = replace(
                before,
                heartbeat=heartbeat,
                offset=offset,
                beats=before.beats + 1,
                began=min(began, before.began),
            )
        self.members[heartbeat.instance] = now
        self._note_claims(heartbeat, before.heartbeat if before is not None else None)
        if before is None or (before.heartbeat, before.is_gone, before.is_settled) != (
            now.heartbeat,
            now.is_gone,
            now.is_settled,
        ):
            self.version += 1

    def _note_claims(self, heartbeat: Heartbeat, before: Heartbeat | None) -> None:
        """Note which units an instance has begun to claim or serve since its last heartbeat."""
        serves, claims = set(heartbeat.serves), set(heartbeat.claims)
        if before is None:
            # If the log was not read from its beginning, the instance may have begun before others did.
            serves = {unit for unit in serves if unit not in self._claimants or self._owner(unit) == heartbeat.instance}
        elif before.run == heartbeat.run:
            serves -= {*before.serves, *before.claims}
            claims -= set(before.claims)
        claimant = heartbeat.instance, heartbeat.run
        self._claimants.update((unit, claimant) for unit in serves | claims if 0 <= unit < len(self.units))
        # A unit that its owner cannot serve stays there, whoever served it before.
        for unit in heartbeat.failed:
            if self._owner(unit) == heartbeat.instance:
                self._claimants.pop(unit, None)

    def _adopt(self, summary: Summary) -> bool:
        """Adopt a summary that differs from this state. Return whether it does.

        It differs only if an instance has missed records that were removed while it was suspended, or knew less about
        the members than the others did when they ignored an assignment. Once they have read the summary, all readers
        agree again.
        """
        is_changed = self.orders.merge(summary)
        if summary.epoch >= self.epoch and (summary.epoch, summary.units) != (self.epoch, self.units):
            self.units = list(summary.units)
            self.epoch, self.reason = summary.epoch, summary.reason
            is_changed = True
        self.version += is_changed
        return is_changed

    def _assign(self, assignment: Assignment) -> bool:
        # If epochs in between are missing, they were removed before this instance could read them.
        if assignment.epoch <= self.epoch and assignment.epoch < EPOCH_MAX:
            return False
        for name, offset in assignment.gone.items():
            if name in self.members and self.members[name].offset > offset:
                self.refuted += 1
                return False
        for name in assignment.gone.keys() & self.members.keys():
            self.members[name] = replace(self.members[name], is_gone=True)
        self.version += 1
        self.units = assignment.units
        self.epoch, self.reason = assignment.epoch, assignment.reason
        return True
