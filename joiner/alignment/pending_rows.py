"""The rows that wait until all of their columns are certain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from joiner.alignment.interpolation import interpolate
from joiner.alignment.position_table import SEQ, PositionTable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joiner.alignment.relations import Answers
    from joiner.alignment.rules import ColumnRule

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]
    Flags = NDArray[np.bool_]

_KEY, _TS, _OPEN, _FIXED = 1, 2, 3, 4
"""Columns after the position: key, time in ns, and how many relations are open. Then three for each relation follow."""

_STATE, _AT_NS, _VALUE, _OF_RELATION = range(4)
"""The columns of a relation: its state, and the time (ns) and value (the bits of a float64) of the neighbour."""

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
    """The driver records with at least one open relation, and the answers that they have so far."""

    def __init__(self, rules: Sequence[ColumnRule]) -> None:
        self._rules = list(rules)
        self._relations = sum(len(rule.relations) for rule in rules)
        self._table = PositionTable(_FIXED + _OF_RELATION * self._relations)

    def __len__(self) -> int:
        return len(self._table)

    def add(self, key: Ints, ts: Ints, seq: Ints) -> None:
        """Add driver records in the order of their positions, shape (n,) each."""
        rows = np.zeros((_FIXED + _OF_RELATION * self._relations, len(seq)), dtype=np.int64)
        rows[SEQ], rows[_KEY], rows[_TS], rows[_OPEN] = seq, key, ts, self._relations
        self._table.append(rows)

    def answer(self, answers: Sequence[Answers]) -> CompleteRows:
        """Note the answers of each relation. Remove and return the rows that they complete."""
        touched = []
        for relation, (seq, ts, value, missing_seq) in enumerate(answers):
            column = _FIXED + _OF_RELATION * relation
            at, missing = self._table.find(seq), self._table.find(missing_seq)
            self._table.column(column + _STATE)[at] = _FOUND
            self._table.column(column + _STATE)[missing] = _MISSING
            self._table.column(column + _AT_NS)[at] = ts
            self._table.column(column + _VALUE)[at] = value
            both = np.concatenate((at, missing))
            # A relation answers for a record once, so no index is repeated.
            self._table.column(_OPEN)[both] -= 1
            touched.append(both)
        answered = np.concatenate(touched)
        complete = np.unique(answered[self._table.column(_OPEN).take(answered) == 0])
        rows = self._table.take(complete)
        self._table.remove(complete)
        return self._completed(rows[:, np.lexsort((rows[SEQ], rows[_TS], rows[_KEY]))])

    def _completed(self, rows: Ints) -> CompleteRows:
        count = rows.shape[1]
        values = np.full((len(self._rules), count), np.nan)
        is_missing = np.ones((len(self._rules), count), dtype=bool)
        relation = 0
        for column, rule in enumerate(self._rules):
            neighbours = []
            for _ in rule.relations:
                begin = _FIXED + _OF_RELATION * relation
                neighbours.append(rows[begin : begin + _OF_RELATION])
                relation += 1
            found = value_of(rule, rows[_TS], neighbours)
            values[column], is_missing[column] = found
        return CompleteRows(rows[SEQ], rows[_KEY], rows[_TS], values, is_missing)

    def rows(self) -> Ints:
        """Return the state for `load`, shape (columns, n)."""
        return self._table.rows()

    def load(self, rows: Ints) -> None:
        """Restore what `rows` has returned."""
        self._table.append(rows)


def value_of(rule: ColumnRule, ts: Ints, neighbours: Sequence[Ints]) -> tuple[Floats, Flags]:
    """Return the values of a column at ``ts``, and where they are missing, shape (n,) each.

    ``neighbours``: for each relation of the rule its state, time and value, shape (3, n).
    """
    is_there = np.logical_and.reduce([one[_STATE] == _FOUND for one in neighbours])
    first, last = neighbours[0], neighbours[-1]
    if rule.rule != "linear":
        values = first[_VALUE].view(np.float64)
    else:
        if rule.tolerance_ns is not None:
            # The neighbours are on either side of the row, so their distance fits an unsigned int64.
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


