"""Executes one align with a driver in one unit: holds waiting rows and records, and computes the effects of a batch.

`AlignBuffer` holds the keys, the times and the columns' values. This module holds the remaining contents of a row until
the row is emitted or dropped: the driver record's value, and its ordinal among the records with the same key and time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from broker.wire.bulk import position_pieces
from broker.wire.records import position_text
from joiner.alignment.buffer import AlignBuffer, AlignedRows
from joiner.alignment.driver_rows import DRIVER
from joiner.alignment.position_table import PositionTable
from joiner.core import snapshot
from joiner.runtime.task.operators.align_operator import AlignOperator
from joiner.runtime.task.operators.operator import note_latencies
from joiner.runtime.task.operators.ordinals import Ordinals
from joiner.runtime.task.unit_snapshot import SavedAlign, UnitSnapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from joiner.operators import AlignSettings
    from joiner.runtime.settings import JoinerSettings
    from joiner.runtime.task.append_times import AppendTimes
    from joiner.runtime.task.decoding.intake import SideInput
    from joiner.runtime.task.decoding.keys import Keys
    from joiner.runtime.task.effects import Effects

    Ints = NDArray[np.int64]

_OF_DRIVER: Final = 0
"""The driver's place among the streams."""

_HELD: Final = 3
"""The number of fields held for a driver record: position, value (the bits of a float64) and ordinal."""

_ROW_BYTES: Final = 80
"""Bytes that a waiting row needs besides those for its relations. Measured. A driver record held for longer, because it
may have a duplicate, is counted the same although it needs less."""
_RELATION_BYTES: Final = 110
"""Bytes that a waiting row needs for each neighbour. Measured."""
_RECORD_BYTES: Final = 120
"""Bytes of a held record of a column. Measured."""


class UnitAlign(AlignOperator):
    """One align with a driver, in one unit."""

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
        self._buffer = AlignBuffer(self._rules, lateness_ns=align.lateness, watermark_scope=align.watermark_scope)
        self._row_bytes = _ROW_BYTES + _RELATION_BYTES * sum(len(rule.directions) for rule in self._rules.values())
        self._driver = PositionTable(_HELD)
        self._ordinals = Ordinals()

    def push(self, inputs: Sequence[SideInput], effects: Effects | None) -> dict[str, int]:
        """See `UnitOperator`. Return the numbers of rows, dropped rows, late records and duplicates."""
        driver, columns = inputs[_OF_DRIVER], dict(zip(self._streams[1:], inputs[1:], strict=True))
        found = self._buffer.push(
            driver=driver.columns(),
            columns={name: (given, side.rows().result) for name, side in columns.items() if (given := side.columns())},
            driver_watermarks=driver.watermarks(),
            column_watermarks={name: marks for name, side in columns.items() if (marks := side.watermarks())},
        )
        self._hold(driver, found)
        if effects is not None:
            self._emit_rows(found, effects)
            for stream, side in enumerate(inputs):
                self._emit_late(stream, side, found.late_seq[self._streams[stream]], effects)
        self._driver.remove(self._driver.find(np.concatenate((found.seq, found.dropped_seq))))
        return {
            "rows": len(found),
            "dropped": len(found.dropped_seq),
            "late": sum(map(len, found.late_seq.values())),
            "duplicates": sum(map(len, found.duplicate_seq.values())),
        }

    # Held records

    def held_by_stream(self) -> dict[str, int]:
        """See `UnitOperator`."""
        return self._buffer.driver_rows.held_by_stream()

    def held_bytes(self) -> dict[str, int]:
        """See `UnitOperator`."""
        return {
            stream: count * (self._row_bytes if stream == DRIVER else _RECORD_BYTES)
            for stream, count in self._buffer.driver_rows.entries_by_stream().items()
        }

    def known_keys(self) -> Ints:
        """See `UnitOperator`."""
        # The remaining ordinals are for records that the buffer still holds, so the buffer knows every key in use.
        self._ordinals.forget_all(self._driver_frontier_ns)
        return self._buffer.driver_rows.known_keys()

    def _held_keys_and_times(self) -> dict[str, Ints]:
        return self._buffer.driver_rows.held_records()

    def _frontiers_ns(self) -> list[Ints]:
        frontiers = self._buffer.driver_rows.frontier_ns(self._keys.numbers_in_use())
        return [frontiers[stream] for stream in self._streams]

    def _driver_frontier_ns(self, keys: Ints) -> Ints:
        return self._buffer.driver_rows.frontier_ns(keys)[DRIVER]

    def _leading_pairs(self) -> list[tuple[int, int]]:
        columns = range(1, len(self._streams))
        return [pair for column in columns for pair in ((_OF_DRIVER, column), (column, _OF_DRIVER))]

    def _count_later(self, stream: int, ts_ns: int) -> int:
        return int(np.count_nonzero(self._buffer.driver_rows.held_ts(self._streams[stream]) > ts_ns))

    def _latest_held_ns(self, stream: int) -> int | None:
        # For the driver, these are the times of the waiting rows only.
        times = self._buffer.driver_rows.held_ts(self._streams[stream])
        return int(times.max()) if len(times) else None

    # Snapshots

    def save(self, saved: UnitSnapshot) -> None:
        """See `UnitOperator`."""
        self._ordinals.forget_all(self._driver_frontier_ns)
        held, ordinals = self._driver.rows(), self._ordinals.table()
        columns = {f"held.{number}": column for number, column in enumerate(held)}
        columns |= {f"ordinals.{number}": column for number, column in enumerate(ordinals)}
        saved.aligns[self.name] = SavedAlign(self._buffer.snapshot(), snapshot.pack({}, columns))

    def load(self, saved: UnitSnapshot) -> None:
        """See `UnitOperator`."""
        given = saved.aligns[self.name]
        _, columns = snapshot.unpack(given.driver)
        self._buffer = AlignBuffer.restore(given.buffer)
        self._driver.append(np.stack([columns[f"held.{number}"] for number in range(_HELD)]))
        self._ordinals.load(np.stack([columns[f"ordinals.{number}"] for number in range(3)]))

    # Steps of `push`

    def _hold(self, driver: SideInput, found: AlignedRows) -> None:
        """Hold the accepted records of the driver."""
        rows = driver.rows()
        if not len(rows.seq):
            return
        left_out = np.concatenate((found.late_seq[DRIVER], found.duplicate_seq[DRIVER]))
        if len(left_out):
            is_accepted = np.ones(len(rows.seq), dtype=bool)
            is_accepted[rows.seq.searchsorted(left_out)] = False
            rows = rows.take(is_accepted.nonzero()[0])
        ordinals = self._ordinals.assign(rows.key, rows.ts_ns)
        self._ordinals.forget(self._driver_frontier_ns)
        self._driver.append(np.stack((rows.seq, rows.result.view(np.int64), ordinals)))

    def _emit_rows(self, found: AlignedRows, effects: Effects) -> None:
        if not len(found):
            return
        _, value, ordinal = self._driver.take(self._driver.find(found.seq))
        things, results = self._things_of(found.key), value.view(np.float64)
        if self._function is not None:
            found, things, results, kept = self._function.compute(found, results, things, self._places(found), effects)
            ordinal = ordinal[kept]
        position = position_pieces(found.seq, has_rows=self._has_rows)
        self._write_rows(found, things, results, position, ordinal, effects)
        if self._appended:
            note_latencies(effects, self._appended_ms(_OF_DRIVER, found.seq))

    def _places(self, found: AlignedRows) -> Callable[[int], str]:
        return lambda at: position_text(int(found.seq[at]), has_rows=self._has_rows)
