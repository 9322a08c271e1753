"""Stores the held records of both sides. If one side runs ahead of the other, most of its records are in its backlog.

A record can move to the backlog if it is later than the other side's frontier and later than every record with its key
on the other side, and if no earlier record can still arrive on its own side. For each key, the first such record and
the last ones stay in the table. The first is the next neighbour of any record that the other side sends, and the last
ones may be the previous neighbours of records that arrive next. All records in between have the same neighbours as the
first, so no step needs to evaluate them, and the cost of a step does not depend on the size of the backlog.

The backlog consists of runs sorted by key, time and position. Small runs are merged into larger ones, so the number of
runs is logarithmic in the number of records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import numpy as np

from joiner.core.compiled import FLAGS, INTS, TABLE, compiled
from joiner.core.frontier import FOREVER
from joiner.core.record_store import (
    COLUMNS,
    KEY,
    SIDE,
    TS,
    RecordStore,
    Side,
    in_time_order,
    number,
    table_of,
    without_duplicates,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from joiner.core.arguments import Records
    from joiner.core.frontier import Frontiers

    Ints = NDArray[np.int64]
    Flags = NDArray[np.uint8]

_FEW_RECORDS: Final = 1_000
_RECORDS_PER_TOUCHED: Final = 4

_LEFT, _RIGHT = 0, 1
_BOTH_WAYS: Final = ((_LEFT, _RIGHT), (_RIGHT, _LEFT))


def is_backlog(kept: int, touched: int) -> bool:
    """Return whether a step keeps far more records than it touches, and should therefore move some to the backlog.

    ``kept``: the number of records that the step keeps. ``touched``: the number of new records plus the number of keys.
    """
    return kept > _FEW_RECORDS + _RECORDS_PER_TOUCHED * touched


class HeldRecords:
    """The held records of both sides. Each record is either in a table (`RecordStore`) or in the backlog."""

    def __init__(self) -> None:
        self._tables = RecordStore(), RecordStore()
        self._backlogs = Backlog(), Backlog()
        # Maps each key of the current step to its index among the keys of that step.
        self._place = np.empty(0, dtype=np.int64)

    def __len__(self) -> int:
        return self.in_tables() + sum(map(len, self._backlogs))

    def in_tables(self) -> int:
        """Return the number of records outside the backlog."""
        return sum(map(len, self._tables))

    def grow(self, keys: int) -> None:
        """Allocate state for all keys below ``keys``."""
        for table in self._tables:
            table.grow(keys)

    def keys(self) -> Ints:
        """Return the keys that have records on either side, ascending."""
        return np.union1d(*self.keys_by_side())

    def keys_by_side(self) -> tuple[Ints, Ints]:
        """Return the keys with records on the left side and the keys with records on the right side, both ascending."""
        # A key that has a backlog also has records in the table.
        return self._tables[_LEFT].keys(), self._tables[_RIGHT].keys()

    def count(self, keys: Ints) -> Ints:
        """Return how many records are held for each of ``keys`` across both sides, shape (k,).

        ``keys`` must be ascending and include every key that has a backlog.
        """
        found: Ints = np.sum([held.count(keys) for held in (*self._tables, *self._backlogs)], axis=0, dtype=np.int64)
        return found

    def rows(self, side: int) -> Ints:
        """Return all records of a side (0 left, 1 right) as a table, sorted by key, time and position."""
        keys = self._tables[side].keys()
        backlog = in_time_order(self._backlogs[side].all())
        return self._tables[side].merge(keys, self._places_of(keys), backlog, since=0)[0].rows

    def in_table(self, keys: Ints) -> tuple[Side, Side]:
        """Return both sides' records of ``keys`` (ascending), except those in the backlog."""
        places = self._places_of(keys)
        left, right = (table.merge(keys, places, _NO_TABLE, since=0)[0] for table in self._tables)
        return left, right

    def load(self, side: int, rows: Ints) -> None:
        """Load records that `rows` returned. The side must be empty."""
        keys = np.unique(rows[KEY])
        table = self._tables[side]
        merged, _ = table.merge(keys, self._places_of(keys), in_time_order(np.ascontiguousarray(rows)), since=0)
        table.put(keys, merged, merged.begin[:-1])

    def merge(
        self,
        keys: Ints,
        new: tuple[Records, Records],
        frontiers: Frontiers,
        since: Sequence[int],
        has_identities: Sequence[bool | None],
    ) -> tuple[tuple[Side, Side], tuple[Ints, Ints]]:
        """Merge the new records with those held for ``keys``. Return the sides without duplicates, and the duplicates.

        ``keys`` are ascending, and ``frontiers`` already take the new records into account. ``since``: for each side,
        the last log position before the step. ``has_identities``: for each side, whether its records have identities.
        Duplicates are returned as log positions, by side.
        """
        tables = [table_of(*records) for records in new]
        if any(map(len, self._backlogs)):
            reached = frontiers.reached(keys, new)
            for side, other in _BOTH_WAYS:
                woken = self._backlogs[side].take(keys, reached[other])
                tables[side] = np.concatenate((woken, tables[side]), axis=1)
        places = self._places_of(keys)
        sides, duplicates = [], []
        for side, table in enumerate(tables):
            merged, has_equal = self._tables[side].merge(keys, places, in_time_order(table), since=since[side])
            repeated = _NOTHING
            if has_equal:
                if has_identities[side]:
                    merged, repeated = without_duplicates(merged)
                number(merged)
            sides.append(merged)
            duplicates.append(repeated)
        return (sides[_LEFT], sides[_RIGHT]), (duplicates[_LEFT], duplicates[_RIGHT])

    def put(
        self, keys: Ints, sides: tuple[Side, Side], kept: tuple[Ints, Ints], frontiers: Ints, *, has_backlog: bool
    ) -> None:
        """Replace the records held for ``keys`` with the records in ``sides`` that are still needed.

        ``kept``: for each side, the index of the first record to keep for each key, shape (k,). ``frontiers``: the
        frontiers of each key, shape (2, k), ns. ``has_backlog``: whether to move records to the backlog.
        """
        for own, other in _BOTH_WAYS:
            side, first = sides[own], kept[own]
            if has_backlog:
                side, first = self._backlogs[own].put(side, first, sides[other], frontiers[own], frontiers[other])
            self._tables[own].put(keys, side, first)

    def _places_of(self, keys: Ints) -> Ints:
        """Return an array that maps each of ``keys`` to its index in ``keys``. Entries for other keys are undefined."""
        if len(keys) and len(self._place) <= keys[-1]:
            self._place = np.empty(2 * int(keys[-1]) + 1, dtype=np.int64)
        self._place[keys] = np.arange(len(keys))
        return self._place


class Backlog:
    """The backlog of one side: the records that no step needs to evaluate for now."""

    def __init__(self) -> None:
        self._runs: list[_Run] = []
        # For each key, the time of the last record in the table that precedes the backlog; FOREVER without a backlog.
        self._first = np.empty(0, dtype=np.int64)

    def __len__(self) -> int:
        return sum(run.live for run in self._runs)

    def count(self, keys: Ints) -> Ints:
        """Return how many records the backlog holds for each of ``keys``, shape (k,).

        ``keys`` must be ascending and include every key that has a backlog.
        """
        found = np.zeros(len(keys), dtype=np.int64)
        for run in self._runs:
            # Skip keys whose records have all been taken: they may not be among `keys`.
            live = (run.end > run.start).nonzero()[0]
            found[keys.searchsorted(run.key.take(live))] += (run.end - run.start).take(live)
        return found

    def all(self) -> Ints:
        """Return all backlog records as a table, with each key's records in time order."""
        return _concatenate([run.rows_of(run.start, run.end) for run in self._runs])

    def take(self, keys: Ints, until: Ints) -> Ints:
        """Remove and return the records of ``keys`` that a step needs once the other side has reached ``until``.

        These are the records up to the time ``until``, shape (k,), ns, and the first one after it. Each key's records
        are returned in time order.
        """
        self._grow(keys)
        due = (self._first.take(keys) <= until).nonzero()[0]
        if not len(due):
            return _NO_TABLE
        keys, until = keys.take(due), until.take(due)
        first = np.full(len(keys), FOREVER)
        parts = [run.take(keys, until, first) for run in self._runs]
        self._first[keys] = first
        self._runs = [run.compacted() for run in self._runs if run.live]
        return _concatenate(parts)

    def put(self, side: Side, kept: Ints, other: Side, frontier: Ints, other_frontier: Ints) -> tuple[Side, Ints]:
        """Move as many records as possible to the backlog. Return the rest of the side, and ``kept`` adjusted to it.

        ``kept``: the index of the first record to keep for each key, shape (k,). ``frontier``, ``other_frontier``: each
        key's frontier on this side and on the other side, shape (k,), ns.
        """
        moves = _can_move(side, kept, other, frontier, other_frontier).view(bool)
        if not moves.any():
            return side, kept
        at = moves.nonzero()[0]
        rows = side.rows.take(at, axis=1)
        self._grow(rows[KEY])
        before = at[~moves[at - 1]] - 1
        self._first[side.rows[KEY].take(before)] = side.rows[TS].take(before)
        self._runs.append(_Run.of(rows))
        while len(self._runs) > 1 and self._runs[-2].live < 2 * self._runs[-1].live:
            newest = self._runs.pop()
            self._runs[-1] = self._runs[-1].merged(newest)
        stays, removed = side.without(moves)
        return stays, kept - removed.take(kept)

    def _grow(self, keys: Ints) -> None:
        have, need = len(self._first), int(keys.max(initial=-1)) + 1
        if need > have:
            self._first = np.append(self._first, np.full(max(need - have, have), FOREVER))


@compiled(FLAGS, SIDE, INTS, SIDE, INTS, INTS)
def _can_move(side: Side, kept: Ints, other: Side, frontier: Ints, other_frontier: Ints) -> Flags:
    """Return whether each record of ``side`` can move to the backlog, shape (n,).

    ``kept``: the index of the first record to keep for each key, shape (k,). Records before it cannot move.
    """
    ts = side.rows[TS]
    found = np.zeros(len(ts), dtype=np.uint8)
    for k in range(len(kept)):
        reached = other_frontier[k]
        if other.begin[k + 1] > other.begin[k]:
            reached = max(reached, other.rows[TS, other.begin[k + 1] - 1])
        first, end = kept[k], side.begin[k + 1]
        while first < end and ts[first] <= reached:
            first += 1
        while end > first and ts[end - 1] >= frontier[k]:
            end -= 1
        # Every record with the same time as the last one stays. Records with equal times are ordered only by where they
        # are stored, so a new record with this time could otherwise end up before them.
        for at in range(first + 1, end):
            found[at] = ts[at] < ts[end - 1]
    return found


@dataclass
class _Run:
    """A table of records sorted by key, time and position.

    ``key``: its m distinct keys. ``start``, ``end``: the indices at which the remaining records of each key begin and
    end, shape (m,). ``live``: the number of remaining records.
    """

    rows: Ints
    key: Ints
    start: Ints
    end: Ints
    live: int

    @classmethod
    def of(cls, rows: Ints) -> Self:
        key = rows[KEY]
        start = np.flatnonzero(np.append(True, key[1:] != key[:-1]))
        return cls(rows, key.take(start), start, np.append(start[1:], len(key)), len(key))

    def merged(self, newer: _Run) -> _Run:
        """Return this run merged with a newer one, whose records come last within each key."""
        rows = _concatenate([self._live_rows(), newer._live_rows()])
        return self.of(rows.take(rows[KEY].argsort(kind="stable"), axis=1))

    def compacted(self) -> _Run:
        """Return a copy without the removed records if at least half of the run was removed, else the run itself."""
        return self if 2 * self.live > self.rows.shape[1] else self.of(self._live_rows())

    def take(self, keys: Ints, until: Ints, first: Ints) -> Ints:
        """Remove and return the records of ``keys`` up to the time ``until``, shape (k,), ns.

        For keys whose ``first`` is `FOREVER`, include the next record and store its time in ``first``.
        """
        at = self.key.searchsorted(keys)
        present = (self.key.take(at, mode="clip") == keys).nonzero()[0]
        at = at.take(present)
        start, end = self.start.take(at), self.end.take(at)
        behind = _find_behind(self.rows, start, end, until.take(present))
        one_more = (behind < end) & (first.take(present) == FOREVER)
        first[present.compress(one_more)] = self.rows[TS].take(behind.compress(one_more))
        behind += one_more
        self.start[at] = behind
        self.live -= int((behind - start).sum())
        return self.rows_of(start, behind)

    def rows_of(self, start: Ints, end: Ints) -> Ints:
        """Return the records in all segments of the run that begin at the indices ``start`` and end at ``end``."""
        return self.rows.take(_indices(start, end), axis=1)

    def _live_rows(self) -> Ints:
        return self.rows_of(self.start, self.end)


@compiled(INTS, TABLE, INTS, INTS, INTS)
def _find_behind(rows: Ints, start: Ints, end: Ints, until: Ints) -> Ints:
    """Return, for each time-ordered segment of the table, the first index with a time after ``until``."""
    found = np.empty_like(start)
    for n in range(len(start)):
        found[n] = start[n] + np.searchsorted(rows[TS, start[n] : end[n]], until[n], side="right")
    return found


@compiled(INTS, INTS, INTS)
def _indices(start: Ints, end: Ints) -> Ints:
    """Return all indices in the segments from ``start`` to ``end``, one segment after the other."""
    found, count = np.empty((end - start).sum(), dtype=np.int64), 0
    for n in range(len(start)):
        for at in range(start[n], end[n]):
            found[count] = at
            count += 1
    return found


def _concatenate(tables: list[Ints]) -> Ints:
    return np.concatenate([_NO_TABLE, *tables], axis=1)


_NO_TABLE: Final = np.empty((len(COLUMNS), 0), dtype=np.int64)
_NOTHING: Final = np.empty(0, dtype=np.int64)
