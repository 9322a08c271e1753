"""Do instances agree on what operators have ordered, whatever they have read of it?"""

from __future__ import annotations

import json
from typing import Any

import pytest

from joiner.runtime.control import (
    STANDBYS_MAX,
    Drain,
    Pin,
    Retry,
    Standbys,
    Summary,
    decode_member,
    encode,
)
from joiner.runtime.membership.state import SiteState
from joiner.runtime.settings import ApplicationSettings
from tests.unit.joiner.runtime.membership.pretended_site import Site

ORDERS: list[Any] = [
    Drain(site="plain", instance="b"),
    Pin(site="plain", unit=2, instance="b"),
    Standbys(site="plain", count=2),
]
UNDONE: list[Any] = [
    Drain(site="plain", instance="b", drained=False),
    Pin(site="plain", unit=2),
    Standbys(site="plain"),
]


def pin(unit: int, instance: str = "") -> Pin:
    return Pin(site="plain", unit=unit, instance=instance)


def stated(state: SiteState) -> tuple[set[str], dict[int, str], int | None]:
    return state.orders.drained, state.orders.pinned, state.orders.standbys


def test_the_last_order_about_a_subject_counts() -> None:
    site = Site("a", "b")
    for order in (*ORDERS, pin(2, "c"), pin(3, "a"), Standbys(site="plain", count=0)):
        site.apply(order)
    assert stated(site.state) == ({"b"}, {2: "c", 3: "a"}, 0)
    for order in UNDONE:
        site.apply(order)
    assert stated(site.state) == (set(), {3: "a"}, None)


def test_orders_about_another_site_do_not_count() -> None:
    site = Site("a")
    site.apply(Pin(site="green", unit=0, instance="a"))
    site.apply(Standbys(site="green", count=2))
    assert stated(site.state) == (set(), {}, None)


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: type(order).__name__)
def test_a_summary_does_not_undo_an_order_that_its_author_had_not_read(order: Any) -> None:
    site = Site("a", "b")
    site.settle()
    before = site.state.summary()
    site.apply(order)
    expected = stated(site.state)
    assert not site.apply(before)
    assert stated(site.state) == expected != (set(), {}, None)


@pytest.mark.parametrize(("order", "undone"), [*zip(ORDERS, UNDONE, strict=True)], ids=["Drain", "Pin", "Standbys"])
def test_a_summary_repeats_an_order_that_was_missed(order: Any, undone: Any) -> None:
    site = Site("a", "b")
    site.settle()
    for one in (order, undone):
        late = SiteState.of(site.state.summary())
        version = late.version
        site.apply(one)
        assert late.apply(site.state.summary(), site.offset + 1)
        assert stated(late) == stated(site.state)
        assert late.version > version, "the next assignment is computed anew"


def test_a_summary_of_who_has_missed_orders_undoes_none_even_if_it_has_read_on() -> None:
    site = Site("a", "b")
    site.settle()
    late = SiteState.of(site.state.summary())
    for order in ORDERS:
        site.apply(order)
    late.apply(pin(3, "a"), site.offset + 1)
    site.offset += 1
    assert site.apply(late.summary())
    assert stated(site.state) == ({"b"}, {2: "b", 3: "a"}, 2)
    assert site.state.orders.are_missing_in(late.summary())
    assert late.apply(site.state.summary(), site.offset + 2)
    assert late.orders == site.state.orders
    assert not site.state.orders.are_missing_in(late.summary())


def test_an_order_that_an_author_may_still_read_is_not_missing_in_its_summary() -> None:
    site = Site("a", "b")
    site.settle()
    before = site.state.summary()
    site.apply(ORDERS[0])
    assert not site.state.orders.are_missing_in(before)


def test_an_older_summary_undoes_no_order_of_a_newer_one() -> None:
    site = Site("a", "b")
    site.settle()
    older = site.state.summary()
    for order in ORDERS:
        site.apply(order)
    newcomer = SiteState.of(site.state.summary())
    assert not newcomer.apply(older, site.offset + 1)
    assert stated(newcomer) == stated(site.state)


def test_a_withdrawn_order_is_not_brought_back_by_who_has_missed_that() -> None:
    site = Site("a", "b")
    site.settle()
    for order in ORDERS:
        site.apply(order)
    late = SiteState.of(site.state.summary())
    for order in UNDONE:
        site.apply(order)
    late.apply(Retry(site="plain", unit=0), site.offset + 1)
    for state in (site.state, SiteState.of(site.state.summary())):
        state.apply(late.summary(), site.offset + 2)
        assert stated(state) == (set(), {}, None)


def test_names_that_were_drained_once_are_forgotten_in_the_end() -> None:
    site = Site("a")
    for number in range(1_050):
        for drained in (True, False):
            site.apply(Drain(site="plain", instance=f"pod-{number}", drained=drained))
    for order in ORDERS:
        site.apply(order)
    site.settle()
    ordered = site.state.summary().ordered
    assert len(ordered) == 1_003
    assert {"drain b", "pin 2", "standbys", "drain pod-1049"} <= ordered.keys()
    assert "drain pod-0" not in ordered


def test_orders_in_a_summary_of_who_has_missed_an_assignment_count() -> None:
    site = Site("a", "b")
    site.settle()
    late = SiteState.of(site.state.summary())
    site.settle("b")
    assert late.epoch < site.state.epoch
    late.apply(pin(2, "b"), site.offset + 1)
    epoch, units = site.state.epoch, site.state.units
    assert site.state.apply(late.summary(), site.offset + 2)
    assert (stated(site.state), site.state.epoch, site.state.units) == ((set(), {2: "b"}, None), epoch, units)


def test_all_who_read_the_same_agree_wherever_they_began() -> None:
    site = Site("a", "b", "c", units=6)
    site.settle()
    begun = [SiteState.of(site.state.summary())]
    for order in [*ORDERS, *UNDONE[1:], pin(4, "c")]:
        site.apply(order)
        for state in begun:
            state.apply(order, site.offset)
        begun.append(SiteState.of(site.state.summary()))
    site.apply(site.state.summary())
    for state in begun:
        state.apply(site.state.summary(), site.offset)
        assert (state.orders, state.epoch, state.units) == (site.state.orders, site.state.epoch, site.state.units)


def test_a_summary_without_orders_is_written_and_read_as_before() -> None:
    former = {"kind": "summary", "site": "plain", "read": 40, "epoch": 7, "units": [["a", []]], "drained": ["c"]}
    read = decode_member(json.dumps(former).encode())
    assert isinstance(read, Summary)
    assert json.loads(encode(read)) == former
    state = SiteState.of(read)
    assert stated(state) == ({"c"}, {}, None)
    state.apply(Drain(site="plain", instance="c", drained=False), 50)
    assert not state.apply(read, 51)
    assert stated(state) == (set(), {}, None)


def test_a_summary_with_subjects_of_a_newer_release_is_read() -> None:
    ordered = {"waltz": 4, "pin x": 5, f"pin {'9' * 5000}": 6, "drain": 7, "pin 1": 8}
    state = SiteState.of(Summary(site="plain", read=40, epoch=7, units=[], pinned={1: "a"}, ordered=ordered))
    assert (state.orders.pinned, state.orders.offsets["pin 1"]) == ({1: "a"}, 8)


def test_a_summary_keeps_all_orders_on_its_way_through_the_log() -> None:
    site = Site("a")
    for order in ORDERS:
        site.apply(order)
    read = decode_member(encode(site.state.summary()))
    assert isinstance(read, Summary)
    assert stated(SiteState.of(read)) == ({"b"}, {2: "b"}, 2)


def test_orders_and_settings_allow_the_same_number_of_standbys() -> None:
    bounds = ApplicationSettings.model_fields["standbys"].metadata
    assert [bound.le for bound in bounds if hasattr(bound, "le")] == [STANDBYS_MAX]


def test_an_order_to_try_a_unit_again_changes_no_assignment() -> None:
    site = Site("a", "b")
    site.settle()
    version, summary = site.state.version, site.state.summary()
    assert not site.apply(Retry(site="plain", unit=0))
    assert (site.state.version, site.state.summary().units) == (version, summary.units)
    assert stated(site.state) == (set(), {}, None)


@pytest.mark.parametrize(
    "value",
    [
        b'{"kind": "pin", "site": "plain", "unit": -1, "instance": "a"}',
        b'{"kind": "pin", "site": "plain"}',
        b'{"kind": "standbys", "site": "plain", "count": 3}',
        b'{"kind": "retry", "site": "plain", "unit": "0"}',
    ],
)
def test_an_order_that_cannot_be_meant_is_skipped(value: bytes) -> None:
    assert decode_member(value) is None
