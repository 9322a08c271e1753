"""Is each unit served by one instance in the end, whatever happens to the instances of a site and to their records?"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import pytest

from tests.simulation.membership_bugs import BUGS
from tests.simulation.membership_history import (
    play,
    play_blinks,
    play_calmly,
    play_handovers,
    play_orders,
    play_outage,
    play_outages,
    play_pins,
    play_pins_in_vain,
    play_truncation,
    play_unsteadily,
    play_upgrade,
)
from tests.simulation.membership_world import World

SEEDS = int(os.environ.get("LSB_MEMBERSHIP_SEEDS") or 20)
"""How many histories of each kind to play. `make simulation` plays more."""

SEEDS_MAX = 400

PLAYS: Final[dict[str, Callable[[int], str]]] = {
    "troubled": lambda seed: play(seed)[0],
    "blinks": lambda seed: play_blinks(seed)[0],
    "calm": play_calmly,
    "unsteady": play_unsteadily,
    "upgrade": play_upgrade,
    "outage": play_outage,
    "outages": play_outages,
    "truncation": play_truncation,
    "handovers": play_handovers,
    "orders": play_orders,
    "pins": play_pins,
    "pins in vain": play_pins_in_vain,
}


FINDERS: Final[dict[str, tuple[str, int]]] = {
    "a_pin_is_followed_before_the_state_is_built": ("pins in vain", 1),
    "a_standby_does_not_take_over_from_a_server_that_is_not_the_owner": ("handovers", 6),
    "a_summary_loses_the_number_of_standbys": ("orders", 29),
    "an_order_to_try_again_reaches_nobody": ("orders", 2),
    "an_outage_is_taken_for_failures": ("outage", 1),
    "each_plans_with_its_own_number_of_standbys": ("troubled", 6),
    "nobody_is_silent": ("truncation", 1),
    "records_after_a_summary_are_skipped": ("upgrade", 56),
    "standbys_are_not_replaced": ("handovers", 1),
    "the_load_is_not_balanced": ("truncation", 1),
    "the_log_is_taken_for_complete": ("truncation", 1),
    "units_of_a_server_that_has_ended_are_not_noted": ("handovers", 10),
    "who_was_heard_is_declared_gone": ("blinks", 23),
    "whoever_is_to_take_a_unit_over_claims_it_before_a_warm_standby": ("handovers", 29),
    "whoever_was_gone_stays_gone": ("truncation", 1),
}
"""For defects that few histories find, the kind and the seed of one that did when it was last looked for. It is played
first, to save minutes."""


RARE: Final = {
    "a_standby_does_not_take_over_from_a_server_that_is_not_the_owner": "handovers",
    "whoever_is_to_take_a_unit_over_claims_it_before_a_warm_standby": "handovers",
    "units_of_a_server_that_has_ended_are_not_noted": "handovers",
    "a_summary_loses_the_number_of_standbys": "orders",
    "a_summary_undoes_newer_orders": "orders",
    "who_was_heard_is_declared_gone": "blinks",
    "records_after_a_summary_are_skipped": "upgrade",
}
"""Defects that few histories find, and the kind of history that finds them soonest, if the one above does not."""


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


def histories(bug: str) -> Iterator[tuple[str, int]]:
    """Yield the kinds and seeds of the histories in which to look for a defect."""
    seeds = range(1, SEEDS_MAX + 1)
    if bug in FINDERS:
        yield FINDERS[bug]
    if bug in RARE:
        yield from ((RARE[bug], seed) for seed in seeds)
    yield from ((kind, seed) for seed in seeds for kind in PLAYS)


def wrong(kind: str, seed: int) -> str:
    """Play a history of a kind. Return what is wrong, or an empty text."""
    return PLAYS[kind](seed)


@pytest.mark.slow
@pytest.mark.timeout(3600)  # enough for a large LSB_MEMBERSHIP_SEEDS
@pytest.mark.parametrize("kind", PLAYS)
def test_in_the_end_each_unit_is_served_by_the_instance_that_is_assigned(kind: str) -> None:
    found = {seed: fault for seed in range(1, SEEDS + 1) if (fault := fault_of(kind, seed))}
    assert not found


def test_everything_that_can_go_wrong_does() -> None:
    troubles = [played(kind, seed) for kind in SUSPICIOUS for seed in range(1, 21)]
    assert sum(one.wrong_suspicions for one in troubles)
    assert sum(one.refuted for one in troubles)
    assert sum(one.duels for one in troubles)


@pytest.mark.parametrize("seed", [657, 810, 1289, 1550, 1692])
def test_long_pauses_are_at_fault_only_if_they_could_be_shorter(seed: int) -> None:
    """In 657, a server died before its unit was handed over to a slow instance. In the others, nobody had the state."""
    assert not wrong("troubled", seed)


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


@pytest.mark.slow
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_defect_is_found(name: str) -> None:
    with BUGS[name]():
        for kind, seed in histories(name):
            if fault := wrong(kind, seed):
                sys.stdout.write(f"{name}: found in the {kind} history {seed}: {fault}\n")
                return
    pytest.fail(f"{name} is not found in {SEEDS_MAX} histories of each kind")
