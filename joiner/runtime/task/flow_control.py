"""Which topics of a unit wait in Kafka for now: those that run ahead of others in event time and so fill a buffer.

Records are held for many reasons; those that are later than everything the other side has sent are held because it is
behind. Where they are most of what a join holds, and that fills half of its room, their topic is not read until the
other one has come nearer, or has had nothing to read for a while: then waiting helps nobody. This decides how much is
in memory and never what comes out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

PAUSE_ABOVE: Final = 0.5
GO_ON_BELOW: Final = 0.25
"""Of the room for what a join holds, and of what it holds: where a topic is paused, and where it goes on."""

SILENT_S: Final = 10.0
"""A topic that had nothing to read for so long is not waited for."""


class Lead(NamedTuple):
    """A side of a join whose topic may be ahead of the other side's.

    ``fill``: how much of the join's room is taken; ``share``: how much of what it holds is of this side and later than
    everything the other one has sent.
    """

    topic: str
    behind: str
    fill: float
    share: float


def topics_to_pause(leads: Iterable[Lead], paused: Collection[str], silent: Collection[str]) -> set[str]:
    """The topics not to be read for now; ``paused``: those that are not already, ``silent``: those with nothing new."""
    waits_for: dict[str, set[str]] = {}
    for lead in leads:
        limit = GO_ON_BELOW if lead.topic in paused else PAUSE_ABOVE
        if min(lead.fill, lead.share) > limit and lead.behind not in silent:
            waits_for.setdefault(lead.topic, set()).add(lead.behind)
    found: set[str] = set()
    # Each one waits for topics that are read, or wait for such themselves: never in a circle.
    while more := {topic for topic, others in waits_for.items() if others.isdisjoint(waits_for.keys() - found)} - found:
        found |= more
    return found
