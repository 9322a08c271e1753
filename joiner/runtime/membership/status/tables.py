"""Presents the status of an application as lines of text, and as HTML for notebooks."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from joiner.alignment.driver_rows import DRIVER
from joiner.alignment.grid import GRID
from joiner.runtime.membership.status.summary import (
    AlignStatus,
    AssignmentStatus,
    JoinStatus,
    MergingStatus,
    ReplicaStatus,
    Status,
    UnitSummary,
)
from joiner.runtime.repartition.status import RepartitionStatus
from joiner.runtime.task.function_failures import FAILED

WIDTH: Final = 100
"""The maximum line width in columns. The first line, or a table with unusually long names or numbers, may be wider."""

_NAME_LENGTH_MAX: Final = 24
_COUNTED: Final = ("pairs", FAILED, "late", "duplicates", "unmatched")
_ALIGN_COUNTED: Final = ("rows", FAILED, "dropped", "late", "duplicates")
_LARGER_S: Final = ((172_800.0, 86_400, "d"), (7_200.0, 3_600, "h"), (120.0, 60, "min"), (0.0, 1, "s"))

_Table = tuple[tuple[str, ...], list[tuple[str, ...]]]
"""Header and rows."""


def lines_of(status: Status) -> list[str]:
    """Return the status as lines of text; see `WIDTH`.

    Programs may parse this text: the first line ends with the time, and each line that begins with a number
    describes a unit.
    """
    first, *processes = _headings(status)
    found = [first, *(line for text in processes for line in textwrap.wrap(text, WIDTH))]
    for header, rows in _tables(status):
        found += ["", *_text_table(header, rows)]
    for notes in _notes(status):
        found += ["", *(line for note in notes for line in textwrap.wrap(note, WIDTH))]
    return found


def html_of(status: Status) -> str:
    """Return the status as HTML: unstyled paragraphs and tables."""
    parts = [f"<p>{'<br>'.join(map(html.escape, _headings(status)))}</p>"]
    for header, rows in _tables(status):
        lines = [(header, "th"), *((row, "td") for row in rows)]
        cells = ("".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row) for row, tag in lines)
        parts.append(f"<table>{''.join(f'<tr>{line}</tr>' for line in cells)}</table>")
    parts += [f"<p>{'<br>'.join(map(html.escape, notes))}</p>" for notes in _notes(status)]
    return "\n".join(parts)


def _headings(status: Status) -> list[str]:
    semantics = status.semantics[:12]
    return [
        f"application {status.application}, {len(status.units)} units, semantics {semantics}, {status.at}",
        *(_processes(site, units_by_name) for site, units_by_name in status.processes.items()),
        *(_assignment(site, assignment) for site, assignment in status.assignments.items()),
    ]


def _assignment(site: str, assignment: AssignmentStatus) -> str:
    standbys = sum(map(len, assignment.standbys))
    warm = sum(map(len, assignment.warm))
    parts = [f"assignment {assignment.epoch} of {site}: {assignment.reason or 'reason not known'}"]
    if standbys:
        parts.append(f"{warm} of {standbys} standbys warm")
    return "; ".join([*parts, *orders_in_force(assignment)])


def _tables(status: Status) -> list[_Table]:
    """Return the tables to show: the units and, if any unit has run, their joins and aligns, and the frontiers."""
    header = ("unit", "owner", "state", "last commit", "lag", "records", "rejected", "offsets")
    tables: list[_Table] = [(header, [_unit_row(number, unit) for number, unit in enumerate(status.units)])]
    if status.repartition:
        columns = ("repartitioned", "by", "lag", "into")
        tables.append((columns, [_repartition_row(one) for one in status.repartition]))
    if status.replicas:
        heads = ("replicas", "number", "units begun", "lag", "last commit")
        tables.append((heads, [_replica_row(one) for one in status.replicas]))
    if status.merging:
        whats = ("merged topic", "replica", "partitions", "complete", "ignored")
        tables.append((whats, [_merging_row(one) for one in status.merging]))
    if joins := _joins(status):
        totals = ("join", "unit", "pairs", "failed", "late", "dup.", "unmatched", "held left", "right")
        tables.append((totals, [_join_row(*one) for one in joins]))
        frontiers = ("join", "unit", "frontier left (lowest..highest)", "frontier right")
        tables.append((frontiers, [_frontier_row(*one) for one in joins]))
    if aligns := _aligns(status):
        counts = ("align", "unit", *_ALIGN_COUNTED[:-1], "dup.", "waiting")
        tables.append((counts, [_align_row(*one) for one in aligns]))
        streams = ("align", "unit", "stream", "held", "frontier (lowest..highest)")
        tables.append((streams, [row for one in aligns for row in _stream_rows(*one)]))
    return tables


def _joins(status: Status) -> list[tuple[str, int, JoinStatus]]:
    """Return each join's name, unit and status, sorted by name, then by unit."""
    joins = [(name, unit.unit, join) for unit in status.units if unit is not None for name, join in unit.joins.items()]
    return sorted(joins, key=lambda one: one[0])


def _aligns(status: Status) -> list[tuple[str, int, AlignStatus]]:
    """Return each align's name, unit and status, sorted by name, then by unit."""
    units = (unit for unit in status.units if unit is not None)
    return sorted(
        ((name, unit.unit, align) for unit in units for name, align in unit.aligns.items()), key=lambda one: one[0]
    )


def _notes(status: Status) -> list[list[str]]:
    """Return the paragraphs that follow the tables."""
    notes = [status.not_served] if status.not_served else []
    if faults := [f"replica {one.replica} cannot be read: {one.error}" for one in status.replicas if one.error]:
        notes.append(faults)
    if any(join.pairs is None for _, _, join in _joins(status)):
        notes.insert(0, ["-: not counted per join yet; counting starts with the unit's next commit"])
    return notes


def _processes(site: str, units_by_name: Mapping[str, Sequence[int]]) -> str:
    if not units_by_name:
        return f"no process is running at {site}"
    each = (f"{name} (units {' '.join(map(str, units)) or 'none'})" for name, units in units_by_name.items())
    return f"processes at {site}: {', '.join(each)}"


def _unit_row(number: int, unit: UnitSummary | None) -> tuple[str, ...]:
    if unit is None:
        return (str(number), "nobody yet", *[""] * 6)
    is_one = len(unit.offsets) == 1
    offsets = " ".join(f"{at}" if is_one else f"{topic}@{at}" for topic, at in sorted(unit.offsets.items()))
    return (
        str(number),
        _short(unit.owner),
        _short(unit.state),
        f"{age(unit.committed_s_ago)} ago",
        "not known" if unit.lag is None else str(unit.lag),
        str(unit.records),
        str(unit.rejected),
        offsets,
    )


def _repartition_row(status: RepartitionStatus) -> tuple[str, ...]:
    members = "not known" if status.members is None else " ".join(map(_short, status.members)) or "not running"
    lag = "no such topic" if status.lag is None else str(status.lag)
    return (status.topic, members, lag, status.target)


def _replica_row(status: ReplicaStatus) -> tuple[str, ...]:
    if status.error:
        return (_short(status.application), str(status.replica), "not known", "not known", "cannot be read")
    ago = "not started" if status.committed_s_ago is None else f"{age(status.committed_s_ago)} ago"
    return (_short(status.application), str(status.replica), str(status.units), str(status.lag), ago)


def _merging_row(status: MergingStatus) -> tuple[str, ...]:
    numbers = status.replica, status.partitions, status.complete, status.ignored
    return (_short(status.topic), *map(str, numbers))


def _join_row(name: str, unit: int, join: JoinStatus) -> tuple[str, ...]:
    counts = [getattr(join, what) for what in _COUNTED]
    held = str(join.held_left), str(join.held_right)
    return (_short(name), str(unit), *("-" if count is None else str(count) for count in counts), *held)


def _frontier_row(name: str, unit: int, join: JoinStatus) -> tuple[str, ...]:
    return (_short(name), str(unit), span(join.frontier_left), span(join.frontier_right))


def _align_row(name: str, unit: int, align: AlignStatus) -> tuple[str, ...]:
    counts = (str(getattr(align, what)) for what in _ALIGN_COUNTED)
    return (_short(name), str(unit), *counts, str(align.held.get(DRIVER, align.held.get(GRID, 0))))


def _stream_rows(name: str, unit: int, align: AlignStatus) -> list[tuple[str, ...]]:
    return [
        (_short(name), str(unit), _short(stream), str(held), span(align.frontiers.get(stream)))
        for stream, held in align.held.items()
    ]


def _text_table(columns: Sequence[str], rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return the lines of a text table in which numbers are right-aligned and text is left-aligned."""
    widths = [max(len(row[at]) for row in (columns, *rows)) for at in range(len(columns))]
    is_figure = [
        all(row[at].lstrip("-").isdigit() or row[at] in {"", "-"} for row in rows) for at in range(len(columns))
    ]

    def line(row: Sequence[str]) -> str:
        cells = zip(row, widths, is_figure, strict=True)
        return "  ".join(cell.rjust(width) if right else cell.ljust(width) for cell, width, right in cells).rstrip()

    return [line(columns), *map(line, rows)]


def _short(text: str) -> str:
    """Shorten a name for the tables. The JSON output contains it in full."""
    return text if len(text) <= _NAME_LENGTH_MAX else f"{text[: _NAME_LENGTH_MAX - 3]}..."


def orders_in_force(assignment: AssignmentStatus) -> list[str]:
    """Return the operators' orders for a site, each in a few words."""
    found = []
    if assignment.standbys_ordered is not None:
        found.append(f"standbys by order: {assignment.standbys_ordered}")
    if assignment.drained:
        found.append(f"drained: {', '.join(assignment.drained)}")
    if assignment.pinned:
        found.append(f"pinned: {', '.join(f'unit {unit} to {name}' for unit, name in assignment.pinned.items())}")
    return found


def age(seconds: float) -> str:
    """Return a time span in the largest suitable unit, such as ``3 min``."""
    size, unit = next((size, unit) for least, size, unit in _LARGER_S if seconds >= least)
    return f"{int(seconds // size)} {unit}"


def span(frontier: tuple[int, int] | None) -> str:
    """Return the lowest and the highest frontier in UTC, without fractional seconds."""
    if frontier is None:
        return "-"
    low, high = (datetime.fromtimestamp(ns // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%S") for ns in frontier)
    if low == high:
        return low
    # If both have the same date, show it only once.
    date, _, clock = high.partition("T")
    return f"{low}..{clock}" if low.startswith(date) else f"{low}..{high}"
