"""Computes one row for each record of a driver stream."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from joiner.alignment.pending_rows import CompleteRows, PendingRows
from joiner.alignment.relations import HELD_COLUMNS, Answers, Input, RelationBuffer, relation_of
from joiner.core.engine import LocalStreamBuffer, Step

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joiner.alignment.rules import ColumnRule

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

DRIVER: Final = "driver"


class StepRows(NamedTuple):
    """The rows completed in a step and, by stream, the positions of late and duplicate records (int64)."""

    rows: CompleteRows
    late_seq: dict[str, Ints]
    duplicate_seq: dict[str, Ints]


class DriverRows:
    """Computes the rows of a driver's records. Each column needs one or two relations to the driver."""

    def __init__(self, rules: Mapping[str, ColumnRule], *, lateness_ns: int, watermark_scope: str) -> None:
        """``rules``: the rule of each column, by name. ``lateness_ns``: the driver's lateness."""
        self._relations = [
            (name, relation_of(direction, rule.tolerance_ns, (lateness_ns, rule.lateness_ns), watermark_scope))
            for name, rule in rules.items()
            for direction in rule.directions
        ]
        self._pending = PendingRows(list(rules.values()))

    def __len__(self) -> int:
        """Return the number of rows waiting for a column's value."""
        return len(self._pending)

    def held(self) -> int:
        """Return the number of column records currently held."""
        counts = self.held_by_stream()
        return sum(counts.values()) - counts[DRIVER]

    def held_by_stream(self) -> dict[str, int]:
        """Return the number of held records, by stream.

        Each column record is counted once, even if two relations hold it. For the driver, this is the number of waiting
        rows or the largest number of driver records held by a single relation, whichever is larger.
        """
        counts = self.entries_by_stream()
        for (name, one), (of_other, other) in pairwise(self._relations):
            if name == of_other:
                counts[name] -= one.held_by_both(other)
        return counts

    def entries_by_stream(self) -> dict[str, int]:
        """Return the number of entries that occupy memory, by stream. Thread-safe.

        This is the number of held records, except that a column's record is counted once per relation that holds it.
        """
        counts = dict.fromkeys((DRIVER, *(name for name, _ in self._relations)), 0)
        for name, relation in self._relations:
            counts[name] += relation.held()
        return counts | {DRIVER: max(len(self), *(relation.held_of_driver() for _, relation in self._relations))}

    def held_ts(self, stream: str) -> Ints:
        """Return the times in ns of the waiting rows (``"driver"``) or of a column's held records, shape (n,)."""
        if stream == DRIVER:
            return self._pending.ts()
        seqs, times = zip(*(relation.held_ts() for name, relation in self._relations if name == stream), strict=True)
        _, first = np.unique(np.concatenate(seqs), return_index=True)
        return np.concatenate(times)[first]

    def held_values(self, stream: str) -> Floats:
        """Return the values of a column that are still needed, shape (n,). A value may occur more than once.

        These are the values of its held records, and those found for waiting rows.
        """
        parts = [
            values
            for number, (name, relation) in enumerate(self._relations)
            if name == stream
            for values in (relation.held_values(), self._pending.found_values(number))
        ]
        return np.concatenate(parts).view(np.float64)

    def held_records(self) -> dict[str, Ints]:
        """Return the keys and times (ns) of the held records, by stream, shape (2, n) each.

        Each record occurs once, even if several relations hold it.
        """
        parts: dict[str, list[Ints]] = {}
        for name, relation in self._relations:
            of_driver, of_column = relation.held_records()
            parts.setdefault(DRIVER, []).append(of_driver)
            parts.setdefault(name, []).append(of_column)
        found = {}
        for stream, of_stream in parts.items():
            key, ts, seq = np.concatenate(of_stream, axis=1)
            _, first = np.unique(seq, return_index=True)
            found[stream] = np.stack((key[first], ts[first]))
        return found

    def known_keys(self) -> Ints:
        """Return the keys with records or a frontier of their own, ascending; see `LocalStreamBuffer.known_keys`."""
        return np.unique(np.concatenate([relation.known_keys() for _, relation in self._relations]))

    def frontier_ns(self, keys: Ints) -> dict[str, Ints]:
        """Return each stream's frontiers for ``keys``; see `LocalStreamBuffer.frontier_ns`."""
        found = {DRIVER: self._relations[0][1].frontier_ns(keys)[0]}
        return found | {name: relation.frontier_ns(keys)[1] for name, relation in self._relations}

    def bounds_ns(self, keys: Ints) -> tuple[Ints, int]:
        """See `AlignBuffer.bounds_ns`. A bound is the driver's frontier or, if earlier, the time of a waiting row."""
        _, relation = self._relations[0]
        frontiers, _ = relation.frontier_ns(keys)
        return self._pending.oldest_ns(keys, frontiers), relation.driver_frontier_of_unused_ns()

    def push(self, inputs: Mapping[str, Input], values: Mapping[str, Floats], *, ends: bool) -> StepRows:
        """Consume the next records, column values and watermarks. ``ends``: whether all streams end with them."""
        driver, answers, steps = inputs[DRIVER], list[Answers](), dict[str, Step]()
        for name, relation in self._relations:
            answer, steps[name] = relation.push(driver, inputs[name], values[name].view(np.int64), ends=ends)
            answers.append(answer)
        of_driver = next(iter(steps.values()))
        late_seq = {DRIVER: of_driver.left_late_seq} | {name: step.right_late_seq for name, step in steps.items()}
        duplicates = {name: step.right_duplicate_seq for name, step in steps.items()}
        duplicate_seq = {DRIVER: of_driver.left_duplicate_seq} | duplicates
        if len(driver.records.seq):
            left_out = np.concatenate((late_seq[DRIVER], duplicate_seq[DRIVER]))
            accepted = driver.records.without(driver.records.seq.searchsorted(left_out))
            self._pending.add(accepted.key, accepted.ts, accepted.seq)
        return StepRows(self._pending.answer(answers), late_seq, duplicate_seq)

    def save(self) -> tuple[dict[str, Any], dict[str, Ints]]:
        """Return the state for `load`: values to be stored in a JSON header, and columns."""
        table = self._pending.rows()
        header: dict[str, Any] = {"pending": len(table)}
        columns = {f"pending.{number}": column for number, column in enumerate(table)}
        for number, (_, relation) in enumerate(self._relations):
            packed, held = relation.save()
            columns[f"{number}.buffer"] = _as_column(packed)
            columns |= {f"{number}.{column}": values for column, values in enumerate(held)}
            header[f"{number}.bytes"] = len(packed)
        return header, columns

    def load(self, header: Mapping[str, Any], columns: Mapping[str, Ints]) -> None:
        """Restore the state returned by `save`. This object must not have consumed any input."""
        self._pending.load(np.stack([columns[f"pending.{number}"] for number in range(header["pending"])]))
        self._relations = [
            (
                name,
                RelationBuffer(
                    LocalStreamBuffer.restore(_as_bytes(columns[f"{number}.buffer"], header[f"{number}.bytes"])),
                    np.stack([columns[f"{number}.{column}"] for column in range(HELD_COLUMNS)]),
                ),
            )
            for number, (name, _) in enumerate(self._relations)
        ]


def _as_column(data: bytes) -> Ints:
    """Return ``data`` as int64, padded with zero bytes."""
    return np.frombuffer(data + bytes(-len(data) % 8), dtype="<i8")


def _as_bytes(column: Ints, size: int) -> bytes:
    return column.astype("<i8").tobytes()[:size]
