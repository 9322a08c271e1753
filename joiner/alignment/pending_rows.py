"""Holds rows until all of their columns are certain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numba import types

from joiner.alignment.interpolation import interpolate
from joiner.alignment.position_table import SEQ, PositionTable
from joiner.core.compiled import COUNT, GIVEN, INTS, compiled

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joiner.alignment.relations import Answers
    from joiner.alignment.rules import ColumnRule

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]
    Flags = NDArray[np.bool_]

_KEY, _TS, _OPEN, _FIXED = 1, 2, 3, 4
"""Columns after the position: key, time in ns and number of open relations. Three columns per relation follow."""

_STATE, _AT_NS, _VALUE, _OF_RELATION = range(4)
"""The columns of a relation: its state, and the neighbour's time (ns) and value (the bits of a float64)."""

_FOUND, _MISSING = 1, 2


class CompleteRows(NamedTuple):
    """Rows whose columns are all certain, ordered by (key, time, position).

    ``seq``, ``key``, ``ts`` (ns): int64, shape (n,). ``values``: float64, shape (columns, n), NaN where a value is
    missing. ``is_missing``: bool, shape (columns, n).
    """

    seq: Ints
    key: Ints
    ts: Ints
    values: Floats
    is_missing: Flags


class PendingRows:
    """Driver records that have at least one open relation, with the neighbours found for them so far."""

    def __init__(self, rules: Sequence[ColumnRule]) -> None:
        self._rules = list(rules)
        self._relations = sum(len(rule.directions) for rule in rules)
        self._table = PositionTable(_FIXED + _OF_RELATION * self._relations)

    def __len__(self) -> int:
        return len(self._table)

    def add(self, key: Ints, ts: Ints, seq: Ints) -> None:
        """Add driver records in position order, shape (n,) each."""
        rows = np.zeros((_FIXED + _OF_RELATION * self._relations, len(seq)), dtype=np.int64)
        rows[SEQ], rows[_KEY], rows[_TS], rows[_OPEN] = seq, key, ts, self._relations
        self._table.append(rows)

    def answer(self, answers: Sequence[Answers]) -> CompleteRows:
        """Store the answers found for each relation. Remove and return the rows that are now complete."""
        count, complete = 0, np.empty(sum(len(one.seq) + len(one.missing_seq) for one in answers), dtype=np.int64)
        for relation, (seq, ts, value, missing_seq) in enumerate(answers):
            column = _FIXED + _OF_RELATION * relation
            table = self._table.part(column + _OF_RELATION)
            count += _note(table, column, seq, ts, value, complete[count:])
            count += _note(table, column, missing_seq, _NONE, _NONE, complete[count:])
        rows = self._table.take(complete[:count])
        self._table.remove(complete[:count])
        return self._completed(rows[:, np.lexsort((rows[SEQ], rows[_TS], rows[_KEY]))])

    def _completed(self, rows: Ints) -> CompleteRows:
        count = rows.shape[1]
        values = np.full((len(self._rules), count), np.nan)
        is_missing = np.ones((len(self._rules), count), dtype=bool)
        relation = 0
        for column, rule in enumerate(self._rules):
            neighbours = []
            for _ in rule.directions:
                begin = _FIXED + _OF_RELATION * relation
                neighbours.append(rows[begin : begin + _OF_RELATION])
                relation += 1
            found = value_of(rule, rows[_TS], neighbours)
            values[column], is_missing[column] = found
        return CompleteRows(rows[SEQ], rows[_KEY], rows[_TS], values, is_missing)

    def ts(self) -> Ints:
        """Return the times of the rows in ns, shape (n,)."""
        return self._table.column(_TS)

    def found_values(self, relation: int) -> Ints:
        """Return the values (the bits of float64s) that a relation has found for pending rows, shape (n,)."""
        column = _FIXED + _OF_RELATION * relation
        found: Ints = self._table.column(column + _VALUE)[self._table.column(column + _STATE) == _FOUND]
        return found

    def oldest_ns(self, keys: Ints, otherwise_ns: Ints) -> Ints:
        """Return the time of each key's oldest row in ns, shape (k,), capped at ``otherwise_ns``, shape (k,).

        A key without rows gets ``otherwise_ns``. ``keys`` must be ascending.
        """
        found = otherwise_ns.copy()
        of_row, ts = self._table.column(_KEY), self._table.column(_TS)
        is_asked = np.isin(of_row, keys)
        np.minimum.at(found, keys.searchsorted(of_row[is_asked]), ts[is_asked])
        return found

    def rows(self) -> Ints:
        """Return the state for `load`, shape (columns, n)."""
        return self._table.rows()

    def load(self, rows: Ints) -> None:
        """Restore the state returned by `rows`."""
        self._table.append(rows)


def value_of(rule: ColumnRule, ts: Ints, neighbours: Sequence[Ints]) -> tuple[Floats, Flags]:
    """Return a column's values at ``ts``, and whether each is missing, shape (n,) each.

    ``neighbours``: for each relation of the rule, its states, times and values, shape (3, n).
    """
    is_there = np.logical_and.reduce([one[_STATE] == _FOUND for one in neighbours])
    first, last = neighbours[0], neighbours[-1]
    if rule.rule != "linear":
        values = first[_VALUE].view(np.float64)
    else:
        if rule.tolerance_ns is not None:
            # The first neighbour is not after the last, so their distance is exact as an unsigned int64.
            spans = (last[_AT_NS] - first[_AT_NS]).view(np.uint64)
            is_there &= spans <= np.uint64(rule.tolerance_ns)
        at = is_there.nonzero()[0]
        values = np.full(len(ts), np.nan)
        values[at] = interpolate(
            ts[at],
            first[_AT_NS][at],
            first[_VALUE][at].view(np.float64),
            last[_AT_NS][at],
            last[_VALUE][at].view(np.float64),
            rule.period or 0.0,
        )
    return np.where(is_there, values, np.nan), ~is_there


_NONE: Final = np.empty(0, dtype=np.int64)


@compiled(COUNT, types.Array(types.int64, 2, "A"), COUNT, GIVEN, GIVEN, GIVEN, INTS)
def _note(table: Ints, column: int, answered_seq: Ints, ts: Ints, value: Ints, complete: Ints) -> int:
    """Store a relation's answers for the rows at the positions ``answered_seq``, all of which must be in the table.

    ``column``: the first of the relation's columns. ``ts``, ``value``: the neighbours' times and values, empty if the
    rows have no neighbours. Writes the indices of the rows that no longer have an open relation to ``complete``, and
    returns their number.
    """
    count, at, rows = 0, 0, table.shape[1]
    for one in range(len(answered_seq)):
        seq = answered_seq[one]
        # Records with the same key arrive in runs, so the row is often just after the previous one.
        if at >= rows or table[SEQ, at] > seq:
            at = 0
        step = 1
        while at + step < rows and table[SEQ, at + step] <= seq:
            at += step
            step *= 2
        while step > 1:
            step //= 2
            if at + step < rows and table[SEQ, at + step] <= seq:
                at += step
        if len(ts):
            table[column + _STATE, at] = _FOUND
            table[column + _AT_NS, at] = ts[one]
            table[column + _VALUE, at] = value[one]
        else:
            table[column + _STATE, at] = _MISSING
        table[_OPEN, at] -= 1
        if not table[_OPEN, at]:
            complete[count] = at
            count += 1
    return count
