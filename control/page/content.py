"""The contents of the pages, as texts and numbers. Does not use NiceGUI."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from control.actions.history import Action, Refusal
from control.facts.reading import Facts
from control.facts.timeline import Event
from control.facts.watcher import Sample
from control.page.forms import describe
from joiner.runtime.membership.presence import RUNNING
from joiner.runtime.membership.status.summary import UnitSummary
from joiner.runtime.membership.status.tables import age, orders_in_force, span

EVENTS_SHOWN: Final = 100
_OLD_MS: Final = 15_000

UNIT_COLUMNS: Final = ("unit", "owner", "state", "standbys", "last commit", "lag", "records/s", "held", "frontiers")
INSTANCE_COLUMNS: Final = ("instance", "site", "serves", "standby of", "warm", "drained")
EVENT_COLUMNS: Final = ("time (UTC)", "event", "what", "pause")
ACTION_COLUMNS: Final = ("time (UTC)", "user", "order", "state", "outcome")

Row = dict[str, Any]


def unit_rows(facts: Facts) -> list[Row]:
    """Return a row for each unit."""
    status = facts.status
    if status is None:
        return []
    standbys: dict[int, list[str]] = {}
    for assignment in status.assignments.values():
        for number, names in enumerate(assignment.standbys):
            standbys.setdefault(number, []).extend(names)
    return [
        _unit_row(number, unit, standbys.get(number, []), facts.rates[number])
        for number, unit in enumerate(status.units)
    ]


def _unit_row(number: int, unit: UnitSummary | None, standbys: Sequence[str], rate: float) -> Row:
    if unit is None:
        return dict.fromkeys(UNIT_COLUMNS, "") | {"unit": number, "owner": "nobody yet"}
    joins = unit.joins.values()
    aligns = unit.aligns.values()
    held = sum(join.held_left + join.held_right for join in joins) + sum(sum(one.held.values()) for one in aligns)
    frontiers = [span(frontier) for join in joins for frontier in (join.frontier_left, join.frontier_right)]
    frontiers += [f"{stream} {span(frontier)}" for one in aligns for stream, frontier in one.frontiers.items()]
    return _row(
        UNIT_COLUMNS,
        number,
        unit.owner,
        unit.state,
        ", ".join(standbys),
        f"{age(unit.committed_s_ago)} ago",
        "not known" if unit.lag is None else unit.lag,
        round(rate),
        held,
        "; ".join(dict.fromkeys(frontiers)),
    )


def instance_rows(facts: Facts) -> list[Row]:
    """Return a row for each instance that is running or appears in an assignment."""
    status = facts.status
    if status is None:
        return []
    rows = []
    for site in sorted({*status.processes, *status.assignments}):
        serves, assignment = status.processes.get(site, {}), status.assignments.get(site)
        standbys = [] if assignment is None else assignment.standbys
        warm = [] if assignment is None else assignment.warm
        drained = [] if assignment is None else assignment.drained
        for name in sorted({*serves, *drained, *(one for names in standbys for one in names)}):
            row = _row(
                INSTANCE_COLUMNS,
                name,
                site,
                _numbers(serves.get(name, [])),
                _numbers(number for number, names in enumerate(standbys) if name in names),
                _numbers(number for number, names in enumerate(warm) if name in names),
                "yes" if name in drained else "",
            )
            rows.append({"key": f"{site} {name}"} | row)
    return rows


def event_rows(events: Sequence[Event]) -> list[Row]:
    """Return a row for each of the last events, newest first."""
    return [
        {"key": event.number} | _row(EVENT_COLUMNS, moment(event.at_ms), event.kind, event.text, _pause(event.pause_ms))
        for event in reversed(events[-EVENTS_SHOWN:])
    ]


def action_rows(actions: Sequence[Action], refusals: Sequence[Refusal]) -> list[Row]:
    """Return a row for each action and each refused order, newest first."""
    found = [
        (
            one.asked_ms,
            {"key": one.id}
            | _row(ACTION_COLUMNS, moment(one.asked_ms), one.by, describe(one.order), one.state, _last_word(one)),
        )
        for one in actions
    ]
    found += [
        (
            one.at_ms,
            {"key": f"refused {one.at_ms} {number}"}
            | _row(ACTION_COLUMNS, moment(one.at_ms), one.by, describe(one.order), "refused", one.why),
        )
        for number, one in enumerate(refusals)
    ]
    return [row for _, row in sorted(found, key=lambda pair: pair[0], reverse=True)]


def headline(facts: Facts) -> str:
    """Return one sentence about the application."""
    status = facts.status
    if status is None:
        return "The application has never run." if not facts.trouble else ""
    known = [unit for unit in status.units if unit is not None]
    running = sum(unit.state == RUNNING for unit in known)
    results = sum(unit.pairs + unit.rows for unit in known)
    lag = "not known" if facts.lag is None else f"{facts.lag:,}"
    return (
        f"{running} of {len(status.units)} units running, {sum(facts.rates):,.0f} records/s, lag {lag}, "
        f"{results:,} results"
    )


def troubles(facts: Facts, now_ms: int) -> list[str]:
    """Return what an operator should look at. ``now_ms``: since the epoch."""
    found = []
    if facts.trouble:
        found.append(f"The data shown is not current: {facts.trouble}")
    elif facts.read_ms is not None and now_ms - facts.read_ms > _OLD_MS:
        found.append(f"The data shown was read {age((now_ms - facts.read_ms) / 1e3)} ago")
    return found + facts.missing + ([] if facts.status is None else facts.status.not_served)


def assignments(facts: Facts) -> list[str]:
    """Return a sentence for each site's last assignment, with the operators' orders in force."""
    if facts.status is None:
        return []
    return [
        "; ".join([f"Assignment {one.epoch} of {site}: {one.reason or 'reason not known'}", *orders_in_force(one)])
        for site, one in sorted(facts.status.assignments.items())
    ]


def series(samples: Sequence[Sample]) -> tuple[list[list[float]], list[list[float]]]:
    """Return the points of both charts, each with the time in ms: records per second, and lag."""
    return [[one.at_ms, round(one.rate)] for one in samples], [[one.at_ms, one.lag] for one in samples]


def _last_word(action: Action) -> str:
    """Return an action's outcome or, while it runs, its last step."""
    return action.text or (action.reports[-1].text if action.reports else "")


def _row(columns: Sequence[str], *cells: Any) -> Row:
    return dict(zip(columns, cells, strict=True))


def _numbers(numbers: Any) -> str:
    return " ".join(map(str, numbers))


def moment(at_ms: int) -> str:
    """Return a time as text, in UTC. ``at_ms``: since the epoch."""
    return f"{datetime.fromtimestamp(at_ms / 1e3, UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3]


def _pause(pause_ms: int | None) -> str:
    return "" if pause_ms is None else f"{pause_ms / 1e3:.3f} s"
