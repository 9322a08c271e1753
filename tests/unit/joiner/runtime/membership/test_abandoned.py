"""Who serves a unit whose server has ended, or has stopped serving it?"""

from __future__ import annotations

import pickle
from typing import Any

import msgspec
import pytest

from joiner.runtime.control import Assignment, Heartbeat, Left, UnitAssignment
from joiner.runtime.membership.state import SiteState
from tests.unit.joiner.runtime.membership.pretended_site import Site


def give_unit_0(site: Site, owner: str, epoch: int = 1) -> None:
    """Assign unit 0 to an instance, with `b` as its standby, unit 1 to `a`, and unit 2 to `b`."""
    units = [UnitAssignment(owner, ["b"]), UnitAssignment("a", ["c"]), UnitAssignment("b", ["c"])]
    site.apply(Assignment(site="plain", epoch=epoch, units=units, gone={}, by="a", reason=""))


def serving(owner: str) -> Site:
    """Return a site where unit 0 is assigned to `owner`, and `a` serves it. Only `b` has its state, too."""
    site = Site("a", "b", "c", units=3, standbys=1)
    give_unit_0(site, owner)
    site.beat("a", serves=[0, 1])
    site.beat("b", serves=[2], warm=[0])
    site.beat("c", warm=[1, 2])
    return site


def handing_over() -> Site:
    """Return a site where `a` is to hand unit 0 over to `c`, which is still building its state. `b` has the state."""
    site = serving("c")
    assert site.next() is None
    return site


def end_a(site: Site, how: str) -> list[str]:
    """Let `a` end, or no longer serve unit 0. Return the instances that have become silent."""
    if how == "left":
        site.apply(Left(site="plain", instance="a", run="run of a"))
    elif how == "restarted":
        site.beat("a", run="next run of a")
    elif how == "stopped serving":
        site.change("a", serves=[1])
    return ["a"] if how == "silent" else []


ENDS = ["silent", "left", "restarted", "stopped serving"]


@pytest.mark.parametrize("how", ENDS)
def test_a_warm_standby_serves_a_unit_whose_server_ends_while_it_hands_the_unit_over(how: str) -> None:
    site = handing_over()
    following = site.next(*end_a(site, how))
    assert following is not None
    assert following.units[0].owner == "b"
    assert "b has the state of units that nobody serves" in following.reason
    site.apply(following)
    site.change("b", serves=[0, 2], warm=[])
    assert not site.state.is_abandoned(0)
    following = site.next()
    assert following is None or "has the state" not in following.reason or how == "restarted"


@pytest.mark.parametrize("how", [how for how in ENDS if how != "silent"])
def test_a_warm_standby_serves_a_unit_that_was_moved_before_the_end_of_its_server_was_known(how: str) -> None:
    site = serving("a")
    end_a(site, how)
    give_unit_0(site, "c", epoch=2)
    following = site.next()
    assert following is not None
    assert following.units[0].owner == "b"


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("c", {"claims": [0]}),
        ("c", {"serves": [0]}),
        ("c", {"warm": [0, 1, 2]}),
        ("b", {"warm": []}),
        ("b", {"leaving": True}),
        ("b", {"failed": [0], "warm": []}),
    ],
    ids=["it claims it", "it serves it", "it has the state", "no warm standby", "leaving standby", "failed standby"],
)
def test_a_unit_that_is_handed_over_stays_with_its_new_owner_if(how: str, name: str, change: dict[str, Any]) -> None:
    site = handing_over()
    if name == "c":
        # As its owner does once it has seen that the unit is not served any more.
        silent = end_a(site, how)
        site.change(name, **change)
    else:
        site.change(name, **change)
        silent = end_a(site, how)
    following = site.next(*silent)
    assert following is None or following.units[0].owner == "c"


def test_a_warm_standby_serves_the_units_of_an_owner_that_restarts() -> None:
    site = serving("a")
    site.change("c", warm=[2])
    site.beat("a", run="next run of a")
    following = site.next()
    assert following is not None
    assert [one.owner for one in following.units] == ["b", "a", "b"], "nobody else has the state of unit 1"


def test_a_warm_standby_serves_a_unit_whose_owner_was_fenced_by_an_instance_that_has_given_up() -> None:
    """The owner has lost the state. Building it anew may take long."""
    site = serving("a")
    # It continues after it was suspended, and has yet to learn that the unit is assigned to another instance.
    site.change("c", claims=[0])
    site.change("c", claims=[])
    following = site.next()
    assert following is None or following.units[0].owner == "a", "its owner still serves it"
    site.change("a", serves=[1])
    following = site.next()
    assert following is not None
    assert [one.owner for one in following.units] == ["b", "a", "b"]
    site.apply(following)
    site.change("b", serves=[0, 2])
    assert not site.state.is_abandoned(0)


def test_a_unit_whose_fenced_owner_is_already_claiming_it_again_stays_there() -> None:
    site = serving("a")
    site.change("c", claims=[0])
    site.change("c", claims=[])
    site.change("a", serves=[1], claims=[0])
    site.change("a", serves=[1], claims=[])
    following = site.next()
    assert following is None or following.units[0].owner == "a", "the claim has failed, and the owner waits"


def test_a_unit_that_its_owner_stops_serving_is_left_to_the_owner_although_a_standby_is_warm() -> None:
    """The owner tries again. If it fails again and again, the unit would wander."""
    site = handing_over()
    site.change("a", serves=[0])
    following = site.next()
    assert following is None or following.units[1].owner == "a"


def test_a_unit_is_not_left_for_a_standby_any_more_once_it_has_been_claimed() -> None:
    site = handing_over()
    end_a(site, "left")
    site.change("c", claims=[0])
    # The claim has failed, and the owner waits before it tries again.
    site.change("c", claims=[])
    following = site.next()
    assert following is not None
    assert following.units[0].owner == "c"


@pytest.mark.parametrize("how", ["after it was declared gone", "with a heartbeat of another run"])
def test_a_unit_that_was_served_by_an_instance_that_is_gone_is_not_left_for_a_standby_when_that_ends(how: str) -> None:
    site = serving("a")
    units = [UnitAssignment("c", ["b"]), UnitAssignment("c", []), UnitAssignment("b", ["c"])]
    gone = {"a": site.state.members["a"].offset}
    site.apply(Assignment(site="plain", epoch=2, units=units, gone=gone, by="b", reason=""))
    site.change("c", claims=[0])
    # The claim has failed, and the owner waits before it tries again.
    site.change("c", claims=[])
    if how == "after it was declared gone":
        site.apply(Left(site="plain", instance="a", run="run of a"))
    else:
        site.beat("a", run="next run of a")
    assert not site.state.is_abandoned(0)


@pytest.mark.parametrize("names", ["ac", "ca"])
def test_who_reads_the_log_from_the_middle_does_not_take_a_former_server_for_the_last_claimant(names: str) -> None:
    """The former server has yet to notice that it has lost the unit."""
    site = serving("a")
    late = SiteState.of(site.state.summary())
    beats = {name: Heartbeat(site="plain", instance=name, run=f"run of {name}", serves=[0]) for name in names}
    for name in names:
        site.offset += 1
        late.apply(beats[name], site.offset)
    assert not late.is_abandoned(0)
    late.apply(msgspec.structs.replace(beats["c"], claims=[0], serves=[]), site.offset + 1)
    assert late.is_abandoned(0), "it is known that it claims the unit later"


def test_units_that_cannot_exist_are_not_remembered() -> None:
    site = handing_over()
    before = len(pickle.dumps(site.state))
    for number in range(1, 1_000):
        site.change("a", serves=[-number, number + 10])
    assert len(pickle.dumps(site.state)) < before + 1_000


def test_a_unit_that_has_failed_at_its_owner_stays_there_although_another_instance_has_claimed_it_and_given_up() -> (
    None
):
    site = serving("a")
    site.change("a", serves=[1], failed=[0])
    site.change("c", claims=[0])
    site.change("c", claims=[])
    # The answer must not depend on whether the owner has reported the failure once more.
    for _ in range(2):
        following = site.next()
        assert following is None or following.units[0].owner == "a"
        site.change("a")
    site.change("a", failed=[])
    assert not site.state.is_abandoned(0), "the owner tries again"


def test_a_unit_that_has_failed_at_its_owner_is_not_left_for_a_standby_when_the_owner_is_gone() -> None:
    """It would move once the standby is warm, on its own, and others would move back to even out the load."""
    site = serving("a")
    site.change("a", serves=[1], failed=[0])
    give_unit_0(site, "c", epoch=2)
    site.change("c", failed=[0])
    assert not site.state.is_abandoned(0)
    following = site.next()
    assert following is None or following.units[0].owner == "c"
