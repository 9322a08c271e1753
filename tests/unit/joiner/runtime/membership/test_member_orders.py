"""Does each instance follow the orders that are meant for it, once, and does its process get them?"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from types import SimpleNamespace
from typing import Any

import pytest

from joiner.runtime.control import (
    Assignment,
    Drain,
    Heartbeat,
    Left,
    Logged,
    MemberRecord,
    Pin,
    Retry,
    Standbys,
    Summary,
    UnitAssignment,
)
from joiner.runtime.membership import site
from joiner.runtime.membership.member import PATIENCE_S, Identity, Member, Timing, Work
from joiner.runtime.membership.site import SiteMembership
from joiner.runtime.ownership.eligibility import Claimant
from joiner.runtime.settings import JoinerSettings
from tests.manual_clock import ManualClock
from tests.unit.joiner.runtime.joiner_inputs import make_settings

UNITS = 4


class Log:
    """A control topic that keeps what is written. `read` returns what its only reader has not read yet."""

    def __init__(self) -> None:
        self.records: list[Logged] = []
        self._read = 0
        self.is_writable = True

    def write(self, record: MemberRecord) -> None:
        if self.is_writable:
            self.records.append(Logged(record, len(self.records), 0))

    def read(self) -> list[Logged]:
        new, self._read = self.records[self._read :], len(self.records)
        return new

    def close(self, _wait_s: float) -> None:
        """See `MemberLog`."""

    def written(self, kind: type[Any]) -> list[Any]:
        return [logged.record for logged in self.records if isinstance(logged.record, kind)]


class Instance:
    """A member that reads and writes a log of its own, which other records may be written to."""

    def __init__(self, log: Log | None = None) -> None:
        self.log, self.now_s = log or Log(), 0.0
        self.work = Work()
        self.member = Member(Identity("process", "a", "run of a"), UNITS, Timing(), 0.0)

    def turn(self, *records: MemberRecord, passing_s: float = 0.1) -> None:
        for record in records:
            self.log.write(record)
        self.now_s += passing_s
        for logged in self.log.read():
            self.member.hear(logged, self.now_s)
        for record in self.member.beat(self.work, self.now_s):
            self.log.write(record)

    def join(self) -> None:
        while not self.member.is_assigned:
            self.turn()


def retry(unit: int, of: str = "process") -> Retry:
    return Retry(site=of, unit=unit)


def test_an_instance_gets_an_order_to_try_a_unit_again_once() -> None:
    one = Instance()
    one.join()
    one.turn(retry(2), retry(3), retry(2))
    assert one.member.take_retries() == {2, 3}
    assert one.member.take_retries() == set()
    one.turn(retry(2))
    assert one.member.take_retries() == {2}


def test_an_order_from_before_the_start_of_an_instance_is_not_meant_for_it() -> None:
    log = Log()
    log.write(retry(2))
    one = Instance(log)
    one.join()
    assert one.member.take_retries() == set()


def test_an_order_that_follows_the_first_heartbeat_counts_even_before_the_assignment_is_known() -> None:
    one = Instance()
    one.turn()
    one.turn(retry(2))
    assert not one.member.is_assigned
    assert one.member.take_retries() == {2}


def test_orders_about_another_site_or_about_units_that_do_not_exist_are_not_followed() -> None:
    one = Instance()
    one.join()
    one.turn(retry(2, of="green"), retry(UNITS), retry(2**31))
    assert one.member.take_retries() == set()


@pytest.mark.parametrize(
    "order",
    [
        Drain(site="process", instance="x"),
        Pin(site="process", unit=1, instance="x"),
        Standbys(site="process", count=0),
    ],
    ids=lambda order: type(order).__name__,
)
def test_a_summary_whose_author_has_missed_an_order_is_contradicted(order: Any) -> None:
    one = Instance()
    one.join()
    one.turn(passing_s=0.5)
    missed = one.member.state.summary()
    one.turn(order)
    # Another summary of its own is not due for a while.
    before = len(one.log.written(Summary))
    one.turn(missed)
    assert len(one.log.written(Summary)) == before + 1, "its author had not read the order yet"
    late = Summary(site="process", read=len(one.log.records) - 1, epoch=missed.epoch, units=missed.units)
    one.turn(late)
    (correction,) = one.log.written(Summary)[before + 2 :]
    assert correction.ordered == one.member.state.orders.offsets
    assert (correction.drained, correction.pinned, correction.standbys) != ([], {}, None)


@pytest.mark.parametrize("is_warm", [True, False])
def test_who_is_to_take_a_unit_over_does_not_claim_it_if_a_standby_can_serve_it_at_once(*, is_warm: bool) -> None:
    one = Instance()
    one.join()

    def beat(name: str, **work: Any) -> Heartbeat:
        return Heartbeat(site="process", instance=name, run=f"run of {name}", **work)

    standby = beat("c", warm=[0] if is_warm else [], standbys=1)
    units = [UnitAssignment("a", ["c"])] * UNITS
    epoch = one.member.state.epoch + 1
    one.turn(
        beat("b", serves=[0]),
        standby,
        Assignment(site="process", epoch=epoch, units=units, gone={}, by="b", reason=""),
    )
    assert 0 not in one.member.orders(Work(), one.now_s).serve, "b serves it"
    one.turn(standby, Left(site="process", instance="b", run="run of b"))
    orders = one.member.orders(Work(), one.now_s)
    assert (0 in orders.serve, 0 in orders.follow) == (not is_warm, is_warm)
    assert 0 in one.member.orders(Work(claims=frozenset({0})), one.now_s).serve, "a claim goes on until it is moved"
    if not is_warm:
        # A second standby is to be added, which does not concern the owner.
        one.turn(beat("d", standbys=2))
        assert 0 in one.member.orders(Work(), one.now_s).serve
    one.turn(standby)
    assert one.member.state.units[0].owner == ("c" if is_warm else "a")


def test_a_fenced_owner_lets_a_warm_standby_claim_the_unit() -> None:
    one = Instance()
    one.join()

    def beat(name: str, **work: Any) -> Heartbeat:
        return Heartbeat(site="process", instance=name, run=f"run of {name}", **work)

    units = [UnitAssignment("a", ["c"])] * UNITS
    epoch = one.member.state.epoch + 1
    one.turn(
        beat("c", warm=[0, 1], standbys=1),
        Assignment(site="process", epoch=epoch, units=units, gone={}, by="b", reason=""),
    )
    one.work = Work(serves=frozenset({0, 1}))
    one.turn()
    one.turn(beat("b", claims=[0]), beat("c", warm=[0, 1], standbys=1))
    one.turn(Left(site="process", instance="b", run="run of b"))
    # Both units stop: the first because it was fenced, the other for another reason.
    orders = one.member.orders(Work(in_doubt=frozenset({0})), one.now_s)
    assert (0 in orders.serve, 1 in orders.serve) == (False, True), "the log does not say that unit 0 is not served"
    assert orders.hold == {0}, "it must still look who has claimed the unit before it claims it"
    assert 0 not in one.member.orders(Work(), one.now_s).serve, "the unit was taken back, so it is not in doubt"
    one.work = Work(claims=frozenset({1}))
    one.turn()
    one.turn(beat("c", warm=[0, 1], standbys=1))
    assert 0 not in one.member.orders(one.work, one.now_s).serve, "this instance proposes that c should serve it"
    one.turn(beat("c", warm=[0, 1], standbys=1))
    assert one.member.state.units[0].owner == "c"


def test_an_instance_that_cannot_write_what_it_does_waits_for_that_for_a_limited_time() -> None:
    """Its owner is checked before the unit is claimed."""
    one = Instance()
    one.join()
    one.work = Work(serves=frozenset({0}))
    one.turn()
    one.turn()
    # From now on, it may read the control topic, and not write to it.
    one.log.is_writable = False
    one.work = Work(in_doubt=frozenset({0}))
    one.turn()
    assert 0 in one.member.orders(one.work, one.now_s).hold
    one.turn(passing_s=PATIENCE_S)
    assert 0 in one.member.orders(one.work, one.now_s).serve


class Host:
    """A process that only notes what it is to try again."""

    def __init__(self) -> None:
        self.retried: list[set[int]] = []

    def work(self) -> Work:
        return Work()

    def retry(self, units: AbstractSet[int]) -> None:
        self.retried.append(set(units))

    def held_up(self) -> AbstractSet[int]:
        return frozenset()

    def hand_over(self, units: list[int]) -> None:
        """See `site.Host`."""

    def give_back(self, units: list[int], lost: bool) -> None:  # noqa: FBT001 - a callback's signature
        """See `site.Host`."""


class Group:
    """A consumer group that assigns no units."""

    def __init__(self, *_given: Any) -> None:
        self.units: set[int] = set()
        self.is_assigned = True

    def poll(self) -> None:
        """See `GroupMembership`."""


@pytest.mark.parametrize("is_mixed", [False, True], ids=["alone", "beside an older release"])
def test_a_process_gets_an_order_to_try_a_unit_again(*, is_mixed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    log, host, clock = Log(), Host(), ManualClock()
    older = SimpleNamespace(is_known=True, is_running=is_mixed, poll=lambda: None)
    monkeypatch.setattr(site, "MemberLog", lambda _settings: log)
    monkeypatch.setattr(site, "GroupMembership", Group)
    monkeypatch.setattr(site, "OlderRelease", lambda *_given: older)
    monkeypatch.setattr(site, "start_thread", lambda _target: None)
    settings: JoinerSettings = make_settings(partitions=UNITS)
    services: Any = SimpleNamespace(clock=clock, admin=None)
    membership = SiteMembership(settings, Claimant("run of a", "a"), host, services)
    while not log.written(Heartbeat) or clock.now_s < 1002.0:
        membership.poll()
        clock.now_s += 0.1
    assert host.retried == []
    log.write(retry(1))
    membership.poll()
    membership.poll()
    assert host.retried == [{1}]
    assert membership.state.is_mixed == is_mixed


def test_a_process_does_not_wait_with_what_its_thread_has_read(monkeypatch: pytest.MonkeyPatch) -> None:
    log, clock = Log(), ManualClock()
    older = SimpleNamespace(is_known=True, is_running=False, poll=lambda: None)
    monkeypatch.setattr(site, "MemberLog", lambda _settings: log)
    monkeypatch.setattr(site, "GroupMembership", Group)
    monkeypatch.setattr(site, "OlderRelease", lambda *_given: older)
    monkeypatch.setattr(site, "start_thread", lambda _target: "a thread")
    services: Any = SimpleNamespace(clock=clock, admin=None)
    membership = SiteMembership(make_settings(partitions=UNITS), Claimant("run of a", "a"), Host(), services)

    def has_news() -> bool:
        return membership.has_news

    while not log.written(Heartbeat) or clock.now_s < 1002.0:
        membership.poll()
        clock.now_s += 0.1
    membership._turn_in_thread()  # noqa: SLF001 - as the thread does
    membership.poll()
    assert not has_news()
    membership._turn_in_thread()  # noqa: SLF001 - as the thread does
    assert not has_news(), "its own heartbeat says nothing new"
    log.write(Heartbeat(site="process", instance="b", run="run of b"))
    membership._turn_in_thread()  # noqa: SLF001 - as the thread does
    assert has_news()
    membership.poll()
    assert not has_news()
    membership.wake()
    assert has_news()
