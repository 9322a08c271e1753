"""A running unit of a process: its state, its transactions, and the commit in flight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import msgspec

from joiner.runtime.clock import Clock
from joiner.runtime.kafka.snapshot_log import SnapshotPlace
from joiner.runtime.kafka.transaction import UnitTransactions
from joiner.runtime.model import Checkpoint
from joiner.runtime.ownership.restore import Recovered
from joiner.runtime.runners.commit import Commit
from joiner.runtime.settings import ApplicationSettings
from joiner.runtime.task.decode import Messages
from joiner.runtime.task.effects import Effects
from joiner.runtime.task.flow_control import SILENT_S, topics_to_pause
from joiner.runtime.task.function_failures import Failures, counts_with
from joiner.runtime.telemetry.metrics import UnitStatus


@dataclass
class ActiveTask:
    """A running unit of a process."""

    recovered: Recovered
    transactions: UnitTransactions
    clock: Clock
    snapshot_at_s: float
    records: int = 0
    commit: Commit | None = None
    first_commit_s: float = 0.0
    """When the first transaction after the claim was found written; 0: not yet."""
    has_uncommitted: bool = False
    """Whether the state holds a batch whose commit has not begun. Only the commit of its results may be written then,
    or they would be lost."""
    waiting: tuple[Effects, int] | None = None
    """The effects of the last batch, and its number of records, while a slow commit is still in flight."""
    quiet_since_s: dict[str, float] = field(default_factory=dict)
    """The topics whose log was at its end when last read, and since when."""
    paused: set[str] = field(default_factory=set)
    """The topics that are paused, because they run ahead of the others."""
    log_ends: Mapping[str, int] = field(default_factory=dict)
    """The ends of the logs when last looked at, for metrics."""

    def ends(self, batches: Mapping[str, Messages], met: Mapping[str, int]) -> dict[str, int]:
        """The offsets after a batch: past its last messages, or at the end of the log where that was reached."""
        ends = {topic: batch.offset[-1] + 1 for topic, batch in batches.items()}
        offsets = self.recovered.unit.offsets
        now_s = self.clock.monotonic_s()
        for topic in batches:
            self.quiet_since_s.pop(topic, None)
        for topic, at in met.items():
            if at >= ends.get(topic, offsets[topic]):
                self.quiet_since_s.setdefault(topic, now_s)
        return ends | {topic: at for topic, at in met.items() if at > ends.get(topic, offsets[topic])}

    def to_pause(self) -> set[str]:
        """The topics that should be paused."""
        if self.waiting is not None:
            return set(self.recovered.unit.offsets)
        latest_s = self.clock.monotonic_s() - SILENT_S
        silent = {topic for topic, since_s in self.quiet_since_s.items() if since_s < latest_s}
        return topics_to_pause(self.recovered.unit.leads(), self.paused, silent)

    @property
    def why_paused(self) -> str:
        """Why topics are paused."""
        return "its records fill the buffer" if self.waiting is None else "a large snapshot is being written"

    def is_changed(self) -> bool:
        """Whether the state has changed since the last snapshot."""
        return self.recovered.unit.offsets != self.recovered.snapshot_offsets

    def snapshot_due(self, application: ApplicationSettings) -> bool:
        """Whether a snapshot is due; also one that resolves pending markers of an unchanged state."""
        if not self.is_changed() and not self.transactions.has_pending_markers:
            return False
        late = self.clock.monotonic_s() - self.snapshot_at_s >= application.snapshot_interval / 1e9
        return late or self.records >= application.snapshot_records

    def snapshot(self) -> tuple[bytes, SnapshotPlace]:
        """A snapshot of this state, and the place of the one before, for a commit."""
        self.snapshot_at_s, self.records = self.clock.monotonic_s(), 0
        return self.recovered.unit.snapshot(), self.recovered.place

    def checkpoint(self, failed: Mapping[str, Failures] = MappingProxyType({})) -> Checkpoint:
        """The checkpoint of this state; its owner is the one the claim wrote into the last checkpoint.

        ``failed``: the pairs since then whose joining function failed, by join.
        """
        unit, last = self.recovered.unit, self.recovered.checkpoint
        return msgspec.structs.replace(
            last,
            offsets=dict(unit.offsets),
            counts=counts_with(unit.counts, last.counts, failed),
            joins=unit.join_summaries(),
        )

    def status(self) -> UnitStatus:
        """The unit's figures for metrics. Thread-safe."""
        recovered = self.recovered
        lag = sum(max(0, self.log_ends.get(topic, at) - at) for topic, at in recovered.checkpoint.offsets.items())
        is_saved = recovered.checkpoint.offsets == recovered.snapshot_offsets
        age_s = 0.0 if is_saved else self.clock.monotonic_s() - self.snapshot_at_s
        return UnitStatus(recovered.checkpoint, recovered.unit.held_bytes(), self.paused, lag, age_s)

    @property
    def is_writing_long(self) -> bool:
        """Whether the commit in flight should not be waited for."""
        return self.commit is not None and self.commit.may_last

    def begin_commit(self, commit: Commit) -> None:
        """Note that the commit of this state has begun."""
        self.commit, self.has_uncommitted = commit, False

    def finish_commit(self) -> Exception | None:
        """Wait for the commit in flight, if any; returns the error it failed with."""
        commit, self.commit = self.commit, None
        if commit is None:
            return None
        if (error := commit.failure()) is not None:
            return error
        place = commit.written.result()
        self.first_commit_s = self.first_commit_s or self.clock.monotonic_s()
        recovered = self.recovered
        recovered.checkpoint = commit.checkpoint
        if place is not None:
            recovered.place, recovered.snapshot_offsets = place, commit.checkpoint.offsets
        return None
