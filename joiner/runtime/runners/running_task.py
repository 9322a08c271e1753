"""A running unit, for every kind of runner: its transactions, its last checkpoint, and its last snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from joiner.runtime.clock import Clock
from joiner.runtime.kafka.snapshot_log import SnapshotPlace
from joiner.runtime.kafka.transaction import UnitTransactions
from joiner.runtime.model import Checkpoint
from joiner.runtime.runners.commit import Commit
from joiner.runtime.settings import ApplicationSettings
from joiner.runtime.task.flow_control import SILENT_S
from joiner.runtime.telemetry.unit_gauges import UnitStatus


@dataclass(kw_only=True)
class RunningTask:
    """A running unit: how far it has been committed, and the transaction in flight."""

    transactions: UnitTransactions
    clock: Clock
    checkpoint: Checkpoint
    """The last checkpoint known to be committed."""
    place: SnapshotPlace
    snapshot_offsets: dict[str, int]
    """The offsets of the newest snapshot."""
    snapshot_at_s: float
    """The monotonic time of the last snapshot since the claim, or else of the claim itself."""
    records: int = 0
    """Number of records since ``snapshot_at_s``."""
    commit: Commit | None = None
    """The in-flight transaction."""
    first_commit_s: float = 0.0
    """Monotonic time at which the first transaction after the claim was found to have been written; 0 before that."""
    quiet_since_s: dict[str, float] = field(default_factory=dict)
    """For each topic that was at the end of its log at the last check: the monotonic time at which it got there."""
    paused: set[str] = field(default_factory=set)
    """The topics that are paused because they are ahead of the others."""

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

    def needs_snapshot(self, offsets: Mapping[str, int]) -> bool:
        """Return whether a snapshot at ``offsets`` is needed, because the offsets are new or markers are pending."""
        return offsets != self.snapshot_offsets or self.transactions.has_pending_markers

    def is_snapshot_time(self, application: ApplicationSettings) -> bool:
        """Return whether enough time has passed or enough records have arrived since the last snapshot."""
        late = self.clock.monotonic_s() - self.snapshot_at_s >= application.snapshot_interval / 1e9
        return late or self.records >= application.snapshot_records

    def note_snapshot(self) -> None:
        """Record that a snapshot was taken."""
        self.snapshot_at_s, self.records = self.clock.monotonic_s(), 0

    def note_quiet(self, topic: str) -> None:
        """Record that a topic has been read to the end of its log."""
        self.quiet_since_s.setdefault(topic, self.clock.monotonic_s())

    def silent_topics(self) -> set[str]:
        """Return the topics that have been quiet for so long that other topics no longer wait for them."""
        latest_s = self.clock.monotonic_s() - SILENT_S
        return {topic for topic, since_s in self.quiet_since_s.items() if since_s < latest_s}

    def figures(self, held_bytes: Mapping[str, Mapping[str, int]], log_ends: Mapping[str, int]) -> UnitStatus:
        """Return the unit's figures for metrics. Thread-safe."""
        checkpoint = self.checkpoint
        lag = sum(max(0, log_ends.get(topic, at) - at) for topic, at in checkpoint.offsets.items())
        is_saved = checkpoint.offsets == self.snapshot_offsets
        age_s = 0.0 if is_saved else self.clock.monotonic_s() - self.snapshot_at_s
        return UnitStatus(checkpoint, held_bytes, self.paused, lag, age_s)
