"""Defects in aligns, planted as those in `bugs`. The simulation must find all of them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Final

from joiner.runtime.task.operators.unit_align import UnitAlign
from tests.simulation.bugs import Bug, changed


def rows_that_wait_are_not_restored() -> AbstractContextManager[None]:
    """An align starts empty where the snapshot was taken."""
    return changed(UnitAlign, "load", lambda _self, _saved: None)


def late_records_of_columns_are_not_written() -> AbstractContextManager[None]:
    """Only the driver's late records are written to the late topic."""
    emit = UnitAlign._emit_late  # noqa: SLF001 - the defect is planted here

    def wrong(self: UnitAlign, stream: int, *rest: object) -> None:
        if stream == 0:
            emit(self, stream, *rest)  # type: ignore[arg-type] # as given

    return changed(UnitAlign, "_emit_late", wrong)


ALIGN_BUGS: Final[dict[str, Bug]] = {
    found.__name__: found for found in (rows_that_wait_are_not_restored, late_records_of_columns_are_not_written)
}
