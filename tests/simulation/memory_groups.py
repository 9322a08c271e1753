"""A consumer group in memory: static members, cooperative reassignment, sessions that run out.

A unit is assigned to another member only when its member has given it back, or the session of that has expired. A
member that comes back under its instance name gets the units of the one before. A member learns of changes with its
next heartbeat.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.memory_kafka import MemoryKafka

Place = tuple[str, int]


@dataclass(eq=False)
class Member:
    """One client of the group. ``beats``: whether its heartbeats go out now."""

    instance: str
    topics: list[str]
    session_s: float
    beats: Callable[[], bool]
    seen_s: float
    has: set[Place] = field(default_factory=set)
    """Assigned to it and not given back, as the group sees it."""
    due: set[Place] = field(default_factory=set)
    is_fenced: bool = False
    is_forgotten: bool = False


class Group:
    """The coordinator's view of a group."""

    def __init__(self, kafka: MemoryKafka) -> None:
        self._kafka = kafka
        self.members: list[Member] = []
        self.fenced = 0
        self.given: Counter[tuple[str, int]] = Counter()
        """How often a process was assigned a partition, by its name and the partition's number."""

    def join(self, instance: str, topics: list[str], session_s: float, beats: Callable[[], bool]) -> Member:
        """Add a member; another of its name is fenced, and its partitions are assigned to the new one."""
        member = Member(instance, topics, session_s, beats, self._kafka.now_s())
        before = next((known for known in self.members if instance and known.instance == instance), None)
        if before is None:
            self.members.append(member)
            self._spread()
        else:
            before.is_fenced = True
            self.fenced += 1
            member.has, member.due = before.has, before.due
            self.members[self.members.index(before)] = member
        return member

    def leave(self, member: Member) -> None:
        """A member without an instance name says that it goes; one with a name only falls silent."""
        if member in self.members and not member.instance:
            self._forget(member)
        member.beats = lambda: False

    def expire(self) -> None:
        """Forget members whose session has run out."""
        now_s = self._kafka.now_s()
        for member in list(self.members):
            # A clock that jumps is nobody's silence: who beats now has done so all the time.
            if member.beats():
                member.seen_s = now_s
            elif now_s - member.seen_s > member.session_s:
                self._forget(member)

    def given_back(self, member: Member, places: set[Place]) -> None:
        """The member has let go of these."""
        if member in self.members:
            member.has -= places

    def free_for(self, member: Member) -> set[Place]:
        """What the member is due, and nobody has."""
        taken = {place for other in self.members for place in other.has}
        return member.due - taken

    def _forget(self, member: Member) -> None:
        member.is_forgotten = True
        self.members.remove(member)
        self._spread()

    def _spread(self) -> None:
        """Even shares; whoever has a partition keeps it where that fits."""
        topics = sorted({topic for member in self.members for topic in member.topics})
        places = [
            (topic, number)
            for topic in topics
            if topic in self._kafka.topics
            for number in range(len(self._kafka.topics[topic].logs))
        ]
        for member in self.members:
            member.due = set()
        least, more = divmod(len(places), max(1, len(self.members)))
        room = {id(member): least for member in self.members}
        for member in sorted(self.members, key=lambda known: -len(known.has))[:more]:
            room[id(member)] += 1
        left = []
        for place in places:
            owner = next((member for member in self.members if place in member.has), None)
            if owner is not None and len(owner.due) < room[id(owner)]:
                owner.due.add(place)
            else:
                left.append(place)
        for place in left:
            selector = next(member for member in self.members if len(member.due) < room[id(member)])
            selector.due.add(place)
