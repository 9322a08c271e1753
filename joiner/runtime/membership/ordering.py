"""Gives operators' orders for a site, and waits for the outcome.

Prints nothing, so that both the command line and services can use it. The site's instances act on the order, so it is
carried out even if the program that gave it exits. Only `Retry` is forgotten; the other orders stay in force until they
are withdrawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from confluent_kafka import KafkaException

from broker.kafka.topics import topic_facts
from joiner.runtime.control import Drain, Heartbeat, Logged, Pin, Retry, Standbys, StandingOrder
from joiner.runtime.kafka.checkpoint_log import read_checkpoint
from joiner.runtime.kafka.clients import describe, make_admin
from joiner.runtime.kafka.control_log import ControlLog
from joiner.runtime.kafka.readers import Readers
from joiner.runtime.membership.assign import next_assignment, wanted_standbys
from joiner.runtime.membership.observer import SINCE_S, fold, read_records
from joiner.runtime.membership.state import SiteState
from joiner.runtime.model import RESET_RUN
from joiner.runtime.ownership.unit_reports import read_reports

if TYPE_CHECKING:
    from joiner.runtime.clock import Clock
    from joiner.runtime.settings import JoinerSettings

_LOOK_S: Final = 0.2

_STEADY_S: Final = 3.0
"""A retried unit must be served for this long, because the record at which it failed may be the next one."""

_REASON_S: Final = 5.0
"""How long to wait for the report on why a unit has failed again."""


class OrderRefused(Exception):
    """The order cannot be carried out now, and nothing was written. The message says why, and what to do."""


class UnknownUnit(OrderRefused):
    """The order names a unit that the application does not have."""


class Outcome(NamedTuple):
    """The outcome of an order. ``is_reached``: whether it was carried out. ``text``: a description for the operator."""

    is_reached: bool
    text: str


class Attempt(NamedTuple):
    """What has happened since an order to try a unit again.

    ``ordered_ms``: when the order was appended, or None if it is not in the log. ``owner``, ``server``: the instance
    that should serve the unit, and the one that does, or an empty string. ``failed``: the instances that have tried and
    failed again. ``waiting``: those that have not acted on the order yet. ``cold``: those that had failed before and
    should keep the unit warm, but are not yet doing so and have not failed again.
    """

    ordered_ms: int | None
    owner: str
    server: str
    failed: list[str]
    waiting: list[str]
    cold: list[str]

    @classmethod
    def of(cls, records: Iterable[Logged], site: str, unit: int, after: int) -> Attempt:
        """Return what has happened since the last such order at an offset greater than ``after``."""
        state, ordered_ms, tried, before = SiteState(site), None, set[str](), set[str]()
        for record, offset, at_ms in records:
            state.apply(record, offset)
            match record:
                case Retry() if (record.site, record.unit) == (site, unit) and offset > after:
                    ordered_ms, tried, before = at_ms, set(), _failed(state, unit)
                case Heartbeat() if record.site == site and unit not in record.failed:
                    tried.add(record.instance)
                case _:
                    pass
        failed, standbys = _failed(state, unit), set(state.units[unit].standbys if unit < len(state.units) else ())
        warm = {name for name, beat in state.live.items() if unit in beat.warm}
        return cls(
            ordered_ms,
            _owner(state, unit),
            state.server(unit) or "",
            failed=sorted(failed & tried),
            waiting=sorted(failed - tried),
            cold=sorted(before & standbys & state.live.keys() - warm - failed),
        )


_Look = Callable[[SiteState], tuple[str, Outcome | None]]
"""Given a site that knows the order, returns a description of the situation, and the outcome if there is one."""


@dataclass(frozen=True)
class Ordering:
    """Gives orders for a site of an application. Each method waits until its order is carried out.

    ``timeout_s``: how long to wait. ``report`` is called with a line of text whenever something changes. Waiting ends
    early once ``is_stopped`` returns True. All methods raise `OrderRefused` and KafkaException.
    """

    settings: JoinerSettings
    site: str
    timeout_s: float
    clock: Clock
    report: Callable[[str], None]
    is_stopped: Callable[[], bool] = lambda: False

    def drain(self, instance: str, *, undo: bool = False) -> Outcome:
        """Drain an instance, and wait until it has no units left.

        ``undo``: undo the drain instead. The instance need not be running, because the order to drain it outlives it.
        """
        state = self._state()
        if undo:
            text = f"{instance} is no longer drained{'' if instance in state.live else '; it is not running now'}"
            return self._give(Drain(site=self.site, instance=instance, drained=False), _done(text))
        self._check_running(instance, state)

        def look(state: SiteState) -> tuple[str, Outcome | None]:
            beat = state.live.get(instance)
            serves = [] if beat is None else sorted({*beat.serves, *beat.claims})
            # It may be about to claim a unit just assigned to it. If all instances are drained, they still serve units.
            owns = any(one.owner == instance for one in state.units) and beat is not None
            outcome = None if serves or owns else Outcome(is_reached=True, text=f"{instance} is drained")
            return f"{instance} serves {_listed(serves)}", outcome

        return self._give(
            Drain(site=self.site, instance=instance), look, lambda _: "no other instance takes over the rest"
        )

    def pin(self, unit: int, instance: str) -> Outcome:
        """Pin a unit to an instance, which owns it whenever it can, and wait until the instance serves it.

        If ``instance`` is empty, unpin the unit, which stays where it is.
        """
        state = self._state()
        self._check_unit(unit)
        order = Pin(site=self.site, unit=unit, instance=instance)
        if not instance:
            return self._give(order, _done(f"unit {unit} is no longer pinned"))
        self._check_running(instance, state)

        def look(state: SiteState) -> tuple[str, Outcome | None]:
            server = state.server(unit)
            text = f"unit {unit} is served by {server or 'no instance'}"
            if server == _owner(state, unit) == instance:
                return text, Outcome(is_reached=True, text=text)
            prepares = unit < len(state.units) and instance in {state.units[unit].owner, *state.units[unit].standbys}
            is_settled = not prepares and next_assignment(state, self._units, "") is None
            is_in_vain = instance in state.orders.drained and is_settled
            if state.is_mixed or is_in_vain:
                why = f"{text}: {_why_not_pinned(state, unit, instance)}; the order remains in force"
                return text, Outcome(is_reached=False, text=why)
            return text, None

        return self._give(order, look, lambda state: _why_not_pinned(state, unit, instance))

    def standbys(self, count: int | None) -> Outcome:
        """Set how many standbys each unit should have, and wait until they are warm.

        ``count``: from 0 to `control.STANDBYS_MAX`, or None to use the instances' settings.
        """
        state = self._state()
        order = Standbys(site=self.site, count=count)
        if count is None and not state.live:
            return self._give(order, _done("each unit has as many standbys as the settings say, once instances run"))
        self._check_any_running(state)
        units = self._units

        def look(state: SiteState) -> tuple[str, Outcome | None]:
            # A unit that is at another site, or was never claimed, has no state here.
            served = {unit for unit in range(units) if state.server(unit) is not None}
            wanted = wanted_standbys(state, state.live)
            of_units = [(unit, name) for unit in served for name in _standbys_of(state, unit, wanted)]
            warm = sum(name in state.live and unit in state.live[name].warm for unit, name in of_units)
            text = f"{warm} of {wanted * len(served)} standbys are warm"
            if warm < len(of_units) or next_assignment(state, units, "") is not None:
                return text, None
            if warm < wanted * len(served):
                why = f"{text}: no other instance can be a standby now; the order remains in force"
                return text, Outcome(is_reached=False, text=why)
            return text, Outcome(is_reached=True, text=f"each unit has {wanted} standby{'s' * (wanted != 1)}")

        return self._give(order, look, lambda _: "some standbys are not warm")

    def retry(self, unit: int) -> Outcome:
        """Tell the instances to forget why they could not serve a unit. Wait until one has served it for a while."""
        self._check_known()
        self._check_unit(unit)
        self._check_at_site(unit)
        records = read_records(self.settings, self.clock)
        state = fold(records).get(self.site) or SiteState(self.site)
        self._check_any_running(state)
        server = state.server(unit)
        if server is not None and not any(unit in beat.failed for beat in state.live.values()):
            text = f"unit {unit} is served by {server}; there is nothing to try again"
            return Outcome(is_reached=True, text=text)
        last = records[-1].offset
        began_s, said, served = self.clock.monotonic_s(), "", ("", 0.0)
        with closing(ControlLog(self.settings)) as control:
            control.write(Retry(site=self.site, unit=unit))
            while True:
                now_s = self.clock.monotonic_s()
                try:
                    records = read_records(self.settings, self.clock, SINCE_S + now_s - began_s)
                except KafkaException as error:
                    if (unread := self._unread(error, began_s)) is not None:
                        return unread
                    continue
                found = Attempt.of(records, self.site, unit, last)
                if found.server != served[0]:
                    served = found.server, now_s
                text, outcome = self._judge(unit, found, now_s - began_s, now_s - served[1])
                if text != said and found.ordered_ms is not None:
                    said = text
                    self.report(text)
                if outcome is not None:
                    return outcome
                self.clock.sleep(_LOOK_S)

    @property
    def _units(self) -> int:
        return self.settings.topics.partitions

    def _is_over(self, waited_s: float) -> bool:
        return waited_s >= self.timeout_s or self.is_stopped()

    def _unread(self, error: KafkaException, began_s: float) -> Outcome | None:
        """Return the outcome of an order whose effects cannot be read. If there is time left, wait and return None."""
        if self._is_over(self.clock.monotonic_s() - began_s):
            text = f"the order was given, but its outcome cannot be read: {describe(error)}"
            return Outcome(is_reached=False, text=text)
        self.clock.sleep(_LOOK_S)
        return None

    def _judge(self, unit: int, found: Attempt, waited_s: float, served_s: float) -> tuple[str, Outcome | None]:
        """Return a description of what has become of a unit, and the outcome if there is one.

        ``served_s``: how long the same instance has served the unit.
        """
        is_over = self._is_over(waited_s)
        if found.ordered_ms is None:
            return "", Outcome(is_reached=False, text=_NOT_WRITTEN) if is_over else None
        text = f"unit {unit} is served by {found.server or 'no instance'}"
        if found.waiting:
            text += f"; not tried again yet: {', '.join(found.waiting)}"
        elif found.server:
            cannot = f"; {' and '.join(found.failed)} cannot keep it warm" if found.failed else ""
            not_yet = f"; {' and '.join(found.cold)} cannot keep it warm yet" if found.cold else ""
            is_steady = served_s >= _STEADY_S
            is_reached = Outcome(is_reached=is_steady, text=text + cannot + not_yet)
            if is_over and not is_steady:
                return text, is_reached._replace(text=f"{text}, but not yet for {_STEADY_S:.0f} s")
            return text, is_reached if is_over or (is_steady and not found.cold) else None
        elif found.failed and found.owner in {"", *found.failed}:
            return self._why_failed(unit, found.owner or found.failed[0], found.ordered_ms)
        if not is_over:
            return text, None
        why = self._reason(unit, found.owner, found.ordered_ms)
        return text, Outcome(is_reached=False, text=f"after {waited_s:.0f} s, {text}{why}")

    def _why_failed(self, unit: int, owner: str, ordered_ms: int) -> tuple[str, Outcome]:
        """Return the outcome of an order whose unit has failed again, with the reason once it is reported."""
        text = f"unit {unit} has failed again at {owner}"
        until_s = self.clock.monotonic_s() + _REASON_S
        while not (why := self._reason(unit, owner, ordered_ms)):
            if self.clock.monotonic_s() >= until_s or self.is_stopped():
                why = "; its log says why"
                break
            self.clock.sleep(_LOOK_S)
        return text, Outcome(is_reached=False, text=text + why)

    def _reason(self, unit: int, owner: str, ordered_ms: int) -> str:
        """Return the reason a unit's owner has given since the order for not serving the unit, or an empty string."""
        for notice, at_ms in read_reports(self.settings, self.clock):
            if at_ms > ordered_ms and (notice.site, notice.unit, notice.instance) == (self.site, unit, owner):
                return f": {notice.why}"
        return ""

    def _give(self, order: StandingOrder, look: _Look, why_not: Callable[[SiteState], str] = lambda _: "") -> Outcome:
        """Write an order and wait for the outcome. ``why_not``: returns why there is none when time runs out."""
        before = self._state().orders.last_about(order)
        began_s, said = self.clock.monotonic_s(), ""
        # An order that cannot be written at once is written later, as long as this log is open.
        with closing(ControlLog(self.settings)) as control:
            control.write(order)
            while True:
                try:
                    state = self._state()
                except KafkaException as error:
                    if (unread := self._unread(error, began_s)) is not None:
                        return unread
                    continue
                is_known = state.orders.last_about(order) > before
                if is_known and not state.orders.are_as(order):
                    return Outcome(is_reached=False, text="another order has replaced this one")
                if is_known:
                    text, outcome = look(state)
                    if text != said:
                        said = text
                        self.report(text)
                    if outcome is not None:
                        return outcome
                if self._is_over(self.clock.monotonic_s() - began_s):
                    text = f"{said}: {why_not(state)}; the order remains in force" if is_known else _NOT_WRITTEN
                    return Outcome(is_reached=False, text=text)
                self.clock.sleep(_LOOK_S)

    def _state(self) -> SiteState:
        """Return what is known about the site. Raises `OrderRefused` if the application has never run."""
        self._check_known()
        return fold(read_records(self.settings, self.clock)).get(self.site) or SiteState(self.site)

    def _check_known(self) -> None:
        topic = self.settings.control_topic
        if topic not in topic_facts(make_admin(self.settings.kafka), [topic]):
            name = self.settings.application.name
            raise OrderRefused(f"application {name!r} has never run: there is no topic {topic}")

    def _check_unit(self, unit: int) -> None:
        units = self._units
        if not 0 <= unit < units:
            name = self.settings.application.name
            raise UnknownUnit(f"application {name!r} has no unit {unit}; its units are 0 to {units - 1}")

    def _check_at_site(self, unit: int) -> None:
        with closing(Readers(self.settings, self.clock)) as readers:
            checkpoint = read_checkpoint(readers, unit)
        if checkpoint is not None and checkpoint.run != RESET_RUN and checkpoint.site != self.site:
            raise OrderRefused(f"unit {unit} is at the site {checkpoint.site!r}: add `--at {checkpoint.site}`")

    def _check_running(self, instance: str, state: SiteState) -> None:
        if instance not in state.live:
            name, running = self.settings.application.name, ", ".join(sorted(state.live)) or "none"
            raise OrderRefused(
                f"application {name!r} has no instance {instance!r} at site {self.site!r}; running there: {running}"
            )

    def _check_any_running(self, state: SiteState) -> None:
        if not state.live:
            name = self.settings.application.name
            raise OrderRefused(f"application {name!r} has no instance at site {self.site!r}; start one there")


_NOT_WRITTEN: Final = "Kafka did not confirm the order in time: give it again"


def _done(text: str) -> _Look:
    return lambda _: (text, Outcome(is_reached=True, text=text))


def _failed(state: SiteState, unit: int) -> set[str]:
    """Return the instances that cannot serve a unit."""
    return {name for name, beat in state.live.items() if unit in beat.failed}


def _owner(state: SiteState, unit: int) -> str:
    return state.units[unit].owner if unit < len(state.units) else ""


def _why_not_pinned(state: SiteState, unit: int, instance: str) -> str:
    if state.is_mixed:
        return "the consumer group assigns the units as long as a process of an older release is running"
    beat = state.live.get(instance)
    if beat is None:
        return f"{instance} is no longer running"
    if beat.leaving:
        return f"{instance} is stopping"
    if unit in beat.failed:
        return f"{instance} cannot serve it; see `joiner status` or its log"
    if instance in state.orders.drained:
        return f"{instance} is drained"
    return f"{instance} has not taken it over"


def _listed(units: list[int]) -> str:
    return "no unit" if not units else f"unit{'s' if len(units) > 1 else ''} {', '.join(map(str, units))}"


def _standbys_of(state: SiteState, unit: int, wanted: int) -> list[str]:
    """Return a unit's standbys, except an instance that is only preparing for the unit because it is pinned there."""
    names = state.units[unit].standbys if unit < len(state.units) else []
    prepares = state.orders.pinned.get(unit) if len(names) > wanted else None
    return [name for name in names if name != prepares]
