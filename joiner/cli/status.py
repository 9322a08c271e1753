"""``joiner status``: shows how far each unit of an application has progressed, and which process owns it.

The values come from the checkpoints, so they describe each unit at its last commit, whose age is shown. The lag is the
number of records between the consumed offsets and the current ends of the input logs. Whether a unit's owner is still
running is shown where this can be determined (see `presence`).

`current_status` returns the same values as an object, which a notebook displays as tables.
"""

from __future__ import annotations

import html
import sys
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import msgspec
from confluent_kafka import Consumer

from broker.kafka.topics import topic_facts
from joiner.alignment.driver_rows import DRIVER
from joiner.alignment.grid import GRID
from joiner.runtime.clock import Clock, SystemClock
from joiner.runtime.kafka.checkpoint_log import AppendedCheckpoint, read_appended
from joiner.runtime.kafka.clients import log_range, make_admin
from joiner.runtime.kafka.readers import Readers
from joiner.runtime.membership.observer import read_sites
from joiner.runtime.membership.presence import Members, read_members, state_of
from joiner.runtime.membership.state import SiteState
from joiner.runtime.model import AlignSummary, Checkpoint, JoinSummary
from joiner.runtime.ownership.unit_reports import read_notices
from joiner.runtime.settings import JoinerSettings
from joiner.runtime.task.function_failures import FAILED, FAILED_ROWS

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

WIDTH: Final = 100
"""The maximum line width in columns. The first line, or a table with unusually long names or numbers, may be wider."""

_NAME_LENGTH_MAX: Final = 24
_CLEAR: Final = "\x1b[H\x1b[2J"
_COUNTED: Final = ("pairs", FAILED, "late", "duplicates", "unmatched")
_ALIGN_COUNTED: Final = ("rows", FAILED, "dropped", "late", "duplicates")
_LARGER_S: Final = ((172_800.0, 86_400, "d"), (7_200.0, 3_600, "h"), (120.0, 60, "min"), (0.0, 1, "s"))


class JoinStatus(msgspec.Struct, frozen=True):
    """The status of a join in one unit: totals (None if not yet counted per join), held records, frontiers in ns.

    ``frontier_*``: the lowest and the highest frontier among the keys on that side, or None if there is none.
    """

    pairs: int | None
    failed: int | None
    late: int | None
    duplicates: int | None
    unmatched: int | None
    held_left: int
    held_right: int
    frontier_left: tuple[int, int] | None
    frontier_right: tuple[int, int] | None


class AlignStatus(msgspec.Struct, frozen=True):
    """The status of an align in one unit: its totals and, by stream, the held records and the frontiers in ns.

    ``failed``: rows for which the function failed. ``dropped``: rows that were left out. ``frontiers``: as in
    `JoinStatus`, without streams that have had no record.
    """

    rows: int
    failed: int
    dropped: int
    late: int
    duplicates: int
    held: dict[str, int]
    frontiers: dict[str, tuple[int, int]]


class UnitSummary(msgspec.Struct, frozen=True):
    """The status of a unit at its last commit.

    ``pairs``: the number of pairs for which the joining function succeeded. ``failed``: the number for which it failed.
    ``lag``: the number of input records that have not been consumed yet.
    """

    unit: int
    owner: str
    site: str
    instance: str
    state: str
    committed_s_ago: float
    offsets: dict[str, int]
    lag: int
    records: int
    pairs: int
    failed: int
    late: int
    duplicates: int
    unmatched: int
    rejected: int
    joins: dict[str, JoinStatus]
    rows: int = 0
    aligns: dict[str, AlignStatus] = {}


class AssignmentStatus(msgspec.Struct, frozen=True):
    """The last assignment of a site: its number, its reason, and by unit the owner and the standbys.

    ``warm``: by unit, the standbys that hold its state at its last checkpoint. ``drained``: instances without units by
    order.
    """

    epoch: int
    reason: str
    owners: list[str]
    standbys: list[list[str]]
    warm: list[list[str]]
    drained: list[str]

    @classmethod
    def of(cls, state: SiteState) -> AssignmentStatus:
        """Return the assignment of a site's state."""
        return cls(
            state.epoch,
            state.reason,
            [unit.owner for unit in state.units],
            [list(unit.standbys) for unit in state.units],
            [
                [name for name in unit.standbys if name in state.live and number in state.live[name].warm]
                for number, unit in enumerate(state.units)
            ],
            sorted(state.drained),
        )


class Status(msgspec.Struct, frozen=True):
    """The status of an application. ``units``: one summary per unit, None for a unit that has never run.

    ``at``: when the status was read, ISO 8601 in UTC. ``semantics``: the fingerprint of the settings. ``processes``:
    the units of each process, by site and instance. ``not_served``: for each unit that a runner cannot serve, a line of
    text with the reason. ``assignments``: by site.
    """

    application: str
    at: str
    semantics: str
    processes: dict[str, dict[str, list[int]]]
    units: list[UnitSummary | None]
    not_served: list[str]
    assignments: dict[str, AssignmentStatus] = {}

    def _repr_html_(self) -> str:
        """Return the status as HTML tables, for notebooks."""
        return html_of(self)


def show_status(settings: JoinerSettings, clock: Clock, *, as_json: bool = False, every_s: float | None = None) -> int:
    """Print the status of an application, once or every ``every_s`` seconds until Ctrl-C.

    Return the exit status: 1 if the application has never run.
    """
    application = settings.application.name
    admin = make_admin(settings.kafka)
    if not _has_run(settings, admin):
        print(f"application {application!r} has never run: there is no topic {settings.state_topic}")
        return 1
    with closing(Readers(settings, clock)) as readers:
        try:
            while True:
                _print(read_status(admin, readers), as_json=as_json, is_watched=every_s is not None)
                if every_s is None:
                    return 0
                clock.sleep(every_s)
        except KeyboardInterrupt:
            if every_s is None:
                raise
            return 0


def current_status(settings: JoinerSettings) -> Status | None:
    """Return an application's status, or None if it has never run. Raises KafkaException and `UnitStopped`."""
    admin = make_admin(settings.kafka)
    if not _has_run(settings, admin):
        return None
    with closing(Readers(settings, SystemClock())) as readers:
        return read_status(admin, readers)


def read_status(admin: AdminClient, readers: Readers) -> Status:
    """Return the status of an application that has run before, read with the given Kafka clients."""
    settings, clock = readers.settings, readers.clock
    units = range(settings.topics.partitions)
    found = [read_appended(readers, unit) for unit in units]
    sites = {one.checkpoint.site for one in found if one is not None} | {settings.application.site}
    has_control = settings.control_topic in topic_facts(admin, [settings.control_topic])
    states = read_sites(settings, clock) if has_control else {}
    members = read_members(admin, settings, sorted(sites), states)
    now_s = clock.wall_s()
    return Status(
        settings.application.name,
        datetime.fromtimestamp(now_s, UTC).isoformat(timespec="seconds"),
        settings.fingerprint(),
        {site: {name: sorted(mine) for name, mine in sorted(there.items())} for site, there in members.items()},
        [None if one is None else _unit(one, members, _lag(readers.log, one.checkpoint), now_s) for one in found],
        read_notices(settings, clock) if has_control else [],
        {site: AssignmentStatus.of(state) for site, state in sorted(states.items()) if state.epoch},
    )


def _print(status: Status, *, as_json: bool, is_watched: bool) -> None:
    text = msgspec.json.encode(status).decode() if as_json else "\n".join(lines_of(status))
    is_screen = is_watched and not as_json and sys.stdout.isatty()
    print(f"{_CLEAR}{text}" if is_screen else text, flush=True)


def _has_run(settings: JoinerSettings, admin: AdminClient) -> bool:
    return settings.state_topic in topic_facts(admin, [settings.state_topic])


def _lag(consumer: Consumer, checkpoint: Checkpoint) -> int:
    ends = {topic: log_range(consumer, topic, checkpoint.unit)[1] for topic in checkpoint.offsets}
    return sum(ends[topic] - at for topic, at in checkpoint.offsets.items())


def _unit(found: AppendedCheckpoint, members: Members, lag: int, now_s: float) -> UnitSummary:
    checkpoint = found.checkpoint
    counts = checkpoint.counts
    return UnitSummary(
        unit=checkpoint.unit,
        owner=checkpoint.owner,
        site=checkpoint.site,
        instance=checkpoint.instance,
        state=state_of(checkpoint, members),
        # If Kafka's clock is ahead of this machine's, the difference may be negative.
        committed_s_ago=round(max(0.0, now_s - found.appended_ms / 1e3), 3),
        offsets=checkpoint.offsets,
        lag=lag,
        records=counts.get("records", 0),
        pairs=counts.get("pairs", 0) - counts.get(FAILED, 0),
        failed=counts.get(FAILED, 0),
        late=counts.get("late", 0),
        duplicates=counts.get("duplicates", 0),
        unmatched=counts.get("unmatched", 0),
        rejected=counts.get("rejected", 0),
        joins={
            name: _join(name, join, counts, is_only=len(checkpoint.joins) == 1)
            for name, join in checkpoint.joins.items()
        },
        rows=counts.get("rows", 0) - counts.get(FAILED_ROWS, 0),
        aligns={name: _align(name, align, counts) for name, align in checkpoint.aligns.items()},
    )


def _join(name: str, join: JoinSummary, counts: Mapping[str, int], *, is_only: bool) -> JoinStatus:
    """Return the status of a join in one unit. A unit's only join has the same totals as the unit."""
    prefix = "" if is_only else f"{name}:"
    pairs, late, duplicates, unmatched = (counts.get(f"{prefix}{what}") for what in _COUNTED if what != FAILED)
    # The checkpoint has no count of failed pairs until a pair has failed.
    failed = None if pairs is None else counts.get(f"{prefix}{FAILED}", 0)
    return JoinStatus(
        pairs=None if pairs is None or failed is None else pairs - failed,
        failed=failed,
        late=late,
        duplicates=duplicates,
        unmatched=unmatched,
        held_left=join.held_left,
        held_right=join.held_right,
        frontier_left=join.frontier_left,
        frontier_right=join.frontier_right,
    )


def _align(name: str, align: AlignSummary, counts: Mapping[str, int]) -> AlignStatus:
    rows, failed, dropped, late, duplicates = (counts.get(f"{name}:{what}", 0) for what in _ALIGN_COUNTED)
    return AlignStatus(rows - failed, failed, dropped, late, duplicates, align.held, align.frontiers)


# Presentation

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
    drained = f"; drained: {', '.join(assignment.drained)}" if assignment.drained else ""
    kept = f"; {warm} of {standbys} standbys warm" if standbys else ""
    return f"assignment {assignment.epoch} of {site}: {assignment.reason or 'reason not known'}{kept}{drained}"


def _tables(status: Status) -> list[_Table]:
    """Return the tables to show: the units and, if any unit has run, their joins and aligns, and the frontiers."""
    header = ("unit", "owner", "state", "last commit", "lag", "records", "rejected", "offsets")
    tables: list[_Table] = [(header, [_unit_row(number, unit) for number, unit in enumerate(status.units)])]
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
        f"{_age(unit.committed_s_ago)} ago",
        str(unit.lag),
        str(unit.records),
        str(unit.rejected),
        offsets,
    )


def _join_row(name: str, unit: int, join: JoinStatus) -> tuple[str, ...]:
    counts = [getattr(join, what) for what in _COUNTED]
    held = str(join.held_left), str(join.held_right)
    return (_short(name), str(unit), *("-" if count is None else str(count) for count in counts), *held)


def _frontier_row(name: str, unit: int, join: JoinStatus) -> tuple[str, ...]:
    return (_short(name), str(unit), _span(join.frontier_left), _span(join.frontier_right))


def _align_row(name: str, unit: int, align: AlignStatus) -> tuple[str, ...]:
    counts = (str(getattr(align, what)) for what in _ALIGN_COUNTED)
    return (_short(name), str(unit), *counts, str(align.held.get(DRIVER, align.held.get(GRID, 0))))


def _stream_rows(name: str, unit: int, align: AlignStatus) -> list[tuple[str, ...]]:
    return [
        (_short(name), str(unit), _short(stream), str(held), _span(align.frontiers.get(stream)))
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


def _age(seconds: float) -> str:
    size, unit = next((size, unit) for least, size, unit in _LARGER_S if seconds >= least)
    return f"{int(seconds // size)} {unit}"


def _span(frontier: tuple[int, int] | None) -> str:
    if frontier is None:
        return "-"
    low, high = (datetime.fromtimestamp(ns // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%S") for ns in frontier)
    if low == high:
        return low
    # If both have the same date, show it only once.
    date, _, clock = high.partition("T")
    return f"{low}..{clock}" if low.startswith(date) else f"{low}..{high}"
