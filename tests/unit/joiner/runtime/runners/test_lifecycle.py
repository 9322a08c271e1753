"""The transitions between a unit's states: those in the table are allowed, and all others are refused."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joiner.runtime.runners.lifecycle import OWNING, TRANSITIONS, IllegalTransition, Lifecycle, UnitState

U = UnitState

LIVES = [
    [U.PENDING, U.CLAIMING, U.RESTORING, U.RUNNING, U.UNASSIGNED],
    [U.PENDING, U.CLAIMING, U.PENDING, U.CLAIMING, U.RESTORING, U.RUNNING, U.PENDING],
    [U.PENDING, U.CLAIMING, U.RESTORING, U.RUNNING, U.RELEASING, U.ELSEWHERE, U.CLAIMING, U.RESTORING, U.RUNNING],
    [U.PENDING, U.CLAIMING, U.RESTORING, U.RUNNING, U.FAILED, U.PENDING],
    [U.PENDING, U.CLAIMING, U.ELSEWHERE, U.PENDING],
]
"""Revoked; retried; moved away and reclaimed; lost and assigned again; owned by another site, then reset."""


@pytest.mark.parametrize("life", LIVES)
def test_what_a_unit_goes_through_is_in_the_table(life: list[UnitState]) -> None:
    lifecycle = Lifecycle()
    for before, state in pairwise([U.UNASSIGNED, *life]):
        assert lifecycle.state(3) is before
        lifecycle.enter(3, state)
    assert lifecycle.units(life[-1]) == ({3} if life[-1] is not U.UNASSIGNED else set())


@given(st.lists(st.sampled_from(UnitState), max_size=20))
def test_a_step_that_the_table_does_not_have_is_refused(steps: list[UnitState]) -> None:
    lifecycle = Lifecycle()
    for step in steps:
        before = lifecycle.state(0)
        if step is before or step in TRANSITIONS[before]:
            lifecycle.enter(0, step)
            assert lifecycle.state(0) is step
        else:
            with pytest.raises(IllegalTransition, match=f"{step.value} cannot follow {before.value}"):
                lifecycle.enter(0, step)
            assert lifecycle.state(0) is before


def test_the_table_knows_every_state_and_a_unit_is_run_behind_its_claim_alone() -> None:
    assert set(TRANSITIONS) == set(UnitState)
    assert {state for state, following in TRANSITIONS.items() if U.RUNNING in following} == {U.RESTORING}
    assert {state for state, following in TRANSITIONS.items() if U.RESTORING in following} == {U.CLAIMING}
    assert {state for state, following in TRANSITIONS.items() if U.RELEASING in following} == {U.RUNNING}
    assert {state for state in OWNING if U.CLAIMING in TRANSITIONS[state]} == {U.RELEASING}
