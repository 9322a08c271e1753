"""An as-of join written by hand in Spark, with custom state in Python, for comparison with the neighbour join.

As in the public examples of `transformWithStateInPandas`, a `StatefulProcessor` holds each machine's records, in one
`ListState` per side, until the watermark has passed them. It then pairs each left record with the last right record at
or before it and the first right record at or after it. A timer triggers this for machines that have fallen silent.
Delivery is at least once.

Differences from the neighbour join:

- It looks for partners of left records only. Of the right records between two left records it therefore finds just the
  first and the last.
- A pair is not written until the watermark has passed it. The watermark lags by one batch plus the lateness and is
  shared by all machines; records that are older are dropped silently.
- Each record is written to the state and read back individually, and crosses between Python and the JVM each time.
- If the right side of a machine falls silent, the next left record and all left records after it are held forever.

The settings are the best of those tried (``trials/spark_asof.json``): one state partition per core, Java's parallel
garbage collector, and RocksDB, the only store that Spark accepts for custom state, with changelogs.
"""

from __future__ import annotations

import os
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from operator import itemgetter
from typing import Any, Final

import pandas as pd
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    ListState,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from bench.peers.spark_windowed import make_parser, make_session, parse, read, run

_TUNED: Final = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.minBatchesToRetain": "2",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
}

_STATE: Final = "time long, id string, result double"
_PAIR: Final = (
    "thing string, left string, left_time long, left_result double, right string, right_time long, right_result double"
)
_COLUMNS: Final = [column.split()[0] for column in _PAIR.split(", ")]

Row = tuple[int, str, float]
"""Time in ms, id and result."""


def main() -> None:
    """Run until stopped."""
    options = make_parser(__doc__ or "").parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    records = parse(read(make_session(options, _TUNED), options, options.data), options)
    pairs = records.groupBy("thing").transformWithStateInPandas(
        statefulProcessor=AsOf(), outputStructType=_PAIR, outputMode="Append", timeMode="EventTime"
    )
    run(pairs, options)


class AsOf(StatefulProcessor):
    """Holds a machine's records until the watermark has passed them, then pairs them."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state variables."""
        self._handle = handle
        self._sides: tuple[ListState, ListState] = (
            handle.getListState("left", _STATE),
            handle.getListState("right", _STATE),
        )

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: TimerValues,  # noqa: N803 - Spark's name
    ) -> Iterator[pd.DataFrame]:
        """Add the new records to the state, and pair the held records that the watermark has passed."""
        new: tuple[list[Row], list[Row]] = ([], [])
        for frame in rows:
            for side, quantity in zip(new, ("speed", "torque"), strict=True):
                some = frame.loc[frame["quantity"] == quantity, ["phenomenonTime", "id", "result"]]
                side.extend(some.itertuples(index=False, name=None))
        yield self._pair(key, new, timerValues.getCurrentWatermarkInMs())
        for timer in list(self._handle.listTimers()):
            self._handle.deleteTimer(timer)
        self._handle.registerTimer(max(time for side in new for time, *_ in side) + 1)

    def handleExpiredTimer(  # noqa: N802 - Spark's name
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803 - Spark's
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: ARG002, N803 - Spark's
    ) -> Iterator[pd.DataFrame]:
        """Pair the held records of a silent machine."""
        yield self._pair(key, ([], []), timerValues.getCurrentWatermarkInMs())

    def _pair(self, key: Any, new: tuple[list[Row], list[Row]], watermark_ms: int) -> pd.DataFrame:
        lefts, rights = (sorted(state.get(), key=itemgetter(0)) for state in self._sides)
        times = [time for time, *_ in rights]
        # No record older than the watermark can still arrive, so no right record can still be inserted before one
        # that the watermark has passed.
        certain = bisect_left(times, watermark_ms)
        settled = bisect_right(lefts, times[certain - 1], key=itemgetter(0)) if certain else 0
        pairs = []
        for left in lefts[:settled]:
            following = bisect_left(times, left[0])
            found = {bisect_right(times, left[0], following) - 1, following} - {-1}
            pairs += [(*key, left[1], left[0], left[2], rights[n][1], rights[n][0], rights[n][2]) for n in found]
        last = bisect_right(times, lefts[settled][0] if settled < len(lefts) else watermark_ms - 1) - 1
        kept = (lefts[settled:], rights[max(0, last) :])
        for state, old, more in zip(self._sides, kept, new, strict=True):
            state.put([*old, *more])
        return pd.DataFrame(pairs, columns=_COLUMNS)


if __name__ == "__main__":
    main()
