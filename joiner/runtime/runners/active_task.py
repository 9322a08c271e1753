"""A running unit of a plain process: its state, and the batch whose commit has not begun."""

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
    """A running unit of a plain process, with the effects of batches that no commit contains yet."""

    unit: Unit
    has_uncommitted: bool = False
    """Whether the state includes a batch whose commit has not begun. The next commit must contain its results, or they
    would be lost."""
    waiting: Effects | None = None
    """The effects of the batches since the last commit began."""
    log_ends: Mapping[str, int] = field(default_factory=dict)
    """The ends of the logs at the last check, for metrics."""

    def ends(self, batches: Mapping[str, Messages], met: Mapping[str, int]) -> dict[str, int]:
        """Return the offsets after a batch: one past its last messages, or the end of a log if it was reached."""
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
        """The reason for pausing topics, as text for the log."""
        return "a large snapshot is being written" if self._is_held_up else "its records fill the buffer"

    @property
    def _is_held_up(self) -> bool:
        return self.waiting is not None and self.is_writing_long

    def add_waiting(self, effects: Effects) -> None:
        """Add the effects of a batch to those that wait for their commit."""
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
        """Take a snapshot of this state. Return it with the place of the previous one, for a commit."""
        self.note_snapshot()
        return self.unit.snapshot(), self.place

    def next_checkpoint(self, failed: Mapping[str, Failures] = MappingProxyType({})) -> Checkpoint:
        """Return the checkpoint of this state. Its owner is copied from the last checkpoint, where the claim wrote it.

        ``failed``: the pairs since that checkpoint whose joining function failed, by join.
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
        """Record that the commit of this state has begun."""
        self.commit, self.has_uncommitted = commit, False
