"""What is known about an application, at a glance."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from broker.kafka.replicas import replica_name
from control.facts.flow.meters import MergerFlow
from control.facts.lookup.leads import Compared, Lead
from control.facts.lookup.replicas import Merged, ReplicasRead
from joiner.runtime.membership.presence import RUNNING

if TYPE_CHECKING:
    from control.facts.reading import Facts
    from control.facts.watcher import Watcher


class Overview(msgspec.Struct):
    """An application at a glance.

    ``running``: the number of units whose owner is running, out of all its ``units``. ``lag``: the records they have
    not consumed, or None if that is not known. ``rate``: the records they consume per second. ``read_ms``,
    ``missing``, ``trouble``: see `Facts`. ``not_served``: units that a runner cannot serve.
    """

    name: str
    has_run: bool
    units: int
    running: int
    lag: int | None
    rate: float
    read_ms: int | None
    missing: list[str]
    trouble: str
    not_served: list[str]

    @classmethod
    def of(cls, watcher: Watcher) -> Overview:
        """Return the overview of what is known about an application now."""
        facts, settings = watcher.facts, watcher.settings
        status = facts.status
        return cls(
            name=settings.application.name,
            has_run=status is not None,
            units=settings.topics.partitions,
            running=running_units(facts),
            lag=facts.lag,
            rate=sum(facts.rates),
            read_ms=facts.read_ms,
            missing=facts.missing,
            trouble=facts.trouble,
            not_served=[] if status is None else status.not_served,
        )


class ReplicaOverview(msgspec.Struct, frozen=True):
    """A replica of an application at a glance.

    ``application``: the name under which it runs. ``has_run`` to ``trouble``: see `Overview`. ``first``: how many of
    the compared results it was first to write, alone. ``share``: of all compared results; None if there are none.
    ``lead``: how long before the next replica it wrote these; None if there are none. ``accepted``, ``complete``: in
    how many of the `Merged.partitions` it is; None if that is not known.
    """

    replica: int
    application: str
    has_run: bool
    running: int
    lag: int | None
    rate: float
    read_ms: int | None
    missing: list[str]
    trouble: str
    first: int = 0
    share: float | None = None
    lead: Lead | None = None
    accepted: int | None = None
    complete: int | None = None


class Replicas(msgspec.Struct, frozen=True):
    """The replicas of an application, and which of them was first.

    ``units``: how many each of them has. ``partitions``: how many were read for the rest. ``merger``: the processes of
    `joiner merge`; None if they are not known yet. ``merged``: what it has stored; None if nothing is known of that.
    An application without other replicas has none here, and nothing is read.
    """

    application: str
    units: int
    replicas: list[ReplicaOverview] = []
    partitions: int = 0
    compared: Compared | None = None
    merger: MergerFlow | None = None
    merged: Merged | None = None


def replicas_of(watcher: Watcher, read: ReplicasRead | None) -> Replicas:
    """Return what is known about the replicas now. ``read``: what was read for that, or None if nothing could be."""
    facts, settings = watcher.facts, watcher.settings
    found = Replicas(settings.application.name, settings.topics.partitions)
    if settings.application.replicas == 1:
        return found
    shown = [_replica_overview(found.application, 0, facts, read)]
    shown += [_replica_overview(found.application, *one, read) for one in sorted(facts.replicas.items())]
    found = msgspec.structs.replace(found, replicas=shown, merger=facts.flow.merger)
    if read is None:
        return found
    return msgspec.structs.replace(found, partitions=read.partitions, compared=read.leads.compared, merged=read.merged)


def _replica_overview(application: str, number: int, facts: Facts, read: ReplicasRead | None) -> ReplicaOverview:
    found = ReplicaOverview(
        number,
        replica_name(application, number),
        facts.status is not None,
        running_units(facts),
        facts.lag,
        sum(facts.rates),
        facts.read_ms,
        facts.missing,
        facts.trouble,
    )
    if read is None:
        return found
    results, merged = read.leads.compared.results, read.merged
    first, lead = read.leads.replicas[number]
    return msgspec.structs.replace(
        found,
        first=first,
        share=first / results if results else None,
        lead=lead,
        accepted=None if merged is None else merged.accepted[number],
        complete=None if merged is None else merged.complete[number],
    )


def running_units(facts: Facts) -> int:
    """Return the number of units whose owner is running."""
    return 0 if facts.status is None else sum(unit is not None and unit.state == RUNNING for unit in facts.status.units)
