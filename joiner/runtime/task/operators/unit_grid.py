"""Executes one align with a grid in one unit: holds the records of its columns, and computes the effects of a batch.

`AlignBuffer` holds everything that a row needs. A row is identified by its thing and the number of its tick.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from broker.wire.bulk import Pieces
from broker.wire.columns import StringColumn
from joiner.alignment.buffer import AlignBuffer, AlignedRows
from joiner.alignment.grid import GRID
from joiner.core.errors import ArgumentError
from joiner.runtime.task.emit import Things
from joiner.runtime.task.operators.align_operator import AlignOperator
from joiner.runtime.task.operators.held_by_key import HeldByKey
from joiner.runtime.task.unit_snapshot import SavedAlign, UnitSnapshot

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joiner.operators import AlignSettings, GridSettings
    from joiner.runtime.settings import JoinerSettings
    from joiner.runtime.task.append_times import AppendTimes
    from joiner.runtime.task.decoding.intake import SideInput
    from joiner.runtime.task.decoding.keys import Keys
    from joiner.runtime.task.effects import Effects

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

_RECORD_BYTES: Final = 120
"""Bytes of a held record: five numbers in a table that may be twice as large, and its place in a list of free nodes."""

_VALUES_MAX: Final = 1_000_000
"""The maximum number of values in a buffer step, which has one for each tick and column. Each takes up to a
hundred bytes while the step is being encoded."""

_NO_LIMIT: Final = 2**63 - 1


class UnitGrid(AlignOperator):
    """One align with a grid, in one unit."""

    holds = "records and ticks"

    def __init__(
        self,
        settings: JoinerSettings,
        align: AlignSettings,
        grid: GridSettings,
        unit: int,
        keys: Keys,
        appended: Mapping[str, AppendTimes],
    ) -> None:
        """See `UnitOperator`. ``grid``: the grid of ``align``."""
        super().__init__(settings, align, unit, keys, appended)
        self._ticks_max = max(1, _VALUES_MAX // len(self._rules))
        self._buffer = AlignBuffer(self._rules, grid=grid.grid(self._ticks_max), watermark_scope=align.watermark_scope)
        self._result = align.result
        self._ticks: int | None = None
        """How many ticks are waiting, or None if they have not been counted."""
        self._times_ns: dict[int, Ints] = {}
        """By stream, the sorted times of its held records, once they have been read."""

    def push(self, inputs: Sequence[SideInput], effects: Effects | None) -> dict[str, int]:
        """See `UnitOperator`. Return the numbers of rows, dropped rows (always 0), late records and duplicates."""
        counts = dict.fromkeys(("rows", "dropped", "late", "duplicates"), 0)
        given = {name: _Entries.of(side) for name, side in zip(self._streams, inputs, strict=True)}
        for found in self._steps(given):
            counts["rows"] += len(found)
            counts["late"] += sum(map(len, found.late_seq.values()))
            counts["duplicates"] += sum(map(len, found.duplicate_seq.values()))
            if effects is not None:
                self._emit_rows(found, effects)
                for stream, side in enumerate(inputs):
                    self._emit_late(stream, side, found.late_seq[self._streams[stream]], effects)
        self._forget_counts()
        return counts

    # Held records

    def held_by_stream(self) -> dict[str, int]:
        """See `UnitOperator`. ``"grid"``: the waiting ticks, which are not stored but will each get a row."""
        return {GRID: self._waiting(), **self._buffer.grid_rows.held_by_stream()}

    def held_bytes(self) -> dict[str, int]:
        """See `UnitOperator`."""
        return {name: count * _RECORD_BYTES for name, count in self._buffer.grid_rows.held_by_stream().items()}

    def known_keys(self) -> Ints:
        """See `UnitOperator`. A thing that has had a record stays known: its next record adds the ticks since then."""
        return self._buffer.grid_rows.known_keys()

    def held_by_key(self) -> HeldByKey:
        """See `UnitOperator`. In ``held``, waiting ticks are counted under ``"grid"``."""
        found, keys = super().held_by_key(), self._keys.numbers_in_use()
        waiting = np.zeros(len(self._keys.things), dtype=np.int64)
        of_known = self._buffer.grid_rows.waiting_by_key()[: len(waiting)]
        waiting[: len(of_known)] = of_known
        return found._replace(held={GRID: waiting.take(keys), **found.held})

    def _held_keys_and_times(self) -> dict[str, Ints]:
        return self._buffer.grid_rows.held_records()

    def _held_records(self) -> int:
        return self._buffer.held()

    def _frontiers_ns(self) -> list[Ints]:
        frontiers = self._buffer.grid_rows.frontier_ns(self._keys.numbers_in_use())
        return [frontiers[stream] for stream in self._streams]

    def _leading_pairs(self) -> list[tuple[int, int]]:
        columns = range(len(self._streams))
        return [(one, other) for one in columns for other in columns if one != other]

    def _count_later(self, stream: int, ts_ns: int) -> int:
        times = self._held_times_ns(stream)
        return len(times) - int(times.searchsorted(ts_ns, side="right"))

    def _latest_held_ns(self, stream: int) -> int | None:
        times = self._held_times_ns(stream)
        return int(times[-1]) if len(times) else None

    def _held_times_ns(self, stream: int) -> Ints:
        """Return the times of a stream's held records, ascending."""
        times = self._times_ns.get(stream)
        if times is None:
            times = self._times_ns[stream] = np.sort(self._buffer.grid_rows.held_ts(self._streams[stream]))
        return times

    def _waiting(self) -> int:
        """Return how many ticks are waiting."""
        if self._ticks is None:
            self._ticks = int(self._buffer.grid_rows.waiting_by_key().sum())
        return self._ticks

    def _forget_counts(self) -> None:
        """Forget what was derived from the buffer's state, because that has changed."""
        self._ticks, self._times_ns = None, {}

    # Snapshots

    def save(self, saved: UnitSnapshot) -> None:
        """See `UnitOperator`."""
        saved.aligns[self.name] = SavedAlign(self._buffer.snapshot(), b"")

    def load(self, saved: UnitSnapshot) -> None:
        """See `UnitOperator`."""
        self._buffer = AlignBuffer.restore(saved.aligns[self.name].buffer, ticks_max=self._ticks_max)
        self._forget_counts()

    # Steps of `push`

    def _steps(self, given: Mapping[str, _Entries]) -> Iterator[AlignedRows]:
        """Yield the rows that ``given`` completes, in as many steps as the limit for ticks requires.

        The rows depend on what was consumed, not on how it was divided into steps.
        """
        try:
            found = self._step(given)
        except ArgumentError:
            if sum(map(len, given.values())) > 1:
                for part in _halves(given):
                    yield from self._steps(part)
                return
            found = self._step_without_limit(given)
        yield found

    def _step(self, given: Mapping[str, _Entries]) -> AlignedRows:
        return self._buffer.push(
            columns={name: (one.records, one.values) for name, one in given.items() if len(one.values)},
            column_watermarks={name: one.watermarks for name, one in given.items() if len(one.watermarks[0])},
        )

    def _step_without_limit(self, given: Mapping[str, _Entries]) -> AlignedRows:
        """Consume a single entry. The ticks that it completes were counted as held, except those that it adds."""
        self._buffer = AlignBuffer.restore(self._buffer.snapshot(), ticks_max=_NO_LIMIT)
        found = self._step(given)
        self._buffer = AlignBuffer.restore(self._buffer.snapshot(), ticks_max=self._ticks_max)
        return found

    def _emit_rows(self, found: AlignedRows, effects: Effects) -> None:
        if not len(found):
            return
        things = self._things_of(found.key)
        if self._function is None:
            results = self._results(found)
        else:
            places = _places(found, things)
            found, things, results, _ = self._function.compute(found, None, things, places, effects)
        position: Pieces = [_unquoted(things), b":", found.seq]
        self._write_rows(found, things, results, position, np.zeros(len(found), dtype=np.int64), effects)

    def _results(self, found: AlignedRows) -> Floats:
        """Return each row's result: the value of the column ``result`` or, without one, the number of its values."""
        if self._result is not None:
            return found.values[self._result]
        has_value = np.stack([~missing for missing in found.is_missing.values()])
        counts: Floats = has_value.sum(axis=0, dtype=np.float64)
        return counts


class _Entries(NamedTuple):
    """What a column consumes: its records (key, time in ns, position, identity) with their values, and its watermarks.

    ``watermarks``: key, time and position. All arrays have shape (n,), with a different n for the watermarks.
    """

    records: tuple[Ints, Ints, Ints, Ints]
    values: Floats
    watermarks: tuple[Ints, Ints, Ints]

    @classmethod
    def of(cls, side: SideInput) -> _Entries:
        """Return the entries of a stream."""
        no_records = (_NOTHING, _NOTHING, _NOTHING, _NOTHING)
        no_watermarks = (_NOTHING, _NOTHING, _NOTHING)
        return cls(side.columns() or no_records, side.rows().result, side.watermarks() or no_watermarks)

    def __len__(self) -> int:
        return len(self.values) + len(self.watermarks[0])

    def split(self, seq: int) -> tuple[_Entries, _Entries]:
        """Return the entries before the position ``seq``, and those at or after it."""
        at, mark = int(self.records[2].searchsorted(seq)), int(self.watermarks[2].searchsorted(seq))
        (key, ts, place, identity), (mark_key, mark_ts, mark_place) = self.records, self.watermarks
        first, rest = (
            _Entries(
                (key[rows], ts[rows], place[rows], identity[rows]),
                self.values[rows],
                (mark_key[marks], mark_ts[marks], mark_place[marks]),
            )
            for rows, marks in ((slice(at), slice(mark)), (slice(at, None), slice(mark, None)))
        )
        return first, rest

    def middle(self) -> int:
        """Return the position that halves the entries. There must be at least one."""
        places = np.sort(np.concatenate((self.records[2], self.watermarks[2])))
        return int(places[len(places) // 2])


def _halves(given: Mapping[str, _Entries]) -> Iterator[dict[str, _Entries]]:
    """Split the entries into two non-empty parts, and yield both. There must be at least two entries."""
    name, longest = max(given.items(), key=lambda one: len(one[1]))
    # If no column has more than one entry, the entry of one column comes first.
    place = longest.middle() if len(longest) > 1 else _NO_LIMIT
    first: dict[str, _Entries] = {}
    rest: dict[str, _Entries] = {}
    for column, entries in given.items():
        middle = place if column == name else entries.middle() if len(entries) > 1 else -1
        first[column], rest[column] = entries.split(middle)
    yield first
    yield rest


def _places(found: AlignedRows, things: Things) -> Callable[[int], str]:
    return lambda at: f"{things.names[things.number[at]]}:{found.seq[at]}"


def _unquoted(things: Things) -> StringColumn:
    """Return the name of each row's thing as JSON, without the quotation marks."""
    texts = things.texts()
    return StringColumn(texts.data, texts.start + 1, texts.end - 1)


_NOTHING: Final = np.empty(0, dtype=np.int64)
