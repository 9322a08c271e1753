"""Records of a side that runs ahead: nothing concerns them until the other side comes near, so no step looks at them.

A record waits here once it is behind everything that the other side has sent or promised for its key, and nothing of
its own side can come before it any more. The first such record of a key and the last ones stay in the table: the
first is the next neighbour of whatever the other side sends, and its own neighbours are those of all that wait; the
last are the ones before whatever comes next. A step therefore costs what it touches, however long the backlog is.

The records lie in runs, each sorted by key and order. Small runs are merged into larger ones, so that there are as many
as the backlog has digits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import numpy as np

from joiner.core.compiled import FLAGS, INTS, TABLE, compiled
from joiner.core.frontier import FOREVER
from joiner.core.record_store import COLUMNS, KEY, SIDE, TS, Side

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Flags = NDArray[np.uint8]

_FEW: Final = 1_000
_TIMES: Final = 4


def is_backlog(kept: int, touched: int) -> bool:
    """Whether a step that keeps so many records, with ``touched`` new ones and keys, carries a backlog."""
    return kept > _FEW + _TIMES * touched


class Backlog:
    """What waits of all keys, of one side."""

    def __init__(self) -> None:
        self._runs: list[_Run] = []
        # By key, the time of the record in the table before those that wait.
        self._first = np.empty(0, dtype=np.int64)

    def __len__(self) -> int:
        return sum(run.live for run in self._runs)

    def count(self, keys: Ints) -> Ints:
        """How many records wait of each of ``keys``, ascending."""
        found = np.zeros(len(keys), dtype=np.int64)
        for run in self._runs:
            # Of a key of which everything was taken, the number may be another's by now.
            live = (run.end > run.start).nonzero()[0]
            found[keys.searchsorted(run.key.take(live))] += (run.end - run.start).take(live)
        return found

    def all(self) -> Ints:
        """Everything that waits, as a table: of each key in order."""
        return _together([run.rows_of(run.start, run.end) for run in self._runs])

    def take(self, keys: Ints, until: Ints) -> Ints:
        """Take out what waits no longer, as the other side has come to ``until``, shape (k,), for ``keys``.

        These are the records up to there, and the first one behind: a table, of each key in order.
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
        return _together(parts)

    def put(self, side: Side, kept: Ints, other: Side, frontier: Ints, other_frontier: Ints) -> tuple[Side, Ints]:
        """Take those of the records from ``kept`` on that can wait; returns the others, and where they are kept from.

        The frontiers are those of the keys, (k,).
        """
        waits = _can_wait(side, kept, other, frontier, other_frontier).view(bool)
        if not waits.any():
            return side, kept
        at = waits.nonzero()[0]
        rows = side.rows.take(at, axis=1)
        self._grow(rows[KEY])
        before = at[~waits[at - 1]] - 1
        self._first[side.rows[KEY].take(before)] = side.rows[TS].take(before)
        self._runs.append(_Run.of(rows))
        while len(self._runs) > 1 and self._runs[-2].live < 2 * self._runs[-1].live:
            newest = self._runs.pop()
            self._runs[-1] = self._runs[-1].merged(newest)
        stay, passed = side.but(waits)
        return stay, kept - passed.take(kept)

    def _grow(self, keys: Ints) -> None:
        have, need = len(self._first), int(keys.max(initial=-1)) + 1
        if need > have:
            self._first = np.append(self._first, np.full(max(need - have, have), FOREVER))


@compiled(FLAGS, SIDE, INTS, SIDE, INTS, INTS)
def _can_wait(side: Side, kept: Ints, other: Side, frontier: Ints, other_frontier: Ints) -> Flags:
    """Which of the records from ``kept`` on can wait, shape (n,)."""
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
        # Of equal times all or none: how they follow each other is told by where they stand.
        for at in range(first + 1, end):
            found[at] = ts[at] < ts[end - 1]
    return found


@dataclass
class _Run:
    """Records sorted by key, in order: a table; of each of m keys, where its records begin and end."""

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
        """Both in one; the newer one's records come behind the others of their key."""
        rows = _together([self._live_rows(), newer._live_rows()])
        return self.of(rows.take(rows[KEY].argsort(kind="stable"), axis=1))

    def compacted(self) -> _Run:
        """The same without what was taken out, where that is most of it."""
        return self if 2 * self.live > self.rows.shape[1] else self.of(self._live_rows())

    def take(self, keys: Ints, until: Ints, first: Ints) -> Ints:
        """Take out the records of keys up to a time, and one more where ``first`` is not known yet: it is noted."""
        at = self.key.searchsorted(keys)
        asked = (self.key.take(at, mode="clip") == keys).nonzero()[0]
        at = at.take(asked)
        start, end = self.start.take(at), self.end.take(at)
        behind = _find_behind(self.rows, start, end, until.take(asked))
        one_more = (behind < end) & (first.take(asked) == FOREVER)
        first[asked.compress(one_more)] = self.rows[TS].take(behind.compress(one_more))
        behind += one_more
        self.start[at] = behind
        self.live -= int((behind - start).sum())
        return self.rows_of(start, behind)

    def rows_of(self, start: Ints, end: Ints) -> Ints:
        """Some records of keys."""
        return self.rows.take(_indices(start, end), axis=1)

    def _live_rows(self) -> Ints:
        return self.rows_of(self.start, self.end)


@compiled(INTS, TABLE, INTS, INTS, INTS)
def _find_behind(rows: Ints, start: Ints, end: Ints, until: Ints) -> Ints:
    """Of segments of rising times, the first index behind a time."""
    found = np.empty_like(start)
    for n in range(len(start)):
        found[n] = start[n] + np.searchsorted(rows[TS, start[n] : end[n]], until[n], side="right")
    return found


@compiled(INTS, INTS, INTS)
def _indices(start: Ints, end: Ints) -> Ints:
    """All indices of segments, one segment after the other."""
    found, count = np.empty((end - start).sum(), dtype=np.int64), 0
    for n in range(len(start)):
        for at in range(start[n], end[n]):
            found[count] = at
            count += 1
    return found


def _together(tables: list[Ints]) -> Ints:
    return np.concatenate([_NO_TABLE, *tables], axis=1)


_NO_TABLE: Final = np.empty((len(COLUMNS), 0), dtype=np.int64)
