"""Computes the same rows as `joiner.check.model.aligned`, but fast enough for millions of records.

Neighbours come from `joiner.check.model.expected`, which shares no code with the engine. Tests compare the two modules.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import numpy as np

from joiner.check.model.aligned import DIRECTIONS, Column, Grid, Neighbour, value_at
from joiner.check.model.expected import Stream, certain_pairs, unmatched

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


class Cell(NamedTuple):
    """A column's value in a row (None if missing), and the neighbours it was taken from."""

    value: float | None
    neighbours: tuple[Neighbour, ...]


class ExpectedRow(NamedTuple):
    """A row: its time in ns, the driver record's ordinal among equal keys and times, and a cell per column."""

    ts: int
    ordinal: int
    cells: tuple[Cell, ...]


RowKey = int | tuple[int, int]
"""Identifies a row: the driver record's seq or, with a grid, the key and the tick number."""

Key = TypeVar("Key", bound=RowKey)


class Rows(NamedTuple, Generic[Key]):
    """The rows that must have been emitted, and the seqs of driver records whose rows were left out.

    ``used``: for each column, the seqs of the records whose values are used in a row.
    """

    rows: dict[Key, ExpectedRow]
    left_out: set[int]
    used: tuple[set[int], ...]


def certain_rows(driver: Stream, columns: Sequence[tuple[Stream, Column]]) -> Rows[int]:
    """Return the same rows as `aligned.align`, but from sorted streams. Each column comes with its stream."""
    relations = [
        [_neighbours(driver, stream, column, direction) for direction in DIRECTIONS[column.rule]]
        for stream, column in columns
    ]
    found, left_out = Rows[int]({}, set(), tuple(set() for _ in columns)), set[int]()
    for seq, ts, ordinal in zip(driver.seq.tolist(), driver.ts.tolist(), _ordinals(driver).tolist(), strict=True):
        if not all(seq in relation for some in relations for relation in some):
            continue  # a column is not certain yet
        seqs = [[relation[seq] for relation in some] for some in relations]
        cells = tuple(_cell(column, ts, some) for (_, column), some in zip(columns, seqs, strict=True))
        if any(
            cell.value is None and column.on_missing == "drop" for cell, (_, column) in zip(cells, columns, strict=True)
        ):
            left_out.add(seq)
            continue
        found.rows[seq] = ExpectedRow(ts, ordinal, cells)
        for used, cell, some in zip(found.used, cells, seqs, strict=True):
            if cell.value is not None:
                used.update(one[0] for one in some if one is not None)
    return found._replace(left_out=left_out)


def certain_grid_rows(grid: Grid, columns: Sequence[tuple[Stream, Column]]) -> Rows[tuple[int, int]]:
    """Return the same rows as `aligned.align_grid`, but from sorted streams; see `certain_rows`."""
    table = [
        (key, grid.origin_ns + tick * grid.every_ns, tick)
        for key, times in sorted(_times_by_key([stream for stream, _ in columns]).items())
        for tick in _ticks(grid, times, min(int(stream.frontier_of(np.array([key]))[0]) for stream, _ in columns))
    ]
    key, ts, ticks = np.array(table, dtype=np.int64).reshape(-1, 3).T
    found = certain_rows(Stream(key, ts, np.arange(len(key)), {}), columns)
    names = list(zip(key.tolist(), ticks.tolist(), strict=True))
    return Rows({names[at]: row for at, row in found.rows.items()}, set(), found.used)


_Found = tuple[int, Neighbour]
"""A neighbour's seq, and the neighbour itself."""


def _neighbours(driver: Stream, stream: Stream, column: Column, direction: str) -> dict[int, _Found | None]:
    """Return the certain neighbours by driver seq. None means that a record certainly has no neighbour."""
    pairs = certain_pairs(driver, stream, column.tolerance_ns, direction=direction, driver="left")
    seqs, times = pairs.right_seq.tolist(), pairs.right_ts.tolist()
    found: dict[int, _Found | None] = {
        of: (seq, Neighbour(ts, column.values[seq]))
        for of, seq, ts in zip(pairs.left_seq.tolist(), seqs, times, strict=True)
    }
    without, _ = unmatched(driver, stream, column.tolerance_ns, direction=direction, driver="left")
    return found | dict.fromkeys(without)


def _cell(column: Column, ts: int, found: Sequence[_Found | None]) -> Cell:
    neighbours = [None if one is None else one[1] for one in found]
    value = value_at(column, ts, neighbours)
    return Cell(value, () if value is None else tuple(one for one in neighbours if one is not None))


def _ordinals(stream: Stream) -> Ints:
    """Return each record's index among the records with the same key and time. The stream must be sorted."""
    place = np.arange(len(stream.seq))
    is_first = np.ones(len(place), dtype=bool)
    is_first[1:] = (stream.key[1:] != stream.key[:-1]) | (stream.ts[1:] != stream.ts[:-1])
    found: Ints = place - np.maximum.accumulate(np.where(is_first, place, 0))
    return found


def _times_by_key(streams: Sequence[Stream]) -> dict[int, list[int]]:
    """Return the record times of all streams by key, ascending."""
    found: dict[int, set[int]] = {}
    for stream in streams:
        for key, times in stream.times_by_key().items():
            found.setdefault(key, set()).update(times)
    return {key: sorted(times) for key, times in found.items()}


def _ticks(grid: Grid, times: list[int], reached: int) -> list[int]:
    """Return the numbers of a key's ticks up to ``reached`` (ns), given the times of its records, ascending."""
    found: list[int] = []
    following = _first_at(grid, times[0])
    for before, after in pairwise([times[0], *times]):
        if grid.max_gap_ns is not None and after - before > grid.max_gap_ns:
            following = max(following, _first_at(grid, after))
        end = (min(after, reached) - grid.origin_ns) // grid.every_ns + 1
        found += range(following, end)
        following = max(following, end)
    return found


def _first_at(grid: Grid, ts: int) -> int:
    """Return the number of the first tick at or after ``ts`` (ns)."""
    return -((grid.origin_ns - ts) // grid.every_ns)
