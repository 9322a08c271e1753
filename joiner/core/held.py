"""The records a buffer holds: a table of both sides, and where in it the records of each side and key lie.

A step takes the records of the keys that it touches and puts back those that are still needed. The table is a log:
what is put back is appended, and when most of it has been taken out again, the rest is moved together. So a step costs
what it touches, however many keys are held.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np

from joiner.core.order import Runs, Segments, segment_starts, sorting_order

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from joiner.core.arguments import Records

    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]

COLUMNS: Final = ("key", "ts", "seq", "identity", "notes")
"""The rows of a table of n records, int64 of shape (5, n): key, time in ns, log position in the own stream, identity,
and what has been noted of the record."""

KEY, TS, SEQ, IDENTITY, NOTES = range(len(COLUMNS))

DONE: Final = 1
"""Noted where the neighbour that was found for certain, and told, has left the buffer."""
TOLD: Final = 2
"""Noted where the record has been in a pair, or has been told to be unmatched."""
ORDINAL: Final = 2
"""Above so many bits, the notes are the ordinal among the records of the same side, key and time."""

_ROOM_MIN: Final = 1024
"""Records that the table has room for at least."""

Table: TypeAlias = "tuple[Ints, int]"
"""A table of records, (5, n), and how many of them are left ones: these come first."""


def together(*tables: Table) -> Table:
    """The left ones of all tables, then the right ones of all."""
    empty = np.empty((len(COLUMNS), 0), dtype=np.int64)
    sides = [rows[:, :lefts] for rows, lefts in tables], [rows[:, lefts:] for rows, lefts in tables]
    return np.concatenate([empty, *sides[0], *sides[1]], axis=1), sum(lefts for _, lefts in tables)


class Held:
    """What is held of all keys, of both sides."""

    def __init__(self) -> None:
        self._table = np.empty((len(COLUMNS), 0), dtype=np.int64)
        self._used = self._live = 0
        # By side and key.
        self._start, self._count = np.zeros((2, 2, 0), dtype=np.int64)

    def __len__(self) -> int:
        return self._live

    def grow(self, keys: int) -> None:
        """Make room for keys below ``keys``."""
        have = self._count.shape[1]
        if keys > have:
            more = np.zeros((2, max(keys - have, have)), dtype=np.int64)
            self._start, self._count = np.hstack([self._start, more]), np.hstack([self._count, more])

    def keys(self) -> Ints:
        """The keys of which records are held, ascending."""
        return np.flatnonzero(self._count.any(axis=0))

    def count(self, keys: Ints) -> Ints:
        """How many records are held of each of ``keys``, of both sides together."""
        found: Ints = self._count[:, keys].sum(axis=0)
        return found

    def rows(self, keys: Ints) -> Table:
        """The records of ``keys``, each side key by key."""
        count = self._count[:, keys]
        entries = Segments(self._start[:, keys].ravel(), count.ravel()).entries()
        return self._table.take(entries, axis=1), int(count[0].sum())

    def put(self, keys: Ints, table: Table) -> None:
        """Hold a table, in the order of `rows`, as all there is of their keys, and nothing of the other ``keys``."""
        rows, lefts = table
        more = rows.shape[1]
        self._live += more - int(self._count[:, keys].sum())
        self._count[:, keys] = 0
        if self._used + more > self._table.shape[1]:
            self._move_together(more)
        self._table[:, self._used : self._used + more] = rows
        starts = segment_starts(rows[KEY])
        starts[lefts : lefts + 1] = True
        of_key = Segments.of(starts)
        place = (of_key.start >= lefts).astype(np.intp), rows[KEY].take(of_key.start)
        self._start[place], self._count[place] = self._used + of_key.start, of_key.length
        self._used += more

    def _move_together(self, more: int) -> None:
        keys = self.keys()
        rows, _ = self.rows(keys)
        count = self._count[:, keys].ravel()
        self._used = rows.shape[1]
        self._table = np.empty((len(COLUMNS), max(_ROOM_MIN, 2 * (self._used + more))), dtype=np.int64)
        self._table[:, : self._used] = rows
        self._start[:, keys] = (np.cumsum(count) - count).reshape(2, -1)


class Merged(NamedTuple):
    """The records of some keys, those held before and new ones, in the order (key, ts).

    Equal ones stand in the order (side, log position). ``key``, ``ts``, ``is_right`` and ``old`` (held before) are in
    that order; ``of_key`` are the segments of each key, ``runs`` those of one side within them, and ``ties`` the
    segments of equal (key, ts) that hold records of both sides. What else is known of the records, the table ``rows``
    has, where ``order`` leads to: first left ones, then from ``rights_at`` on right ones, duplicates among them.
    """

    key: Ints
    ts: Ints
    is_right: Bools
    old: Bools
    of_key: Segments
    runs: Runs
    ties: Segments
    rows: Ints
    order: Ints
    rights_at: int

    def notes(self, at: Ints | slice = slice(None)) -> Ints:
        """What has been noted of the records at ``at``."""
        found: Ints = self.rows[NOTES].take(self.order[at])
        return found

    def note(self, at: Ints, flag: int) -> None:
        """Note a flag of the records at ``at``."""
        self.rows[NOTES, self.order[at]] |= flag

    def whole(self, at: Ints) -> Table:
        """The records at ``at``, which are ascending, as `Held.put` takes them."""
        right = self.is_right.take(at)
        lefts, rights = at.compress(~right), at.compress(right)
        return self.rows.take(self.order.take(np.concatenate((lefts, rights))), axis=1), len(lefts)

    def seq(self, at: Ints) -> Ints:
        """The log positions of the records at ``at``."""
        found: Ints = self.rows[SEQ].take(self.order.take(at))
        return found

    def ordinals(self, left: Ints, right: Ints) -> tuple[Ints, Ints]:
        """The ordinals of the records at two indices; most streams have no equal times, and all of them are 0."""
        notes = self.rows[NOTES]
        if notes.max(initial=0) < 1 << ORDINAL:
            return np.zeros(len(left), dtype=np.int64), np.zeros(len(left), dtype=np.int64)
        return self.notes(left) >> ORDINAL, self.notes(right) >> ORDINAL

    def seq_but(self, kept: Ints) -> tuple[Ints, Ints]:
        """The log positions of all records but those at ``kept``, the left ones and the right ones."""
        count = self.rows.shape[1]
        if len(self.order) == count:
            chosen = np.ones(count, dtype=bool)
        else:
            chosen = np.zeros(count, dtype=bool)
            chosen[self.order] = True
        chosen[self.order.take(kept)] = False
        seq, at = self.rows[SEQ], self.rights_at
        return seq[:at].compress(chosen[:at]), seq[at:].compress(chosen[at:])


def merge(held: Table, left: Records, right: Records, identified: Sequence[bool | None]) -> tuple[Merged, Ints]:
    """Put new left and right records among the held ones; returns also which of ``rows`` are left out as duplicates.

    A duplicate has the side, key, time and identity of an earlier record; ``identified``: which sides have such.
    """
    rows, old, rights_at = _together(*held, left, right)
    order = sorting_order(rows[KEY], rows[TS])
    key, ts = rows[KEY].take(order), rows[TS].take(order)
    duplicates, equal = order[:0], _equal_times(key, ts)
    if len(equal.start):
        if any(identified):
            repeated = _repeats(rows, order, equal, rights_at, identified)
            duplicates, order = order[repeated], np.delete(order, repeated)
            key, ts = rows[KEY][order], rows[TS][order]
            equal = _equal_times(key, ts)
        _give_ordinals(rows, order, old, equal, rights_at)
    is_right = order >= rights_at
    ties = equal
    if len(equal.start):
        ties = equal.take(np.flatnonzero(is_right[equal.start] != is_right[equal.start + equal.length - 1]))
    new_key = segment_starts(key)
    new_run = segment_starts(is_right)
    new_run |= new_key
    of_key, runs = Segments.of(new_key), Runs.of(new_run)
    return Merged(key, ts, is_right, old.take(order), of_key, runs, ties, rows, order, rights_at), duplicates


def _together(held: Ints, lefts: int, left: Records, right: Records) -> tuple[Ints, Bools, int]:
    """All in one table, the left ones first, of each side the old ones first; which are old; where the right begin."""
    rights_at, count = lefts + len(left.key), held.shape[1] + len(left.key) + len(right.key)
    rows, old = np.empty((len(COLUMNS), count), dtype=np.int64), np.zeros(count, dtype=bool)
    for begin, earlier, new in ((0, held[:, :lefts], left), (rights_at, held[:, lefts:], right)):
        middle = begin + earlier.shape[1]
        end = middle + len(new.key)
        rows[:, begin:middle], old[begin:middle] = earlier, True
        rows[KEY, middle:end], rows[TS, middle:end], rows[SEQ, middle:end] = new.key, new.ts, new.seq
        rows[IDENTITY, middle:end] = 0 if new.identity is None else new.identity
        rows[NOTES, middle:end] = 0
    return rows, old, rights_at


def _equal_times(key: Ints, ts: Ints) -> Segments:
    """The segments of equal (key, ts) that hold more than one record."""
    same = ts[1:] == ts[:-1]
    if not same.any():
        return _NO_SEGMENTS
    same &= key[1:] == key[:-1]
    segments = Segments.of(np.append(np.True_, ~same))
    return segments.take(np.flatnonzero(segments.length > 1))


_NO_SEGMENTS: Final = Segments(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))


def _give_ordinals(rows: Ints, order: Ints, old: Bools, equal: Segments, rights_at: int) -> None:
    """Note the place of each new record among those of its side in its group of equal key and time.

    A group of equal times that still gets records has lost none (they are held until the stream's own frontier has
    passed them), so its positions are its ordinals; a group that has lost some keeps those it was given.
    """
    at = order[equal.entries()]
    groups = Segments.of(segment_starts(rows[KEY][at], rows[TS][at], at >= rights_at))
    ordinal = np.arange(len(at)) - groups.spread(groups.start)
    new = np.flatnonzero(~old[at])
    rows[NOTES, at[new]] = ordinal[new] << ORDINAL


def _repeats(rows: Ints, order: Ints, equal: Segments, rights_at: int, identified: Sequence[bool | None]) -> Ints:
    """Which entries of ``order`` repeat the identity of an earlier one of their side, key and time."""
    entries, group = equal.entries(), equal.spread(np.arange(len(equal.start)))
    right = order[entries] >= rights_at
    which = np.flatnonzero(np.where(right, bool(identified[1]), bool(identified[0])))
    entries, group = entries[which], 2 * group[which] + right[which]
    identity = rows[IDENTITY][order[entries]]
    by_identity = np.lexsort((identity, group))
    repeated = ~segment_starts(group[by_identity], identity[by_identity])
    return np.sort(entries[by_identity[repeated]])
