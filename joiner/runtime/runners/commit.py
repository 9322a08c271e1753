"""The in-flight transaction of a unit."""

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
    """A transaction being written. ``written`` resolves to the place of its snapshot, or to None.

    While the transaction is in flight, the unit's next batch is read and joined.
    """

    checkpoint: Checkpoint
    written: Future[SnapshotPlace | None]
    is_large: bool = False
    """Whether the commit includes a snapshot so large that it is written in transactions of its own."""

    def failure(self) -> Exception | None:
        """Wait for the transaction to end. Return the error if it failed, otherwise None.

        The error is returned rather than raised, because a raised error's traceback keeps alive all frames it passes
        through. A frame would refer to the future, and the future to the error. This cycle would keep the unit's
        producer alive until the next garbage collection, and collections are rare (see `gc_tuning`).
        """
        error = self.written.exception()
        if error is not None and not isinstance(error, Exception):
            raise error
        return error

    @property
    def may_last(self) -> bool:
        """Whether the commit may take so long that other work must not wait for it."""
        return self.is_large and not self.written.done()


def write_commit(
    metrics: JoinerMetrics,
    clock: Clock,
    transactions: UnitTransactions,
    messages: Outgoing,
    appended_ms: Mapping[int, int],
    watermarks: int,
    checkpoint: Checkpoint,
    snapshot: tuple[bytes, SnapshotPlace] | None,
) -> SnapshotPlace | None:
    """Call `UnitTransactions.commit`, and count the written messages in the metrics.

    ``appended_ms``: for each append time in ms, the number of pairs whose later record was appended then, plus the rows
    whose driver record was. ``watermarks``: the number of watermarks among the messages. Return the place of the
    snapshot, if one was written. If the commit raises an error, nothing is counted, even if Kafka has committed the
    transaction.
    """
    began_s = clock.monotonic_s()
    place = transactions.commit(messages, checkpoint, snapshot)
    metrics.committed(messages, appended_ms, watermarks, checkpoint, clock.monotonic_s() - began_s)
    if snapshot is not None and place is not None:
        metrics.snapshot_written(checkpoint.unit, len(snapshot[0]))
    return place
