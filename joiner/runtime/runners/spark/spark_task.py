"""A unit that a Spark driver is running: its current plan, and the figures from its last outcome."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

import msgspec

from joiner.runtime.kafka.snapshot_log import SnapshotPlace
from joiner.runtime.model import Checkpoint
from joiner.runtime.runners.running_task import RunningTask
from joiner.runtime.runners.spark.plans import Outcome, Plan
from joiner.runtime.settings import ApplicationSettings
from joiner.runtime.task.flow_control import Lead, topics_to_pause
from joiner.runtime.task.function_failures import counts_with
from joiner.runtime.telemetry.unit_gauges import UnitStatus

_SHORT_S: Final = 5.0
"""How long a newly elected leader may report a last stable offset that is too low."""

_log = logging.getLogger(__name__)


@dataclass
class Leaving:
    """A unit that is being released. ``run`` and ``site``: the owner that its last checkpoint names.

    ``then`` is called once the last checkpoint has been written.
    """

    run: str
    site: str
    then: Callable[[], None]
    written: Future[None] = field(default_factory=Future)
    plan: Plan | None = None
    """The last plan, once it has been made."""


@dataclass(kw_only=True)
class SparkTask(RunningTask):
    """A running unit of this driver. Workers execute it one plan at a time."""

    number: int
    claim_number: int = 0
    """The driver's number for this claim of the unit. Outcomes from earlier claims are discarded."""
    held: int = 0
    held_bytes: dict[str, dict[str, int]] = field(default_factory=dict)
    planned: Plan | None = None
    """The plan that Spark is executing."""
    leaving: Leaving | None = None
    leads: list[Lead] = field(default_factory=list)
    not_before_s: float = 0.0
    """Monotonic time before which no plan is made, because the last one failed."""
    short_since_s: float | None = None
    """Monotonic time at which an input log was first seen to end before the offset already read; None if none does."""

    @property
    def reached(self) -> dict[str, int]:
        """The offsets at which the next plan begins: where the last commit ends, even if it is still in flight."""
        return self.checkpoint.offsets if self.commit is None else self.commit.checkpoint.offsets

    @property
    def is_saved(self) -> bool:
        """Whether no commit is in flight and the newest snapshot holds the current state."""
        return self.commit is None and self.reached == self.snapshot_offsets

    def status(self, ends: Mapping[str, int]) -> UnitStatus:
        """Return the unit's figures for metrics. ``ends``: the end offsets of its input topics."""
        return self.figures(self.held_bytes, ends)

    def is_ready(self) -> bool:
        """Return whether a plan may be made now."""
        return self.clock.monotonic_s() >= self.not_before_s and not self.is_writing_long

    def is_short(self, ends: Mapping[str, int]) -> bool:
        """Return whether any input log ends before the offset already read. ``ends``: the logs' end offsets."""
        if all(ends.get(topic, at) >= at for topic, at in self.reached.items()):
            self.short_since_s = None
            return False
        if self.short_since_s is None:
            self.short_since_s = self.clock.monotonic_s()
        return True

    @property
    def is_short_for_long(self) -> bool:
        """Whether an input log has been too short for so long that records must be missing from it."""
        return self.short_since_s is not None and self.clock.monotonic_s() - self.short_since_s > _SHORT_S

    def pause(self, ends: Mapping[str, int]) -> None:
        """Update the set of paused topics. ``ends``: the end offsets of the unit's input topics."""
        for topic, at in self.reached.items():
            if ends.get(topic, at) > at:
                self.quiet_since_s.pop(topic, None)
            else:
                self.note_quiet(topic)
        ahead = topics_to_pause(self.leads, self.paused, self.silent_topics())
        if ahead != self.paused:
            _log.info("unit %s: paused topics: %s", self.number, ", ".join(sorted(ahead)) or "none")
        self.paused = ahead

    def waiting(self, ends: Mapping[str, int]) -> dict[tuple[int, str], int]:
        """Return how many offsets are left to read, by unit and topic. Paused topics are left out."""
        return {
            (self.number, topic): max(0, ends.get(topic, at) - at)
            for topic, at in self.reached.items()
            if topic not in self.paused
        }

    def plan(
        self, shares: Mapping[tuple[int, str], int], records_max: int, application: ApplicationSettings, *, last: bool
    ) -> Plan | None:
        """Return the next plan, or None if there is no work.

        ``shares``: the number of offsets to read in this batch, by unit and topic. ``records_max``: the maximum number
        per topic. ``last``: whether this is the unit's last plan.
        """
        begin = self.reached
        end = {topic: at + min(records_max, shares.get((self.number, topic), 0)) for topic, at in begin.items()}
        snapshot = self.needs_snapshot(begin) and (last or self.is_snapshot_time(application))
        if end == begin and not snapshot and self.leaving is None:
            return None
        snapshot = snapshot or self.leaving is not None
        plan = Plan(self.number, self.claim_number, self.checkpoint.start, begin, end, snapshot)
        if self.leaving is not None:
            self.leaving.plan = plan
        return plan

    def accept(self, outcome: Outcome) -> tuple[Checkpoint, tuple[bytes, SnapshotPlace] | None]:
        """Record a plan's outcome. Return the checkpoint and the snapshot, if any, to write in its transaction."""
        plan, leaving = outcome.plan, self.leaving
        counts = counts_with(outcome.counts, self.checkpoint.counts, outcome.failed_pairs)
        checkpoint = msgspec.structs.replace(
            self.checkpoint, offsets=plan.end, counts=counts, joins=outcome.joins, aligns=outcome.aligns
        )
        if leaving is not None and leaving.plan == plan:
            checkpoint = msgspec.structs.replace(checkpoint, run=leaving.run, site=leaving.site)
        self.held, self.held_bytes, self.leads = outcome.held, outcome.held_bytes, outcome.leads
        self.records += outcome.records
        if outcome.snapshot is None:
            return checkpoint, None
        self.note_snapshot()
        return checkpoint, (outcome.snapshot, self.place)
