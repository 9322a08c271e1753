"""What is known about an application, at a glance."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from joiner.runtime.membership.presence import RUNNING

if TYPE_CHECKING:
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
        known = [] if status is None else [unit for unit in status.units if unit is not None]
        return cls(
            name=settings.application.name,
            has_run=status is not None,
            units=settings.topics.partitions,
            running=sum(unit.state == RUNNING for unit in known),
            lag=facts.lag,
            rate=sum(facts.rates),
            read_ms=facts.read_ms,
            missing=facts.missing,
            trouble=facts.trouble,
            not_served=[] if status is None else status.not_served,
        )
