"""Which assignment follows from the state of a site?"""

from __future__ import annotations

from joiner.runtime.control import (
    EPOCH_MAX,
    Assignment,
    Drain,
    Heartbeat,
    Left,
    UnitAssignment,
    Workers,
    decode_member,
    encode,
)
from joiner.runtime.membership.state import SETTLED_BEATS, SiteState
from tests.unit.joiner.runtime.membership.pretended_site import Site


def test_the_units_are_spread_evenly() -> None:
    site = Site("a", "b", "c", units=8)
    assert site.settle()[0] == "some units had no owner"
    assert sorted(len(site.owned(name)) for name in "abc") == [2, 3, 3]
    assert site.next() is None


def test_an_instance_that_joins_gets_its_share_in_one_assignment_and_no_other_unit_moves() -> None:
    site = Site("a", units=6)
    site.settle()
    site.beat("b")
    before = [one.owner for one in site.state.units]
    assert site.settle() == ["b gets units to balance the load"]
    after = [one.owner for one in site.state.units]
    assert [(old, new) for old, new in zip(before, after, strict=True) if old != new] == [("a", "b")] * 3


def test_an_instance_that_has_just_started_gets_no_unit_of_others() -> None:
    site = Site("a")
    site.settle()
    site.beat("b", times=SETTLED_BEATS - 1)
    assert site.next() is None
    site.beat("b", times=1)
    assert site.next() is not None


def test_shares_follow_the_capacities() -> None:
    site = Site(units=6)
    site.beat("a", capacity=1.0)
    site.beat("b", capacity=2.0)
    site.settle()
    assert (len(site.owned("a")), len(site.owned("b"))) == (2, 4)


def test_the_units_of_an_instance_that_is_gone_go_to_their_warm_standbys() -> None:
    site = Site("a", "b", "c", units=6, standbys=1)
    site.settle()
    expected = {unit: site.state.units[unit].standbys[0] for unit in site.owned("b")}
    following = site.next("b")
    assert following is not None
    assert following.gone == {"b": site.state.members["b"].offset}
    assert following.reason == "b is gone"
    assert {unit: following.units[unit].owner for unit in expected} == expected
    assert all("b" not in (one.owner, *one.standbys) for one in following.units)


def test_who_was_heard_after_it_was_suspected_is_not_gone() -> None:
    site = Site("a", "b")
    site.settle()
    following = site.next("b")
    assert following is not None
    site.beat("b", times=1, serves=site.owned("b"))
    assert not site.apply(following)
    assert (site.state.refuted, site.state.members["b"].is_gone) == (1, False)


def test_who_comes_back_is_a_wrong_suspicion_and_must_settle_again() -> None:
    site = Site("a", "b")
    site.settle()
    following = site.next("b")
    assert following is not None
    assert site.apply(following)
    assert list(site.state.live) == ["a"]
    site.beat("b", times=1)
    assert (site.state.wrong_suspicions, site.state.members["b"].is_settled) == (1, False)


def test_of_two_assignments_of_one_epoch_the_first_counts() -> None:
    site = Site("a")
    first, second = site.next(), site.next()
    assert first is not None
    assert second is not None
    assert site.apply(first)
    assert not site.apply(second)


def test_a_drained_instance_hands_over_and_has_no_standbys_until_that_is_undone() -> None:
    site = Site("a", "b", units=4, standbys=1)
    site.settle()
    site.apply(Drain(site="plain", instance="a"))
    assert site.settle()[0] == "a is drained"
    assert site.owned("b") == [0, 1, 2, 3]
    assert all(not one.standbys for one in site.state.units)
    site.apply(Drain(site="plain", instance="a", drained=False))
    site.settle()
    assert (len(site.owned("a")), len(site.owned("b"))) == (2, 2)


def test_an_instance_that_leaves_hands_over_and_one_that_is_alone_keeps_its_units() -> None:
    site = Site("a", "b", units=4)
    site.settle()
    site.beat("a", serves=site.owned("a"), leaving=True)
    assert site.settle()[0] == "a is leaving"
    site.beat("b", serves=[0, 1, 2, 3], leaving=True)
    assert site.next() is None
    site.apply(Left(site="plain", instance="b", run="run of b"))
    site.apply(Left(site="plain", instance="a", run="run of a"))
    following = site.next()
    assert following is not None
    assert following.units == [UnitAssignment("")] * 4


def test_standbys_are_on_other_hosts_if_there_are_any() -> None:
    site = Site(units=6, standbys=1)
    for name, host in (("a", "x"), ("b", "x"), ("c", "y"), ("d", "y")):
        site.beat(name, host=host)
    site.settle()
    hosts = {"a": "x", "b": "x", "c": "y", "d": "y"}
    assert all(hosts[one.owner] != hosts[one.standbys[0]] for one in site.state.units)


def test_a_standby_on_its_owners_host_is_replaced_once_another_host_has_joined_and_its_successor_is_warm() -> None:
    site = Site(units=4, standbys=1)
    for name in ("a", "b"):
        site.beat(name, host="x")
    site.settle()
    assert all(len(one.standbys) == 1 for one in site.state.units)
    site.beat("c", host="y", times=SETTLED_BEATS - 1)
    assert site.next() is None
    site.beat("c", host="y", times=1)
    following = site.next()
    assert following is not None
    before = [one.standbys for one in site.state.units]
    for old, one in zip(before, following.units, strict=True):
        if one.owner != "c":
            assert one.standbys == [*old, "c"]
    site.settle()
    hosts = {"a": "x", "b": "x", "c": "y"}
    assert all(hosts[one.owner] != hosts[one.standbys[0]] for one in site.state.units)
    assert all(len(one.standbys) == 1 for one in site.state.units)
    assert site.next() is None


def test_while_the_settings_differ_the_largest_number_of_standbys_counts() -> None:
    site = Site(units=4)
    for name, standbys in (("a", 0), ("b", 1), ("c", 2)):
        site.beat(name, standbys=standbys)
    site.settle()
    assert all(len(one.standbys) == 2 for one in site.state.units)
    site.beat("c", standbys=2, leaving=True, serves=site.owned("c"))
    site.settle()
    site.apply(Left(site="plain", instance="c", run="run of c"))
    site.settle()
    assert all(len(one.standbys) == 1 for one in site.state.units)


def test_a_late_heartbeat_of_a_run_that_has_ended_does_not_replace_its_successor() -> None:
    site = Site("a")
    site.apply(Left(site="plain", instance="a", run="run of a"))
    site.apply(Heartbeat(site="plain", instance="a", run="run of a"))
    assert "a" not in site.state.members
    site.apply(Heartbeat(site="plain", instance="a", run="next run"))
    site.apply(Heartbeat(site="plain", instance="a", run="run of a"))
    assert site.state.members["a"].heartbeat.run == "next run"


def test_members_that_are_gone_and_supervisors_are_forgotten_in_the_end() -> None:
    site = Site("a")
    site.settle()
    for number in range(50):
        site.beat(f"crashed-{number}", times=1)
        site.apply(Workers(site="plain", instance=f"supervisor-{number}", host="x", running=1, wanted=1))
        site.settle(f"crashed-{number}")
    assert len(site.state.members) == 51
    site.offset += 20_000
    site.beat("a", serves=site.owned("a"))
    site.beat("b")
    site.settle()
    assert (set(site.state.members), set(site.state.workers)) == ({"a", "b"}, set())


def test_beside_an_older_release_the_assignment_says_who_serves_and_moves_nothing() -> None:
    site = Site("a", "b", units=4)
    site.beat("a", serves=[1], mixed=True)
    site.beat("b", serves=[2])
    site.settle()
    assert [one.owner for one in site.state.units] == ["", "a", "b", ""]
    assert site.next() is None
    site.beat("a", serves=[1])
    site.settle()
    assert (len(site.owned("a")), len(site.owned("b"))) == (2, 2)
    assert 1 in site.owned("a")
    assert 2 in site.owned("b")


def test_a_standby_that_is_not_warm_comes_after_one_that_is() -> None:
    site = Site("a", "b", "c", units=1, standbys=2)
    site.settle()
    owner = site.state.units[0].owner
    cold, warm = site.state.units[0].standbys
    site.beat(cold, warm=[])
    following = site.next()
    assert following is not None
    assert following.units == [UnitAssignment(owner, [warm, cold])]


def test_sixteen_instances_that_start_together_share_the_units_in_one_assignment() -> None:
    names = [f"i{number:02}" for number in range(16)]
    site = Site(names[0], units=64)
    site.settle()
    for name in names[1:]:
        site.beat(name)
    assert len(site.settle()) == 1
    assert {len(site.owned(name)) for name in names} == {4}


def test_a_unit_that_its_owner_does_not_serve_is_not_moved_to_balance_the_load() -> None:
    site = Site("a", units=4)
    site.settle()
    site.beat("a", serves=[1, 2, 3], failed=[0])
    site.beat("b")
    site.settle()
    assert 0 in site.owned("a")
    assert len(site.owned("b")) == 2


def test_a_unit_that_a_new_owner_cannot_build_goes_back_to_the_instance_that_serves_it() -> None:
    site = Site("a", units=2, standbys=1)
    site.settle()
    site.beat("b")
    following = site.next()
    assert following is not None
    site.apply(following)
    (unit,) = site.owned("b")
    site.beat("b", failed=[unit])
    site.settle()
    assert site.owned("a") == [0, 1] or site.owned("b") == [1 - unit]
    assert unit in site.owned("a")
    assert "b" not in site.state.units[unit].standbys


def test_a_unit_that_nobody_can_serve_stays_where_it_is() -> None:
    site = Site("a", "b", units=2)
    site.settle()
    (unit,) = site.owned("a")
    for failed in ([unit], []):
        site.beat("a", serves=[], failed=[unit])
        site.beat("b", serves=site.owned("b"), failed=failed)
        assert site.next() is None


def test_if_all_instances_are_drained_they_serve_the_units_nevertheless() -> None:
    site = Site("a", "b", units=4)
    site.settle()
    for name in "ab":
        site.apply(Drain(site="plain", instance=name))
    site.settle("b")
    assert site.owned("a") == [0, 1, 2, 3]


def test_who_has_missed_an_assignment_agrees_again_with_the_next_one_or_with_a_summary() -> None:
    site = Site("a", "b", units=4)
    site.settle()
    late = SiteState.of(site.state.summary())
    site.settle("b")
    site.beat("c")
    site.settle()
    summary, following = site.state.summary(), Assignment(site="plain", epoch=site.state.epoch + 1, units=[])
    assert late.epoch < site.state.epoch - 1
    for record in (following, summary):
        state = SiteState.of(late.summary())
        assert state.apply(record, 1000)
        assert (state.epoch, state.units) == (record.epoch, record.units)
    assert not site.state.apply(late.summary(), 1001), "an older summary changes nothing"


def test_a_run_that_was_replaced_is_ignored_even_after_several_replacements() -> None:
    site = Site("a")
    for run in ("first", "second", "third"):
        site.apply(Heartbeat(site="plain", instance="x", run=run))
    site.apply(Heartbeat(site="plain", instance="x", run="first", serves=[3]))
    assert site.state.members["x"].heartbeat.run == "third"


def test_an_instance_that_can_build_no_unit_does_not_keep_others_from_sharing_the_load() -> None:
    site = Site("a", units=8)
    site.settle()
    site.beat("b", failed=list(range(8)))
    site.beat("c")
    site.settle()
    assert [len(site.owned(name)) for name in "abc"] == [4, 0, 4]


def test_a_summary_does_not_undo_an_order_that_its_author_had_not_read() -> None:
    site = Site("a", "b", units=4)
    site.settle()
    before = site.state.summary()
    site.apply(Drain(site="plain", instance="b"))
    assert not site.apply(before)
    assert site.state.drained == {"b"}


def test_a_summary_repeats_an_order_that_was_missed() -> None:
    site = Site("a", "b", units=4)
    site.settle()
    late = SiteState.of(site.state.summary())
    site.apply(Drain(site="plain", instance="b"))
    assert late.apply(site.state.summary(), site.offset + 1)
    assert late.drained == {"b"}


def test_after_the_highest_epoch_assignments_still_apply() -> None:
    """Another program may have written it. Without this, no unit would ever get another owner."""
    site = Site("a", "b", units=2)
    site.settle()
    site.apply(Assignment(site="plain", epoch=EPOCH_MAX, units=[UnitAssignment("x")] * 2))
    following = site.next()
    assert following is not None
    assert decode_member(encode(following)) == following
    site.settle()
    assert site.owners == ["a", "b"]
    site.settle("b")
    assert site.owners == ["a", "a"]
    site.apply(Assignment(site="plain", epoch=EPOCH_MAX - 1, units=[UnitAssignment("b")] * 2))
    assert site.owners == ["a", "a"]
