"""The processor for ``transformWithStateInPandas``. It keeps a `ReorderedJoin` per bucket in Spark's state store."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import pandas as pd
import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from joiner.core.frontier import NEVER
from joiner.spark import rows as arrow
from joiner.spark.buckets import in_packed_parts
from joiner.spark.reordering import ReorderedJoin, Rules

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import (
        ExpiredTimerInfo,
        StatefulProcessorHandle,
        TimerValues,
        ValueState,
    )

JOINED: Final = "packed binary, late_left long, late_right long"
"""The schema of the operator's output: a packed part of the result (or null), and the number of late rows on each
side."""

_US_PER_MS: Final = 1_000


def processor(rules: Rules) -> StatefulProcessor:
    """Return a stateful processor that joins by ``rules``.

    Before the first micro-batch, Spark calls ``init`` in a process on the driver's machine that cannot see the
    ``--py-files``. The class is therefore defined inside this function, so that it is pickled by value, and it imports
    this project only when the first row arrives.
    """
    packed = pickle.dumps(rules)

    class NeighbourProcessor(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self._handle = handle
            self._state = handle.getValueState("neighbour_join", "state binary")
            self._steps: Any = None

        def handleInputRows(  # noqa: N802 - Spark's name
            self,
            key: Any,
            rows: Iterator[pd.DataFrame],
            timerValues: TimerValues,  # noqa: N803 - passed by this name
        ) -> Iterator[pd.DataFrame]:
            yield from self._of_task().process(key, rows, timerValues.getCurrentWatermarkInMs)

        def handleExpiredTimer(  # noqa: N802 - Spark's name
            self,
            key: Any,
            timerValues: TimerValues,  # noqa: N803 - passed by this name
            expiredTimerInfo: ExpiredTimerInfo,  # noqa: ARG002, N803 - passed by this name
        ) -> Iterator[pd.DataFrame]:
            yield from self._of_task().wake(key, timerValues.getCurrentWatermarkInMs)

        def close(self) -> None:
            pass

        def _of_task(self) -> Any:
            if self._steps is None:
                from joiner.spark.processor import Steps  # noqa: PLC0415 - only after the first row

                self._steps = Steps(pickle.loads(packed), self._handle, self._state)  # noqa: S301 - packed above
            return self._steps

    return NeighbourProcessor()


class Steps:
    """Processes the buckets of a Spark task that have new rows or an expired timer.

    The rows of a micro-batch are compared with the frontiers that earlier micro-batches have left. Its watermark is
    applied after that, so it cannot make a row of the same micro-batch late.
    """

    def __init__(self, rules: Rules, handle: StatefulProcessorHandle, state: ValueState) -> None:
        """``handle`` and ``state`` belong to the processor. Before each call, Spark binds them to a bucket."""
        self._rules, self._handle, self._state = rules, handle, state
        self._uses_watermark = any(rules.has_watermark)
        self._done: set[Any] = set()

    def process(
        self, bucket: Any, rows: Iterator[pd.DataFrame], watermark: Callable[[], int]
    ) -> Iterator[pd.DataFrame]:
        """Process the new rows of a bucket, which are packed. ``watermark`` returns the current watermark in ms."""
        parts: tuple[list[pa.Table], list[pa.Table]] = ([], [])
        for frame in rows:
            for side, packed in zip(frame["side"], frame["packed"], strict=True):
                parts[side].append(arrow.from_bytes(packed))
        left, right = (pa.concat_tables(tables) if tables else None for tables in parts)
        yield from self._step(bucket, watermark, left, right)

    def wake(self, bucket: Any, watermark: Callable[[], int]) -> Iterator[pd.DataFrame]:
        """Process a bucket whose timer has expired. ``watermark`` returns the current watermark in ms."""
        # Within one micro-batch, a bucket may have both new rows and one or more expired timers.
        if bucket not in self._done:
            yield from self._step(bucket, watermark, None, None)

    def _step(
        self, bucket: Any, watermark: Callable[[], int], left: pa.Table | None, right: pa.Table | None
    ) -> Iterator[pd.DataFrame]:
        self._done.add(bucket)
        saved = self._state.get()
        join = ReorderedJoin(self._rules) if saved is None else ReorderedJoin.restore(self._rules, bytes(saved[0]))
        # Spark returns 0 before the first watermark.
        watermark_ms = watermark() if self._uses_watermark else 0
        outcome = join.step(left, right, watermark=watermark_ms * _US_PER_MS if watermark_ms else NEVER)
        self._state.update((join.snapshot(),))
        wakes_at_us = join.wakes_at() if self._uses_watermark else None
        if wakes_at_us is not None:
            self._handle.registerTimer(max(-(-wakes_at_us // _US_PER_MS), watermark_ms + 1))
        parts: list[bytes | None] = list(in_packed_parts(outcome.table))
        if parts or any(outcome.late):
            parts = parts or [None]
            late_left, late_right = ([late] + [0] * (len(parts) - 1) for late in outcome.late)
            yield pd.DataFrame({"packed": parts, "late_left": late_left, "late_right": late_right})
