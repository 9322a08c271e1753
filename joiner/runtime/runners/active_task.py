"""A unit that a plain process is running: its state, and the effects of batches that no commit includes yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import msgspec

from joiner.runtime.kafka.snapshot_log import SnapshotPlace
from joiner.runtime.model import Checkpoint
from joiner.runtime.runners.commit import Commit
from joiner.runtime.runners.running_task import RunningTask
from joiner.runtime.settings import ApplicationSettings
from joiner.runtime.task.decode import Messages
from joiner.runtime.task.effects import Effects
from joiner.runtime.task.flow_control import topics_to_pause
from joiner.runtime.task.function_failures import Failures, counts_with
from joiner.runtime.task.unit import Unit
from joiner.runtime.telemetry.unit_gauges import UnitStatus


@dataclass(kw_only=True)
class ActiveTask(RunningTask):
    """A unit that a plain process is running, with the effects of batches that no commit includes yet."""

    unit: Unit
    has_uncommitted: bool = False
    """Whether the state includes a batch whose commit has not begun. The next commit must contain its results, or they
    would be lost."""
    waiting: Effects | None = None
    """The effects of the batches since the last commit began."""
    log_ends: Mapping[str, int] = field(default_factory=dict)
    """The end offset of each input log at the last check, for metrics."""

    def ends(self, batches: Mapping[str, Messages], met: Mapping[str, int]) -> dict[str, int]:
        """Return the offsets after a batch: one past the last message, or the end of the log if it was reached."""
        ends = {topic: batch.last + 1 for topic, batch in batches.items()}
        offsets = self.unit.offsets
        for topic in batches:
            self.quiet_since_s.pop(topic, None)
        for topic, at in met.items():
            if at >= ends.get(topic, offsets[topic]):
                self.note_quiet(topic)
        return ends | {topic: at for topic, at in met.items() if at > ends.get(topic, offsets[topic])}

    def to_pause(self) -> set[str]:
        """Return the topics that should be paused."""
        if self._is_held_up:
            return set(self.unit.offsets)
        return topics_to_pause(self.unit.leads(), self.paused, self.silent_topics())

    @property
    def why_paused(self) -> str:
        """Why topics of the unit are paused, for log messages."""
        return "a large snapshot is being written" if self._is_held_up else "its records fill the buffer"

    @property
    def _is_held_up(self) -> bool:
        return self.waiting is not None and self.is_writing_long

    def add_waiting(self, effects: Effects) -> None:
        """Add a batch's effects to the effects that are waiting to be committed."""
        if self.waiting is None:
            self.waiting = effects
        else:
            self.waiting.add(effects)

    def is_changed(self) -> bool:
        """Return whether the state has changed since the last snapshot."""
        return self.unit.offsets != self.snapshot_offsets

    def snapshot_due(self, application: ApplicationSettings) -> bool:
        """Return whether the next commit should contain a snapshot."""
        return self.needs_snapshot(self.unit.offsets) and self.is_snapshot_time(application)

    def snapshot(self) -> tuple[bytes, SnapshotPlace]:
        """Take a snapshot of the unit. Return it with the place of the previous one, because a commit needs both."""
        self.note_snapshot()
        return self.unit.snapshot(), self.place

    def next_checkpoint(self, failed: Mapping[str, Failures] = MappingProxyType({})) -> Checkpoint:
        """Return the checkpoint of the unit's current state. The owner is copied from the last checkpoint.

        ``failed``: for each join, the failures of its joining function since the last checkpoint.
        """
        unit, last = self.unit, self.checkpoint
        return msgspec.structs.replace(
            last,
            offsets=dict(unit.offsets),
            counts=counts_with(unit.counts, last.counts, failed),
            joins=unit.join_summaries(),
            aligns=unit.align_summaries(),
        )

    def status(self) -> UnitStatus:
        """Return the unit's figures for metrics. Thread-safe."""
        return self.figures(self.unit.held_bytes(), self.log_ends)

    def begin_commit(self, commit: Commit) -> None:
        """Record that a commit of the current state has begun."""
        self.commit, self.has_uncommitted = commit, False
