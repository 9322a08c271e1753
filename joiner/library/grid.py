"""Defines `grid`, which gives `align` regular times instead of a driver table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from joiner.alignment.grid import NO_LIMIT, check_ticks_max, find_table_ticks
from joiner.core.errors import ArgumentError
from joiner.library.sides import Side, check_key_types
from joiner.library.tables.reading import check_distinct
from joiner.library.times import INTEGERS, Times, duration_of, time_of, unit_ns

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joiner.library.tables.kind import Kind

    Ints = NDArray[np.int64]


@dataclass(frozen=True)
class TableGrid:
    """Regular times, as passed to `align` in place of a driver table. See `grid`."""

    every: object
    origin: object
    max_gap: object
    ticks_max: int


def grid(every: object, *, origin: object = None, max_gap: object = None, ticks_max: int = 100_000_000) -> TableGrid:
    """Describe the ticks that replace the driver of `align`: ``origin`` plus or minus whole multiples of ``every``.

    Each key has the ticks between its first and last rows in the columns' tables.

    Args:
        every: the time from one tick to the next: an integer if the times are integers, otherwise a duration such as
            ``"100ms"`` or a `timedelta`.
        origin: the time of one tick: an integer if the times are integers, otherwise a datetime. The default is 0, or
            the beginning of 1970 (in UTC, if the times have a time zone).
        max_gap: the longest pause to fill with ticks. If two successive rows of a key, in any tables, are further
            apart, there are no ticks between them. No limit by default.
        ticks_max: the maximum number of ticks. If there are more, `align` raises an `ArgumentError`.

    Raises:
        ArgumentError: if ``ticks_max`` is invalid. `align` checks the other arguments.

    """
    return TableGrid(every, origin, max_gap, check_ticks_max(ticks_max))


def rows_of_grid(kind: Kind, of: TableGrid, sides: list[Side], time: str, by: list[str]) -> Any:
    """Return a table of keys and times with a row for each tick, ordered by key and time.

    ``sides``: the tables that have keys. Keys are in order of first appearance in these tables. ``time``, ``by``: the
    column names of the result. Times have the same type as in the first table; integers become int64.

    Raises `ArgumentError` if an option is invalid, if two columns would have the same name, if the tables differ in the
    type of their times or keys, or if there are too many ticks.
    """
    check_distinct("grid", [*by, time])
    first, times = sides[0], [side.times(kind) for side in sides]
    keys = kind.select(first.table, first.by, first.by)
    for side, stamps in zip(sides[1:], times[1:], strict=True):
        if stamps.what != times[0].what:
            raise ArgumentError(
                f"time: {first.name} contains {times[0].what}, but {side.name} contains {stamps.what}; "
                "convert one of them"
            )
        check_key_types(kind, [first, side])
        if first.by:
            keys = kind.stacked(keys, kind.select(side.table, side.by, first.by))
    options = _options(of, times[0], kind.column(first.table, first.time)[0], first)
    ns = np.concatenate([stamps.ns for stamps in times])
    codes = np.zeros(len(ns), dtype=np.int64)
    if first.by:
        codes = kind.codes(keys, kind.take(keys, first.by, np.empty(0, dtype=np.int64), may_lack=False))
    _, rows, code = np.unique(codes, return_index=True, return_inverse=True)
    # The first row with a key represents that key.
    row_of_key = rows[code]
    order = np.lexsort((ns, row_of_key))
    (row, ticks), crowded = find_table_ticks(row_of_key[order], ns[order], options)
    if crowded:
        raise ArgumentError(
            f"grid: there are more than ticks_max = {of.ticks_max} ticks; raise ticks_max, choose a longer every than "
            f"{of.every!r}, or set max_gap to leave out the ticks in long pauses"
        )
    of_times = kind.of_times(time, ticks, first.table, first.time), [time]
    of_keys = [(kind.take(keys, first.by, row, may_lack=False), by)] if by else []
    return kind.beside([*of_keys, of_times])


def _options(of: TableGrid, times: Times, values: Any, side: Side) -> tuple[int, int, int, int]:
    """Return the options in the form that `find_table_ticks` expects.

    ``values``: the time column of ``side``, whose times are ``times``.
    """
    every = duration_of("every", of.every, times.what)
    if not every:
        raise ArgumentError(f"every = {of.every!r} must be above 0")
    max_gap = NO_LIMIT if of.max_gap is None else duration_of("max_gap", of.max_gap, times.what)
    origin, what = (0, times.what) if of.origin is None else time_of("origin", of.origin)
    if what != times.what:
        raise ArgumentError(f"origin = {of.origin!r}: expected {times.what}, as in {side.name}, but got {what}")
    if times.what != INTEGERS:
        where = f"{side.name}[{side.time!r}]"
        unit = unit_ns(where, values)
        for name, given, ns in (("every", of.every, every), ("origin", of.origin, origin)):
            if ns % unit:
                raise ArgumentError(
                    f"{name} = {given!r}: {where} cannot hold all ticks, because it is {values.dtype}; "
                    "convert the column"
                )
    return every, origin % every, max_gap, of.ticks_max
