"""An in-flight transaction of a unit, for every kind of runner."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import NamedTuple

from joiner.runtime.clock import Clock
from joiner.runtime.kafka.snapshot_log import SnapshotPlace
from joiner.runtime.kafka.transaction import UnitTransactions
from joiner.runtime.model import Checkpoint
from joiner.runtime.task.effects import Outgoing
from joiner.runtime.telemetry.metrics import JoinerMetrics


class Commit(NamedTuple):
    """A transaction being written: its checkpoint, and the place of its snapshot, if any.

    While it is in flight, the unit's next batch is read and joined.
    """

    checkpoint: Checkpoint
    written: Future[SnapshotPlace | None]
    is_large: bool = False
    """Whether it includes a snapshot that is written in separate transactions."""

    def failure(self) -> Exception | None:
        """Wait until it is written. Return the error if it failed.

        The error is returned rather than raised, because a traceback keeps the frames it passes through alive. A frame
        refers to the future and the future to the error, and this cycle would keep the unit's producer alive until the
        next garbage collection, which is rare (see `gc_tuning`).
        """
        error = self.written.exception()
        if error is not None and not isinstance(error, Exception):
            raise error
        return error

    @property
    def may_last(self) -> bool:
        """Whether it may take too long for other work to wait for it."""
        return self.is_large and not self.written.done()


def write_commit(
    metrics: JoinerMetrics,
    clock: Clock,
    transactions: UnitTransactions,
    messages: Outgoing,
    appended_ms: Mapping[int, int],
    checkpoint: Checkpoint,
    snapshot: tuple[bytes, SnapshotPlace] | None,
) -> SnapshotPlace | None:
    """Call `UnitTransactions.commit` and count the messages that were written.

    ``appended_ms``: the number of pairs by the append time of their later record. Nothing is counted if the commit
    raises, even if Kafka has committed the transaction.
    """
    began_s = clock.monotonic_s()
    place = transactions.commit(messages, checkpoint, snapshot)
    metrics.committed(messages, appended_ms, checkpoint, clock.monotonic_s() - began_s)
    if snapshot is not None and place is not None:
        metrics.snapshot_written(checkpoint.unit, len(snapshot[0]))
    return place
