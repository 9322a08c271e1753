"""Executes one join in one unit: holds its records, and computes the effects of a batch.

The engine holds the keys and times of the records, and `Payloads` holds everything else that the results need. Both
identify a record by its position.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from broker.wire.records import Late, Unmatched
from joiner.core.engine import LocalStreamBuffer, Step
from joiner.core.frontier import NEVER
from joiner.runtime.model import JoinSummary
from joiner.runtime.task.decoding.intake import LEFT, RIGHT, SideInput
from joiner.runtime.task.decoding.keys import Keys
from joiner.runtime.task.emit import Emitter, EncodePairs, Pairs
from joiner.runtime.task.function_failures import add_up
from joiner.runtime.task.operators.operator import Output, UnitOperator, note_latencies
from joiner.runtime.task.payloads import Payloads
from joiner.runtime.task.unit_snapshot import UnitSnapshot, restore_rows, restore_short, save_rows, save_short

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from joiner.operators import JoinSettings
    from joiner.runtime.settings import JoinerSettings
    from joiner.runtime.task.append_times import AppendTimes
    from joiner.runtime.task.effects import Effects

    Ints = NDArray[np.int64]


class UnitJoin(UnitOperator):
    """One join of a unit: the engine, and the payloads of the records that it holds."""

    def __init__(
        self,
        settings: JoinerSettings,
        join: JoinSettings,
        unit: int,
        keys: Keys,
        appended: Mapping[str, AppendTimes],
    ) -> None:
        """See `UnitOperator`."""
        super().__init__(settings, join, unit, keys, appended)
        self._buffer = LocalStreamBuffer(
            tolerance_ns=join.tolerance,
            lateness_ns=join.lateness,
            direction=join.direction,
            driver=join.driver,
            watermark_scope=join.watermark_scope,
            emit_unmatched=join.emit_unmatched,
        )
        self._payloads = Payloads(), Payloads()
        # For each key, both frontiers and the bound, as of the last call to `bounds_ns`.
        self._bounds: Ints = np.empty((3, 0), dtype=np.int64)
        self._emitter = Emitter(settings, join, unit, _arrow_encoder(settings, join, unit))

    def push(self, inputs: Sequence[SideInput], effects: Effects | None) -> dict[str, int]:
        """See `UnitOperator`. Return the numbers of pairs, late records, duplicates and unmatched records."""
        left, right = inputs
        for payloads, side in zip(self._payloads, inputs, strict=True):
            payloads.add(side.rows())
        step = self._buffer.push(
            left=left.columns(),
            right=right.columns(),
            left_watermarks=left.watermarks(),
            right_watermarks=right.watermarks(),
        )
        if effects is not None:
            self._emit_pairs(step, effects)
            self._emit_records(step, effects)
        self._forget(step)
        return {
            "pairs": len(step.left_seq),
            "late": len(step.left_late_seq) + len(step.right_late_seq),
            "duplicates": len(step.left_duplicate_seq) + len(step.right_duplicate_seq),
            "unmatched": len(step.left_unmatched_seq) + len(step.right_unmatched_seq),
        }

    # Held records

    def held(self) -> int:
        """See `UnitOperator`."""
        return len(self._buffer)

    def held_by_stream(self) -> dict[str, int]:
        """See `UnitOperator`."""
        return {stream: len(side) for stream, side in zip(self._streams, self._payloads, strict=True)}

    def held_bytes(self) -> dict[str, int]:
        """See `UnitOperator`."""
        return {stream: side.size for stream, side in zip(self._streams, self._payloads, strict=True)}

    def summary(self) -> JoinSummary:
        """See `UnitOperator`."""
        held_left, held_right = self.held_by_stream().values()
        return JoinSummary(held_left, held_right, len(self._keys), *self._spans())

    def known_keys(self) -> Ints:
        """See `UnitOperator`."""
        return self._buffer.known_keys()

    def bounds_ns(self, count: int) -> tuple[Ints, int]:
        """See `UnitOperator`. A bound is recomputed only once a frontier of its key has changed."""
        known, keys = np.full((3, count), NEVER), np.arange(count)
        have = min(count, self._bounds.shape[1])
        known[:, :have] = self._bounds[:, :have]
        frontiers = np.stack(self._buffer.frontier_ns(keys))
        changed = (known[:2] != frontiers).any(axis=0).nonzero()[0]
        bounds, of_unused = self._buffer.bounds_ns(changed)
        known[:2], known[2, changed] = frontiers, bounds
        self._bounds = known
        return known[2], of_unused

    def _held_keys_and_times(self) -> dict[str, Ints]:
        records = self._buffer.held_records()
        return {stream: rows[:2] for stream, rows in zip(self._streams, records, strict=True)}

    def _frontiers_ns(self) -> list[Ints]:
        return list(self._buffer.frontier_ns(self._keys.numbers_in_use()))

    def _leading_pairs(self) -> list[tuple[int, int]]:
        return [(LEFT, RIGHT), (RIGHT, LEFT)]

    def _count_later(self, stream: int, ts_ns: int) -> int:
        return self._payloads[stream].count_later(ts_ns)

    def _latest_held_ns(self, stream: int) -> int | None:
        return self._payloads[stream].latest_ns()

    # Snapshots

    def save(self, saved: UnitSnapshot) -> None:
        """See `UnitOperator`."""
        saved.buffers[self.name] = self._buffer.snapshot()
        for name, side, quantity in zip(self._streams, self._payloads, self._quantities, strict=True):
            rows = side.rows()
            saved.rows[f"{self.name}.{name}"] = (
                save_short(rows, quantity) if self._has_rows else save_rows(rows, self._settings.events.time_unit)
            )

    def load(self, saved: UnitSnapshot) -> None:
        """See `UnitOperator`."""
        parts = [saved.rows[f"{self.name}.{name}"] for name in self._streams]
        if self._has_rows:
            left, right = (restore_short(*one) for one in zip(parts, self._quantities, strict=True))
        else:
            left, right = (restore_rows(part, self._settings.events.time_unit) for part in parts)
        self._buffer = LocalStreamBuffer.restore(saved.buffers[self.name])
        self._payloads = Payloads(left), Payloads(right)

    # Steps of `push`

    def _emit_pairs(self, step: Step, effects: Effects) -> None:
        if not len(step.left_seq):
            return
        pairs = self._pairs(step, with_strings=self._emitter.needs_strings)
        joined, failed = self._emitter.results(pairs, lambda: self._pairs(step, with_strings=True))
        effects.joined_parts.append(joined)
        effects.pairs += len(pairs) - len(failed)
        effects.rejected += failed
        if (failures := self._emitter.failures) is not None:
            add_up(effects.failed_pairs, {self.name: failures})
        if self._appended:
            left, right = (
                self._appended_ms(stream, seq) for stream, seq in ((LEFT, step.left_seq), (RIGHT, step.right_seq))
            )
            note_latencies(effects, np.maximum(left, right))

    def _pairs(self, step: Step, *, with_strings: bool) -> Pairs:
        left, right = (
            side.find(seq) if with_strings else side.find_numbers(seq)
            for side, seq in zip(self._payloads, (step.left_seq, step.right_seq), strict=True)
        )
        return Pairs(left, right, self._things_of(left.key), step.left_ordinal, step.right_ordinal)

    def _emit_records(self, step: Step, effects: Effects) -> None:
        start = f"{self.name}:{self._unit}:"
        late, unmatched = effects.late, effects.unmatched
        late += self._found(Late, LEFT, step.left_late_seq, f"{start}left:%s")
        late += self._found(Late, RIGHT, step.right_late_seq, f"{start}right:%s")
        unmatched += self._found(Unmatched, LEFT, step.left_unmatched_seq, f"{start}%s:")
        unmatched += self._found(Unmatched, RIGHT, step.right_unmatched_seq, f"{start}:%s")

    def _found(self, kind: type[Output], stream: int, seq: Ints, identity: str) -> list[Output]:
        return self._outputs(kind, stream, self._payloads[stream].find(seq), identity) if len(seq) else []

    def _forget(self, step: Step) -> None:
        left, right = self._payloads
        for side, groups in (
            (left, (step.left_late_seq, step.left_duplicate_seq, step.left_released_seq)),
            (right, (step.right_late_seq, step.right_duplicate_seq, step.right_released_seq)),
        ):
            for gone in groups:
                if len(gone):
                    side.remove(gone)


def _arrow_encoder(settings: JoinerSettings, join: JoinSettings, unit: int) -> EncodePairs | None:
    if settings.application.results != "arrow":
        return None
    from joiner.runtime.task.arrow_results import ResultEncoder  # noqa: PLC0415 - pyarrow is an extra

    return ResultEncoder(settings, join, unit)
