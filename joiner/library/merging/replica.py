"""What is known of one replica."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from joiner.library.merging.vectors import Vector, reached


class Replica:
    """What is known of one replica (see `protocol`)."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.start: Vector = {}
        """Its last start vector. Before the first one, without topics."""
        self.is_accepted = self.is_complete = number == 0
        self.accepted_at: Vector = {}
        self.has_written = False
        """Whether it has written ids since its last start record."""
        self.has_forgotten = False
        """Whether ids of its current transaction were forgotten, so that their tag is not known yet."""
        self.topics: set[str] = set()
        """The topics of its last start vector that was not empty."""

    def goes_back(self, start: Vector) -> bool:
        """Return whether a start vector says that it was reset."""
        continues = not self.start or (start.keys() == self.start.keys() and reached(start, self.start))
        return not continues or (self.has_written and start == self.start)

    def ignore(self) -> None:
        """Do not accept it any more."""
        self.is_accepted = self.is_complete = self.has_forgotten = False

    def begin(self, start: Vector) -> None:
        """Begin a transaction at a vector. If that is empty, the next one tells where what was forgotten ends."""
        self.start, self.has_written = dict(start), False
        if start:
            self.has_forgotten = False
            self.topics = set(start)

    def summary(self) -> dict[str, Any]:
        """Return all of it, as a JSON object."""
        return {
            "start": dict(self.start),
            "accepted": self.is_accepted,
            "complete": self.is_complete,
            "written": self.has_written,
            "accepted_at": dict(self.accepted_at),
            "forgotten": self.has_forgotten,
            "topics": sorted(self.topics),
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Continue from a `summary`."""
        self.start, self.accepted_at = dict(saved["start"]), dict(saved["accepted_at"])
        self.is_accepted, self.is_complete = saved["accepted"], saved["complete"]
        self.has_written, self.has_forgotten = saved["written"], saved["forgotten"]
        self.topics = set(saved["topics"])


def find_complete(replicas: Sequence[Replica]) -> None:
    """Find the accepted replicas that have become complete. Each may make others complete."""
    for _ in replicas:
        for one in replicas:
            one.is_complete = one.is_complete or (
                one.is_accepted
                and any(other.is_complete and reached(other.start, one.accepted_at) for other in replicas)
            )


def choices_to_keep(replicas: Sequence[Replica]) -> Iterator[list[tuple[Replica, ...]]]:
    """Yield which accepted replicas may stay that: all sets with a complete one, those of the same size together."""
    accepted = [one for one in replicas if one.is_accepted]
    for count in range(len(accepted), 0, -1):
        yield [kept for kept in combinations(accepted, count) if any(one.is_complete for one in kept)]


def go_on_alone(kept: Replica, replicas: Sequence[Replica]) -> None:
    """Accept no other replica until the next start vector of this one tells what was forgotten of its transaction."""
    for one in replicas:
        if one is not kept:
            one.ignore()
    kept.has_forgotten = True


def topics_read(replicas: Sequence[Replica]) -> set[str]:
    """Return the topics that the complete replicas read. Before their first start record, there are none."""
    return {topic for one in replicas if one.is_complete for topic in one.topics}


def reads_the_same(one: Replica, replicas: Sequence[Replica]) -> bool:
    """Return whether a replica reads the topics that the complete ones read."""
    return one.topics == (topics_read(replicas) or one.topics)
