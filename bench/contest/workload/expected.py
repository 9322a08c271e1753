"""Computes the expected results of a workload, and counts found, missing, unexpected and duplicate results.

The pairs are those defined in docs/semantics.md, computed without the engine under test as the union of four
`pandas.merge_asof` calls. A pair is expected if it would become certain in an endless stream; pairs that only the end
of the stream makes certain are optional. A pair is encoded as one integer: the left row times the number of rows, plus
the right row.

An aligned row counts as several pairs: its driver record with itself, and with the record of each column that has a
value. A row that is missing, duplicated or incomplete, or has a wrong value, is therefore detected like a pair.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bench.contest.workload.inputs import Workload

    Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Window:
    """Which pairs a join can find: those at most ``width_ms`` apart or, with ``is_grid``, in the same window of a grid.

    Width 0 means no window. ``waits_ms`` is how far event time must have passed a pair before it is emitted; so the
    pairs in the last ``waits_ms`` of a workload, and those just before them, are not expected.
    """

    width_ms: int = 0
    is_grid: bool = False
    waits_ms: int = 0

    def holds(self, one_ms: Ints, other_ms: Ints) -> NDArray[np.bool_]:
        """Return which pairs of event times lie within the window (bool, shape (n,))."""
        if not self.width_ms:
            return np.ones(len(one_ms), dtype=bool)
        if self.is_grid:
            return np.asarray(one_ms // self.width_ms == other_ms // self.width_ms)
        return np.asarray(np.abs(one_ms - other_ms) <= self.width_ms)


NO_WINDOW: Final = Window()


@dataclass(frozen=True)
class Expected:
    """The expected and the optional pairs, in ascending order. ``later`` is the later row of each expected pair."""

    workload: Workload
    pairs: Ints
    may_be: Ints
    later: Ints

    @property
    def facts(self) -> dict[str, str | int]:
        """The description of the workload."""
        return {"about": self.workload.about, "keys": len(self.workload.names)}

    def last_rows(self, group: Ints, window: Window = NO_WINDOW) -> Ints:
        """Return, for each group of rows, the last row that completes a pair in the window, or -1 if there is none.

        The results of a run cannot show whether it has processed any rows after that one.
        """
        rows = np.divmod(self.pairs, len(self.workload))
        held = window.holds(*(self.workload.time_ms[side] for side in rows))
        visible = self.later[held & self.is_due(window)]
        last = np.full(int(group.max()) + 1, -1)
        np.maximum.at(last, group[visible], visible)
        return last

    def is_due(self, window: Window) -> NDArray[np.bool_]:
        """Return which expected pairs must have been emitted by the end of the workload (bool, shape (pairs,)).

        A join that waits emits a pair once event time has passed its later record by *more* than the wait: a watermark
        promises nothing about records at its own time.
        """
        time_ms = self.workload.time_ms
        if not window.waits_ms:
            return np.ones(len(self.later), dtype=bool)
        return np.asarray(time_ms[self.later] < time_ms.max() - window.waits_ms)

    def shows_end(self, left: Ints, right: Ints, window: Window = NO_WINDOW) -> bool:
        """Return whether these results, in any order, show that the input was read to its end in every partition."""
        partition = self.workload.partition
        last = self.last_rows(partition, window)
        reach, later = np.full(len(last), -1), np.maximum(left, right)
        np.maximum.at(reach, partition[later], later)
        return bool((reach >= last).all())

    def position(self, left: Ints, right: Ints) -> Ints:
        """Return how many rows had been processed when each result was written (int64, shape (n,)).

        In each partition, all rows up to the last one that is part of a result count as processed. Partitions need not
        advance at the same speed.
        """
        partition, later = self.workload.partition, np.maximum(left, right)
        grown = np.zeros(len(later), dtype=np.int64)
        for place in range(self.workload.partitions):
            rank = np.cumsum(partition == place)
            here = np.flatnonzero(partition[later] == place)
            grown[here] = np.diff(np.maximum.accumulate(rank[later[here]]), prepend=0)
        return np.cumsum(grown)

    def needed_rows(self, at: int) -> int:
        """Return how many of the first ``at`` rows must still be held, because they are in a pair with a later row."""
        earlier = np.minimum(*np.divmod(self.pairs, len(self.workload)))
        return len(np.unique(earlier[(earlier < at) & (self.later >= at)]))

    def width_ms(self, share: float) -> int:
        """Return the width of the narrowest window that contains this share of the pairs."""
        left, right = np.divmod(self.pairs, len(self.workload))
        apart_ms = np.sort(np.abs(self.workload.time_ms[left] - self.workload.time_ms[right]))
        return max(1, int(apart_ms[min(len(apart_ms) - 1, int(share * len(apart_ms)))]))


@dataclass(frozen=True)
class Comparison:
    """How results compare with the expected ones. Only the processed share of the input, ``reached``, is judged."""

    reached: float
    rows: int
    results: int
    expected: int
    found: int
    missing: int
    excess: int
    double: int

    @property
    def complete(self) -> float:
        """The share of the neighbours found."""
        return self.found / self.expected if self.expected else float("nan")


def expect(workload: Workload) -> Expected:
    """Compute the expected results of a workload."""
    if workload.has_columns:
        return _expect_rows(workload)
    left, right = (np.flatnonzero(workload.side == side) for side in (0, 1))
    group = workload.partition if workload.watermark_scope == "partition" else workload.thing
    sure: list[Ints] = []
    every: list[Ints] = []
    for one, other, is_turned in ((left, right, False), (right, left, True)):
        frontier = np.full(int(group.max()) + 1, np.iinfo(np.int64).min)
        np.maximum.at(frontier, group[other], workload.time_ms[other] - workload.lateness_ms)
        for direction in ("backward", "forward"):
            row, found = _neighbours(workload, one, other, direction)
            limit, time_ms, found_ms = frontier[group[row]], workload.time_ms[row], workload.time_ms[found]
            is_sure = limit > time_ms if direction == "backward" else (limit >= found_ms) | (found_ms == time_ms)
            codes = found * len(workload) + row if is_turned else row * len(workload) + found
            every.append(codes)
            sure.append(codes[is_sure])
    pairs = np.unique(np.concatenate(sure))
    may_be = np.setdiff1d(np.concatenate(every), pairs)
    return Expected(workload, pairs, may_be, np.maximum(*np.divmod(pairs, len(workload))))


def _expect_rows(workload: Workload) -> Expected:
    """Compute the expected aligned rows, whose columns hold previous values, from one as-of join for each column."""
    driver = np.flatnonzero(workload.side == 0)
    codes, is_sure = [driver * (len(workload) + 1)], np.ones(len(workload), dtype=bool)
    for side in range(1, len(workload.quantities)):
        column = np.flatnonzero(workload.side == side)
        frontier = np.full(len(workload.names), np.iinfo(np.int64).min)
        np.maximum.at(frontier, workload.thing[column], workload.time_ms[column] - workload.lateness_ms)
        # Until the frontier has passed the time of a row, another record with the same time may follow.
        is_sure &= frontier[workload.thing] > workload.time_ms
        row, found = _neighbours(workload, driver, column, "backward")
        codes.append(row * len(workload) + found)
    every = np.sort(np.concatenate(codes))
    of_sure = is_sure[every // len(workload)]
    pairs = every[of_sure]
    return Expected(workload, pairs, every[~of_sure], np.maximum(*np.divmod(pairs, len(workload))))


def _neighbours(workload: Workload, one: Ints, other: Ints, direction: str) -> tuple[Ints, Ints]:
    """Return the rows of one side that have a neighbour in the given direction, and the rows of their neighbours."""
    frames = [
        pd.DataFrame({"thing": workload.thing[rows], "time": workload.time_ms[rows], name: rows})
        # The sort is stable, so that records with equal times stay in log order.
        .sort_values("time", kind="stable")
        for rows, name in ((one, "row"), (other, "found"))
    ]
    joined = pd.merge_asof(*frames, on="time", by="thing", direction=direction).dropna()
    return joined["row"].to_numpy(np.int64), joined["found"].to_numpy(np.int64)


def compare(
    expected: Expected, left: Ints, right: Ints, processed: int | None = None, window: Window = NO_WINDOW
) -> Comparison:
    """Compare results, given as left and right rows, with the pairs expected up to the last row that was processed.

    If the run was cut off, its first ``processed`` results show how far it got. This is determined for each thing
    instead of each partition, because an engine need not process the things of a partition in order. The remaining
    results only have to be correct. ``window`` is the join's window; the last neighbours within it show that the input
    was read to its end.
    """
    workload, rows = expected.workload, len(expected.workload)
    group = workload.partition if processed is None else workload.thing
    last = expected.last_rows(group, window)
    reach, later = np.full(len(last), -1), np.maximum(left, right)[:processed]
    np.maximum.at(reach, group[later], later)
    is_done, is_silent = reach >= last, last < 0
    # A partition or thing without neighbours in the window counts as processed if all others are.
    reach = np.where(is_done & (~is_silent | is_done[~is_silent].all()), rows, reach)
    judged = expected.pairs[(expected.later <= reach[group[expected.later]]) & expected.is_due(window)]
    codes = np.unique(left * rows + right)
    found = int(np.isin(judged, codes, assume_unique=True).sum())
    known = np.isin(codes, expected.pairs, assume_unique=True) | np.isin(codes, expected.may_be, assume_unique=True)
    got_through = int((np.arange(rows) <= reach[group]).sum())
    return Comparison(
        reached=got_through / rows,
        rows=got_through,
        results=len(left),
        expected=len(judged),
        found=found,
        missing=len(judged) - found,
        excess=int((~known).sum()),
        double=len(left) - len(codes),
    )
