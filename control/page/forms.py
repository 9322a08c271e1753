"""Turns the fields of a form into an order, and an order into words. Without NiceGUI."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from control.actions.orders import UNITS_MAX, Drain, Move, Order, PutRecordsBack, ReleaseSilent, Scale
from control.actions.plan import OrderRefused, quantities_of

if TYPE_CHECKING:
    from control.facts.reading import Facts
    from joiner.runtime.settings import JoinerSettings

MOVE: Final = "Move units to another site"
DRAIN: Final = "Drain an instance"
UNDO: Final = "Let a drained instance have units again"
SCALE: Final = "Change the number of worker processes"
RELEASE: Final = "Write a watermark for a silent stream"

KINDS: Final[Mapping[str, type[Order]]] = {MOVE: Move, DRAIN: Drain, UNDO: Drain, SCALE: Scale, RELEASE: ReleaseSilent}

Fields = Mapping[str, Any]
"""The values of a form by field: ``to``, ``units``, ``instance`` (``site instance``), ``processes``, ``topic``,
``thing``, ``quantity`` and ``time``. Empty fields are None or an empty string."""


def order_of(kind: str, fields: Fields, facts: Facts) -> Order:
    """Return the order of a filled form. It rests on the assignments in ``facts``.

    Raises `OrderRefused` if a field is missing or invalid.
    """
    try:
        made: Order = msgspec.convert(_content(kind, fields, facts), KINDS[kind])
    except msgspec.ValidationError as error:
        raise OrderRefused(str(error)) from error
    return made


def options(kind: str, facts: Facts, settings: JoinerSettings) -> dict[str, list[str]]:
    """Return what there is to choose from at present, by field."""
    status = facts.status
    instances = {} if status is None else status.processes
    if kind == MOVE:
        return {"to": sorted(site for site, there in instances.items() if there)}
    if kind == RELEASE:
        return {"quantity": sorted(filter(None, quantities_of(settings))), "topic": settings.input_topics}
    if kind == SCALE:
        return {"instance": [f"{one.site} {one.instance}" for one in facts.supervisors]}
    if kind == UNDO:
        assignments = {} if status is None else status.assignments
        return {"instance": [f"{site} {name}" for site, one in sorted(assignments.items()) for name in one.drained]}
    return {"instance": [f"{site} {name}" for site, there in sorted(instances.items()) for name in sorted(there)]}


def describe(order: Order) -> str:
    """Return an order in a few words."""
    match order:
        case Move(to=to, units=units):
            named = [] if units is None else units
            numbers = f"unit{'s' if len(named) > 1 else ''} {', '.join(map(str, named))}"
            return f"move {'all units' if units is None else numbers} to {to}"
        case Drain(site=site, instance=instance):
            return f"{'end the drain of' if order.undo else 'drain'} {instance} at {site}"
        case Scale(site=site, instance=instance, processes=processes):
            return f"run {processes} worker processes under {instance} at {site}"
        case PutRecordsBack(dead_letters=places):
            names = ", ".join(f"{partition}/{offset}" for partition, offset in places)
            return f"put back the records of dead letters {names}"
        case ReleaseSilent(time=time, thing=thing, quantity=quantity):
            of = [f"thing {thing}"] if thing is not None else []
            of += [f"quantity {quantity}"] if quantity is not None else []
            return f"watermark {time} for {' and '.join(of) or 'everything'}"


def units_of(text: str) -> list[int] | None:
    """Return the numbers in a text such as ``0, 3-5``, or None if it is empty. Raises `OrderRefused`."""
    if not text.strip():
        return None
    found: list[int] = []
    for part in re.split(r"[,\s]+", text.strip()):
        span = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part)
        if span is None:
            raise OrderRefused(f"units: {part!r} is no number and no range such as 3-5")
        low, high = int(span[1]), int(span[2] or span[1])
        if not low <= high < UNITS_MAX:
            raise OrderRefused(f"units: {part!r} is no range of units")
        found += range(low, high + 1)
    return sorted(set(found))


def _content(kind: str, fields: Fields, facts: Facts) -> dict[str, Any]:
    if kind == MOVE:
        to, units = str(fields.get("to") or ""), units_of(str(fields.get("units") or ""))
        if not to:
            raise OrderRefused("choose the site to which the units are to move")
        return {"kind": "move", "to": to, "units": units, "epochs": _epochs(facts, _sites_of(units, facts))}
    if kind == RELEASE:
        return {
            "kind": "watermark",
            "time": _time(str(fields.get("time") or "")),
            **{name: fields.get(name) or None for name in ("thing", "quantity", "topic")},
        }
    site, _, instance = str(fields.get("instance") or "").partition(" ")
    if not instance:
        raise OrderRefused("choose an instance")
    chosen = {"site": site, "instance": instance, "epochs": _epochs(facts, {site})}
    if kind == SCALE:
        processes = fields.get("processes")
        if processes is None:
            raise OrderRefused("say how many worker processes are to run")
        whole = int(processes) if isinstance(processes, float) and processes.is_integer() else processes
        return {"kind": "scale", "processes": whole, **chosen}
    return {"kind": "drain", "undo": kind == UNDO, **chosen}


def _epochs(facts: Facts, sites: set[str]) -> dict[str, int]:
    assignments = {} if facts.status is None else facts.status.assignments
    return {site: one.epoch for site, one in assignments.items() if site in sites}


def _sites_of(units: list[int] | None, facts: Facts) -> set[str]:
    found = [] if facts.status is None else facts.status.units
    return {unit.site for number, unit in enumerate(found) if unit is not None and (units is None or number in units)}


def _time(text: str) -> int | str:
    if not text:
        raise OrderRefused("enter a time: the watermark says that no older record will follow")
    return int(text) if re.fullmatch(r"-?\d{1,19}", text) else text
