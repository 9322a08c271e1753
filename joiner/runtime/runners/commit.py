"""A transaction of a unit, on its way: the same for every kind of runner."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import NamedTuple

from joiner.runtime.kafka.snapshot_log import SnapshotPlace
from joiner.runtime.kafka.transaction import UnitTransactions
from joiner.runtime.model import Checkpoint
from joiner.runtime.task.effects import Outgoing
from joiner.runtime.telemetry.metrics import JoinerMetrics


class Commit(NamedTuple):
    """A transaction that is being written: what its checkpoint says, and where its snapshot went, if it has one.

    While it is on its way, the unit's next batch is read and joined.
    """

    checkpoint: Checkpoint
    written: Future[SnapshotPlace | None]
    is_large: bool = False
    """Whether a snapshot in transactions of its own is written with it."""

    def failure(self) -> Exception | None:
        """Wait until it is written: what writing it has failed with.

        Not raised: an error knows the frames that it passes through, and one of them that knew the future, which knows
        the error, would keep the unit's producer until the collector comes, which is seldom (see `gc_tuning`).
        """
        error = self.written.exception()
        if error is not None and not isinstance(error, Exception):
            raise error
        return error

    @property
    def may_last(self) -> bool:
        """Whether it may be so long before it is written that nobody is to wait for it."""
        return self.is_large and not self.written.done()


def write_commit(
    metrics: JoinerMetrics,
    transactions: UnitTransactions,
    messages: Outgoing,
    appended_ms: Mapping[int, int],
    checkpoint: Checkpoint,
    snapshot: tuple[bytes, SnapshotPlace] | None,
) -> SnapshotPlace | None:
    """As `UnitTransactions.commit`, and counts what was written; ``appended_ms``: pairs by their later append time."""
    began_s = time.monotonic()
    place = transactions.commit(messages, checkpoint, snapshot)
    metrics.committed(messages, appended_ms, checkpoint, time.monotonic() - began_s)
    if snapshot is not None and place is not None:
        metrics.snapshot_written(checkpoint.unit, len(snapshot[0]))
    return place
