"""Which assignments follow from any history of a site: instances come and go, fail at units, and are given orders?"""

from __future__ import annotations

from typing import Any, Final

from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from joiner.runtime.control import Drain, Left, Pin, Standbys
from joiner.runtime.membership.state import StandingOrders
from tests.unit.joiner.runtime.membership.pretended_site import Site

NAMES: Final = "abcd"
UNITS: Final = 7

names = st.sampled_from(NAMES)
units = st.integers(0, UNITS - 1)
pins = st.builds(lambda unit, name: Pin(site="plain", unit=unit, instance=name), units, st.sampled_from(["", *NAMES]))
orders = st.one_of(
    pins,
    st.builds(lambda name, drained: Drain(site="plain", instance=name, drained=drained), names, st.booleans()),
    st.builds(lambda count: Standbys(site="plain", count=count), st.sampled_from([0, 1, 2, None])),
)


class Sites(RuleBasedStateMachine):
    """A site whose instances follow each assignment. After each event, nothing changes any more in the end."""

    def __init__(self) -> None:
        super().__init__()
        self.site = Site("a", units=UNITS)
        self.runs = 0
        self.site.settle()

    # Events

    @rule(name=names, host=st.sampled_from("xy"), capacity=st.sampled_from([1.0, 1.0, 2.0]))
    def join(self, name: str, host: str, capacity: float) -> None:
        if name not in self.site.state.live:
            self.runs += 1
            self.site.beat(name, run=f"run {self.runs}", host=host, capacity=capacity)
        self.settle()

    @precondition(lambda self: len(self.site.state.live) > 1)
    @rule(data=st.data(), how=st.sampled_from(["silent", "leaving", "left"]))
    def go(self, data: st.DataObject, how: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.site.state.live)))
        run = self.site.state.live[name].run
        match how:
            case "silent":
                self.settle(name)
                return
            case "leaving":
                self.site.change(name, leaving=True)
                self.settle()
        self.site.apply(Left(site="plain", instance=name, run=run))
        self.settle()

    @rule(order=orders)
    def order(self, order: Any) -> None:
        before, was_settled = self.site.owners, self.site.next() is None
        self.site.apply(order)
        self.settle()
        if was_settled and isinstance(order, Standbys):
            assert self.site.owners == before, "owners do not depend on the number of standbys"

    @rule(unit=units)
    def pin_where_it_is(self, unit: int) -> None:
        before = self.site.state.units
        owner = self.site.owners[unit]
        self.site.apply(Pin(site="plain", unit=unit, instance=owner))
        assert self.site.next() is None
        assert self.site.state.units == before

    @rule(data=st.data(), unit=units, is_mended=st.booleans())
    def fail(self, data: st.DataObject, unit: int, *, is_mended: bool) -> None:
        """Let a unit fail at an instance, or let the instance forget that."""
        name = data.draw(st.sampled_from(sorted(self.site.state.live)))
        beat = self.site.state.live[name]
        failed = {*beat.failed} - {unit} if is_mended else {*beat.failed, unit}
        owned = set(self.site.owned(name)) if is_mended else set(beat.serves)
        self.site.change(name, failed=sorted(failed), serves=sorted(owned - failed))
        self.settle()

    def settle(self, *silent: str) -> None:
        """Follow assignments until nothing changes. No unit may go back to an owner that it had in between."""
        ways: list[list[str]] = [[owner] for owner in self.site.owners]
        for owners in self.site.follow(*silent):
            for way, owner in zip(ways, owners, strict=True):
                if owner != way[-1]:
                    way.append(owner)
        assert all(len(way) == len(set(way)) for way in ways), ways

    # What holds then

    @property
    def able(self) -> list[str]:
        live = self.site.state.live
        staying = [name for name, beat in live.items() if not beat.leaving]
        return [name for name in staying if name not in self.site.state.drained] or staying

    def is_followed(self, unit: int) -> bool:
        """Return whether the pin of a unit can be followed."""
        pin = self.site.state.orders.pinned.get(unit)
        return pin in self.able and unit not in self.site.state.live[pin].failed

    @invariant()
    def nothing_changes_any_more(self) -> None:
        assert self.site.next() is None

    @invariant()
    def each_unit_has_an_owner_that_may_have_it(self) -> None:
        assert set(self.site.owners) <= set(self.able)

    @invariant()
    def pinned_units_are_where_they_should_be(self) -> None:
        for unit, pin in self.site.state.orders.pinned.items():
            assert not self.is_followed(unit) or self.site.owners[unit] == pin

    @invariant()
    def the_load_is_even_apart_from_units_that_cannot_be_moved(self) -> None:
        live, owned = self.site.state.live, {name: self.site.owned(name) for name in self.able}
        for most in self.able:
            free = [unit for unit in owned[most] if unit in live[most].serves and not self.is_followed(unit)]
            for least in self.able:
                if any(unit not in live[least].failed for unit in free):
                    more = (len(owned[least]) + 1) / live[least].capacity
                    assert more >= len(owned[most]) / live[most].capacity

    @invariant()
    def each_unit_has_as_many_standbys_as_are_ordered_and_possible(self) -> None:
        live, count = self.site.state.live, self.site.state.orders.standbys or 0
        for unit, one in enumerate(self.site.state.units):
            able = [name for name in self.able if name != one.owner and unit not in live[name].failed]
            assert len(one.standbys) == min(count, len(able))
            assert set(one.standbys) <= set(able)


Sites.TestCase.settings = examples(max_examples=60, stateful_step_count=30, deadline=None)
TestSites = Sites.TestCase


@examples(max_examples=60, deadline=None)
@given(st.sets(units, min_size=1, max_size=2), names.filter(lambda name: name != "d"))
def test_a_pin_moves_no_more_units_than_the_load_requires(pinned: set[int], name: str) -> None:
    site = Site("a", "b", "c", units=UNITS)
    site.settle()
    before = site.owners
    for unit in pinned:
        site.apply(Pin(site="plain", unit=unit, instance=name))
    site.settle()
    moved = {unit for unit, owner in enumerate(site.owners) if owner != before[unit]}
    assert all(site.owners[unit] == name for unit in pinned)
    assert len(moved) <= 2 * len(pinned)


@examples(max_examples=200, deadline=None)
@given(st.lists(orders, max_size=12), st.data())
def test_readers_that_have_missed_some_orders_agree_once_each_has_read_a_summary_of_the_other(
    given_orders: list[Any], data: st.DataObject
) -> None:
    """Wherever a reader has begun, and whatever it has missed, the last order about each subject counts."""
    whole, readers = StandingOrders(), [Site("a") for _ in range(3)]
    for offset, order in enumerate(given_orders):
        whole.apply(order, offset)
        heard = data.draw(st.sets(st.integers(0, 2), min_size=1))
        for number in heard:
            readers[number].state.apply(order, offset)
    for _ in range(2):
        for reader in readers:
            for other in readers:
                reader.state.apply(other.state.summary(), len(given_orders))
    assert all(reader.state.orders == whole for reader in readers)
