"""Defines `AlignOperator`, the implementation shared by aligns with a driver and aligns with a grid."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from broker.wire.bulk import Pieces, RowColumns, encode_rows
from broker.wire.columns import StringColumn
from broker.wire.records import encode_lines
from joiner.alignment.buffer import AlignBuffer
from joiner.alignment.rules import ColumnRule
from joiner.runtime.model import AlignSummary
from joiner.runtime.task.batch import Batch
from joiner.runtime.task.emit import mean_times
from joiner.runtime.task.operators.operator import UnitOperator
from joiner.runtime.task.operators.row_function import RowFunctionCaller

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from joiner.alignment.buffer import AlignedRows
    from joiner.operators import AlignSettings
    from joiner.runtime.settings import JoinerSettings
    from joiner.runtime.task.append_times import AppendTimes
    from joiner.runtime.task.decoding.keys import Keys
    from joiner.runtime.task.effects import Effects
    from joiner.runtime.task.emit import Things

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]


class AlignOperator(UnitOperator):
    """An align in one unit. The subclass creates ``_buffer``."""

    _buffer: AlignBuffer

    def __init__(
        self,
        settings: JoinerSettings,
        align: AlignSettings,
        unit: int,
        keys: Keys,
        appended: Mapping[str, AppendTimes],
    ) -> None:
        """See `UnitOperator`."""
        super().__init__(settings, align, unit, keys, appended)
        self._rules = {
            name: ColumnRule(
                rule=column.rule,
                tolerance_ns=column.tolerance,
                period=column.period,
                on_missing=column.on_missing,
                lateness_ns=column.lateness,
            )
            for name, column in align.columns.items()
        }
        name = align.function
        self._function = None if name is None else RowFunctionCaller(settings, align, unit, name)

    def summary(self) -> AlignSummary:
        """See `UnitOperator`."""
        spans = zip(self._streams, self._spans(), strict=True)
        return AlignSummary(self.held_by_stream(), len(self._keys), {name: span for name, span in spans if span})

    def bounds_ns(self, count: int) -> tuple[Ints, int]:
        """See `UnitOperator`."""
        return self._buffer.bounds_ns(np.arange(count))

    def _write_rows(
        self, found: AlignedRows, things: Things, results: Floats, position: Pieces, ordinal: Ints, effects: Effects
    ) -> None:
        """Add n rows to the effects. ``position``: the last part of the rows' ids (see `RowColumns`)."""
        columns = RowColumns(
            things.texts(),
            mean_times(found.ts_ns, found.ts_ns, self._settings.events.time_unit),
            _numbers(results),
            position,
            {name: _numbers(found.values[name], found.is_missing[name]) for name in self._rules},
            ordinal,
        )
        effects.joined_parts.append(Batch(things.keys(), encode_rows(columns, self.name, self._unit)))
        effects.pairs += len(found)


def _numbers(values: Floats, is_missing: NDArray[np.bool_] | None = None) -> StringColumn:
    """Return numbers as JSON, with null for missing ones."""
    found: list[float | None] = values.tolist()
    if is_missing is not None:
        for at in is_missing.nonzero()[0].tolist():
            found[at] = None
    return StringColumn.of_lines(encode_lines(found))
