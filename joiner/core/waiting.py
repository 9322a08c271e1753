"""Records of a side that runs ahead: nothing concerns them until the other side comes near, so no step looks at them.

A record waits here once it is behind everything that the other side has sent or promised for its key, and nothing of
its own side can come before it any more. The first such record of a key and the last ones stay in the table: the
first is the next neighbour of whatever the other side sends, and its own neighbours are those of all that wait; the
last are the ones before whatever comes next. A step therefore costs what it touches, however long the backlog is.

The records lie in runs, each sorted by side, key and order. Small runs are merged into larger ones, so that there
are as many as the backlog has digits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import numpy as np

from joiner.core.arguments import KEY_MAX
from joiner.core.frontier import FOREVER
from joiner.core.held import COLUMNS, KEY, TS, Merged, Table, together
from joiner.core.order import Segments, segment_starts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joiner.core.match import Known

    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]

_RIGHT_PLACE: Final = KEY_MAX + 1
"""The place of a key is its number, of the right side this more."""

_FEW: Final = 1_000
_TIMES: Final = 4


def is_backlog(kept: int, touched: int) -> bool:
    """Whether a step that keeps so many records, with ``touched`` new ones and keys, carries a backlog."""
    return kept > _FEW + _TIMES * touched


class Waiting:
    """What waits of all keys, of both sides."""

    def __init__(self) -> None:
        self._runs: list[_Run] = []
        # By side and key, the time of the record in the table before those that wait.
        self._first = np.empty((2, 0), dtype=np.int64)

    def __len__(self) -> int:
        return sum(run.live for run in self._runs)

    def count(self, keys: Ints) -> Ints:
        """How many records wait of each of ``keys``, ascending, of both sides together."""
        found = np.zeros(len(keys), dtype=np.int64)
        for run in self._runs:
            # Of a place of which everything was taken, nobody may hold the key any more.
            live = (run.end > run.start).nonzero()[0]
            at = keys.searchsorted(run.place.take(live) % _RIGHT_PLACE)
            np.add.at(found, at, (run.end - run.start).take(live))
        return found

    def all(self) -> Table:
        """Everything that waits, of each side the keys as they happen to lie."""
        return together(*(run.rows_of(run.start, run.end, run.place) for run in self._runs))

    def take(self, keys: Ints, until: Ints) -> Table:
        """Take out what waits no longer, as the other sides have come to ``until``, shape (2, k), for ``keys``.

        These are the records up to there, and the first one behind.
        """
        self._grow(keys)
        due = self._first[:, keys] <= until
        if not due.any():
            return _NO_TABLE
        side, which = due.nonzero()
        place, until = side * _RIGHT_PLACE + keys.take(which), until[due]
        first = np.full(len(place), FOREVER)
        parts = [run.take(place, until, first) for run in self._runs]
        self._first[side, keys.take(which)] = first
        self._runs = [run.compacted() for run in self._runs if run.live]
        return together(*parts)

    def put(self, merged: Merged, known: Known, kept: Ints) -> Ints:
        """Take those of the kept records that can wait; returns the others. Both ascending."""
        waits = _can_wait(merged, known, kept)
        if not waits.any():
            return kept
        self._grow(merged.key)
        before = (waits[1:] & ~waits[:-1]).nonzero()[0]
        at = kept.take(before)
        self._first[merged.is_right.take(at).view(np.uint8), merged.key.take(at)] = merged.ts.take(at)
        self._runs.append(_Run.of(merged.whole(kept.compress(waits))))
        while len(self._runs) > 1 and self._runs[-2].live < 2 * self._runs[-1].live:
            newest = self._runs.pop()
            self._runs[-1] = self._runs[-1].merged(newest)
        return kept.compress(~waits)

    def _grow(self, keys: Ints) -> None:
        have, need = self._first.shape[1], int(keys.max(initial=-1)) + 1
        if need > have:
            self._first = np.hstack([self._first, np.full((2, max(need - have, have)), FOREVER)])


def _can_wait(merged: Merged, known: Known, kept: Ints) -> Bools:
    """Which of the kept records can wait, shape (k,)."""
    ts, right, begin = merged.ts.take(kept), merged.is_right.take(kept), merged.runs.begin.take(kept)
    number = merged.of_key.spread(np.arange(len(merged.of_key.start))).take(kept)
    key_begin = merged.of_key.start.take(number)
    key_end = key_begin + merged.of_key.length.take(number)
    is_settled = ts < np.where(right, known.now[1].take(number), known.now[0].take(number))
    is_ahead = (merged.runs.behind.take(kept) == key_end) & (ts > known.frontier.take(kept))
    # The other side's last one stands before the run; it may have the same time.
    is_ahead &= (begin == key_begin) | (ts > merged.ts.take(begin - 1))
    at = (is_settled & is_ahead).nonzero()[0]
    found = np.zeros(len(kept), dtype=bool)
    if len(at):
        ts, of_key = ts.take(at), Segments.of(segment_starts(number.take(at)))
        # Of equal times all or none: how they follow each other is told by where they stand.
        found[at] = ts < of_key.spread(ts.take(of_key.start + of_key.length - 1))
        found[at.take(of_key.start)] = False
    return found


@dataclass
class _Run:
    """Records sorted by place, in order: shape (5, n); of each of m places, where its records begin and end."""

    rows: Ints
    place: Ints
    start: Ints
    end: Ints
    live: int

    @classmethod
    def of(cls, table: Table) -> Self:
        rows, lefts = table
        place = rows[KEY].copy()
        place[lefts:] += _RIGHT_PLACE
        return cls._of_places(rows, place)

    @classmethod
    def _of_places(cls, rows: Ints, place: Ints) -> Self:
        segments = Segments.of(segment_starts(place))
        return cls(rows, place.take(segments.start), segments.start, segments.start + segments.length, len(place))

    def merged(self, newer: _Run) -> _Run:
        """Both in one; the newer one's records come behind the others of their place."""
        rows = np.concatenate((self._live_rows(), newer._live_rows()), axis=1)
        place = np.concatenate((self._live_places(), newer._live_places()))
        order = place.argsort(kind="stable")
        return self._of_places(rows.take(order, axis=1), place.take(order))

    def compacted(self) -> _Run:
        """The same without what was taken out, where that is most of it."""
        if 2 * self.live > self.rows.shape[1]:
            return self
        return self._of_places(self._live_rows(), self._live_places())

    def take(self, place: Ints, until: Ints, first: Ints) -> Table:
        """Take out the records of places up to a time, and one more where ``first`` is not known yet: it is noted."""
        at = self.place.searchsorted(place)
        asked = (self.place.take(at, mode="clip") == place).nonzero()[0]
        at = at.take(asked)
        start, end = self.start.take(at), self.end.take(at)
        behind = _behind(self.rows[TS], start, end, until.take(asked))
        one_more = (behind < end) & (first.take(asked) == FOREVER)
        first[asked.compress(one_more)] = self.rows[TS].take(behind.compress(one_more))
        behind += one_more
        self.start[at] = behind
        self.live -= int((behind - start).sum())
        return self.rows_of(start, behind, place.take(asked))

    def rows_of(self, start: Ints, end: Ints, place: Ints) -> Table:
        """Some records of places, ascending."""
        rows = self.rows.take(Segments(start, end - start).entries(), axis=1)
        lefts = int((end - start)[: place.searchsorted(_RIGHT_PLACE)].sum())
        return rows, lefts

    def _live_rows(self) -> Ints:
        return self.rows_of(self.start, self.end, self.place)[0]

    def _live_places(self) -> Ints:
        return self.place.repeat(self.end - self.start)


def _behind(ts: Ints, start: Ints, end: Ints, until: Ints) -> Ints:
    """Of segments of rising times, the first index behind a time: all of them halved at once."""
    low, high = start.copy(), end.copy()
    while (is_open := low < high).any():
        middle = (low + high) // 2
        is_before = is_open & (ts.take(middle, mode="clip") <= until)
        low = np.where(is_before, middle + 1, low)
        high = np.where(is_open & ~is_before, middle, high)
    return low


_NO_TABLE: Final[Table] = (np.empty((len(COLUMNS), 0), dtype=np.int64), 0)
