"""Holds the columns' records in linked lists, one for each column and key, in time order.

A batch's records are inserted in time order. For a key's first record, the search for its place starts at the end of
the list, because most records are newer than all earlier ones. For any other record, it starts at the record inserted
just before. A batch therefore takes at most one step for each held record later than the batch's first record, and one
for each held record with the same time as a new record. Inserting does not slow down when another column is far ahead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from joiner.alignment.rules import LINEAR, NEAREST, NEXT, RULES
from joiner.core.compiled import COUNT, DURATION, FLAG, GIVEN, INTS, TABLE, compiled, gap

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joiner.alignment.rules import ColumnRule

    Ints = NDArray[np.int64]

NONE: Final = -1
"""The node number that stands for no node."""

TS, AFTER, _BEFORE, _VALUE, _IDENTITY, _OF_NODE = range(6)
"""The rows of the node table: time in ns, next and previous node, value (the bits of a float64), identity."""

HEAD, _TAIL, SETTLED, OF_LIST = range(4)
"""A column's rows in ``ends``: each key's first node, last node, and last node at or before the frontier."""

_STATE, _AT_NS, _NUMBER, _OF_RELATION = range(4)
_FOUND, _MISSING = 1, 2
"""A relation's rows and states, as in `joiner.alignment.pending_rows`."""

_ROOM_MIN: Final = 1024


class RecordLists:
    """The records of all columns, in one list for each column and key.

    ``nodes``: shape (5, capacity). ``ends``: shape (3 * columns, keys), three rows for each column.
    """

    def __init__(self, columns: int) -> None:
        self.nodes: Ints = np.empty((_OF_NODE, 0), dtype=np.int64)
        self.ends: Ints = np.empty((OF_LIST * columns, 0), dtype=np.int64)
        # A stack whose first `_free_count` entries are the numbers of unused nodes.
        self._free: Ints = np.empty(0, dtype=np.int64)
        self._free_count = 0

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self._free) - self._free_count

    def grow(self, keys: int) -> None:
        """Allocate state for keys below ``keys``. Capacity at least doubles, so the amortized cost is constant."""
        have = self.ends.shape[1]
        if keys > have:
            self.ends = np.hstack([self.ends, np.full((len(self.ends), max(keys - have, have)), NONE)])

    def reserve(self, count: int) -> None:
        """Make room for the nodes of ``count`` records. This may renumber all nodes."""
        if self._free_count < count:
            self._resize(2 * (len(self) + count))

    def insert(self, column: int, records: Ints, *, finds_duplicates: bool) -> Ints:
        """Insert n records. Return their nodes, or `NONE` for duplicates, shape (n,).

        Call `reserve` first to make room for them.

        ``records``: key, time (ns), value (the bits of a float64) and identity, shape (4, n). A duplicate has the same
        key, time and identity as another record.
        """
        # The sort is stable, so records with equal times stay in order of arrival.
        order = np.lexsort((records[1], records[0]))
        in_order = np.zeros(records.shape[1], dtype=np.int64)
        free = self._free[: self._free_count]
        lists, ordered = OF_LIST * column, records.take(order, axis=1)
        self._free_count -= _insert(ordered, finds_duplicates, self.nodes, self.ends, lists, free, in_order)
        added = np.empty_like(in_order)
        added[order] = in_order
        return added

    def remove(self, column: int, key: Ints, added: Ints, settled_keys: Ints, settled: Ints) -> None:
        """Undo the `insert` that returned ``added`` for the keys ``key``, and the `settle` for ``settled_keys``.

        ``settled``: the nodes that `settled_at` returned before these calls.
        """
        self.ends[OF_LIST * column + SETTLED, settled_keys] = settled
        free = self._free[self._free_count :]
        self._free_count += _remove(key, added, self.nodes, self.ends, OF_LIST * column, free)

    def settled_at(self, column: int, keys: Ints) -> Ints:
        """Return the node that `settle` found for each key, or `NONE`, shape (k,)."""
        settled: Ints = self.ends[OF_LIST * column + SETTLED, keys]
        return settled

    def settle(self, column: int, keys: Ints, frontier: Ints) -> None:
        """Find each key's last record at or before its frontier (ns). Frontiers must never decrease."""
        _settle(keys, frontier, self.nodes, self.ends, OF_LIST * column)

    def release(self, column: int, keys: Ints, frontier: Ints, next_tick: Ints) -> None:
        """Release the records needed neither for ticks from ``next_tick`` (ns) on nor for recognising duplicates.

        All arrays have shape (k,).
        """
        free = self._free[self._free_count :]
        self._free_count += _release(keys, frontier, next_tick, self.nodes, self.ends, OF_LIST * column, free)
        if len(self._free) > 4 * max(_ROOM_MIN, len(self), self.ends.shape[1]):
            self._resize(2 * len(self))

    def clear(self) -> None:
        """Release all records."""
        self.ends[:] = NONE
        self._resize(0)

    def neighbours(self, column: int, rule: ColumnRule, key: Ints, ts: Ints) -> list[Ints]:
        """Return the neighbours of n ticks for each relation of a rule: state, time (ns) and value, shape (3, n) each.

        The ticks are ordered by (key, time).
        """
        tolerance = np.uint64(2**64 - 1 if rule.tolerance_ns is None else rule.tolerance_ns)
        relations = np.zeros((2 * _OF_RELATION, len(key)), dtype=np.int64)
        which = RULES.index(rule.rule)
        _find_neighbours(key, ts, which, tolerance, self.nodes, self.ends, OF_LIST * column, relations)
        return [relations[:_OF_RELATION], relations[_OF_RELATION:]][: len(rule.directions)]

    def rows(self, column: int) -> Ints:
        """Return a column's records as an array of shape (4, n), which `insert` accepts.

        Its rows are key, time (ns), value and identity. The records are ordered by key and, within a key, in list
        order.
        """
        found = np.empty((4, len(self)), dtype=np.int64)
        return found[:, : _read(self.nodes, self.ends, OF_LIST * column, found)]

    def _resize(self, room: int) -> None:
        """Renumber the nodes from 0, and make room for ``room`` nodes."""
        nodes = np.empty((_OF_NODE, max(room, _ROOM_MIN)), dtype=np.int64)
        held = _renumber(self.nodes, self.ends, nodes)
        self.nodes = nodes
        self._free = np.arange(nodes.shape[1])[::-1].copy()
        self._free_count = nodes.shape[1] - held


@compiled(COUNT, TABLE, FLAG, TABLE, TABLE, COUNT, INTS, INTS)
def _insert(
    records: Ints,
    finds_duplicates: bool,  # noqa: FBT001 - a compiled loop has no keyword arguments
    nodes: Ints,
    ends: Ints,
    lists: int,
    free: Ints,
    added: Ints,
) -> int:
    """Insert records that are ordered by (key, time). Return the number of nodes taken from the end of ``free``.

    ``lists``: the index of the column's first row in ``ends``. Writes the nodes of the records, or `NONE` for
    duplicates, to ``added``, which must contain zeros.
    """
    used, begin, at = 0, 0, NONE
    while begin < len(added):
        key, ts, end = records[0, begin], records[1, begin], begin + 1
        while end < len(added) and records[0, end] == key and records[1, end] == ts:
            end += 1
        if begin and records[0, begin - 1] == key:
            while nodes[AFTER, at] != NONE and nodes[TS, nodes[AFTER, at]] <= ts:
                at = nodes[AFTER, at]
        else:
            at = ends[lists + _TAIL, key]
            while at != NONE and nodes[TS, at] > ts:
                at = nodes[_BEFORE, at]
        if finds_duplicates:
            _mark_duplicates(records[3, begin:end], ts, at, nodes, added[begin:end])
        for i in range(begin, end):
            if added[i] == NONE:
                continue
            used += 1
            new = free[len(free) - used]
            following = ends[lists + HEAD, key] if at == NONE else nodes[AFTER, at]
            nodes[TS, new], nodes[_VALUE, new], nodes[_IDENTITY, new] = ts, records[2, i], records[3, i]
            _link(nodes, ends, lists, key, at, new)
            _link(nodes, ends, lists, key, new, following)
            added[i] = at = new
        begin = end
    return used


@compiled()
def _mark_duplicates(identity: Ints, ts: int, at: int, nodes: Ints, added: Ints) -> None:
    """Write `NONE` to ``added`` for each record at time ``ts`` with the same identity as an earlier one at that time.

    ``at``: the last held record of the key at or before ``ts``.
    """
    # The sort is stable, so the earliest of several records with the same identity comes first.
    order = np.argsort(identity, kind="mergesort") if len(identity) > 1 else _ONE
    for n in range(1, len(order)):
        if identity[order[n]] == identity[order[n - 1]]:
            added[order[n]] = NONE
    while at != NONE and nodes[TS, at] == ts:
        low, high = 0, len(order)
        while low < high:
            middle = (low + high) // 2
            if identity[order[middle]] < nodes[_IDENTITY, at]:
                low = middle + 1
            else:
                high = middle
        if low < len(order) and identity[order[low]] == nodes[_IDENTITY, at]:
            added[order[low]] = NONE
        at = nodes[_BEFORE, at]


_ONE: Final = np.zeros(1, dtype=np.int64)


@compiled()
def _link(nodes: Ints, ends: Ints, lists: int, key: int, before: int, after: int) -> None:
    """Link two nodes. If one of them is `NONE`, the other becomes the first or last node in the list."""
    if before == NONE:
        ends[lists + HEAD, key] = after
    else:
        nodes[AFTER, before] = after
    if after == NONE:
        ends[lists + _TAIL, key] = before
    else:
        nodes[_BEFORE, after] = before


@compiled(COUNT, GIVEN, GIVEN, TABLE, TABLE, COUNT, INTS)
def _remove(key: Ints, added: Ints, nodes: Ints, ends: Ints, lists: int, free: Ints) -> int:
    count = 0
    for i in range(len(key)):
        if added[i] != NONE:
            _link(nodes, ends, lists, key[i], nodes[_BEFORE, added[i]], nodes[AFTER, added[i]])
            free[count] = added[i]
            count += 1
    return count


@compiled(COUNT, GIVEN, GIVEN, TABLE, TABLE, COUNT)
def _settle(keys: Ints, frontier: Ints, nodes: Ints, ends: Ints, lists: int) -> int:
    for i in range(len(keys)):
        at = ends[lists + SETTLED, keys[i]]
        following = ends[lists + HEAD, keys[i]] if at == NONE else nodes[AFTER, at]
        while following != NONE and nodes[TS, following] <= frontier[i]:
            at, following = following, nodes[AFTER, following]
        ends[lists + SETTLED, keys[i]] = at
    return len(keys)


@compiled(COUNT, GIVEN, GIVEN, GIVEN, TABLE, TABLE, COUNT, INTS)
def _release(keys: Ints, frontier: Ints, next_tick: Ints, nodes: Ints, ends: Ints, lists: int, free: Ints) -> int:
    """Release records before ``next_tick`` that are followed by another record at or before ``next_tick``.

    A record at or after the frontier is kept, because a duplicate of it may still arrive. The last record at or before
    the frontier is kept too, because it determines which values are certain. Returns the number of released records.
    """
    count = 0
    for i in range(len(keys)):
        at = ends[lists + HEAD, keys[i]]
        while at not in (NONE, ends[lists + SETTLED, keys[i]]) and nodes[TS, at] < min(frontier[i], next_tick[i]):
            following = nodes[AFTER, at]
            if nodes[TS, following] > next_tick[i]:
                break
            _link(nodes, ends, lists, keys[i], NONE, following)
            free[count] = at
            count += 1
            at = following
    return count


@compiled(COUNT, GIVEN, GIVEN, COUNT, DURATION, TABLE, TABLE, COUNT, TABLE)
def _find_neighbours(
    key: Ints, ts: Ints, rule: int, tolerance: np.uint64, nodes: Ints, ends: Ints, lists: int, relations: Ints
) -> int:
    """Find the neighbours of ticks that are ordered by (key, time). ``rule``: an index in `RULES`."""
    at = NONE
    for i in range(len(key)):
        if not i or key[i] != key[i - 1]:
            at = ends[lists + HEAD, key[i]]
        while at != NONE and nodes[AFTER, at] != NONE and nodes[TS, nodes[AFTER, at]] <= ts[i]:
            at = nodes[AFTER, at]
        before = at if at != NONE and nodes[TS, at] <= ts[i] else NONE
        after = at if before == NONE else nodes[AFTER, before]
        if before != NONE and nodes[TS, before] == ts[i]:
            after = before
            while nodes[_BEFORE, after] != NONE and nodes[TS, nodes[_BEFORE, after]] == ts[i]:
                after = nodes[_BEFORE, after]
        is_nearer = after != NONE and (before == NONE or gap(nodes[TS, after], ts[i]) < gap(ts[i], nodes[TS, before]))
        if rule == NEXT or (rule == NEAREST and is_nearer):
            before = after
        _note(relations, 0, i, before, ts[i], tolerance, nodes)
        if rule == LINEAR:
            _note(relations, _OF_RELATION, i, after, ts[i], tolerance, nodes)
    return len(key)


@compiled()
def _note(relations: Ints, rows: int, i: int, node: int, ts: int, tolerance: np.uint64, nodes: Ints) -> None:
    relations[rows + _STATE, i] = _MISSING
    if node == NONE:
        return
    if gap(max(nodes[TS, node], ts), min(nodes[TS, node], ts)) <= tolerance:
        relations[rows + _STATE, i] = _FOUND
        relations[rows + _AT_NS, i] = nodes[TS, node]
        relations[rows + _NUMBER, i] = nodes[_VALUE, node]


@compiled(COUNT, TABLE, TABLE, COUNT, TABLE)
def _read(nodes: Ints, ends: Ints, lists: int, found: Ints) -> int:
    count = 0
    for key in range(ends.shape[1]):
        at = ends[lists + HEAD, key]
        while at != NONE:
            found[0, count], found[1, count] = key, nodes[TS, at]
            found[2, count], found[3, count] = nodes[_VALUE, at], nodes[_IDENTITY, at]
            count += 1
            at = nodes[AFTER, at]
    return count


@compiled(COUNT, TABLE, TABLE, TABLE)
def _renumber(nodes: Ints, ends: Ints, found: Ints) -> int:
    """Copy the nodes of all lists to ``found``, from index 0 on, and update ``ends``. Return the number of nodes."""
    count = 0
    for lists in range(0, len(ends), OF_LIST):
        for key in range(ends.shape[1]):
            at, last, settled = ends[lists + HEAD, key], NONE, ends[lists + SETTLED, key]
            while at != NONE:
                for row in range(_OF_NODE):
                    found[row, count] = nodes[row, at]
                _link(found, ends, lists, key, last, count)
                if at == settled:
                    ends[lists + SETTLED, key] = count
                last, at = count, nodes[AFTER, at]
                count += 1
            if last != NONE:
                _link(found, ends, lists, key, last, NONE)
    return count
