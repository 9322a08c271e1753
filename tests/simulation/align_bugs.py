"""Defects in aligns, planted as those in `bugs`. The simulation must find all of them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Final

from joiner.core.frontier import NEVER
from joiner.runtime.task.operators.operator import UnitOperator
from joiner.runtime.task.operators.unit_align import UnitAlign
from joiner.runtime.task.operators.unit_grid import UnitGrid
from joiner.runtime.task.unit_snapshot import UnitSnapshot
from tests.simulation.bugs import Bug, changed


def rows_that_wait_are_not_restored() -> AbstractContextManager[None]:
    """An align starts empty where the snapshot was taken."""
    return changed(UnitAlign, "load", lambda _self, _saved: None)


def late_records_of_columns_are_not_written() -> AbstractContextManager[None]:
    """Only the late records of the first stream, which is the driver if there is one, are written to the late topic."""
    emit = UnitOperator._emit_late  # noqa: SLF001 - the defect is planted here

    def wrong(self: UnitOperator, stream: int, *rest: object) -> None:
        if stream == 0:
            emit(self, stream, *rest)  # type: ignore[arg-type] # as given

    return changed(UnitOperator, "_emit_late", wrong)


def records_of_a_grid_are_not_restored() -> AbstractContextManager[None]:
    """A grid starts empty where the snapshot was taken."""
    return changed(UnitGrid, "load", lambda _self, _saved: None)


def ticks_start_over_after_a_restore() -> AbstractContextManager[None]:
    """The next tick of each thing is not restored, so that ticks from the first one on have rows again."""
    load = UnitGrid.load

    def wrong(self: UnitGrid, saved: UnitSnapshot) -> None:
        load(self, saved)
        self._buffer.grid_rows._ticks.following[:] = NEVER  # noqa: SLF001 - the defect is planted here

    return changed(UnitGrid, "load", wrong)


ALIGN_BUGS: Final[dict[str, Bug]] = {
    found.__name__: found
    for found in (
        rows_that_wait_are_not_restored,
        late_records_of_columns_are_not_written,
        records_of_a_grid_are_not_restored,
        ticks_start_over_after_a_restore,
    )
}
