"""The things for which an application holds the most records, and the streams these wait for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec
import numpy as np
from confluent_kafka import KafkaException

from control.facts.lookup.one_at_a_time import DeadlinePassed, Unavailable
from control.facts.lookup.unit_state import AsOf, read_topic_ids, read_unit
from joiner.core.frontier import NEVER
from joiner.operators import JoinSettings
from joiner.runtime.kafka.clients import describe
from joiner.runtime.kafka.readers import Readers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from control.facts.lookup.one_at_a_time import Deadline
    from joiner.operators import AlignSettings
    from joiner.runtime.clock import Clock
    from joiner.runtime.settings import JoinerSettings
    from joiner.runtime.task.operators.held_by_key import HeldByKey

KEYS_MAX: Final = 1_000
"""How many of the keys found are kept, an equal share for each join and align. Each takes a kilobyte."""

_SHARE_MIN: Final = 20

TOO_LATE: Final = "building its state takes too long"


class StreamOfKey(msgspec.Struct, frozen=True):
    """How many records of a stream are held for one thing, and the frontier in ns.

    ``name``: for a join, what the stream selects: a quantity or else a topic. For an align, the name of the column, or
    ``driver``. The frontier is None if no record or watermark has arrived. The waiting ticks of a grid are shown as a
    stream without a frontier, ``grid``.
    """

    name: str
    held: int
    frontier_ns: int | None


class Awaited(msgspec.Struct, frozen=True):
    """A stream being waited for: another stream holds a record that is not below its frontier.

    ``name``: what the stream selects, a quantity or else a topic. ``behind_ns``: how far its frontier is behind the
    latest such record, or None if it has been silent since the start and has no frontier.
    """

    stream: str
    name: str
    behind_ns: int | None


class Key(msgspec.Struct, frozen=True):
    """What a join or an align holds for a thing.

    ``held``: the number of records in all its streams, plus waiting ticks. ``waits_for``: silent streams first, then
    the others, furthest behind first.
    """

    unit: int
    operator: str
    kind: Literal["join", "align"]
    thing: str
    held: int
    streams: dict[str, StreamOfKey]
    waits_for: list[Awaited]


class UnitRead(msgspec.Struct, frozen=True):
    """Which state of a unit is shown. ``as_of``: None if it has never run, or is unreadable because of ``trouble``."""

    unit: int
    as_of: AsOf | None
    trouble: str = ""


class Keys(msgspec.Struct, frozen=True):
    """The keys with the most held records, largest number first.

    ``found``: how many keys there are; ``keys`` may contain only the first of them. ``units``: the units read.
    """

    keys: list[Key]
    found: int
    units: list[UnitRead]


class Selection(NamedTuple):
    """Which keys are wanted.

    ``unit``: None for all units. ``operator``: the name of a join or an align, empty for all. ``thing``: what the
    thing's name must contain, ignoring case.
    """

    unit: int | None = None
    operator: str = ""
    thing: str = ""


class KeysRead(NamedTuple):
    """The keys kept for some units, largest number first. ``found``: how many there are, by operator."""

    keys: list[Key]
    found: dict[str, int]
    units: list[UnitRead]

    def select(self, wanted: Selection, limit: int) -> Keys | None:
        """Return the first ``limit`` of the wanted keys, or None if they must be read separately.

        This is so if not all keys were kept, or if time ran out for their unit.
        """
        unit, operator, thing = wanted
        whole = self.of_operator(operator, len(self.keys))
        if unit is None and not thing:
            return msgspec.structs.replace(whole, keys=whole.keys[:limit])
        if len(whole.keys) < whole.found:
            return None
        # If the unit is read alone, it gets more time.
        if len(self.units) > 1 and any((one.unit, one.trouble) == (unit, TOO_LATE) for one in self.units):
            return None
        part = thing.casefold()
        keys = [key for key in whole.keys if unit in {None, key.unit} and part in key.thing.casefold()]
        return Keys(keys[:limit], len(keys), [one for one in self.units if unit in {None, one.unit}])

    def of_operator(self, operator: str, limit: int) -> Keys:
        """Return the first ``limit`` keys read for an operator (empty: for all operators)."""
        keys = [key for key in self.keys if operator in {"", key.operator}]
        found = sum(count for name, count in self.found.items() if operator in {"", name})
        return Keys(keys[:limit], found, self.units)


def read_keys(settings: JoinerSettings, clock: Clock, units: Iterable[int], thing: str, deadline: Deadline) -> KeysRead:
    """Read what these units hold for things whose name contains ``thing``.

    Only one unit is in memory at a time. Each gets an equal share of the remaining time. Raises KafkaException.
    """
    topic_ids = read_topic_ids(settings)
    numbers, found = list(units), KeysRead([], dict.fromkeys((one.name for one in settings.operators), 0), [])
    with closing(Readers(settings, clock)) as readers:
        for at, number in enumerate(numbers):
            try:
                state = read_unit(readers, number, topic_ids, deadline.part(1 / (len(numbers) - at)))
            except (Unavailable, DeadlinePassed, KafkaException) as error:
                why = TOO_LATE if isinstance(error, DeadlinePassed) else describe(error)
                found.units.append(UnitRead(number, None, why))
                continue
            found.units.append(UnitRead(number, None if state is None else state.as_of))
            if state is not None:
                found = add_keys(found, settings, number, state.unit.held_by_key(), thing)
    return found


def add_keys(
    found: KeysRead, settings: JoinerSettings, unit: int, held: Mapping[str, HeldByKey], thing: str = ""
) -> KeysRead:
    """Add the keys of a unit. ``held``: by operator. ``thing``: see `read_keys`.

    An operator that has neither a record nor a frontier for a thing contributes no key for it.
    """
    share = max(_SHARE_MIN, KEYS_MAX // len(settings.operators))
    keys, counts = list[Key](), dict(found.found)
    for operator in settings.operators:
        of_operator = held[operator.name]
        totals = of_operator.totals()
        has_part = totals > 0
        for frontier in of_operator.frontier_ns.values():
            has_part |= frontier != NEVER
        if thing:
            wanted = thing.casefold()
            has_part &= np.array([wanted in name.casefold() for name in of_operator.things], dtype=bool)
        which = has_part.nonzero()[0]
        counts[operator.name] += len(which)
        which = which[np.argsort(-totals[which], kind="stable")[:share]]
        names = {stream: _name_of(settings, operator, stream) for stream in operator.streams}
        known = (key for key in found.keys if key.operator == operator.name)
        keys += _largest([*known, *_keys(unit, operator, names, of_operator, which.tolist())])[:share]
    return KeysRead(_largest(keys), counts, found.units)


def _largest(keys: Iterable[Key]) -> list[Key]:
    """Return the keys, those that hold the most first. Ties are broken by name."""
    return sorted(keys, key=lambda key: (-key.held, key.thing, key.operator, key.unit))


def _keys(
    unit: int,
    operator: JoinSettings | AlignSettings,
    names: Mapping[str, str],
    of_operator: HeldByKey,
    which: Sequence[int],
) -> Iterator[Key]:
    kind: Literal["join", "align"] = "join" if isinstance(operator, JoinSettings) else "align"
    for at in which:
        streams = {
            stream: StreamOfKey(
                names[stream] if kind == "join" else stream,
                int(held[at]),
                _time_ns(of_operator.frontier_ns, stream, at),
            )
            for stream, held in of_operator.held.items()
        }
        total = sum(one.held for one in streams.values())
        waits_for = _waits_for(of_operator, names, at)
        yield Key(unit, operator.name, kind, of_operator.things[at], total, streams, waits_for)


def _waits_for(of_operator: HeldByKey, names: Mapping[str, str], at: int) -> list[Awaited]:
    found = []
    for stream, name in names.items():
        latest_ns = _time_ns(of_operator.awaited_ns, stream, at)
        if latest_ns is not None:
            frontier_ns = _time_ns(of_operator.frontier_ns, stream, at)
            found.append(Awaited(stream, name, None if frontier_ns is None else latest_ns - frontier_ns))
    return sorted(found, key=lambda one: (one.behind_ns is not None, -(one.behind_ns or 0)))


def _time_ns(times_ns: Mapping[str, NDArray[np.int64]], stream: str, at: int) -> int | None:
    """Return a stream's time at an index, or None if there is none."""
    ns = int(times_ns[stream][at]) if stream in times_ns else NEVER
    return None if ns == NEVER else ns


def _name_of(settings: JoinerSettings, operator: JoinSettings | AlignSettings, stream: str) -> str:
    selection = settings.selection(operator.streams[stream])
    return selection["quantity"] or str(selection["topic"])
