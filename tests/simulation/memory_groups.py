"""A consumer group in memory: static members, cooperative rebalancing, session timeouts.

A unit is assigned to another member only once the previous one has given it up or lost its session. A new member with
the same instance name gets the units of its predecessor. A member learns of changes at its next heartbeat.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tests.simulation.memory_kafka import MemoryKafka

Place = tuple[str, int]


@dataclass(eq=False)
class Member:
    """A member of the group. ``beats`` returns whether its heartbeats reach the group now."""

    instance: str
    topics: list[str]
    session_s: float
    beats: Callable[[], bool]
    seen_s: float
    client: str = ""
    has: set[Place] = field(default_factory=set)
    """The partitions that the group has assigned to the member and that the member has not given up."""
    due: set[Place] = field(default_factory=set)
    is_fenced: bool = False
    is_forgotten: bool = False


class GroupMetadata(NamedTuple):
    """What a consumer knows of its group when it asks. ``member``: None if it is not a member."""

    group: str
    member: Member | None = None


class Group:
    """The coordinator's view of a group."""

    def __init__(self, kafka: MemoryKafka) -> None:
        self._kafka = kafka
        self.members: list[Member] = []
        self.fenced = 0
        self.given: Counter[tuple[str, int]] = Counter()
        """The number of times each process was assigned each partition, by process name and partition number."""

    def join(
        self, instance: str, topics: list[str], session_s: float, beats: Callable[[], bool], client: str = ""
    ) -> Member:
        """Add a member. A previous member with its instance name is fenced, and the new one gets its partitions."""
        member = Member(instance, topics, session_s, beats, self._kafka.now_s(), client)
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
        """Remove a member. A static member remains until its session expires, but sends no more heartbeats."""
        if member in self.members and not member.instance:
            self._forget(member)
        member.beats = lambda: False

    def permits(self, metadata: GroupMetadata) -> bool:
        """Return whether offsets may be committed: by members that are not fenced, and by strangers.

        A member that has not heard of a rebalance yet still has its partitions, so Kafka accepts its offsets, too.
        """
        member = metadata.member
        return member is None or (member in self.members and not member.is_fenced)

    def notice_partitions(self) -> None:
        """Assign partitions that were added to topics."""
        self._spread()

    def expire(self) -> None:
        """Remove the members whose session has expired."""
        now_s = self._kafka.now_s()
        for member in list(self.members):
            # A jump of the clock does not expire a session: a member that can send heartbeats now is assumed to have
            # sent them throughout.
            if member.beats():
                member.seen_s = now_s
            elif now_s - member.seen_s > member.session_s:
                self._forget(member)

    def given_back(self, member: Member, places: set[Place]) -> None:
        """Record that the member has given up these partitions."""
        if member in self.members:
            member.has -= places

    def free_for(self, member: Member) -> set[Place]:
        """Return the partitions that the member should get and that no member has."""
        taken = {place for other in self.members for place in other.has}
        return member.due - taken

    def _forget(self, member: Member) -> None:
        member.is_forgotten = True
        self.members.remove(member)
        self._spread()

    def _spread(self) -> None:
        """Assign the partitions evenly. Members keep what they have, up to their share."""
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
