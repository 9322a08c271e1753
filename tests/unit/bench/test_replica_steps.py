"""What `bench.runners.replicas.steps` makes of the times when results were appended."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from bench.runners.replicas.steps import QUIET, Step, lines, pauses

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

STEPS = [Step("restart", 1_000, 2_000), Step(QUIET, 2_000, 12_000), Step("stop", 12_000, 13_000)]


def units(*times_ms: list[int]) -> list[tuple[Ints, Ints]]:
    """Return what `Pipeline.gaps` returns of an output, given when each unit's results were appended."""
    arrays = [np.array(one, dtype=np.int64) for one in times_ms]
    return [(one[:-1], np.diff(one)) for one in arrays]


def test_the_longest_gap_of_any_unit_counts_for_a_step() -> None:
    found = pauses(STEPS, {"replica 0": units([1_100, 1_150, 1_500], [1_000, 1_020])})

    assert found[0] == {"step": "restart", "took_s": 1.0, "replica 0": 350}


def test_a_gap_counts_for_the_step_in_which_or_just_before_which_it_begins() -> None:
    found = pauses(STEPS, {"merged": units([500, 790, 850, 3_000, 11_000])})

    assert [row.get("merged") for row in found[:2]] == [2_150, None]


def test_gaps_between_the_steps_are_summed_up_by_their_percentile() -> None:
    found = pauses(STEPS, {"merged": units([*range(2_000, 12_001, 10)])})

    assert found[-1] == {"step": QUIET, "took_s": 10.0, "merged": pytest.approx(10.0)}


def test_an_output_without_results_has_no_pause() -> None:
    assert "| stop | 1.0 | - | - |" in lines(pauses(STEPS, {"replica 0": [], "merged": []}))
