"""Finds the ticks of a grid: regular times that each get a row, in place of a driver's records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from joiner.alignment.record_lists import AFTER, HEAD, NONE, OF_LIST, SETTLED, TS
from joiner.alignment.rules import NEAREST, NEXT, PREVIOUS
from joiner.core.arguments import TIME_MAX_NS, TIME_MIN_NS, check_duration
from joiner.core.compiled import COUNT, FLAG, GIVEN, INTS, TABLE, compiled, gap, named, several
from joiner.core.errors import ArgumentError
from joiner.core.frontier import FOREVER, NEVER, less

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

GRID: Final = "grid"
"""The name of a grid in an align's list of streams."""

_TICK_MAX: Final = 2**63 - 1
NO_LIMIT: Final = -1
"""Stands for an unlimited tolerance or gap in compiled loops."""

_ROOM_MIN: Final = 1024

_MANY: Final = 2**40
"""The most ticks counted for a key. With this limit, the sum over millions of keys fits into an int64."""


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Rows at the times ``origin_ns + tick * every_ns``, for every integer ``tick``.

    A key has the ticks between its first and last records, in any column.

    Args:
        every_ns: the time from one tick to the next.
        origin_ns: the time of tick 0, in the years 1678 to 2261.
        max_gap_ns: the longest pause to fill with ticks. If two successive records of a key, in any columns, are
            further apart, there are no ticks between them. None means no limit.
        ticks_max: the maximum number of ticks in one step.

    Raises:
        ArgumentError: if an option is invalid. The message names the option and says why.

    """

    every_ns: int
    origin_ns: int = 0
    max_gap_ns: int | None = None
    ticks_max: int = 1_000_000

    def __post_init__(self) -> None:
        for name in ("every_ns", "max_gap_ns"):
            if name == "every_ns" or getattr(self, name) is not None:
                object.__setattr__(self, name, check_duration(name, getattr(self, name)))
        if isinstance(self.origin_ns, bool) or not isinstance(self.origin_ns, int | np.integer):
            message = f"origin_ns must be an integer number of nanoseconds, not {self.origin_ns!r}"
            raise ArgumentError(message)
        object.__setattr__(self, "origin_ns", int(self.origin_ns))
        object.__setattr__(self, "ticks_max", check_ticks_max(self.ticks_max))
        if not self.every_ns:
            message = "every_ns must be at least 1"
            raise ArgumentError(message)
        if not TIME_MIN_NS <= self.origin_ns <= TIME_MAX_NS:
            message = f"origin_ns = {self.origin_ns} is outside the years 1678 to 2261, in ns since the epoch"
            raise ArgumentError(message)
        if max(TIME_MAX_NS - self.origin_ns, self.origin_ns - TIME_MIN_NS) // self.every_ns > _TICK_MAX:
            message = f"every_ns = {self.every_ns} with origin_ns = {self.origin_ns}: tick numbers would exceed int64"
            raise ArgumentError(message)

    @property
    def phase_ns(self) -> int:
        """The remainder of a tick's time divided by ``every_ns``, which is the same for all ticks."""
        return self.origin_ns % self.every_ns

    def numbers(self, ts: Ints) -> Ints:
        """Return the numbers of the ticks at the times ``ts`` (ns) as an int64 array of shape (n,)."""
        # Every difference fits into an int64: the constructor has checked the largest ones.
        return ts // self.every_ns - self.origin_ns // self.every_ns


def check_ticks_max(value: object) -> int:
    """Return ``ticks_max`` as an int. Raises `ArgumentError` unless it is an integer from 1 to 2**63 - 1."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 1 <= value <= _TICK_MAX:
        message = f"ticks_max must be an integer from 1 to 2**63 - 1, not {value!r}"
        raise ArgumentError(message)
    return int(value)


class KeyTicks(NamedTuple):
    """The state of each key's ticks. All are int64 arrays of shape (keys,), in ns.

    ``first``, ``last``: the smallest and largest times among the key's records (`FOREVER` and `NEVER` if it has none).
    ``following``: the time of the key's next tick (`NEVER` while it is not certain, `FOREVER` if there is none).
    """

    first: Ints
    last: Ints
    following: Ints


class ColumnRules(NamedTuple):
    """The rules of c columns for compiled loops, int64 of shape (c,) each.

    ``which``: the rules as indices in `RULES`. ``tolerance_ns``: -1 means no limit.
    """

    which: Ints
    tolerance_ns: Ints


@compiled(
    several(TABLE, INTS, COUNT),
    GIVEN,
    named(KeyTicks, INTS, INTS, INTS),
    TABLE,
    named(ColumnRules, INTS, INTS),
    TABLE,
    TABLE,
    several(COUNT, COUNT, COUNT, COUNT),
)
def find_ticks(
    keys: Ints,
    known: KeyTicks,
    frontiers: Ints,
    rules: ColumnRules,
    nodes: Ints,
    ends: Ints,
    grid: tuple[int, int, int, int],
) -> tuple[Ints, Ints, int]:
    """Find the ticks at which all columns have become certain, for k keys in ascending order.

    ``frontiers``: the frontier of each column and key in ns, shape (c, k). ``nodes``, ``ends``: see `RecordLists`.
    ``grid``: the time between ticks, the phase, the largest gap (ns; -1 means no limit), and the maximum number of
    ticks.

    Returns the keys and times of the ticks, shape (2, n); the next tick of each key, shape (k,); and -1. If the ticks
    exceed the maximum, returns no ticks, the next ticks only up to the key that exceeded it, and the index of that key.
    """
    every, phase, max_gap, ticks_max = grid
    found, count = np.empty((2, _ROOM_MIN), dtype=np.int64), 0
    following = np.empty(len(keys), dtype=np.int64)
    at = np.empty(len(rules.which), dtype=np.int64)
    for i in range(len(keys)):
        key = keys[i]
        ts, until, reached = known.following[key], known.last[key], FOREVER
        for column in range(len(at)):
            at[column] = ends[OF_LIST * column + HEAD, key]
            settled = ends[OF_LIST * column + SETTLED, key]
            settled_ts = NEVER if settled == NONE else nodes[TS, settled]
            frontier = frontiers[column, i]
            certain = _certain_until(rules.which[column], rules.tolerance_ns[column], frontier, settled_ts)
            until, reached = min(until, certain), min(reached, frontier)
        if ts == NEVER and known.last[key] != NEVER and reached >= known.first[key]:
            ts = _first_tick(known.first[key], every, phase)
        while NEVER < ts <= until:
            end = until
            if max_gap != NO_LIMIT:
                before, after = _records_around(ts, at, nodes)
                if _has_no_ticks(before, after, max_gap):
                    if reached < after:
                        break  # a record may still arrive within the gap
                    ts = _first_tick(after, every, phase)
                    continue
                end = min(until, after)
            steps = gap(end, ts) // np.uint64(every)
            if steps >= np.uint64(ticks_max - count):
                following[i] = ts
                return found[:, :0].copy(), following, i
            found = _with_room(found, count, int(steps) + 1)
            for _ in range(int(steps) + 1):
                found[0, count], found[1, count] = key, ts
                count += 1
                ts = ts + every if np.uint64(every) <= gap(FOREVER, ts) else FOREVER
        following[i] = ts
    return found[:, :count].copy(), following, -1


@compiled(INTS, GIVEN, named(KeyTicks, INTS, INTS, INTS), TABLE, TABLE, TABLE, several(COUNT, COUNT, COUNT, COUNT))
def bound_ticks(
    keys: Ints, known: KeyTicks, frontiers: Ints, nodes: Ints, ends: Ints, grid: tuple[int, int, int, int]
) -> Ints:
    """Return a lower bound on the times of each key's future ticks, in ns, shape (k,). It never decreases.

    The bound is the next tick, capped at 1 ns after the key's last record or at its lowest frontier, whichever is
    later. Without the cap, readers might reject times ahead of the clock. If the next tick falls in a pause longer than
    the largest gap, the record that ends the pause takes its place. While the next tick is not certain, the bound is
    the key's first record or its lowest frontier, whichever is earlier. The arguments are as in `find_ticks`.
    """
    _, _, max_gap, _ = grid
    bounds = np.empty(len(keys), dtype=np.int64)
    at = np.empty(len(ends) // OF_LIST, dtype=np.int64)
    for i in range(len(keys)):
        key, reached = keys[i], FOREVER
        for column in range(len(at)):
            at[column] = ends[OF_LIST * column + HEAD, key]
            reached = min(reached, frontiers[column, i])
        ts = known.following[key]
        if ts == NEVER:
            # Before the first tick, a record older than all others may still arrive.
            bounds[i] = min(known.first[key], reached)
            continue
        if max_gap != NO_LIMIT and ts != FOREVER:
            before, after = _records_around(ts, at, nodes)
            # The record that ends the pause is held, or has yet to arrive.
            until = min(after, reached)
            if NEVER < before < until and gap(until, before) > np.uint64(max_gap):
                ts = max(ts, until)
        # A tick at the last record's time may have been emitted already, so the bound is later than that.
        bounds[i] = min(ts, max(known.last[key] + 1, reached))
    return bounds


@compiled(INTS, named(KeyTicks, INTS, INTS, INTS), TABLE, TABLE, several(COUNT, COUNT, COUNT, COUNT))
def count_ticks(known: KeyTicks, nodes: Ints, ends: Ints, grid: tuple[int, int, int, int]) -> Ints:
    """Count the ticks up to each key's last record that `find_ticks` has not found yet, at most `_MANY` per key.

    A pause longer than the largest gap is assumed to have no ticks, even though a record may still arrive within it.
    The arguments are as in `find_ticks`. Returns an int64 array of shape (keys,).
    """
    every, phase, max_gap, _ = grid
    counts = np.zeros(len(known.last), dtype=np.int64)
    at = np.empty(len(ends) // OF_LIST, dtype=np.int64)
    for key in range(len(counts)):
        ts, last = known.following[key], known.last[key]
        if last == NEVER:
            continue
        for column in range(len(at)):
            at[column] = ends[OF_LIST * column + HEAD, key]
        if ts == NEVER:
            ts = _first_tick(known.first[key], every, phase)
        while ts <= last:
            end = last
            if max_gap != NO_LIMIT:
                before, after = _records_around(ts, at, nodes)
                if _has_no_ticks(before, after, max_gap):
                    ts = _first_tick(after, every, phase)
                    continue
                end = min(last, after)
            steps = gap(end, ts) // np.uint64(every)
            counts[key] = min(counts[key] + int(min(steps, np.uint64(_MANY))) + 1, _MANY)
            ts += int(steps) * every
            ts = ts + every if np.uint64(every) <= gap(FOREVER, ts) else FOREVER
    return counts


@compiled()
def _has_no_ticks(before: int, after: int, max_gap: int) -> bool:
    """Return whether two successive records are so far apart that there are no ticks between them."""
    return bool(gap(after, before) > np.uint64(max_gap))


@compiled(several(TABLE, FLAG), GIVEN, GIVEN, several(COUNT, COUNT, COUNT, COUNT))
def find_table_ticks(key: Ints, ts: Ints, grid: tuple[int, int, int, int]) -> tuple[Ints, bool]:
    """Find the ticks between each key's first and last records. The n records must be ordered by (key, time).

    ``grid``: as in `find_ticks`. Returns the keys and times of the ticks, shape (2, m), in the same order, and whether
    there are more than the maximum. If there are, no ticks are returned.
    """
    every, phase, max_gap, ticks_max = grid
    found, count = np.empty((2, _ROOM_MIN), dtype=np.int64), 0
    for i in range(len(key)):
        begin = ts[i]
        if i and key[i] == key[i - 1]:
            if ts[i] == ts[i - 1]:
                continue
            if max_gap == NO_LIMIT or not _has_no_ticks(ts[i - 1], ts[i], max_gap):
                begin = ts[i - 1] + 1
        ahead, way = np.uint64(_until_tick(begin, every, phase)), gap(ts[i], begin)
        if ahead > way:
            continue
        steps = (way - ahead) // np.uint64(every)
        if steps >= np.uint64(ticks_max - count):
            return found[:, :0].copy(), True
        found = _with_room(found, count, int(steps) + 1)
        for step in range(int(steps) + 1):
            found[0, count], found[1, count] = key[i], begin + int(ahead) + step * every
            count += 1
    return found[:, :count].copy(), False


@compiled()
def _certain_until(rule: int, tolerance_ns: int, frontier: int, settled_ts: int) -> int:
    """Return the last time, in ns, at which a column's value is certain, or `NEVER`.

    ``settled_ts``: the time of the column's last record at or before the frontier, or `NEVER`.
    """
    if frontier in (NEVER, FOREVER):
        return frontier
    if rule == PREVIOUS:
        return frontier - 1
    # For every time up to the last settled record, the next record is certain.
    until = settled_ts
    if rule == NEAREST and settled_ts != NEVER:
        # Up to the midpoint, the previous record is nearer than any record that may still arrive.
        until = settled_ts + int(gap(frontier, settled_ts) >> np.uint64(1))
    if tolerance_ns != NO_LIMIT:
        # Any record that may still arrive is beyond the tolerance of these times.
        until = max(until, less(frontier - 1, tolerance_ns))
    return until if rule == NEXT else min(until, frontier - 1)


@compiled()
def _records_around(ts: int, at: Ints, nodes: Ints) -> tuple[int, int]:
    """Return the times of the last record at or before ``ts`` and the first one at or after it, across all columns.

    ``at``: the node where the search starts in each column. It is advanced in place.
    """
    before, after = NEVER, FOREVER
    for column in range(len(at)):
        node = at[column]
        if node == NONE:
            continue
        while nodes[AFTER, node] != NONE and nodes[TS, nodes[AFTER, node]] <= ts:
            node = nodes[AFTER, node]
        at[column] = node
        if nodes[TS, node] <= ts:
            before, node = max(before, nodes[TS, node]), node if nodes[TS, node] == ts else nodes[AFTER, node]
        if node != NONE:
            after = min(after, nodes[TS, node])
    return before, after


@compiled()
def _first_tick(ts: int, every: int, phase: int) -> int:
    """Return the first tick at or after ``ts``, or `FOREVER` if there is none."""
    ahead = _until_tick(ts, every, phase)
    return ts + ahead if np.uint64(ahead) <= gap(FOREVER, ts) else FOREVER


@compiled()
def _until_tick(ts: int, every: int, phase: int) -> int:
    """Return the time from ``ts`` to the first tick at or after it."""
    ahead = phase - ts % every
    return ahead + every if ahead < 0 else ahead


@compiled()
def _with_room(found: Ints, count: int, more: int) -> Ints:
    if count + more <= found.shape[1]:
        return found
    larger = np.empty((2, 2 * (count + more)), dtype=np.int64)
    larger[:, :count] = found[:, :count]
    return larger
