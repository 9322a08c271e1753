"""`NeighbourProcessor`: `ReorderedJoin` in Spark's state store, one state a bucket."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pandas as pd
import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from joiner.core.frontier import NEVER
from joiner.spark import rows as arrow
from joiner.spark.buckets import in_packed_parts
from joiner.spark.reordering import ReorderedJoin, Rules

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, StatefulProcessorHandle, TimerValues

JOINED: Final = "packed binary, late_left long, late_right long"
"""What comes out of the operator: a packed part of the result, or nothing, and how many rows came too late."""

_US_PER_MS: Final = 1_000


class NeighbourProcessor(StatefulProcessor):
    """One step of the join for each bucket that has new rows, or that the watermark concerns.

    The watermark of a micro-batch counts behind its rows: what was known before it decides which of them are late, so a
    row that is not below the watermark is never late by it.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Called once a task."""
        self._handle = handle
        self._state = handle.getValueState("neighbour_join", "state binary")
        self._done: set[Any] = set()

    def handleInputRows(  # noqa: N802 - the name is Spark's
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: TimerValues,  # noqa: N803 - passed by this name
    ) -> Iterator[pd.DataFrame]:
        """All new rows of a bucket, packed."""
        parts: tuple[list[pa.Table], list[pa.Table]] = ([], [])
        for frame in rows:
            for side, packed in zip(frame["side"], frame["packed"], strict=True):
                parts[side].append(arrow.from_bytes(packed))
        yield from self._step(key, timerValues, *(pa.concat_tables(tables) if tables else None for tables in parts))

    def handleExpiredTimer(  # noqa: N802 - the name is Spark's
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803 - passed by this name
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: ARG002, N803 - passed by this name
    ) -> Iterator[pd.DataFrame]:
        """The watermark has passed something that a bucket waits for."""
        # Several timers of a bucket may end in one micro-batch, and its rows have met the same watermark.
        if key not in self._done:
            yield from self._step(key, timerValues, None, None)

    def close(self) -> None:
        """Nothing is open."""

    def _step(
        self, key: Any, timers: TimerValues, left: pa.Table | None, right: pa.Table | None
    ) -> Iterator[pd.DataFrame]:
        self._done.add(key)
        saved = self._state.get()
        join = ReorderedJoin(self._rules) if saved is None else ReorderedJoin.restore(self._rules, bytes(saved[0]))
        uses_watermark = any(self._rules.has_watermark)
        # Spark says 0 before there is any.
        watermark_ms = timers.getCurrentWatermarkInMs() if uses_watermark else 0
        outcome = join.step(left, right, watermark=watermark_ms * _US_PER_MS if watermark_ms else NEVER)
        self._state.update((join.snapshot(),))
        wakes_at = join.wakes_at() if uses_watermark else None
        if wakes_at is not None:
            self._handle.registerTimer(max(-(-wakes_at // _US_PER_MS), watermark_ms + 1))
        parts: list[bytes | None] = list(in_packed_parts(outcome.table))
        if parts or any(outcome.late):
            parts = parts or [None]
            late_left, late_right = ([late] + [0] * (len(parts) - 1) for late in outcome.late)
            yield pd.DataFrame({"packed": parts, "late_left": late_left, "late_right": late_right})
