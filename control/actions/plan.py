"""What an order would do, whether it can be carried out now, and how far it has got. Depends only on facts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from broker.partitioner import partition_of
from broker.times import iso_text, parse_time
from broker.wire.records import Watermark
from control.actions.orders import (
    Drain,
    Move,
    Order,
    Pin,
    PutRecordsBack,
    ReleaseSilent,
    Retry,
    Scale,
    Standbys,
    StandingOrder,
)
from joiner.runtime.membership.ordering import OrderRefused
from joiner.runtime.membership.presence import NOBODY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from control.facts.reading import Facts, Supervisor
    from joiner.runtime.membership.status.summary import Status
    from joiner.runtime.settings import JoinerSettings


class Progress(NamedTuple):
    """How far an action has got, in words, and whether it is done. ``is_in_vain``: waiting longer will not help."""

    is_done: bool
    text: str
    is_in_vain: bool = False


class UnitsToMove(NamedTuple):
    """The units that an order moves, and those left out because they have no owner."""

    units: list[int]
    without_owner: list[int]


class WatermarkPlan(NamedTuple):
    """The watermark that an order would write, and the topic and partitions it would go to."""

    topic: str
    partitions: list[int]
    watermark: Watermark
    time_ns: int


def plan(order: Order, facts: Facts, settings: JoinerSettings, now_ns: int) -> list[str]:
    """Return sentences describing what the order would do now. ``now_ns``: since the epoch. Raises `OrderRefused`."""
    status = _status_of(facts)
    if not isinstance(order, ReleaseSilent | PutRecordsBack):
        _check_epochs(order.epochs, status)
    match order:
        case PutRecordsBack():
            would = _put_back_sentences(order)
        case ReleaseSilent():
            would = _watermark_sentences(plan_watermark(order, settings, now_ns), settings)
        case Move():
            would = _plan_move(order, status)
        case Drain():
            would = _plan_drain(order, status)
        case Scale():
            would = _plan_scale(order, facts.supervisors, status)
        case Pin():
            would = _plan_pin(order, status)
        case Standbys():
            would = _plan_standbys(order, status)
        case Retry():
            would = _plan_retry(order, status)
    return would


def progress(order: Move | StandingOrder, facts: Facts) -> Progress:
    """Return how far an order has got since it was given."""
    status = facts.status
    if status is None:
        return Progress(is_done=False, text="the application is not known to have run")
    match order:
        case Move():
            wanted = order.units if order.units is not None else range(len(status.units))
            missing = [unit for unit in wanted if _site_of(status, unit) != order.to]
            there = f"all units are at {order.to}"
            return Progress(not missing, f"{_units(missing)} not at {order.to}" if missing else there)
        case Drain():
            return _drained(order, status)
        case Scale():
            return _scaled(order, facts.supervisors, status)
        case Pin():
            return _pinned(order, status)
        case Standbys():
            return _kept_warm(order, status)


def is_in_force(order: StandingOrder, facts: Facts) -> bool | None:
    """Return whether an order is in force. It is not if a later order replaced it. Return None if that is unknown."""
    status = facts.status
    assignment = None if status is None else status.assignments.get(order.site)
    if isinstance(order, Scale):
        wanted = [one.wanted for one in facts.supervisors if (one.site, one.instance) == (order.site, order.instance)]
        return wanted == [order.processes] if wanted else None
    if assignment is None:
        return None
    match order:
        case Drain():
            return (order.instance in assignment.drained) != order.undo
        case Pin():
            return assignment.pinned.get(order.unit) == order.instance
        case Standbys():
            return assignment.standbys_ordered == order.count


def units_to_move(order: Move, status: Status) -> UnitsToMove:
    """Return the units to move. Raises `OrderRefused` if there are none, or if one cannot be moved."""
    wanted = sorted(set(order.units)) if order.units is not None else list(range(len(status.units)))
    _check_units(wanted, status)
    if not _members(order.to, status):
        running = ", ".join(sorted(site for site, instances in status.processes.items() if instances)) or "none"
        raise OrderRefused(
            f"no instance runs at the site {order.to}: start one there with --standby; sites with instances: {running}"
        )
    unowned = [unit for unit in wanted if _has_no_owner(status, unit)]
    found = [unit for unit in wanted if unit not in unowned and _site_of(status, unit) != order.to]
    if unowned and (order.units is not None or not found):
        raise OrderRefused(
            f"{_units(unowned)} without an owner: if no move is in progress, start a joiner with --site {order.to}"
        )
    if not found:
        raise OrderRefused(f"there is nothing to do: all of these units are at {order.to}")
    return UnitsToMove(found, unowned)


def plan_watermark(order: ReleaseSilent, settings: JoinerSettings, now_ns: int) -> WatermarkPlan:
    """Return the watermark to write. Raises `OrderRefused` if it would be rejected, or if nothing would read it."""
    topic = settings.topics.data if order.topic is None else order.topic
    if topic not in settings.input_topics:
        raise OrderRefused(f"{topic} is not an input topic; the input topics are: {', '.join(settings.input_topics)}")
    if settings.mapped_streams(topic):
        raise OrderRefused(f"{topic} contains the messages of other programs, among which there are no watermarks")
    quantities = quantities_of(settings, topic)
    if order.quantity is not None and not {order.quantity, None} & quantities:
        known = ", ".join(sorted(filter(None, quantities)))
        raise OrderRefused(f"nothing reads the quantity {order.quantity} from {topic}; known quantities: {known}")
    try:
        time_ns = parse_time(order.time, settings.events.time_unit)
    except ValueError as error:
        raise OrderRefused(f"time: {error}") from error
    skew_ns = settings.application.max_future_skew
    if time_ns - now_ns > skew_ns:
        raise OrderRefused(
            f"time: {iso_text(time_ns)} is more than application.max_future_skew ahead of now, so it would be rejected"
        )
    count = settings.topics.partitions
    partitions = list(range(count)) if order.thing is None else [partition_of(order.thing.encode(), count)]
    return WatermarkPlan(topic, partitions, Watermark(order.time, order.quantity, order.thing), time_ns)


def _watermark_sentences(planned: WatermarkPlan, settings: JoinerSettings) -> list[str]:
    topic, partitions, watermark, time_ns = planned
    thing = f"the thing {watermark.thing}" if watermark.thing is not None else "all things"
    quantity = f"the quantity {watermark.quantity}" if watermark.quantity is not None else "all quantities"
    where = f"partition {partitions[0]}" if watermark.thing is not None else f"all {len(partitions)} partitions"
    return [
        f"Write to {where} of {topic}: for {quantity} of {thing}, no record older than {iso_text(time_ns)} follows.",
        f"Records waiting for these are joined. Older records that arrive later are late: see {settings.topics.late}.",
        "This cannot be undone.",
    ]


def _put_back_sentences(order: PutRecordsBack) -> list[str]:
    if order.value is not None and len(order.dead_letters) > 1:
        raise OrderRefused("a corrected value is for one dead letter only: put back one at a time")
    letters = ", ".join(f"{partition}/{offset}" for partition, offset in order.dead_letters)
    value = "with a corrected value" if order.value is not None else "unchanged"
    twice = "even if it was put back before" if order.again else "unless it was put back before"
    return [
        f"Write the records of the dead letters {letters} to the partitions they came from, {value}, {twice}.",
        "Those that would be rejected again are left out. This cannot be undone.",
    ]


def _status_of(facts: Facts) -> Status:
    if facts.trouble:
        raise OrderRefused(f"what is known about the application is not current: {facts.trouble}")
    if facts.status is None:
        raise OrderRefused("the application has never run: start a joiner first")
    return facts.status


def _check_epochs(epochs: dict[str, int], status: Status) -> None:
    for site, expected in epochs.items():
        assignment = status.assignments.get(site)
        now = 0 if assignment is None else assignment.epoch
        if now != expected:
            raise OrderRefused(
                f"assignment {expected} of {site} has been replaced by {now}: look at the units again, then repeat"
            )


def _plan_move(order: Move, status: Status) -> list[str]:
    units, without_owner = units_to_move(order, status)
    skipped = [f"Leave out {_units(without_owner)}, without an owner."] if without_owner else []
    return [
        f"Move {_units(units)} to the site {order.to}, each as soon as its state is built there.",
        f"A unit stays where it is if no instance is ready for it within {order.timeout_s:g} s.",
        *skipped,
    ]


def _plan_drain(order: Drain, status: Status) -> list[str]:
    serves = _members(order.site, status)
    if order.undo:
        if order.instance not in _drained_at(order.site, status):
            raise OrderRefused(f"{order.instance} is not drained")
        return [f"Let {order.instance} have units again."]
    if order.instance not in serves:
        running = ", ".join(sorted(serves)) or "none"
        raise OrderRefused(f"no instance {order.instance} runs at site {order.site}; running there: {running}")
    others = [name for name in serves if name != order.instance and name not in _drained_at(order.site, status)]
    if not others:
        raise OrderRefused(f"no other instance at site {order.site} could take over: start one first")
    units, heirs = serves[order.instance], ", ".join(sorted(others))
    hand_over = f"Hand over {_units(units)} from {order.instance} to {heirs}. " if units else ""
    return [f"{hand_over}{order.instance} keeps running without units."]


def _plan_scale(order: Scale, supervisors: Sequence[Supervisor], status: Status) -> list[str]:
    known = {one.instance: one for one in supervisors if one.site == order.site}
    supervisor = known.get(order.instance)
    if supervisor is None:
        running = f"running there: {', '.join(sorted(known))}" if known else "start one with `joiner run --processes`"
        raise OrderRefused(f"no supervisor {order.instance} runs at site {order.site}; {running}")
    drained = [name for name in _workers(order, status) if name in _drained_at(order.site, status)]
    more = [f"Both numbers include drained workers: {', '.join(drained)}."] if drained else []
    return [f"Let {order.instance} run {order.processes} worker processes; now {supervisor.running}.", *more]


def _plan_pin(order: Pin, status: Status) -> list[str]:
    _check_units([order.unit], status)
    assignment = status.assignments.get(order.site)
    if order.instance is None:
        if assignment is None or order.unit not in assignment.pinned:
            raise OrderRefused(f"unit {order.unit} is not pinned at site {order.site}")
        return [f"Let any instance of {order.site} serve unit {order.unit}. It stays where it is as long as it can."]
    serves = _members(order.site, status)
    if order.instance not in serves:
        running = ", ".join(sorted(serves)) or "none"
        raise OrderRefused(f"no instance {order.instance} runs at site {order.site}; running there: {running}")
    if order.instance in _drained_at(order.site, status):
        raise OrderRefused(f"{order.instance} is drained: let it have units again first")
    servers = [name for name, units in serves.items() if order.unit in units]
    if servers == [order.instance]:
        return [f"Let {order.instance} keep unit {order.unit} whenever it can serve it."]
    other = f"{servers[0]} hands it over" if servers else "it is handed over"
    return [f"Let {order.instance} serve unit {order.unit} whenever it can: {other} once its state is built there."]


def _plan_standbys(order: Standbys, status: Status) -> list[str]:
    if not _members(order.site, status):
        raise OrderRefused(f"no instance runs at site {order.site}: start one there")
    instances = _members(order.site, status).keys()
    others = len(instances - set(_drained_at(order.site, status)) or instances) - 1
    if order.count is None:
        return [f"Let each unit of {order.site} have as many standbys as `application.standbys` of its instances says."]
    possible = f"Only {others}" if others else "None"
    few = f"{possible} can be kept now, because there are too few instances that are not drained."
    return [
        f"Let each unit of {order.site} have {standbys_text(order.count)}, whatever `application.standbys` says.",
        *([few] if others < order.count else []),
    ]


def _plan_retry(order: Retry, status: Status) -> list[str]:
    _check_units([order.unit], status)
    if not _members(order.site, status):
        raise OrderRefused(f"no instance runs at site {order.site}: start one there")
    if (site := _site_of(status, order.unit)) not in {"", order.site}:
        raise OrderRefused(f"unit {order.unit} is at the site {site}")
    return [
        f"Let all instances of {order.site} forget why they could not serve unit {order.unit} or keep it warm.",
        "Its owner tries at once. Nothing happens if the unit is already being served.",
    ]


def _check_units(units: Sequence[int], status: Status) -> None:
    existing = range(len(status.units))
    if unknown := [unit for unit in units if unit not in existing]:
        raise OrderRefused(f"unknown: {_units(unknown)}; the units are 0 to {existing[-1]}")


def _drained(order: Drain, status: Status) -> Progress:
    assignment = status.assignments.get(order.site)
    is_drained = assignment is not None and order.instance in assignment.drained
    if order.undo:
        return Progress(not is_drained, f"{order.instance} is no longer drained" if not is_drained else "ordered")
    instances = status.processes.get(order.site)
    if instances is None:
        return _not_known(order.site)
    if order.instance not in instances:
        return Progress(is_drained, f"{order.instance} is no longer running")
    units = instances[order.instance]
    # It may be about to claim a unit that has just been assigned to it.
    has_units = bool(units) or assignment is None or order.instance in assignment.owners
    return Progress(is_drained and not has_units, f"{order.instance} serves {_units(units)}")


def _scaled(order: Scale, supervisors: Sequence[Supervisor], status: Status) -> Progress:
    found = [one for one in supervisors if (one.site, one.instance) == (order.site, order.instance)]
    if not found:
        return Progress(is_done=False, text=f"{order.instance} is not running")
    members = len(_workers(order, status))
    text = f"{members} of {found[0].wanted} worker processes are members"
    return Progress((members, found[0].wanted) == (order.processes, order.processes), text)


def _pinned(order: Pin, status: Status) -> Progress:
    unit, instance, assignment = order.unit, order.instance, status.assignments.get(order.site)
    pin = None if assignment is None else assignment.pinned.get(unit)
    if instance is None:
        return Progress(pin is None, f"unit {unit} is no longer pinned" if pin is None else "ordered")
    instances = status.processes.get(order.site)
    if instances is None:
        return _not_known(order.site)
    servers = sorted(name for name, units in instances.items() if unit in units)
    text = f"unit {unit} is served by {' and '.join(servers) or 'no instance'}"
    if instance not in instances:
        text += f"; {instance} is not running"
    elif instance in _drained_at(order.site, status):
        text += f"; {instance} is drained"
    is_owner = assignment is not None and unit < len(assignment.owners) and assignment.owners[unit] == instance
    return Progress(pin == instance and is_owner and servers == [instance], text)


def _kept_warm(order: Standbys, status: Status) -> Progress:
    count, assignment = order.count, status.assignments.get(order.site)
    if assignment is None or assignment.standbys_ordered != count:
        return Progress(is_done=False, text="ordered")
    if count is None:
        return Progress(is_done=True, text="each unit has as many standbys as the settings say")
    # A unit at another site, or without an owner, has no state here.
    served = [unit for unit in range(len(assignment.owners)) if _site_of(status, unit) == order.site]
    warm, units = sum(len(assignment.warm[unit]) for unit in served), len(served)
    instances = status.processes.get(order.site)
    if instances is None:
        return _not_known(order.site)
    possible = min(count, max(0, len(instances.keys() - set(assignment.drained) or instances) - 1))
    # An instance that a unit is pinned to is an extra standby while it prepares.
    kept = [[name for name in assignment.standbys[unit] if name != assignment.pinned.get(unit)] for unit in served]
    has_more = any(len(names) > possible for names in kept)
    if has_more or any(len(assignment.warm[unit]) < possible for unit in served):
        return Progress(is_done=False, text=f"{warm} of {count * units} standbys are warm")
    text = f"each unit has {standbys_text(possible)}"
    if possible < count:
        return Progress(is_done=False, text=f"{text}, because there are too few instances", is_in_vain=True)
    return Progress(is_done=True, text=text)


def _not_known(site: str) -> Progress:
    return Progress(is_done=False, text=f"the instances of {site} are not known at the moment")


def standbys_text(count: int) -> str:
    """Return a number of standbys in words."""
    return f"{count or 'no'} standby{'s' * (count > 1)}"


def _workers(order: Scale, status: Status) -> list[str]:
    worker = rf"{re.escape(order.instance)}-\d+"
    return [name for name in status.processes.get(order.site, {}) if re.fullmatch(worker, name)]


def _members(site: str, status: Status) -> dict[str, list[int]]:
    """Return the units of each instance of a site. Raises `OrderRefused` if its instances are not known."""
    if site not in status.processes and site in status.assignments:
        raise OrderRefused(f"the instances of {site} are not known at the moment: try again")
    return status.processes.get(site, {})


def _drained_at(site: str, status: Status) -> Sequence[str]:
    assignment = status.assignments.get(site)
    return [] if assignment is None else assignment.drained


def _has_no_owner(status: Status, unit: int) -> bool:
    found = status.units[unit]
    return found is None or found.state == NOBODY


def _site_of(status: Status, unit: int) -> str:
    """Return the site of a unit's owner, or an empty string if it has none."""
    found = status.units[unit] if unit < len(status.units) else None
    return "" if found is None or found.state == NOBODY else found.site


def quantities_of(settings: JoinerSettings, topic: str | None = None) -> set[str | None]:
    """Return the quantities that joins and aligns read from a topic, or from all. None stands for any quantity."""
    streams = [settings.selection(stream) for operator in settings.operators for stream in operator.streams.values()]
    return {stream["quantity"] for stream in streams if topic in {None, stream["topic"]}}


def _units(units: Sequence[int]) -> str:
    return "no unit" if not units else f"unit{'s' if len(units) > 1 else ''} {_numbers(units)}"


def _numbers(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
