"""Defines `UnitOperator`, the interface and the shared implementation of a unit's joins and aligns.

An operator has one or more streams, each a selection of the unit's input, in a fixed order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from msgspec import UNSET

from broker.wire.records import ROW_BITS, Late, Unmatched, position_text
from joiner.core.frontier import NEVER
from joiner.runtime.task.emit import Things, record_of, sides_of
from joiner.runtime.task.flow_control import RESUME_BELOW, Lead
from joiner.runtime.task.operators.held_by_key import HeldByKey
from joiner.runtime.task.payloads import Rows, with_json

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joiner.operators import AlignSettings, JoinSettings
    from joiner.runtime.model import AlignSummary, JoinSummary
    from joiner.runtime.settings import JoinerSettings
    from joiner.runtime.task.append_times import AppendTimes
    from joiner.runtime.task.decoding.intake import SideInput
    from joiner.runtime.task.decoding.keys import Keys
    from joiner.runtime.task.effects import Effects
    from joiner.runtime.task.unit_snapshot import UnitSnapshot

    Ints = NDArray[np.int64]

Output = TypeVar("Output", Late, Unmatched)


class UnitOperator(ABC):
    """A join or an align in one unit."""

    holds = "records"
    """What `held` counts, worded for users."""

    def __init__(
        self,
        settings: JoinerSettings,
        operator: JoinSettings | AlignSettings,
        unit: int,
        keys: Keys,
        appended: Mapping[str, AppendTimes],
    ) -> None:
        """Start without held records. ``appended``: the append times by topic, empty if there are no metrics."""
        self.name, self.output = operator.name, operator.output
        self._settings, self._unit = settings, unit
        self._keys, self._appended = keys, appended
        self._has_rows = settings.topics.has_rows
        self._streams = list(operator.streams)
        selections = [settings.selection(stream) for stream in operator.streams.values()]
        self._topics = [str(selection["topic"]) for selection in selections]
        self._quantities = [selection["quantity"] for selection in selections]
        self._lateness_ns = list(operator.lateness_by_stream.values())

    @abstractmethod
    def push(self, inputs: Sequence[SideInput], effects: Effects | None) -> dict[str, int]:
        """Consume the input of each stream and add the effects to ``effects`` (None: only rebuild the state).

        Return counts by kind, such as results, late records and duplicates.
        """

    @abstractmethod
    def summary(self) -> JoinSummary | AlignSummary:
        """Return the numbers of held records and keys, and the frontiers."""

    @abstractmethod
    def held_by_stream(self) -> dict[str, int]:
        """Return the number of records held, by stream."""

    @abstractmethod
    def held_bytes(self) -> dict[str, int]:
        """Return the approximate bytes held, by stream. Thread-safe."""

    @abstractmethod
    def known_keys(self) -> Ints:
        """Return the numbers of the keys that the operator still refers to."""

    @abstractmethod
    def bounds_ns(self, count: int) -> tuple[Ints, int]:
        """Return lower bounds, in ns, on the times of the results still to come.

        The first value holds the bound of each key below ``count``, shape (count,). The second is the bound of a key
        that was never used. A bound is the smallest int64 if nothing is known.
        """

    @abstractmethod
    def save(self, saved: UnitSnapshot) -> None:
        """Add the operator to a snapshot."""

    @abstractmethod
    def load(self, saved: UnitSnapshot) -> None:
        """Restore what `save` has added to a snapshot.

        Raises `SnapshotError`, KeyError or msgspec.DecodeError if that fails.
        """

    @abstractmethod
    def _held_keys_and_times(self) -> dict[str, Ints]:
        """Return the keys and the times in ns of the held records, by stream, shape (2, n) each."""

    @abstractmethod
    def _frontiers_ns(self) -> list[Ints]:
        """Return the frontiers of each stream in ns, for all keys in use."""

    @abstractmethod
    def _leading_pairs(self) -> list[tuple[int, int]]:
        """Return the pairs of streams in which the first may have to wait for the second."""

    @abstractmethod
    def _count_later(self, stream: int, ts_ns: int) -> int:
        """Return how many held records of a stream are later than ``ts_ns``."""

    @abstractmethod
    def _latest_held_ns(self, stream: int) -> int | None:
        """Return the largest time of a stream's held records, or None if there are none."""

    def held(self) -> int:
        """Return the number of records held."""
        return sum(self.held_by_stream().values())

    def room(self) -> dict[str, tuple[int, int]]:
        """Return how much of the buffer is used, and its limit, by the name of the setting for the limit."""
        limits = self._settings.application
        return {
            "buffer_records_max": (self.held(), limits.buffer_records_max),
            "buffer_bytes_max": (sum(self.held_bytes().values()), limits.buffer_bytes_max),
        }

    def held_by_key(self) -> HeldByKey:
        """Return what is held for each thing."""
        keys, streams = self._keys.numbers_in_use(), self._streams
        frontiers = dict(zip(streams, self._frontiers_ns(), strict=True))
        waits = [(streams[one], streams[other]) for one, other in self._leading_pairs()]
        return HeldByKey.of(self._keys.things, keys, self._held_keys_and_times(), frontiers, waits)

    def fullest_keys(self, count: int) -> list[tuple[str, int]]:
        """Return the ``count`` things with the most held records, each with its number of records."""
        found = self.held_by_key()
        held = found.totals()
        return [(found.things[at], int(held[at])) for at in np.argsort(-held)[:count].tolist() if held[at]]

    def leads(self) -> list[Lead]:
        """Return how far streams lead each other, if their topics differ and the buffer is filling up."""
        pairs = [(one, other) for one, other in self._leading_pairs() if self._topics[one] != self._topics[other]]
        if not pairs:
            return []
        fill = max(used / limit for used, limit in self.room().values())
        if fill < RESUME_BELOW:
            return []
        records = self._held_records()
        latest_ns = [self._latest_ns(stream, frontier) for stream, frontier in enumerate(self._frontiers_ns())]
        return [
            Lead(self._topics[one], self._topics[other], fill, self._count_later(one, latest_ns[other]) / records)
            for one, other in pairs
        ]

    def _latest_ns(self, stream: int, frontiers: Ints) -> int:
        """Return approximately the largest time seen in a stream, in a record of any key or in a watermark.

        If the stream holds records, this is the time of the latest one, or the frontier, which a watermark may have set
        beyond it. If it holds none, the frontier is assumed to come from a record, which is later by the lateness.
        """
        frontier_ns, held_ns = int(frontiers.max(initial=NEVER)), self._latest_held_ns(stream)
        return frontier_ns + self._lateness_ns[stream] if held_ns is None else max(frontier_ns, held_ns)

    # For the subclasses

    def _held_records(self) -> int:
        """Return the number of records held, excluding anything else that `held` counts."""
        return self.held()

    def _spans(self) -> list[tuple[int, int] | None]:
        """Return the lowest and the highest frontier of each stream in ns, or None if no key has a frontier there."""
        known = (frontier[frontier != NEVER] for frontier in self._frontiers_ns())
        return [(int(some.min()), int(some.max())) if len(some) else None for some in known]

    def _outputs(self, kind: type[Output], stream: int, rows: Rows, identity: str) -> list[Output]:
        """Return a stream's late or unmatched records. ``identity``: their id, with %s in place of the position."""
        if not len(rows.seq):
            return []
        if self._has_rows:
            rows = with_json(rows, self._quantities[stream], self._settings.events.time_unit)
        bits, application = ROW_BITS if self._has_rows else 0, self._settings.application.shared_name
        return [
            kind(
                identity % position_text(seq, has_rows=self._has_rows),
                application,
                self.name,
                self._streams[stream],
                self._topics[stream],
                self._unit,
                seq >> bits,
                record_of(thing, shown),
                seq & (1 << bits) - 1 if bits else UNSET,
            )
            for seq, thing, shown in zip(
                rows.seq.tolist(), self._things_of(rows.key).each(), sides_of(rows), strict=True
            )
        ]

    def _emit_late(self, stream: int, side: SideInput, late_seq: Ints, effects: Effects) -> None:
        """Add the late records of an align's stream, whose input is ``side``, to the effects."""
        if len(late_seq):
            rows = side.rows()
            late = rows.take(rows.seq.searchsorted(late_seq))
            identity = f"{self.name}:{self._unit}:{self._streams[stream]}:%s"
            effects.late += self._outputs(Late, stream, late, identity)

    def _appended_ms(self, stream: int, seq: Ints) -> Ints:
        """Return the append times (ms) of a stream's records, shape (n,)."""
        return self._appended[self._topics[stream]].of(seq >> ROW_BITS if self._has_rows else seq)

    def _things_of(self, keys: Ints) -> Things:
        things = self._keys.things
        is_there = np.zeros(len(things), dtype=bool)
        is_there[keys] = True
        there = is_there.nonzero()[0]
        number = np.empty(len(things), dtype=np.int64)
        number[there] = np.arange(len(there))
        return Things([things[key] for key in there.tolist()], number.take(keys))


def note_latencies(effects: Effects, appended_ms: Ints) -> None:
    """Count results by the append times (ms) from which their latency is measured, shape (n,)."""
    times_ms, counts = np.unique(appended_ms, return_counts=True)
    effects.appended_ms.update(dict(zip(times_ms.tolist(), counts.tolist(), strict=True)))
