"""Computes the rows of a grid: one for each key and tick, once all columns are certain at the tick.

Only each key's next tick is stored. Each step computes the ticks that have become certain, and takes their values from
the held records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from joiner.alignment.driver_rows import StepRows
from joiner.alignment.grid import NO_LIMIT, ColumnRules, Grid, KeyTicks, bound_ticks, count_ticks, find_ticks
from joiner.alignment.pending_rows import CompleteRows, value_of
from joiner.alignment.record_lists import NONE, RecordLists
from joiner.alignment.rules import RULES
from joiner.core.arguments import ALL_KEYS
from joiner.core.compiled import distinct
from joiner.core.errors import ArgumentError
from joiner.core.frontier import FOREVER, NEVER, Frontiers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joiner.alignment.relations import Input
    from joiner.alignment.rules import ColumnRule
    from joiner.core.arguments import Records

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]


class GridRows:
    """Computes the rows of a grid, and holds the records they need."""

    def __init__(self, rules: Mapping[str, ColumnRule], grid: Grid, *, watermark_scope: str) -> None:
        self._rules = dict(rules)
        self._grid = grid
        of_rules = list(rules.values())
        limits = [NO_LIMIT if rule.tolerance_ns is None else rule.tolerance_ns for rule in of_rules]
        self._column_rules = ColumnRules(
            np.array([RULES.index(rule.rule) for rule in of_rules], dtype=np.int64), np.array(limits, dtype=np.int64)
        )
        lateness_ns = [rule.lateness_ns for rule in of_rules]
        self._frontiers = Frontiers(lateness_ns, by_partition=watermark_scope == "partition")
        self._lists = RecordLists(len(of_rules))
        self._held = [0 for _ in of_rules]
        """The number of held records, by column."""
        self._ticks = KeyTicks(*(np.empty(0, dtype=np.int64) for _ in KeyTicks._fields))

    def __len__(self) -> int:
        """Return 0: grid rows are never pending."""
        return 0

    def held(self) -> int:
        """Return the number of column records currently held."""
        return len(self._lists)

    def held_by_stream(self) -> dict[str, int]:
        """Return the number of held records, by column."""
        return dict(zip(self._rules, self._held, strict=True))

    def held_ts(self, stream: str) -> Ints:
        """Return the times in ns of a column's held records, shape (n,)."""
        _, ts, _, _ = self._lists.rows(list(self._rules).index(stream))
        times: Ints = ts
        return times

    def held_records(self) -> dict[str, Ints]:
        """Return the keys and times (ns) of the held records, by column, shape (2, n) each."""
        return {name: self._lists.rows(column)[:2] for column, name in enumerate(self._rules)}

    def waiting_by_key(self) -> Ints:
        """Return, for each key, how many ticks up to its last record have no row yet, shape (keys,)."""
        return count_ticks(self._ticks, self._lists.nodes, self._lists.ends, self._options())

    def known_keys(self) -> Ints:
        """Return the keys that have had a record, or have a frontier of their own, ascending."""
        keys = np.arange(len(self._ticks.last))
        has_frontier = (self._frontiers.by_key.take(keys, axis=1) > self._frontiers.of_all).any(axis=0)
        return np.flatnonzero((self._ticks.last != NEVER) | has_frontier)

    def frontier_ns(self, keys: Ints) -> dict[str, Ints]:
        """Return each column's frontiers for ``keys``; see `LocalStreamBuffer.frontier_ns`."""
        found = np.repeat(self._frontiers.of_all, len(keys), axis=1)
        is_known = keys < self._frontiers.by_key.shape[1]
        found[:, is_known] = self._frontiers.at(keys[is_known])
        return dict(zip(self._rules, found, strict=True))

    def push(self, inputs: Mapping[str, Input], values: Mapping[str, Floats], *, ends: bool) -> StepRows:
        """Consume the next records, values and watermarks of the columns. ``ends``: whether all streams end with them.

        Raises `ArgumentError` if the step has too many ticks, and `MemoryError` or `ValueError` if the permitted number
        of ticks does not fit in memory. In both cases, the state is unchanged.
        """
        given = [inputs[name] for name in self._rules]
        keys = self._touched_keys(given, all_known=ends)
        self._lists.reserve(sum(len(one.records.key) for one in given))
        before = self._state_of(keys)
        late_seq: dict[str, Ints] = {}
        duplicate_seq: dict[str, Ints] = {}
        inserted: list[tuple[Ints, Ints]] = []
        for column, (name, one) in enumerate(zip(self._rules, given, strict=True)):
            late = self._frontiers.advance(column, *one)
            stays = np.delete(np.arange(len(one.records.key)), late)
            added = self._insert(column, one.records.without(late), values[name][stays])
            inserted.append((one.records.key[stays], added))
            late_seq[name], duplicate_seq[name] = one.records.seq[late], one.records.seq[stays[added == NONE]]
        if ends:
            self._frontiers.end()
        frontiers = self._frontiers.at(keys)
        for column, frontier in enumerate(frontiers):
            self._lists.settle(column, keys, frontier)
        try:
            ticks, following, crowded = self._find_ticks(keys, frontiers)
            if crowded != NONE:
                raise ArgumentError(self._too_many(int(keys[crowded]), int(following[crowded])))
            rows = self._rows_at(*ticks)
        except (ArgumentError, MemoryError, ValueError):
            # numpy raises ValueError for an array that exceeds the address space.
            self._undo(keys, before, inserted)
            raise
        self._ticks.following[keys] = following
        if ends:
            self._lists.clear()
            self._held = [0 for _ in self._held]
        else:
            for column, frontier in enumerate(frontiers):
                before_release = len(self._lists)
                self._lists.release(column, keys, frontier, following)
                added_count = int(np.count_nonzero(inserted[column][1] != NONE))
                self._held[column] += added_count + len(self._lists) - before_release
        return StepRows(rows, late_seq, duplicate_seq)

    def bounds_ns(self, keys: Ints) -> tuple[Ints, int]:
        """See `AlignBuffer.bounds_ns` and `bound_ticks`."""
        self._grow(int(keys[-1]) + 1 if len(keys) else 0)
        lists, frontiers = self._lists, self._frontiers.at(keys)
        bounds = bound_ticks(keys, self._ticks, frontiers, lists.nodes, lists.ends, self._options())
        return bounds, int(self._frontiers.of_all.min())

    def save(self) -> tuple[dict[str, Any], dict[str, Ints]]:
        """Return the state for `load`: values to be stored in a JSON header, and columns."""
        # The arrays also have entries for keys that have not appeared yet.
        is_known = (self._ticks.last != NEVER) | (self._frontiers.by_key != NEVER).any(axis=0)
        count = 1 + int(is_known.nonzero()[0].max(initial=-1))
        columns = {f"ticks.{name}": column[:count] for name, column in self._ticks._asdict().items()}
        for column, of_key in enumerate(self._frontiers.by_key):
            columns[f"{column}.frontier"] = of_key[:count]
            columns |= {f"{column}.{number}": part for number, part in enumerate(self._lists.rows(column))}
        return {"of_all": self._frontiers.of_all.ravel().tolist()}, columns

    def load(self, header: Mapping[str, Any], columns: Mapping[str, Ints]) -> None:
        """Restore the state returned by `save`. This object must not have consumed any input."""
        self._ticks = KeyTicks(*(columns[f"ticks.{name}"] for name in KeyTicks._fields))
        self._frontiers.of_all[:, 0] = header["of_all"]
        self._frontiers.by_key = np.stack([columns[f"{column}.frontier"] for column in range(len(self._rules))])
        self._lists.grow(len(self._ticks.last))
        self._lists.reserve(sum(len(columns[f"{column}.0"]) for column in range(len(self._rules))))
        keys = np.arange(len(self._ticks.last))
        for column, frontier in enumerate(self._frontiers.at(keys)):
            records = np.stack([columns[f"{column}.{number}"] for number in range(4)])
            self._lists.insert(column, records, finds_duplicates=False)
            self._lists.settle(column, keys, frontier)
            self._held[column] = records.shape[1]

    def _touched_keys(self, given: Sequence[Input], *, all_known: bool) -> Ints:
        """Return the keys that a batch can affect, ascending. ``all_known``: include every key with a past record."""
        parts = [key for one in given for key in (one.records.key, one.watermarks.key[one.watermarks.key != ALL_KEYS])]
        if all_known or any(self._frontiers.concerns_all(*one) for one in given):
            parts.append(np.flatnonzero(self._ticks.last != NEVER))
        keys = distinct(np.concatenate(parts), _NOTHING, _NOTHING)
        self._grow(int(keys[-1]) + 1 if len(keys) else 0)
        return keys

    def _grow(self, needed: int) -> None:
        """Allocate state for all keys below ``needed``."""
        have = len(self._ticks.last)
        if needed > have:
            self._frontiers.grow(needed)
            self._lists.grow(needed)
            more = max(needed - have, have)
            first, last, following = self._ticks
            self._ticks = KeyTicks(
                np.append(first, np.full(more, FOREVER)),
                np.append(last, np.full(more, NEVER)),
                np.append(following, np.full(more, NEVER)),
            )

    def _insert(self, column: int, records: Records, values: Floats) -> Ints:
        """Insert records that are not late. Return their nodes, or `NONE` for duplicates, shape (n,)."""
        np.minimum.at(self._ticks.first, records.key, records.ts)
        np.maximum.at(self._ticks.last, records.key, records.ts)
        identity = records.seq if records.identity is None else records.identity
        table = np.stack([records.key, records.ts, values.view(np.int64), identity])
        return self._lists.insert(column, table, finds_duplicates=records.identity is not None)

    def _find_ticks(self, keys: Ints, frontiers: Ints) -> tuple[Ints, Ints, int]:
        rules, lists = self._column_rules, self._lists
        return find_ticks(keys, self._ticks, frontiers, rules, lists.nodes, lists.ends, self._options())

    def _options(self) -> tuple[int, int, int, int]:
        """Return the options of the grid for compiled loops."""
        grid = self._grid
        max_gap_ns = NO_LIMIT if grid.max_gap_ns is None else grid.max_gap_ns
        return grid.every_ns, grid.phase_ns, max_gap_ns, grid.ticks_max

    def _rows_at(self, key: Ints, ts: Ints) -> CompleteRows:
        values, is_missing = np.empty((len(self._rules), len(key))), np.empty((len(self._rules), len(key)), dtype=bool)
        for column, rule in enumerate(self._rules.values()):
            relations = self._lists.neighbours(column, rule, key, ts)
            values[column], is_missing[column] = value_of(rule, ts, relations)
        return CompleteRows(self._grid.numbers(ts), key, ts, values, is_missing)

    def _state_of(self, keys: Ints) -> _State:
        return _State(
            self._frontiers.by_key[:, keys],
            self._frontiers.of_all.copy(),
            self._ticks.first[keys],
            self._ticks.last[keys],
            [self._lists.settled_at(column, keys) for column in range(len(self._rules))],
        )

    def _undo(self, keys: Ints, before: _State, inserted: Sequence[tuple[Ints, Ints]]) -> None:
        """Restore the state of the touched keys, and remove the records that were inserted.

        ``inserted``: for each column, the keys and the nodes of its new records.
        """
        self._frontiers.by_key[:, keys], self._frontiers.of_all = before.frontiers, before.of_all
        self._ticks.first[keys], self._ticks.last[keys] = before.first, before.last
        for column, (key, added) in enumerate(inserted):
            self._lists.remove(column, key, added, keys, before.settled[column])

    def _too_many(self, key: int, ts: int) -> str:
        return (
            f"grid: the step has more than ticks_max = {self._grid.ticks_max} ticks. Key {key} exceeded the limit "
            f"with its ticks from {ts} ns on; its last record is at {self._ticks.last[key]} ns. Restore a snapshot "
            "with a larger ticks_max, push fewer records at once, or set max_gap_ns to leave out the ticks in long "
            "pauses"
        )


class _State(NamedTuple):
    """The touched keys' state that a step changes before it finds the ticks, kept so that it can be restored."""

    frontiers: Ints
    of_all: Ints
    first: Ints
    last: Ints
    settled: list[Ints]


_NOTHING: Final = np.empty(0, dtype=np.int64)
