"""One join in one unit: its held records, and the effects of a batch.

The engine holds the keys and times of the held records, `Payloads` their other fields, both by offset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeVar

import numpy as np
from msgspec import UNSET

from broker.wire.records import ROW_BITS, Late, Unmatched, position_text
from joiner.core.engine import LocalStreamBuffer, Step
from joiner.runtime.model import JoinSummary
from joiner.runtime.task.decode import LEFT, RIGHT, Keys, SideInput
from joiner.runtime.task.emit import Emitter, EncodePairs, Pairs, Things, record_of, sides_of
from joiner.runtime.task.flow_control import RESUME_BELOW, Lead
from joiner.runtime.task.function_failures import add_up
from joiner.runtime.task.payloads import Payloads, with_json
from joiner.runtime.task.unit_snapshot import UnitSnapshot, restore_rows, restore_short, save_rows, save_short

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from joiner.runtime.settings import JoinerSettings, JoinSettings
    from joiner.runtime.task.append_times import AppendTimes
    from joiner.runtime.task.effects import Effects

    Ints = NDArray[np.int64]

_SideName = Literal["left", "right"]
_SIDE_NAMES: Final[tuple[_SideName, _SideName]] = ("left", "right")

_Emitted = TypeVar("_Emitted", Late, Unmatched)


class UnitJoin:
    """One join of a unit: the engine, and the payloads of the records that it holds."""

    def __init__(
        self,
        settings: JoinerSettings,
        join: JoinSettings,
        unit: int,
        keys: Keys,
        appended: Mapping[str, AppendTimes],
    ) -> None:
        """Start without held records. ``keys``: those of the unit; ``appended``: by topic, empty without metrics."""
        self.name = join.name
        self._settings, self._join, self._unit = settings, join, unit
        self._keys, self._appended = keys, appended
        self._topics = str(settings.stream(join.left)["topic"]), str(settings.stream(join.right)["topic"])
        self._buffer = LocalStreamBuffer(
            tolerance_ns=join.tolerance,
            lateness_ns=join.lateness,
            direction=join.direction,
            driver=join.driver,
            watermark_scope=join.watermark_scope,
            emit_unmatched=join.emit_unmatched,
        )
        self._payloads = Payloads(), Payloads()
        self._has_rows = settings.topics.has_rows
        self._quantities = settings.stream(join.left)["quantity"], settings.stream(join.right)["quantity"]
        self._emitter = Emitter(settings, join, unit, _arrow_encoder(settings, join, unit))

    def push(self, left: SideInput, right: SideInput, effects: Effects | None) -> dict[str, int]:
        """Join the input of both sides and add its effects to ``effects`` (None: only rebuild the state).

        Return the numbers of pairs, late records, duplicates and unmatched records.
        """
        for payloads, side in zip(self._payloads, (left, right), strict=True):
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
        """Return the number of records held."""
        return len(self._buffer)

    def held_bytes(self) -> tuple[int, int]:
        """Return the approximate bytes held by the left and the right side. Thread-safe."""
        left, right = self._payloads
        return left.size, right.size

    def summary(self) -> JoinSummary:
        """Return the numbers of held records and keys, and the frontiers."""
        left, right = (_span(frontier) for frontier in self._buffer.frontier_ns(self._keys.numbers_in_use()))
        held_left, held_right = (len(side) for side in self._payloads)
        return JoinSummary(held_left, held_right, len(self._keys), left, right)

    def leads(self) -> list[Lead]:
        """Return how far each side leads the other, if their topics differ and the buffer is filling up."""
        fill = max(used / limit for used, limit in self.room().values())
        if self._topics[LEFT] == self._topics[RIGHT] or fill < RESUME_BELOW:
            return []
        latest_ns = self._latest_ns()
        return [
            Lead(
                self._topics[side],
                self._topics[1 - side],
                fill,
                payloads.count_later(latest_ns[1 - side]) / len(self._buffer),
            )
            for side, payloads in enumerate(self._payloads)
        ]

    def room(self) -> dict[str, tuple[int, int]]:
        """Return the used amount and the limit of the buffer, by the name of the limit's setting."""
        limits = self._settings.application
        return {
            "buffer_records_max": (len(self._buffer), limits.buffer_records_max),
            "buffer_bytes_max": (sum(self.held_bytes()), limits.buffer_bytes_max),
        }

    def fullest_keys(self, count: int) -> list[tuple[str, int]]:
        """Return the ``count`` things with the most held records, each with their number."""
        keys, held = self._buffer.held_by_key()
        return [(self._keys.things[keys[at]], int(held[at])) for at in np.argsort(-held)[:count].tolist()]

    def known_keys(self) -> Ints:
        """Return the numbers of the keys to which the join still refers."""
        return self._buffer.known_keys()

    # Snapshots

    def save(self, saved: UnitSnapshot) -> None:
        """Add this join to a snapshot."""
        saved.buffers[self.name] = self._buffer.snapshot()
        for name, side, quantity in zip(_SIDE_NAMES, self._payloads, self._quantities, strict=True):
            rows = side.rows()
            saved.rows[f"{self.name}.{name}"] = (
                save_short(rows, quantity) if self._has_rows else save_rows(rows, self._settings.events.time_unit)
            )

    def load(self, saved: UnitSnapshot) -> None:
        """Load what `save` has added. Raises `SnapshotError`, KeyError or msgspec.DecodeError."""
        parts = [saved.rows[f"{self.name}.{name}"] for name in _SIDE_NAMES]
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
            self._note_append_times(step, effects)

    def _pairs(self, step: Step, *, with_strings: bool) -> Pairs:
        left, right = (
            side.find(seq) if with_strings else side.find_numbers(seq)
            for side, seq in zip(self._payloads, (step.left_seq, step.right_seq), strict=True)
        )
        return Pairs(left, right, self._things_of(left.key), step.left_ordinal, step.right_ordinal)

    def _note_append_times(self, step: Step, effects: Effects) -> None:
        left, right = (
            self._appended[topic].of(seq >> ROW_BITS if self._has_rows else seq)
            for topic, seq in zip(self._topics, (step.left_seq, step.right_seq), strict=True)
        )
        times_ms, pairs = np.unique(np.maximum(left, right), return_counts=True)
        effects.appended_ms.update(dict(zip(times_ms.tolist(), pairs.tolist(), strict=True)))

    def _emit_records(self, step: Step, effects: Effects) -> None:
        start = f"{self.name}:{self._unit}:"
        late, unmatched = effects.late, effects.unmatched
        late += self._emitted(Late, LEFT, step.left_late_seq, f"{start}left:%s")
        late += self._emitted(Late, RIGHT, step.right_late_seq, f"{start}right:%s")
        unmatched += self._emitted(Unmatched, LEFT, step.left_unmatched_seq, f"{start}%s:")
        unmatched += self._emitted(Unmatched, RIGHT, step.right_unmatched_seq, f"{start}:%s")

    def _emitted(self, kind: type[_Emitted], side: int, emitted_seq: Ints, identity: str) -> list[_Emitted]:
        if not len(emitted_seq):
            return []
        rows = self._payloads[side].find(emitted_seq)
        if self._has_rows:
            rows = with_json(rows, self._quantities[side], self._settings.events.time_unit)
        bits = ROW_BITS if self._has_rows else 0
        return [
            kind(
                identity % position_text(seq, has_rows=self._has_rows),
                self._settings.application.name,
                self.name,
                _SIDE_NAMES[side],
                self._topics[side],
                self._unit,
                seq >> bits,
                record_of(thing, shown),
                seq & (1 << bits) - 1 if bits else UNSET,
            )
            for seq, thing, shown in zip(
                emitted_seq.tolist(), self._things_of(rows.key).each(), sides_of(rows), strict=True
            )
        ]

    def _forget(self, step: Step) -> None:
        left, right = self._payloads
        for side, groups in (
            (left, (step.left_late_seq, step.left_duplicate_seq, step.left_released_seq)),
            (right, (step.right_late_seq, step.right_duplicate_seq, step.right_released_seq)),
        ):
            for gone in groups:
                if len(gone):
                    side.remove(gone)

    def _things_of(self, keys: Ints) -> Things:
        things = self._keys.things
        is_there = np.zeros(len(things), dtype=bool)
        is_there[keys] = True
        there = is_there.nonzero()[0]
        number = np.empty(len(things), dtype=np.int64)
        number[there] = np.arange(len(there))
        return Things([things[key] for key in there.tolist()], number.take(keys))

    def _latest_ns(self) -> tuple[int, int]:
        """Return the largest time (ns) of the left and the right side, by a record of any key or a watermark."""
        frontiers = self._buffer.frontier_ns(self._keys.numbers_in_use())
        lefts, rights = (
            int(frontier.max(initial=np.iinfo(np.int64).min)) + lateness_ns
            for frontier, lateness_ns in zip(frontiers, self._join.lateness, strict=True)
        )
        return lefts, rights


def _span(frontier: Ints) -> tuple[int, int] | None:
    known = frontier[frontier != np.iinfo(np.int64).min]
    return (int(known.min()), int(known.max())) if len(known) else None


def _arrow_encoder(settings: JoinerSettings, join: JoinSettings, unit: int) -> EncodePairs | None:
    if settings.application.results != "arrow":
        return None
    from joiner.runtime.task.arrow.results import ResultEncoder  # noqa: PLC0415 - pyarrow is an extra

    return ResultEncoder(settings, join, unit)
