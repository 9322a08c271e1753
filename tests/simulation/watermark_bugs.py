"""Defects in the watermarks of results, planted as those in `bugs`. The simulation must find all of them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from joiner.core.frontier import NEVER
from joiner.runtime.task.effects import Effects
from joiner.runtime.task.operators.align_operator import AlignOperator
from joiner.runtime.task.operators.unit_align import UnitAlign
from joiner.runtime.task.operators.unit_join import UnitJoin
from tests.simulation.bugs import Bug, changed

if TYPE_CHECKING:
    from joiner.runtime.task.batch import Batch


def held_records_are_ignored_in_watermarks() -> AbstractContextManager[None]:
    """A join's watermark is its lower frontier, as if no held record could get another neighbour."""

    def wrong(self: Any, count: int) -> tuple[Any, int]:
        frontiers = np.stack(self._buffer.frontier_ns(np.arange(count)))
        return frontiers.min(axis=0), NEVER

    return changed(UnitJoin, "bounds_ns", wrong)


def waiting_rows_are_ignored_in_watermarks() -> AbstractContextManager[None]:
    """An align's watermark is the frontier of its driver, as if no row were waiting."""
    bounds_ns = AlignOperator.bounds_ns

    def wrong(self: Any, count: int) -> tuple[Any, int]:
        if not isinstance(self, UnitAlign):
            return bounds_ns(self, count)
        return self._driver_frontier_ns(np.arange(count)), NEVER

    return changed(AlignOperator, "bounds_ns", wrong)


def watermarks_come_before_the_results() -> AbstractContextManager[None]:
    """A transaction's watermarks, which follow from the state after its results, precede them in the log."""

    def wrong(self: Effects, watermarks: Batch) -> None:
        self.joined_parts.insert(0, watermarks)
        self.watermarks += len(watermarks)

    return changed(Effects, "add_watermarks", wrong)


WATERMARK_BUGS: Final[dict[str, Bug]] = {
    found.__name__: found
    for found in (
        held_records_are_ignored_in_watermarks,
        waiting_rows_are_ignored_in_watermarks,
        watermarks_come_before_the_results,
    )
}
