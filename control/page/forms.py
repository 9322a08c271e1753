"""Turns the fields of a form into an order, and an order into words. Does not use NiceGUI."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from control.actions.orders import (
    UNITS_MAX,
    Drain,
    Move,
    Order,
    Pin,
    PutRecordsBack,
    ReleaseSilent,
    Retry,
    Scale,
    Standbys,
)
from control.actions.plan import quantities_of, standbys_text
from joiner.runtime.membership.ordering import OrderRefused

if TYPE_CHECKING:
    from control.facts.reading import Facts
    from joiner.runtime.settings import JoinerSettings

MOVE: Final = "Move units to another site"
DRAIN: Final = "Drain an instance"
UNDO: Final = "Let a drained instance have units again"
SCALE: Final = "Change the number of worker processes"
PIN: Final = "Pin a unit to an instance"
UNPIN: Final = "Unpin a unit"
STANDBYS: Final = "Change the number of standbys"
RETRY: Final = "Try a failed unit again"
RELEASE: Final = "Write a watermark for a silent stream"

KINDS: Final[Mapping[str, type[Order]]] = {
    MOVE: Move,
    DRAIN: Drain,
    UNDO: Drain,
    SCALE: Scale,
    PIN: Pin,
    UNPIN: Pin,
    STANDBYS: Standbys,
    RETRY: Retry,
    RELEASE: ReleaseSilent,
}


class Input(NamedTuple):
    """A field of a form. ``kind``: ``choice`` among `options`, ``number`` or ``text``."""

    name: str
    label: str
    kind: str = "choice"


_INSTANCE: Final = Input("instance", "Instance")
_SITE: Final = Input("site", "Site")
_UNIT: Final = Input("unit", "Unit", "number")

INPUTS: Final[Mapping[str, Sequence[Input]]] = {
    MOVE: [Input("to", "To site"), Input("units", "Units (all if empty)", "text")],
    DRAIN: [_INSTANCE],
    UNDO: [_INSTANCE],
    SCALE: [Input("instance", "Supervisor"), Input("processes", "Worker processes", "number")],
    PIN: [_INSTANCE, _UNIT],
    UNPIN: [Input("pin", "Pin")],
    STANDBYS: [_SITE, Input("count", "Standbys (as the settings say if empty)", "number")],
    RETRY: [_SITE, _UNIT],
    RELEASE: [
        Input("time", "No record older than", "text"),
        Input("thing", "Thing (all if empty)", "text"),
        Input("quantity", "Quantity (all if empty)"),
        Input("topic", "Topic (the data topic if empty)"),
    ],
}

Fields = Mapping[str, Any]
"""The values of a form, by the names in `INPUTS`. An instance is written ``site instance``, and a pin ``site unit
instance``. Empty fields are None or an empty string."""


def order_of(kind: str, fields: Fields, facts: Facts) -> Order:
    """Return the order in a completed form. It is based on the assignments in ``facts``.

    Raises `OrderRefused` if a field is missing or invalid.
    """
    try:
        made: Order = msgspec.convert(_content(kind, fields, facts), KINDS[kind])
    except msgspec.ValidationError as error:
        raise OrderRefused(str(error)) from error
    return made


def options(kind: str, facts: Facts, settings: JoinerSettings) -> dict[str, list[str]]:
    """Return the current choices, by field."""
    instances = {} if facts.status is None else facts.status.processes
    assignments = {} if facts.status is None else dict(sorted(facts.status.assignments.items()))
    sites = sorted(site for site, there in instances.items() if there)
    names = [f"{site} {name}" for site, there in sorted(instances.items()) for name in sorted(there)]
    found: dict[str, dict[str, list[str]]] = {
        MOVE: {"to": sites},
        DRAIN: {"instance": names},
        UNDO: {"instance": [f"{site} {name}" for site, one in assignments.items() for name in one.drained]},
        SCALE: {"instance": [f"{one.site} {one.instance}" for one in facts.supervisors]},
        PIN: {"instance": names},
        UNPIN: {"pin": [f"{site} {unit} {at}" for site, one in assignments.items() for unit, at in one.pinned.items()]},
        STANDBYS: {"site": sites},
        RETRY: {"site": sites},
        RELEASE: {
            # Mapped streams have no watermarks.
            "quantity": sorted(filter(None, quantities_of(settings) - {stream.name for stream in settings.stream})),
            "topic": [topic for topic in settings.input_topics if not settings.mapped_streams(topic)],
        },
    }
    return found[kind]


def describe(order: Order) -> str:
    """Return an order in a few words."""
    match order:
        case Move(to=to, units=units):
            named = [] if units is None else units
            numbers = f"unit{'s' if len(named) > 1 else ''} {', '.join(map(str, named))}"
            text = f"move {'all units' if units is None else numbers} to {to}"
        case Drain(site=site, instance=instance):
            text = f"{'undo the drain of' if order.undo else 'drain'} {instance} at {site}"
        case Scale(site=site, instance=instance, processes=processes):
            text = f"run {processes} worker processes under {instance} at {site}"
        case Pin(site=site, unit=unit, instance=instance):
            text = f"unpin unit {unit} at {site}" if instance is None else f"pin unit {unit} to {instance} at {site}"
        case Standbys(site=site, count=count):
            number = "as many standbys as the settings say" if count is None else standbys_text(count)
            text = f"{number} for each unit of {site}"
        case Retry(site=site, unit=unit):
            text = f"try unit {unit} again at {site}"
        case PutRecordsBack(dead_letters=places):
            names = ", ".join(f"{partition}/{offset}" for partition, offset in places)
            text = f"put back the records of dead letters {names}"
        case ReleaseSilent(time=time, thing=thing, quantity=quantity):
            of = [f"thing {thing}"] if thing is not None else []
            of += [f"quantity {quantity}"] if quantity is not None else []
            text = f"watermark {time} for {' and '.join(of) or 'everything'}"
    return text


def units_of(text: str) -> list[int] | None:
    """Return the numbers in a text such as ``0, 3-5``, or None if it is empty. Raises `OrderRefused`."""
    if not text.strip():
        return None
    found: list[int] = []
    for part in re.split(r"[,\s]+", text.strip()):
        span = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part)
        if span is None:
            raise OrderRefused(f"units: {part!r} is neither a number nor a range such as 3-5")
        low, high = int(span[1]), int(span[2] or span[1])
        if not low <= high < UNITS_MAX:
            raise OrderRefused(f"units: {part!r} is not a range of units")
        found += range(low, high + 1)
    return sorted(set(found))


def _content(kind: str, fields: Fields, facts: Facts) -> dict[str, Any]:
    if kind == MOVE:
        to, units = str(fields.get("to") or ""), units_of(str(fields.get("units") or ""))
        if not to:
            raise OrderRefused("choose the site to move the units to")
        return {"kind": "move", "to": to, "units": units, "epochs": _epochs(facts, _sites_of(units, facts))}
    if kind == RELEASE:
        return {
            "kind": "watermark",
            "time": _time(str(fields.get("time") or "")),
            **{name: fields.get(name) or None for name in ("thing", "quantity", "topic")},
        }
    site, _, rest = _chosen(kind, fields).partition(" ")
    return {"site": site, "epochs": _epochs(facts, {site}), **_ABOUT_SITES[kind](rest, fields)}


def _chosen(kind: str, fields: Fields) -> str:
    """Return what was chosen: a site, alone or with something that belongs to it."""
    name = INPUTS[kind][0].name
    if not (chosen := str(fields.get(name) or "")):
        raise OrderRefused(f"choose {'an' if name == 'instance' else 'a'} {name}")
    return chosen


def _number(fields: Fields, name: str, missing: str) -> Any:
    if (number := _whole(fields.get(name))) is None:
        raise OrderRefused(missing)
    return number


def _whole(number: Any) -> Any:
    """Return a number as an integer if it is whole, because number fields yield floats."""
    return int(number) if isinstance(number, float) and number.is_integer() else number


_MISSING_UNIT: Final = "say which unit"

_ABOUT_SITES: Final[Mapping[str, Callable[[str, Fields], dict[str, Any]]]] = {
    DRAIN: lambda instance, _: {"kind": "drain", "instance": instance},
    UNDO: lambda instance, _: {"kind": "drain", "instance": instance, "undo": True},
    SCALE: lambda instance, fields: {
        "kind": "scale",
        "instance": instance,
        "processes": _number(fields, "processes", "say how many worker processes to run"),
    },
    PIN: lambda instance, fields: {"kind": "pin", "instance": instance, "unit": _number(fields, "unit", _MISSING_UNIT)},
    UNPIN: lambda pin, _: {"kind": "pin", "instance": None, "unit": int(pin.partition(" ")[0])},
    STANDBYS: lambda _, fields: {"kind": "standbys", "count": _whole(fields.get("count"))},
    RETRY: lambda _, fields: {"kind": "retry", "unit": _number(fields, "unit", _MISSING_UNIT)},
}
"""By kind, returns the rest of an order to a site. Takes what was chosen at the site, and the fields."""


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
