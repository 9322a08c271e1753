"""Stores one side's records as a table with an index by key.

A step reads the records of the keys that it touches, and writes back the records that are still needed. The table works
like a log: records are always appended, and a full table is compacted. The cost of a step therefore depends only on the
keys that it touches, not on how many other keys have records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numba import types

from joiner.core.compiled import COUNT, FLAG, FLAGS, INTS, TABLE, compiled, named, several

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

COLUMNS: Final = ("key", "ts", "seq", "identity", "notes")
"""The rows of a table of n records, int64 of shape (5, n): key, time in ns, log position, identity and notes. The notes
contain the flags `DONE` and `EMITTED`, and the ordinal in the bits above them."""

KEY, TS, SEQ, IDENTITY, NOTES = range(len(COLUMNS))
_COLUMNS: Final = len(COLUMNS)

DONE: Final = 1
"""Flag: the record's next or nearest neighbour became certain and has since been evicted."""
EMITTED: Final = 2
"""Flag: the record has been emitted, either in a pair or as unmatched."""
ORDINAL: Final = 2
"""The notes, shifted right by this many bits, are the ordinal: the record's index among those with its key and time."""

_ROOM_RECORDS_MIN: Final = 1024
"""The smallest capacity of the table."""


def table_of(key: Ints, ts: Ints, seq: Ints, identity: Ints | None) -> Ints:
    """Create a table of new records from their columns. All notes are 0."""
    table = np.empty((_COLUMNS, len(key)), dtype=np.int64)
    table[KEY], table[TS], table[SEQ] = key, ts, seq
    table[IDENTITY] = 0 if identity is None else identity
    table[NOTES] = 0
    return table


def in_time_order(table: Ints) -> Ints:
    """Return the records sorted by time. Records with equal times keep their order."""
    if _is_in_time_order(table):
        return table
    found: Ints = table.take(table[TS].argsort(kind="stable"), axis=1)
    return found


@compiled(FLAG, TABLE)
def _is_in_time_order(table: Ints) -> bool:
    return bool(np.all(table[TS, 1:] >= table[TS, :-1]))


class Side(NamedTuple):
    """One side's records for the k keys of a step, sorted by (key, time, log position).

    ``rows``: a table of n records. ``begin``: the index of the first record of each key, followed by n, shape (k + 1,).
    ``since``: the last log position before the step. Records with a larger position are new.
    """

    rows: Ints
    begin: Ints
    since: int

    def without(self, which: NDArray[np.bool_]) -> tuple[Side, Ints]:
        """Return the side without the records selected by ``which``, and how many were removed before each index.

        The mask ``which`` has shape (n,), and the counts have shape (n + 1,).
        """
        removed = np.append(0, np.cumsum(which))
        rows = self.rows.compress(~which, axis=1)
        return Side(rows, self.begin - removed.take(self.begin), self.since), removed


SIDE: Final = named(Side, TABLE, INTS, COUNT)


class RecordStore:
    """One side's held records, indexed by key, except the records in the backlog."""

    def __init__(self) -> None:
        self._table = np.empty((_COLUMNS, _ROOM_RECORDS_MIN), dtype=np.int64)
        self._used = self._live = 0
        # For each key, the index of its first record, and how many records it has.
        self._start, self._count = np.zeros((2, 0), dtype=np.int64)

    def __len__(self) -> int:
        return self._live

    def grow(self, keys: int) -> None:
        """Allocate state for all keys below ``keys``. The capacity at least doubles, so calls are cheap on average."""
        have = len(self._count)
        if keys > have:
            more = np.zeros(max(keys - have, have), dtype=np.int64)
            self._start, self._count = np.append(self._start, more), np.append(self._count, more)

    def keys(self) -> Ints:
        """Return the keys that have records, ascending."""
        return np.flatnonzero(self._count)

    def count(self, keys: Ints) -> Ints:
        """Return the number of records stored for each of ``keys``, shape (k,)."""
        return self._count.take(keys)

    def merge(self, keys: Ints, place: Ints, more: Ints, since: int) -> tuple[Side, bool]:
        """Return the records of ``keys`` merged with those in ``more``, and whether any key has two equal times.

        ``keys`` are ascending, and the table ``more`` is sorted by time. Where times are equal, the records from
        ``more`` come last. ``place``: for each key, its index in ``keys``. ``since``: the last log position before the
        step.
        """
        rows, begin, has_equal = _merge(self._table, self._start, self._count, keys, place, more)
        return Side(rows, begin, since), has_equal

    def put(self, keys: Ints, side: Side, kept: Ints) -> None:
        """Replace the records held for ``keys`` with the records in ``side`` that are still needed.

        ``kept``: for each key, the index of its first record to keep, shape (k,).
        """
        self._live -= _forget(self._count, keys)
        room = side.rows.shape[1]
        if self._used + room > self._table.shape[1]:
            self._compact(room)
        used = _append(self._table, self._used, self._start, self._count, keys, side.rows, kept, side.begin[1:])
        self._live += used - self._used
        self._used = used

    def _compact(self, more: int) -> None:
        """Move the live records into a new table with space for ``more`` records."""
        keys = self.keys()
        start = self._start.take(keys)
        end = start + self._count.take(keys)
        table = np.empty((_COLUMNS, max(_ROOM_RECORDS_MIN, 2 * (self._live + more))), dtype=np.int64)
        self._used = _append(table, 0, self._start, self._count, keys, self._table, start, end)
        self._table = table


@compiled(several(TABLE, INTS, FLAG), TABLE, INTS, INTS, INTS, INTS, TABLE)
def _merge(table: Ints, start: Ints, count: Ints, keys: Ints, place: Ints, more: Ints) -> tuple[Ints, Ints, bool]:
    """Do the work of `RecordStore.merge`. Return the merged rows, where each key begins, and whether times repeat.

    The indices at which keys begin have shape (k + 1,); the last one is the number of rows.
    """
    new, new_begin = _by_key(place, more, len(keys))
    begin = np.empty(len(keys) + 1, dtype=np.int64)
    begin[0] = 0
    for k in range(len(keys)):
        begin[k + 1] = begin[k] + count[keys[k]] + new_begin[k + 1] - new_begin[k]
    rows, has_equal = np.empty((_COLUMNS, begin[-1]), dtype=np.int64), False
    for k in range(len(keys)):
        old, old_end = start[keys[k]], start[keys[k]] + count[keys[k]]
        at, end = new_begin[k], new_begin[k + 1]
        for to in range(begin[k], begin[k + 1]):
            if at == end or (old < old_end and table[TS, old] <= more[TS, new[at]]):
                _copy(table, old, rows, to)
                old += 1
            else:
                _copy(more, new[at], rows, to)
                at += 1
            if to > begin[k] and rows[TS, to] == rows[TS, to - 1]:
                has_equal = True
    return rows, begin, has_equal


@compiled()
def _by_key(place: Ints, table: Ints, keys: int) -> tuple[Ints, Ints]:
    """Return the indices of a table's records sorted by key, and where each key begins, shape (keys + 1,)."""
    begin = np.zeros(keys + 1, dtype=np.int64)
    for i in range(table.shape[1]):
        begin[place[table[KEY, i]] + 1] += 1
    for k in range(keys):
        begin[k + 1] += begin[k]
    to, found = begin.copy(), np.empty(table.shape[1], dtype=np.int64)
    for i in range(table.shape[1]):
        k = place[table[KEY, i]]
        found[to[k]] = i
        to[k] += 1
    return found, begin


@compiled()
def _copy(source: Ints, at: int, target: Ints, to: int) -> None:
    for column in range(_COLUMNS):
        target[column, to] = source[column, at]


@compiled(COUNT, INTS, INTS)
def _forget(count: Ints, keys: Ints) -> int:
    """Remove all records of ``keys`` by setting their counts to 0. Return how many records were removed."""
    had = 0
    for key in keys:
        had += count[key]
        count[key] = 0
    return had


@compiled(COUNT, TABLE, COUNT, INTS, INTS, INTS, TABLE, INTS, INTS)
def _append(table: Ints, used: int, start: Ints, count: Ints, keys: Ints, rows: Ints, first: Ints, end: Ints) -> int:
    """Append each key's ``rows`` from ``first`` to ``end`` to the table. Return the length of the table's used part."""
    for k in range(len(keys)):
        start[keys[k]], count[keys[k]] = used, end[k] - first[k]
        for at in range(first[k], end[k]):
            _copy(rows, at, table, used)
            used += 1
    return used


@compiled(types.void, SIDE)
def number(side: Side) -> None:
    """Assign each new record its ordinal: its index among the records with the same key and time.

    A record is held until its side's frontier has passed its time. So when a new record arrives, all earlier records
    with its key and time are still held, and its ordinal is one more than the ordinal of the record before it.
    """
    rows, begin = side.rows, side.begin
    for k in range(len(begin) - 1):
        for i in range(begin[k] + 1, begin[k + 1]):
            if rows[TS, i] == rows[TS, i - 1] and rows[SEQ, i] > side.since:
                rows[NOTES, i] += ((rows[NOTES, i - 1] >> ORDINAL) + 1) << ORDINAL


def without_duplicates(side: Side) -> tuple[Side, Ints]:
    """Return the side without duplicates, and the log positions of the duplicates, ascending."""
    duplicates = _find_duplicates(side).view(bool)
    positions = side.rows[SEQ].compress(duplicates)
    if not len(positions):
        return side, positions
    return side.without(duplicates)[0], np.sort(positions)


@compiled(FLAGS, SIDE)
def _find_duplicates(side: Side) -> NDArray[np.uint8]:
    """Return, for each record, whether an earlier one has the same key, time and identity, shape (n,)."""
    ts, identity = side.rows[TS], side.rows[IDENTITY]
    duplicates = np.zeros(len(ts), dtype=np.uint8)
    for k in range(len(side.begin) - 1):
        first = side.begin[k]
        while first < side.begin[k + 1]:
            end = first + 1
            while end < side.begin[k + 1] and ts[end] == ts[first]:
                end += 1
            # The sort is stable, so the earliest of several records with the same identity comes first.
            order = np.argsort(identity[first:end], kind="mergesort") if end - first > 1 else _ONE
            for n in range(1, len(order)):
                if identity[first + order[n]] == identity[first + order[n - 1]]:
                    duplicates[first + order[n]] = True
            first = end
    return duplicates


_ONE: Final = np.zeros(1, dtype=np.int64)
