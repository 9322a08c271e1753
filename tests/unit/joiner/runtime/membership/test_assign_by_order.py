"""Who owns pinned units, and how many standbys are there, if operators order it?"""

from __future__ import annotations

import pytest

from joiner.runtime.control import Assignment, Drain, Left, Pin, Standbys, UnitAssignment
from joiner.runtime.membership.state import SETTLED_BEATS, SiteState
from tests.unit.joiner.runtime.membership.pretended_site import Site


def pin(unit: int, instance: str = "") -> Pin:
    return Pin(site="plain", unit=unit, instance=instance)


def test_a_pinned_unit_is_handed_over_and_no_other_unit_moves_but_one_to_balance_the_load() -> None:
    site = Site("a", "b", units=4)
    site.settle()
    (unit, *_), before = site.owned("a"), site.owners
    site.apply(pin(unit, "b"))
    assert site.settle() == [
        "b prepares for units pinned to it",
        "b gets units pinned to it",
        "a gets units to balance the load",
    ]
    assert unit in site.owned("b")
    assert len(site.owned("b")) == 2
    assert sum(one != other for one, other in zip(before, site.owners, strict=True)) == 2
    assert site.next() is None


def test_the_first_assignment_spreads_the_other_units_around_the_pinned_ones() -> None:
    site = Site("a", "b", units=4)
    for unit in (2, 3):
        site.apply(pin(unit, "b"))
    assert site.settle() == ["some units had no owner"]
    assert site.owners == ["a", "a", "b", "b"]


def test_the_load_is_even_apart_from_pinned_units_which_count() -> None:
    site = Site("a", "b", units=6)
    for unit in range(4):
        site.apply(pin(unit, "b"))
    site.settle()
    assert (site.owned("a"), site.owned("b")) == ([4, 5], [0, 1, 2, 3])
    site.beat("c")
    site.settle()
    assert site.owned("b") == [0, 1, 2, 3]
    assert (len(site.owned("a")), len(site.owned("c"))) == (1, 1)


def test_a_unit_is_handed_over_only_once_the_instance_is_settled() -> None:
    site = Site("a", units=2)
    site.settle()
    site.apply(pin(0, "b"))
    site.beat("b", times=SETTLED_BEATS - 1)
    assert site.next() is None
    site.beat("b", times=1)
    site.settle()
    assert site.owners == ["b", "a"]


@pytest.mark.parametrize("cause", ["gone", "leaving", "drained", "failed"])
def test_a_pin_waits_while_its_instance_cannot_have_the_unit(cause: str) -> None:
    site = Site("a", "b", units=4)
    site.settle()
    unit = site.owned("a")[0]
    site.apply(pin(unit, "b"))
    site.settle()
    match cause:
        case "gone":
            site.settle("b")
        case "leaving":
            site.change("b", leaving=True)
        case "drained":
            site.apply(Drain(site="plain", instance="b"))
        case "failed":
            # A unit that nobody serves stays where it is. It is at another instance while that serves it.
            site.change("b", failed=[unit], serves=[one for one in site.owned("b") if one != unit])
            site.change("a", serves=[*site.owned("a"), unit])
    site.settle()
    assert site.state.units[unit].owner == "a"
    assert site.next() is None
    match cause:
        case "gone":
            site.beat("b")
        case "leaving":
            site.apply(Left(site="plain", instance="b", run="run of b"))
            site.beat("b", run="next run of b")
        case "drained":
            site.apply(Drain(site="plain", instance="b", drained=False))
        case "failed":
            site.change("b", failed=[])
    site.settle()
    assert site.state.units[unit].owner == "b"
    assert len(site.owned("b")) == 2


def test_a_unit_that_is_no_longer_pinned_may_be_moved_to_balance_the_load() -> None:
    site = Site("a", "b", units=4)
    for unit in range(4):
        site.apply(pin(unit, "b"))
    site.settle()
    assert site.owned("b") == [0, 1, 2, 3]
    for unit in range(4):
        site.apply(pin(unit))
    assert site.settle() == ["a gets units to balance the load"]
    assert len(site.owned("b")) == 2


def test_a_unit_is_not_taken_from_an_instance_that_is_claiming_it() -> None:
    site = Site("a", units=1)
    site.settle()
    site.change("a", serves=[], claims=[0])
    site.beat("b")
    site.apply(pin(0, "b"))
    assert site.next() is None
    site.change("a", serves=[0], claims=[])
    site.settle()
    assert site.owners == ["b"]


def test_a_unit_that_its_owner_cannot_serve_goes_to_the_instance_to_which_it_is_pinned() -> None:
    site = Site("a", "b", units=2)
    site.settle()
    owner, other = site.owners[0], "ab".replace(site.owners[0], "")
    site.change(owner, serves=[], failed=[0])
    assert site.next() is None
    site.apply(pin(0, other))
    following = site.next()
    assert following is not None
    assert following.units[0].owner == other


def test_a_unit_whose_owner_waits_to_try_again_goes_where_it_is_pinned_only_if_the_state_is_there() -> None:
    site = Site("a", "b", units=2)
    site.settle()
    owner, other = site.owners[0], "ab".replace(site.owners[0], "")
    site.apply(pin(0, other))
    site.apply(site.next())
    site.change(owner, serves=[])
    following = site.next()
    assert following is None or following.units[0].owner == owner
    site.change(other, warm=[0])
    following = site.next()
    assert following is not None
    assert following.units[0].owner == other


def test_beside_an_older_release_nobody_prepares_for_a_pinned_unit() -> None:
    site = Site("a", "b", units=2)
    site.settle()
    site.change("a", mixed=True)
    site.settle()
    site.apply(pin(site.owned("a")[0], "b"))
    assert site.next() is None


def test_a_unit_that_fails_at_the_instance_to_which_it_is_pinned_as_well_stays_there() -> None:
    site = Site("a", "b", units=1)
    site.settle()
    owner, other = site.owners[0], "ab".replace(site.owners[0], "")
    site.change(owner, serves=[], failed=[0])
    site.apply(pin(0, other))
    assert site.settle() == [f"{other} gets units pinned to it"]
    site.change(owner, failed=[])
    site.change(other, serves=[], failed=[0])
    assert site.next() is None


def test_if_an_owner_fails_its_warm_standby_serves_the_unit_before_the_instance_to_which_it_is_pinned() -> None:
    site = Site("a", "b", units=1, standbys=1)
    site.settle()
    owner, standby = site.owners[0], site.state.units[0].standbys[0]
    site.beat("c", times=SETTLED_BEATS)
    site.apply(pin(0, "c"))
    first = site.next(owner)
    assert first is not None
    assert first.units[0].owner == standby
    site.apply(first)
    assert site.next() is None, "it is about to claim the unit"
    site.change(standby, serves=[0], warm=[])
    site.change("c", warm=[0])
    site.settle()
    assert site.owners == ["c"]


def test_a_pinned_unit_is_not_moved_to_balance_the_load_while_its_instance_settles() -> None:
    site = Site("a", units=2)
    site.settle()
    site.beat("b")
    for unit in range(2):
        site.apply(pin(unit, "c"))
    assert len(site.settle()) == 1, "its instance is not running"
    site.apply(pin(0, "d"))
    site.beat("d", times=1)
    assert site.next() is None
    site.beat("d")
    site.settle()
    assert site.owners[0] == "d"


def test_a_unit_that_is_being_handed_over_goes_to_the_instance_to_which_it_is_pinned_instead() -> None:
    site = Site("a", units=2)
    site.settle()
    site.beat("b")
    following = site.next()
    assert following is not None
    site.apply(following)
    (unit,) = site.owned("b")
    site.apply(pin(unit, "c"))
    site.beat("c")
    following = site.next()
    assert following is not None
    assert following.units[unit] == UnitAssignment("b", ["c"]), "it prepares first"
    site.apply(following)
    site.change("c", warm=[unit])
    following = site.next()
    assert following is not None
    assert following.units[unit].owner == "c", "it is still served by its former owner"


def test_pins_to_instances_and_of_units_that_do_not_exist_change_nothing() -> None:
    site = Site("a", "b", units=4)
    site.settle()
    site.apply(pin(0, "never heard"))
    site.apply(pin(4, "b"))
    site.apply(pin(2**31, "b"))
    assert site.next() is None
    site.beat("c")
    site.settle()
    assert sorted(len(site.owned(name)) for name in "abc") == [1, 1, 2]


def test_pins_to_several_instances_are_all_followed_together() -> None:
    site = Site("a", "b", "c", units=6)
    site.settle()
    wanted = ["c", "b", "a", "a", "b", "c"]
    for unit, name in enumerate(wanted):
        site.apply(pin(unit, name))
    prepared, followed = site.settle()
    assert (prepared.count("prepares"), followed.count("gets")) == (2, 2)
    assert site.owners == wanted


def test_beside_an_older_release_pins_wait() -> None:
    site = Site("a", "b", units=2)
    site.apply(pin(0, "b"))
    site.beat("a", serves=[0, 1], mixed=True)
    site.settle()
    assert site.owners == ["a", "a"]
    site.change("a", mixed=False)
    site.settle()
    assert site.owners == ["b", "a"]


def test_a_pinned_unit_moves_only_once_its_state_is_built_and_nothing_else_moves_until_then() -> None:
    site = Site("a", "b", units=4)
    site.settle()
    before, unit = site.owners, site.owned("a")[0]
    site.apply(pin(unit, "b"))
    following = site.next()
    assert following is not None
    assert [one.owner for one in following.units] == before
    assert following.units[unit].standbys == ["b"]
    site.apply(following)
    assert site.next() is None
    site.change("b", failed=[unit])
    following = site.next()
    assert following is not None
    assert [one.owner for one in following.units] == before
    assert following.units[unit].standbys == []


def test_a_warm_standby_takes_over_while_the_instance_to_which_a_unit_is_pinned_prepares() -> None:
    site = Site("a", "b", units=1, standbys=1)
    site.settle()
    owner, standby = site.owners[0], site.state.units[0].standbys[0]
    site.beat("c", times=SETTLED_BEATS, standbys=1)
    site.apply(pin(0, "c"))
    following = site.next()
    assert following is not None
    assert following.units[0] == UnitAssignment(owner, [standby, "c"])
    site.apply(following)
    following = site.next(owner)
    assert following is not None
    assert following.units[0].owner == standby


def test_a_unit_of_a_drained_instance_does_not_wander_between_others_that_cannot_serve_it() -> None:
    site = Site("a", "b", "c", units=3)
    site.settle()
    (unit,) = site.owned("a")
    for name in "bc":
        site.change(name, failed=[unit])
    site.apply(Drain(site="plain", instance="a"))
    for _ in range(3):
        if (following := site.next()) is None:
            break
        site.apply(following)
    assert site.next() is None


# Standbys


@pytest.mark.parametrize(("by_settings", "ordered"), [(0, 1), (0, 2), (1, 2), (2, 0), (2, 1)])
def test_each_unit_has_the_number_of_standbys_that_is_ordered_until_it_is_undone(
    by_settings: int, ordered: int
) -> None:
    site = Site("a", "b", "c", units=4, standbys=by_settings)
    site.settle()
    before = site.owners
    site.apply(Standbys(site="plain", count=ordered))
    assert site.settle()
    assert {len(one.standbys) for one in site.state.units} == {ordered}
    site.apply(Standbys(site="plain"))
    site.settle()
    assert {len(one.standbys) for one in site.state.units} == {by_settings}
    assert site.owners == before, "owners do not depend on it"


def test_more_standbys_than_there_are_instances_are_not_assigned() -> None:
    site = Site("a", "b", units=2)
    site.apply(Standbys(site="plain", count=2))
    site.settle()
    assert {len(one.standbys) for one in site.state.units} == {1}


def test_an_assignment_follows_from_the_orders_of_a_summary() -> None:
    site = Site("a", "b", "c", units=4)
    site.settle()
    site.apply(Standbys(site="plain", count=1))
    site.apply(pin(0, "c"))
    newcomer = SiteState.of(site.state.summary())
    for offset, name in enumerate("abc" * SETTLED_BEATS, site.offset + 1):
        newcomer.apply(site.state.live[name], offset)
    site.state, site.offset = newcomer, site.offset + 3 * SETTLED_BEATS
    following = site.next()
    assert isinstance(following, Assignment)
    assert "c" in following.units[0].standbys
    assert {len(one.standbys) for one in following.units[1:]} == {1}
