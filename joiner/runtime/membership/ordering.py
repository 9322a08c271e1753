"""Gives the orders of operators about a site, and waits for what follows from them.

For the command line and for services: nothing is printed. The instances of the site act on the order, so it is carried
out even if the program that gave it ends. Only `Retry` is forgotten; the other orders are in force until withdrawn.
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
"""A unit that was tried again must be served for this long: the record at which it had failed may be the next one."""

_REASON_S: Final = 5.0
"""How long to wait for the report that says why a unit has failed again."""


class OrderRefused(Exception):
    """An order that cannot be carried out at present. Nothing was written. The message says why, and what to do."""


class UnknownUnit(OrderRefused):
    """An order about a unit that the application does not have."""


class Outcome(NamedTuple):
    """What has followed from an order. ``is_reached``: whether it is what was ordered. ``text``: in words."""

    is_reached: bool
    text: str


class Attempt(NamedTuple):
    """What has followed from an order to try a unit again.

    ``ordered_ms``: when the order was appended, or None if it is not in the log. ``owner``, ``server``: the instance
    that should serve the unit, and the one that does, or an empty string. ``failed``: the instances that have tried and
    failed again. ``waiting``: those that have not followed the order yet. ``cold``: those that had failed and should
    keep the unit warm, and neither do so nor have failed again.
    """

    ordered_ms: int | None
    owner: str
    server: str
    failed: list[str]
    waiting: list[str]
    cold: list[str]

    @classmethod
    def of(cls, records: Iterable[Logged], site: str, unit: int, after: int) -> Attempt:
        """Return what has followed from the last order with a greater offset than ``after``."""
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
"""Returns, for a site that knows the order, what is the case in words, and the outcome if there is one."""


@dataclass(frozen=True)
class Ordering:
    """Gives orders about a site of an application, each of which waits until it is carried out.

    ``timeout_s``: how long to wait. ``report`` is called with a line of text when something has changed. Waiting ends
    early once ``is_stopped`` returns True. All methods raise `OrderRefused` and KafkaException.
    """

    settings: JoinerSettings
    site: str
    timeout_s: float
    clock: Clock
    report: Callable[[str], None]
    is_stopped: Callable[[], bool] = lambda: False

    def drain(self, instance: str, *, undo: bool = False) -> Outcome:
        """Order that an instance be given no units, and wait until it has none.

        ``undo``: order that it may have units again. The instance need not be running, because the order to drain it
        outlives it.
        """
        state = self._state()
        if undo:
            text = f"{instance} may have units again{'' if instance in state.live else '; it is not running now'}"
            return self._give(Drain(site=self.site, instance=instance, drained=False), _done(text))
        self._check_running(instance, state)

        def look(state: SiteState) -> tuple[str, Outcome | None]:
            beat = state.live.get(instance)
            serves = [] if beat is None else sorted({*beat.serves, *beat.claims})
            # It may be about to claim a unit that has just been assigned to it. If all are drained, they serve anyway.
            owns = any(one.owner == instance for one in state.units) and beat is not None
            outcome = None if serves or owns else Outcome(is_reached=True, text=f"{instance} is drained")
            return f"{instance} serves {_listed(serves)}", outcome

        return self._give(
            Drain(site=self.site, instance=instance), look, lambda _: "no other instance takes over the rest"
        )

    def pin(self, unit: int, instance: str) -> Outcome:
        """Order that an instance own a unit whenever it can, and wait until it serves the unit.

        If ``instance`` is empty, the unit is no longer pinned, and stays where it is.
        """
        state = self._state()
        self._check_unit(unit)
        order = Pin(site=self.site, unit=unit, instance=instance)
        if not instance:
            return self._give(order, _done(f"unit {unit} is not pinned any more"))
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
                why = f"{text}: {_why_not_pinned(state, unit, instance)}; the order remains"
                return text, Outcome(is_reached=False, text=why)
            return text, None

        return self._give(order, look, lambda state: _why_not_pinned(state, unit, instance))

    def standbys(self, count: int | None) -> Outcome:
        """Order how many standbys each unit should have, and wait until they are warm.

        ``count``: from 0 to `control.STANDBYS_MAX`, or None: as many as the settings of the instances say.
        """
        state = self._state()
        order = Standbys(site=self.site, count=count)
        if count is None and not state.live:
            return self._give(order, _done("each unit has as many standbys as the settings say, once instances run"))
        self._check_any_running(state)
        units = self._units

        def look(state: SiteState) -> tuple[str, Outcome | None]:
            # A unit at another site, or that was never claimed, has no state here.
            served = {unit for unit in range(units) if state.server(unit) is not None}
            wanted = wanted_standbys(state, state.live)
            of_units = [(unit, name) for unit in served for name in _standbys_of(state, unit, wanted)]
            warm = sum(name in state.live and unit in state.live[name].warm for unit, name in of_units)
            text = f"{warm} of {wanted * len(served)} standbys are warm"
            if warm < len(of_units) or next_assignment(state, units, "") is not None:
                return text, None
            if warm < wanted * len(served):
                why = f"{text}: no other instance can be a standby now; the order remains"
                return text, Outcome(is_reached=False, text=why)
            return text, Outcome(is_reached=True, text=f"each unit has {wanted} standby{'s' * (wanted != 1)}")

        return self._give(order, look, lambda _: "some standbys are not warm")

    def retry(self, unit: int) -> Outcome:
        """Order that the instances forget why they could not serve a unit, and wait until one serves it for a while."""
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
        """Return the outcome of an order whose effects cannot be read, or wait and return None if there is time."""
        if self._is_over(self.clock.monotonic_s() - began_s):
            text = f"the order was given, but what has become of it cannot be read: {describe(error)}"
            return Outcome(is_reached=False, text=text)
        self.clock.sleep(_LOOK_S)
        return None

    def _judge(self, unit: int, found: Attempt, waited_s: float, served_s: float) -> tuple[str, Outcome | None]:
        """Return what has become of a unit in words, and the outcome if there is one.

        ``served_s``: for how long the same instance has served it.
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
        """Return the outcome of an order whose unit has failed again, with the reason, once that is reported."""
        text = f"unit {unit} has failed again at {owner}"
        until_s = self.clock.monotonic_s() + _REASON_S
        while not (why := self._reason(unit, owner, ordered_ms)):
            if self.clock.monotonic_s() >= until_s or self.is_stopped():
                why = "; its log says why"
                break
            self.clock.sleep(_LOOK_S)
        return text, Outcome(is_reached=False, text=text + why)

    def _reason(self, unit: int, owner: str, ordered_ms: int) -> str:
        """Return why the owner of a unit says, since the order, that it cannot serve it; empty if it does not."""
        for notice, at_ms in read_reports(self.settings, self.clock):
            if at_ms > ordered_ms and (notice.site, notice.unit, notice.instance) == (self.site, unit, owner):
                return f": {notice.why}"
        return ""

    def _give(self, order: StandingOrder, look: _Look, why_not: Callable[[SiteState], str] = lambda _: "") -> Outcome:
        """Write an order and wait for the outcome. ``why_not``: returns why there is none when the time is over."""
        before = self._state().orders.last_about(order)
        began_s, said = self.clock.monotonic_s(), ""
        # What cannot be written at once is written later, as long as this is open.
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
                    text = f"{said}: {why_not(state)}; the order remains" if is_known else _NOT_WRITTEN
                    return Outcome(is_reached=False, text=text)
                self.clock.sleep(_LOOK_S)

    def _state(self) -> SiteState:
        """Return what is known of the site. Raises `OrderRefused` if the application has never run."""
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


_NOT_WRITTEN: Final = "Kafka has not confirmed the order in time: give it again"


def _done(text: str) -> _Look:
    return lambda _: (text, Outcome(is_reached=True, text=text))


def _failed(state: SiteState, unit: int) -> set[str]:
    """Return the instances that cannot serve a unit."""
    return {name for name, beat in state.live.items() if unit in beat.failed}


def _owner(state: SiteState, unit: int) -> str:
    return state.units[unit].owner if unit < len(state.units) else ""


def _why_not_pinned(state: SiteState, unit: int, instance: str) -> str:
    if state.is_mixed:
        return "the consumer group assigns the units as long as a process of an older release runs"
    beat = state.live.get(instance)
    if beat is None:
        return f"{instance} is not running any more"
    if beat.leaving:
        return f"{instance} is stopping"
    if unit in beat.failed:
        return f"{instance} cannot serve it, as `joiner status` or its log says"
    if instance in state.orders.drained:
        return f"{instance} is drained"
    return f"{instance} has not taken it over"


def _listed(units: list[int]) -> str:
    return "no unit" if not units else f"unit{'s' if len(units) > 1 else ''} {', '.join(map(str, units))}"


def _standbys_of(state: SiteState, unit: int, wanted: int) -> list[str]:
    """Return the standbys of a unit, without an instance that only prepares for it because it is pinned there."""
    names = state.units[unit].standbys if unit < len(state.units) else []
    prepares = state.orders.pinned.get(unit) if len(names) > wanted else None
    return [name for name in names if name != prepares]
