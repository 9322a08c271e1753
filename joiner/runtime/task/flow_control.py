"""Pauses topics that run ahead of others in event time and so fill a buffer.

Records later than all records of the other side are held because that side lags. If they make up more than half of the
records of a join, and its buffer is more than half full, their topic is paused until the other one has caught up. It is
not paused if the other topic has been silent for a while, because waiting would not help. This affects the memory used,
never the results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

PAUSE_ABOVE: Final = 0.5
RESUME_BELOW: Final = 0.25
"""Thresholds for both the used share of the buffer and a side's lead: pause a topic above, resume it below."""

SILENT_S: Final = 10.0
"""A topic is not paused to wait for another topic that has been at its end for this many seconds."""


class Lead(NamedTuple):
    """A side of a join whose topic may be ahead of the other side's.

    ``fill``: the used share of the join's buffer; ``share``: the share of the held records that belong to this side and
    are later than all records of the other side.
    """

    topic: str
    behind: str
    fill: float
    share: float


def topics_to_pause(leads: Iterable[Lead], paused: Collection[str], silent: Collection[str]) -> set[str]:
    """Return the topics to pause. ``paused``: topics already paused; ``silent``: topics at their end for `SILENT_S`."""
    waits_for: dict[str, set[str]] = {}
    for lead in leads:
        limit = RESUME_BELOW if lead.topic in paused else PAUSE_ABOVE
        if min(lead.fill, lead.share) > limit and lead.behind not in silent:
            waits_for.setdefault(lead.topic, set()).add(lead.behind)
    found: set[str] = set()
    # A topic waits only for topics that are being read, or that wait for such a topic, so there is never a cycle.
    while more := {topic for topic, others in waits_for.items() if others.isdisjoint(waits_for.keys() - found)} - found:
        found |= more
    return found
