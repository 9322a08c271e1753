"""A running unit: its state, its transactions, its last checkpoint and snapshot, and the effects not committed yet."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import msgspec

from joiner.runtime.clock import Clock
from joiner.runtime.kafka.snapshot_log import SnapshotPlace
from joiner.runtime.kafka.transaction import UnitTransactions
from joiner.runtime.model import Checkpoint
from joiner.runtime.runners.commit import Commit
from joiner.runtime.settings import ApplicationSettings
from joiner.runtime.task.decoding.messages import Messages
from joiner.runtime.task.effects import Effects
from joiner.runtime.task.flow_control import SILENT_S, topics_to_pause
from joiner.runtime.task.function_failures import Failures, counts_with
from joiner.runtime.task.unit import Unit
from joiner.runtime.telemetry.unit_gauges import UnitStatus


@dataclass(kw_only=True)
class ActiveTask:
    """A running unit: how far it has been committed, the transaction in flight, and the effects that follow it."""

    unit: Unit
    transactions: UnitTransactions
    clock: Clock
    checkpoint: Checkpoint
    """The last checkpoint known to be committed."""
    place: SnapshotPlace
    snapshot_offsets: dict[str, int]
    """The offsets of the newest snapshot."""
    snapshot_at_s: float
    """The monotonic time of the last snapshot. If there has been none since the claim, a time shortly before it (see
    `ProcessTasks.restore`)."""
    records: int = 0
    """About how many records have been read since the last snapshot."""
    watermarks_at_s: float = -math.inf
    """The monotonic time when watermarks were last taken."""
    watermark_offsets: dict[str, int] | None = None
    """The offsets at which watermarks were last taken, or None if there were too many for one transaction."""
    commit: Commit | None = None
    """The in-flight transaction."""
    first_commit_s: float = 0.0
    """Monotonic time when the first transaction after the claim was seen to have been written; 0 until then."""
    quiet_since_s: dict[str, float] = field(default_factory=dict)
    """For each topic at the end of its log as of the last check: the monotonic time when it got there."""
    paused: set[str] = field(default_factory=set)
    """The paused topics (see `to_pause`)."""
    has_uncommitted: bool = False
    """Whether the state includes a batch whose commit has not begun. The next commit must contain its results, or they
    would be lost."""
    waiting: Effects | None = None
    """The effects of the batches since the last commit began."""
    log_ends: Mapping[str, int] = field(default_factory=dict)
    """The end offset of each input log as of the last check, for metrics."""

    @property
    def is_writing_long(self) -> bool:
        """Whether a commit is in flight that may take too long to wait for."""
        return self.commit is not None and self.commit.may_last

    def finish_commit(self) -> Exception | None:
        """Wait for the in-flight commit, if any. Return its error if it failed."""
        commit, self.commit = self.commit, None
        if commit is None:
            return None
        if (error := commit.failure()) is not None:
            return error
        place = commit.written.result()
        self.first_commit_s = self.first_commit_s or self.clock.monotonic_s()
        self.checkpoint = commit.checkpoint
        if place is not None:
            self.place, self.snapshot_offsets = place, commit.checkpoint.offsets
        return None

    def ends(self, batches: Mapping[str, Messages], met: Mapping[str, int]) -> dict[str, int]:
        """Return the offsets after a batch: one past the last message, or the end of the log if it was reached.

        Only topics whose offset advances are included. Also record since when each topic has been at the end of its
        log. ``met``: the log ends that were reached, by topic.
        """
        ends = {topic: batch.last + 1 for topic, batch in batches.items()}
        offsets = self.unit.offsets
        for topic in batches:
            self.quiet_since_s.pop(topic, None)
        now_s = self.clock.monotonic_s()
        for topic, at in met.items():
            if at >= ends.get(topic, offsets[topic]):
                self.quiet_since_s.setdefault(topic, now_s)
        return ends | {topic: at for topic, at in met.items() if at > ends.get(topic, offsets[topic])}

    def to_pause(self) -> set[str]:
        """Return the topics to pause: all if a large snapshot holds up a commit, otherwise those that are ahead."""
        if self.is_held_up:
            return set(self.unit.offsets)
        latest_s = self.clock.monotonic_s() - SILENT_S
        silent = {topic for topic, since_s in self.quiet_since_s.items() if since_s < latest_s}
        return topics_to_pause(self.unit.leads(), self.paused, silent)

    @property
    def why_paused(self) -> str:
        """Why topics of the unit are paused, for log messages."""
        return "a large snapshot is being written" if self.is_held_up else "records that are ahead fill the buffer"

    @property
    def is_held_up(self) -> bool:
        """Whether a batch is waiting for a commit that may take long. No other batch may be joined until it ends."""
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
        if not self.is_changed() and not self.transactions.has_pending_markers:
            return False
        late = self.clock.monotonic_s() - self.snapshot_at_s >= application.snapshot_interval / 1e9
        return late or self.records >= application.snapshot_records

    def snapshot(self) -> tuple[bytes, SnapshotPlace]:
        """Take a snapshot of the unit. Return it with the place of the previous one, because a commit needs both."""
        self.snapshot_at_s, self.records = self.clock.monotonic_s(), 0
        return self.unit.snapshot(), self.place

    def has_due(self, application: ApplicationSettings) -> bool:
        """Return whether a commit is due even without new input."""
        return self.snapshot_due(application) or self._are_watermarks_due(application)

    def add_watermarks(self, effects: Effects, application: ApplicationSettings) -> None:
        """Add watermarks, if they are due, to the effects of all batches up to the current state."""
        if self._are_watermarks_due(application):
            watermarks = self.unit.output_watermarks
            effects.add_watermarks(watermarks.take())
            self.watermarks_at_s = self.clock.monotonic_s()
            self.watermark_offsets = None if watermarks.has_more else dict(self.unit.offsets)

    def _are_watermarks_due(self, application: ApplicationSettings) -> bool:
        interval_ns = application.watermark_interval
        if interval_ns is None or self.unit.offsets == self.watermark_offsets:
            return False
        return self.clock.monotonic_s() - self.watermarks_at_s >= interval_ns / 1e9

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
        checkpoint = self.checkpoint
        lag = sum(max(0, self.log_ends.get(topic, at) - at) for topic, at in checkpoint.offsets.items())
        is_saved = checkpoint.offsets == self.snapshot_offsets
        age_s = 0.0 if is_saved else self.clock.monotonic_s() - self.snapshot_at_s
        return UnitStatus(checkpoint, self.unit.held_bytes(), self.paused, lag, age_s)

    def begin_commit(self, commit: Commit) -> None:
        """Record that a commit of the current state has begun."""
        self.commit, self.has_uncommitted = commit, False
