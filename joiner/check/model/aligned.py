"""Aligned rows in their simplest form: for each driver record, look for its neighbours in each column's stream.

This is the definition in docs/alignment.md as executable code, built on the definition of the join
(`joiner.check.model.oracle`). Given the entries read from each stream, it computes exactly the rows that must have been
emitted by then. The ticks of a grid are treated as driver records.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Final, NamedTuple

from joiner.check.model import oracle

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joiner.check.model.oracle import Rec, Watermark

DIRECTIONS: Final = {
    "previous": ("backward",),
    "next": ("forward",),
    "nearest": ("nearest",),
    "linear": ("backward", "forward"),
}
"""The neighbours that each rule needs, as directions of a join."""


class Column(NamedTuple):
    """A column: its stream's entries in log order, the value of each record by seq, and the rule."""

    entries: Sequence[Rec | Watermark]
    values: Mapping[int, float]
    rule: str = "previous"
    tolerance_ns: int | None = None
    period: float | None = None
    on_missing: str = "null"
    lateness_ns: int = 0


class Neighbour(NamedTuple):
    """A record that a value is taken from: its time in ns and its value."""

    ts: int
    value: float


Row = tuple[float | None, ...]
"""The value of each column, or None where it is missing."""


def align(
    driver: Sequence[Rec | Watermark],
    columns: Sequence[Column],
    *,
    lateness_ns: int = 0,
    watermark_scope: str = "key",
    closed: bool = False,
) -> tuple[dict[int, Row], set[int]]:
    """Return the rows that must have been emitted, by driver seq, and the driver seqs of those that were left out.

    The arguments must contain everything read so far. ``closed``: whether all streams have ended.
    """
    rows: dict[int, Row] = {}
    left_out: set[int] = set()
    found = [_neighbours(driver, one, lateness_ns, watermark_scope, closed=closed) for one in columns]
    for record in oracle.Stream(driver, lateness_ns, watermark_scope=watermark_scope).accepted:
        if not all(record.seq in relation for relations in found for relation in relations):
            continue  # a column is not certain yet
        row = tuple(
            value_at(one, record.ts, [_with_value(one, relation[record.seq]) for relation in relations])
            for one, relations in zip(columns, found, strict=True)
        )
        if any(value is None and one.on_missing == "drop" for one, value in zip(columns, row, strict=True)):
            left_out.add(record.seq)
        else:
            rows[record.seq] = row
    return rows, left_out


def _with_value(column: Column, record: Rec | None) -> Neighbour | None:
    return None if record is None else Neighbour(record.ts, column.values[record.seq])


class Grid(NamedTuple):
    """Ticks at ``origin_ns + tick * every_ns`` for every integer ``tick``.

    There are none between two records of a key that are more than ``max_gap_ns`` apart.
    """

    every_ns: int
    origin_ns: int = 0
    max_gap_ns: int | None = None


def align_grid(
    grid: Grid, columns: Sequence[Column], *, watermark_scope: str = "key", closed: bool = False
) -> dict[tuple[int, int], Row]:
    """Return the rows of a grid that must have been emitted, by key and tick. See `align` for the arguments."""
    rows: dict[tuple[int, int], Row] = {}
    streams = [oracle.Stream(one.entries, one.lateness_ns, watermark_scope=watermark_scope) for one in columns]
    for key in {record.key for stream in streams for record in stream.accepted}:
        times = sorted(record.ts for stream in streams for record in stream.accepted if record.key == key)
        reached = oracle.ENDED if closed else min(stream.frontier(key) for stream in streams)
        first, last = -((grid.origin_ns - times[0]) // grid.every_ns), (times[-1] - grid.origin_ns) // grid.every_ns
        ticks = [oracle.Rec(key, grid.origin_ns + tick * grid.every_ns, tick) for tick in range(first, last + 1)]
        driver = [tick for tick in ticks if tick.ts <= reached and not _is_in_gap(tick.ts, times, grid.max_gap_ns)]
        found, _ = align(driver, columns, watermark_scope=watermark_scope, closed=closed)
        rows |= {(key, tick): row for tick, row in found.items()}
    return rows


def _is_in_gap(ts: int, times: list[int], max_gap_ns: int | None) -> bool:
    before, after = max(one for one in times if one <= ts), min(one for one in times if one >= ts)
    return max_gap_ns is not None and after - before > max_gap_ns


def _neighbours(
    driver: Sequence[Rec | Watermark], column: Column, lateness_ns: int, watermark_scope: str, *, closed: bool
) -> list[dict[int, Rec | None]]:
    """Return each relation's certain neighbours by driver seq. None means that a record certainly has no neighbour."""
    relations = []
    for direction in DIRECTIONS[column.rule]:
        options = {
            "tolerance_ns": column.tolerance_ns,
            "lateness_ns": (lateness_ns, column.lateness_ns),
            "direction": direction,
            "driver": "left",
            "watermark_scope": watermark_scope,
        }
        # One dict has values of several types.
        answer = oracle.join(driver, column.entries, closed=closed, **options)  # type: ignore[arg-type] # see above
        records = {record.seq: record for record in answer.right.accepted}
        relation: dict[int, Rec | None] = {left: records[right] for left, right in answer.pairs}
        without, _ = oracle.unmatched(driver, column.entries, closed=closed, **options)
        relations.append(relation | dict.fromkeys(without))
    return relations


def value_at(column: Column, ts: int, neighbours: Sequence[Neighbour | None]) -> float | None:
    """Return the value of a column at ``ts``, or None if it is missing.

    ``neighbours``: for each relation of the rule, the neighbour, or None if there is none.
    """
    first, last = neighbours[0], neighbours[-1]
    if first is None or last is None:
        return None
    if column.rule != "linear":
        return first.value
    if column.tolerance_ns is not None and last.ts - first.ts > column.tolerance_ns:
        return None
    if column.period is not None:
        weight = Fraction(ts - first.ts, last.ts - first.ts or 1)
        return _between_angles(first.value, last.value, weight, column.period)
    if ts in {first.ts, last.ts}:
        return first.value if ts == first.ts else last.value
    weight = Fraction(ts - first.ts, last.ts - first.ts)
    return float(Fraction(first.value) + weight * (Fraction(last.value) - Fraction(first.value)))


def _between_angles(before: float, after: float, weight: Fraction, period: float) -> float:
    size = Fraction(period)
    begin = Fraction(before) % size
    way = (Fraction(after) % size - begin + size / 2) % size - size / 2
    if way == -size / 2:
        way = size / 2  # forward, if both ways are equally long
    return float((begin + weight * way) % size)
