"""The processor for ``transformWithStateInPandas``. It keeps an operator per bucket in Spark's state store."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import pandas as pd
import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from joiner.core.frontier import NEVER
from joiner.spark import rows as arrow
from joiner.spark.buckets import in_packed_parts
from joiner.spark.reordering import Reordered

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import (
        ExpiredTimerInfo,
        StatefulProcessorHandle,
        TimerValues,
        ValueState,
    )

_US_PER_MS: Final = 1_000


class OperatorKind(Protocol):
    """The class of an operator, such as `ReorderedJoin`."""

    def __call__(self, rules: Any) -> Reordered:
        """Create an operator without rows."""
        ...

    def restore(self, rules: Any, data: bytes) -> Reordered:
        """Create an operator from a snapshot."""
        ...


@dataclass(frozen=True)
class Operator:
    """What is computed for each bucket.

    ``name``: the name of the state. ``kind`` and ``rules``: create the operator. ``has_watermark``: for each side,
    whether the watermark advances its frontier.
    """

    name: str
    kind: OperatorKind
    rules: Any
    has_watermark: tuple[bool, ...]

    def output(self) -> str:
        """Return the schema of the output: a packed part of the result (or null), and each side's late rows."""
        return ", ".join(["packed binary", *(f"{name} long" for name in late_columns(len(self.has_watermark)))])


def late_columns(sides: int) -> list[str]:
    """Return the names of the output's columns that count late rows, one for each side."""
    return [f"late{side}" for side in range(sides)]


def processor(operator: Operator) -> StatefulProcessor:
    """Return a stateful processor that runs ``operator`` on each bucket and keeps its state between micro-batches.

    Before the first micro-batch, Spark calls ``init`` in a process on the driver's machine that cannot see the
    ``--py-files``. The class is therefore defined inside this function, so that it is pickled by value, and it imports
    this project only when the first row arrives.
    """
    name = operator.name
    packed = pickle.dumps(operator)

    class BucketProcessor(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self._handle = handle
            self._state = handle.getValueState(name, "state binary")
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

    return BucketProcessor()


class Steps:
    """Processes the buckets of a Spark task that have new rows or an expired timer.

    The rows of a micro-batch are compared with the frontiers left by earlier micro-batches. Its watermark is applied
    after that, so it cannot make a row of the same micro-batch late.
    """

    def __init__(self, operator: Operator, handle: StatefulProcessorHandle, state: ValueState) -> None:
        """``handle`` and ``state`` belong to the processor. Before each call, Spark binds them to a bucket."""
        self._operator, self._handle, self._state = operator, handle, state
        self._uses_watermark = any(operator.has_watermark)
        self._done: set[Any] = set()

    def process(
        self, bucket: Any, rows: Iterator[pd.DataFrame], watermark: Callable[[], int]
    ) -> Iterator[pd.DataFrame]:
        """Process the new rows of a bucket, which are packed. ``watermark`` returns the current watermark in ms."""
        parts: list[list[pa.Table]] = [[] for _ in self._operator.has_watermark]
        for frame in rows:
            for side, packed in zip(frame["side"], frame["packed"], strict=True):
                parts[side].append(arrow.from_bytes(packed))
        yield from self._step(bucket, watermark, [pa.concat_tables(tables) if tables else None for tables in parts])

    def wake(self, bucket: Any, watermark: Callable[[], int]) -> Iterator[pd.DataFrame]:
        """Process a bucket whose timer has expired. ``watermark`` returns the current watermark in ms."""
        # Within one micro-batch, a bucket may have both new rows and one or more expired timers.
        if bucket not in self._done:
            yield from self._step(bucket, watermark, [])

    def _step(self, bucket: Any, watermark: Callable[[], int], tables: list[pa.Table | None]) -> Iterator[pd.DataFrame]:
        self._done.add(bucket)
        saved, of = self._state.get(), self._operator
        operator = of.kind(of.rules) if saved is None else of.kind.restore(of.rules, bytes(saved[0]))
        # Spark returns 0 before the first watermark.
        watermark_ms = watermark() if self._uses_watermark else 0
        outcome = operator.step(*tables, watermark=watermark_ms * _US_PER_MS if watermark_ms else NEVER)
        self._state.update((operator.snapshot(),))
        wakes_at_us = operator.wakes_at() if self._uses_watermark else None
        if wakes_at_us is not None:
            self._handle.registerTimer(max(-(-wakes_at_us // _US_PER_MS), watermark_ms + 1))
        parts: list[bytes | None] = list(in_packed_parts(outcome.table))
        if parts or any(outcome.late):
            parts = parts or [None]
            late = ([count] + [0] * (len(parts) - 1) for count in outcome.late)
            counts = zip(late_columns(len(outcome.late)), late, strict=True)
            yield pd.DataFrame({"packed": parts} | dict(counts))
