"""What the control topic says about a site: its members and its assignment.

The state is a fold over the records. It depends on nothing else, in particular on no clock, so instances that have read
the same records agree on it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from joiner.runtime.control import (
    Assignment,
    Drain,
    Heartbeat,
    Left,
    MemberRecord,
    Summary,
    UnitAssignment,
    Workers,
)

SETTLED_BEATS: Final = 5
"""A member is given units of other live members only after this many heartbeats, so that an instance that fails soon
after its start does not make units wander."""

_FORGOTTEN_AFTER: Final = 10_000
"""A member that is gone, or a supervisor, is forgotten after this many records without one of its own."""

_RUNS_MAX: Final = 16
"""How many replaced runs of an instance are remembered."""


@dataclass(frozen=True)
class Member:
    """An instance that has been heard and has not left.

    ``offset``: of its last heartbeat. ``beats``: the number of heartbeats since it joined or came back. ``is_gone``: it
    was declared gone and has not been heard since.
    """

    heartbeat: Heartbeat
    offset: int
    beats: int = 1
    is_gone: bool = False
    before: tuple[str, ...] = ()
    """The last runs of the instance that this one has replaced, directly or indirectly."""

    @property
    def is_settled(self) -> bool:
        """Whether it may be given units that other live members own."""
        return self.beats >= SETTLED_BEATS


@dataclass
class SiteState:
    """The members of a site, by instance, and its last assignment."""

    site: str
    members: dict[str, Member] = field(default_factory=dict)
    epoch: int = 0
    """The epoch of the last assignment; 0 before the first."""
    units: list[UnitAssignment] = field(default_factory=list)
    drained: set[str] = field(default_factory=set)
    _ended: dict[str, tuple[int, tuple[str, ...]]] = field(default_factory=dict)
    """The last runs of each instance that has left, and the offset at which it left. A heartbeat that one of these runs
    wrote before may be appended later."""
    _reported: dict[str, int] = field(default_factory=dict)
    """The offset of the last report of each supervisor."""
    _drains: dict[str, tuple[int, bool]] = field(default_factory=dict)
    """The last order about each instance: its offset, and whether the instance was to be drained."""
    workers: dict[str, Workers] = field(default_factory=dict)
    """The last report of each supervisor of worker processes."""
    reason: str = ""
    read: int = -1
    """The offset of the last record that was applied."""
    version: int = 0
    """Increases whenever something changes that `assign.next_assignment` depends on."""
    wrong_suspicions: int = 0
    """How many members have come back after they were declared gone."""
    refuted: int = 0
    """How many assignments were ignored because an instance that they declared gone had been heard."""

    def apply(self, record: MemberRecord, offset: int) -> bool:
        """Apply the record at ``offset``. Return whether it has changed the assignment."""
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
            case Drain(instance=instance, drained=drained):
                self._drains[instance] = offset, drained
                (self.drained.add if drained else self.drained.discard)(instance)
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
            drained=set(summary.drained),
            reason=summary.reason,
            read=summary.read,
        )

    def summary(self) -> Summary:
        """Return a summary of the records that were applied."""
        return Summary(
            site=self.site,
            read=self.read,
            epoch=self.epoch,
            units=self.units,
            drained=sorted(self.drained),
            reason=self.reason,
        )

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
        """Return the live member that serves a unit, or None. Of several, the one that was heard last."""
        everyone = [*self.members.values()]
        serving = [member for member in everyone if not member.is_gone and unit in member.heartbeat.serves]
        return max(serving, key=lambda member: member.offset).heartbeat.instance if serving else None

    def _forget(self, offset: int) -> None:
        """Forget those of whom nothing has been heard for long. Otherwise, there would be more with every crash."""
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
        if before is None:
            now = Member(heartbeat, offset, before=ended)
        elif heartbeat.run in before.before:
            return  # it was replaced, but has not noticed yet
        elif before.heartbeat.run != heartbeat.run:
            now = Member(heartbeat, offset, before=(*before.before, before.heartbeat.run)[-_RUNS_MAX:])
        elif before.is_gone:
            self.wrong_suspicions += 1
            now = Member(heartbeat, offset, before=before.before)
        else:
            now = replace(before, heartbeat=heartbeat, offset=offset, beats=before.beats + 1)
        self.members[heartbeat.instance] = now
        if before is None or (before.heartbeat, before.is_gone, before.is_settled) != (
            now.heartbeat,
            now.is_gone,
            now.is_settled,
        ):
            self.version += 1

    def _adopt(self, summary: Summary) -> bool:
        """Adopt a summary that differs. Return whether it does.

        It differs only if an instance has not read all records, because some were removed while it was suspended, or
        because it knows less about members than the others did when they ignored an assignment. All readers of a
        summary then agree again.
        """
        drained = set(summary.drained)
        for instance, (offset, is_drained) in self._drains.items():
            if offset > summary.read:
                (drained.add if is_drained else drained.discard)(instance)
        stated = summary.epoch, summary.units, drained
        if summary.epoch < self.epoch or stated == (self.epoch, self.units, self.drained):
            return False
        self.epoch, self.units, self.drained = summary.epoch, list(summary.units), drained
        self.reason = summary.reason
        self.version += 1
        return True

    def _assign(self, assignment: Assignment) -> bool:
        # If epochs in between are missing, they were removed before this instance could read them.
        if assignment.epoch <= self.epoch:
            return False
        for name, offset in assignment.gone.items():
            if name in self.members and self.members[name].offset > offset:
                self.refuted += 1
                return False
        for name in assignment.gone.keys() & self.members.keys():
            self.members[name] = replace(self.members[name], is_gone=True)
        self.version += 1
        self.epoch, self.units = assignment.epoch, assignment.units
        self.reason = assignment.reason
        return True
