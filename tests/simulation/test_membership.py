"""Is each unit served by one instance in the end, whatever happens to the instances of a site and to their records?"""

from __future__ import annotations

import functools
import itertools
import os
from random import Random
from typing import Final, NamedTuple

import pytest

from joiner.runtime.control import Assignment
from tests.simulation.finders import Recorder, require_found
from tests.simulation.membership_history import PLAYS, play, play_blinks
from tests.simulation.membership_world import World
from tests.simulation.searches import MEMBERSHIP

SEEDS = int(os.environ.get("LSB_MEMBERSHIP_SEEDS") or 10)
"""How many histories of each kind to play. `make simulation` plays a hundred."""

SUSPICIOUS: Final = {"troubled": play, "blinks": play_blinks}
"""The kinds of history in which instances may seem to be gone."""


class Troubles(NamedTuple):
    """What is wrong in the end of a history, or an empty text, and what went wrong in it."""

    fault: str
    wrong_suspicions: int
    refuted: int
    duels: int


@functools.cache
def played(kind: str, seed: int) -> Troubles:
    """Play such a history, once for all tests that plant no defect."""
    fault, world = SUSPICIOUS[kind](seed)
    states = [one.member.state for one in world.instances.values()]
    suspicions = sum(state.wrong_suspicions for state in states)
    return Troubles(fault, suspicions, sum(state.refuted for state in states), world.duels)


def fault_of(kind: str, seed: int) -> str:
    """Return what is wrong in the end of a history without a planted defect, or an empty text."""
    return played(kind, seed).fault if kind in SUSPICIOUS else PLAYS[kind](seed)


@pytest.mark.slow
@pytest.mark.timeout(3600)  # enough for a large LSB_MEMBERSHIP_SEEDS
@pytest.mark.parametrize("kind", PLAYS)
def test_in_the_end_each_unit_is_served_by_the_instance_that_is_assigned(kind: str) -> None:
    found = {seed: fault for seed in range(1, SEEDS + 1) if (fault := fault_of(kind, seed))}
    assert not found


def test_everything_that_can_go_wrong_does() -> None:
    wanted = {"wrong_suspicions", "refuted", "duels"}
    for kind, seed in itertools.product(SUSPICIOUS, range(1, 41)):
        if wanted:
            wanted = {what for what in wanted if not getattr(played(kind, seed), what)}
    assert wanted == set()


@pytest.mark.parametrize("seed", [657, 810, 1289, 1550, 1692])
def test_long_pauses_are_at_fault_only_if_they_could_be_shorter(seed: int) -> None:
    """In 657, a server died before its unit was handed over to a slow instance. In the others, nobody had the state."""
    assert not PLAYS["troubled"](seed)


@pytest.mark.parametrize("is_other_ready", [False, True])
def test_the_time_that_a_slow_instance_takes_to_build_a_state_counts_in_full_only_if_another_one_has_it(
    *, is_other_ready: bool
) -> None:
    world = World(1, units=1, standbys=0)
    world.start("a0")
    world.start("b0")
    world.run(3.0)
    (name,) = world.servers(0)
    (other,) = world.instances.keys() - {name}
    if is_other_ready:
        world.instances[other].warm.add(0)
    # It loses the unit, and claims it again.
    world.run(world.now_s + 0.1)
    world.longest_pause_s = world.longest_ready_pause_s = 0.0
    one, began_s = world.instances[name], world.now_s
    one.slowness = one.building = 4
    one.serves.clear()
    while not one.serves:
        world.run(world.now_s + 0.1)
        assert world.now_s < began_s + 30
    lasted_s = world.now_s - began_s
    assert lasted_s > 4, "too short to tell the difference"
    if is_other_ready:
        assert world.longest_ready_pause_s == world.longest_pause_s == pytest.approx(lasted_s, abs=0.2)
    else:
        assert world.longest_ready_pause_s == 0
        assert world.longest_pause_s < 2


@pytest.mark.parametrize("seed", range(10))
def test_an_instance_that_joins_when_kafka_returns_does_not_take_the_others_for_gone(seed: int) -> None:
    random, world = Random(seed), World(seed, units=4, standbys=seed % 2)
    for name in ("b0", "c0"):
        world.start(name)
    world.run(6.0)
    joining = random.choice(["a0", "d0"])
    world.cut(5.0, ["b0", "c0", joining])
    world.after(random.uniform(0, 5), lambda: world.start(joining))
    world.run(world.outage_s + 5.0)
    assert not [record for record, _ in world.log if isinstance(record, Assignment) and record.gone]
    assert world.duels == 0
    assert {len(one.member.owned) for one in world.instances.values()} == {1, 2}


def test_an_instance_that_starts_alone_waits_for_nobody_although_the_log_was_silent() -> None:
    world = World(1, units=2, standbys=0)
    world.start("a0")
    world.run(3.0)
    world.leave("a0")
    world.run(13.0)
    assert not world.instances
    world.start("b0")
    while not all(world.servers(unit) == ["b0"] for unit in range(2)):
        world.run(world.now_s + 0.1)
        assert world.now_s < 14.0


@pytest.mark.slow
@pytest.mark.timeout(3600)  # with a stale finder
@pytest.mark.parametrize("name", MEMBERSHIP.defects)
def test_a_planted_defect_is_found(name: str, record_property: Recorder) -> None:
    require_found(MEMBERSHIP, name, record_property)
