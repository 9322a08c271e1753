"""What `bench.runners.replicas.steps` makes of the times when results were appended."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest.mock import ANY

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

    pause = {"median": 350, "longest": 350, "p99.9": ANY}
    assert found[0] == {"step": "restart", "times": 1, "took_s": 1.0, "replica 0": pause}


def test_steps_with_the_same_name_count_together() -> None:
    steps = [*STEPS, Step("restart", 20_000, 21_500)]

    found = pauses(steps, {"merged": units([1_100, 1_200, 20_100, 20_700])})

    assert [row["step"] for row in found] == ["restart", "stop", QUIET]
    pause = {"median": 9_750, "longest": 18_900, "p99.9": ANY}
    assert found[0] == {"step": "restart", "times": 2, "took_s": 2.5, "merged": pause}


def test_a_gap_counts_for_the_step_in_which_or_just_before_which_it_begins() -> None:
    found = pauses(STEPS, {"merged": units([500, 790, 850, 3_000, 11_000])})

    assert found[0]["merged"]["longest"] == 2_150
    assert "merged" not in found[1]


def test_a_gap_that_begins_just_before_a_step_does_not_count_as_quiet() -> None:
    found = pauses(STEPS, {"merged": units([3_000, 3_040, 11_850, 12_500])})

    assert (found[-1]["step"], found[-1]["merged"]["longest"]) == (QUIET, 8_810)
    assert (found[1]["step"], found[1]["merged"]["longest"]) == ("stop", 650)


def test_the_percentile_is_that_of_all_gaps() -> None:
    found = pauses(STEPS, {"merged": units([*range(2_000, 11_791, 5), 11_796])})

    assert found[-1]["merged"] == {"median": 6, "longest": 6, "p99.9": pytest.approx(5, abs=0.01)}


def test_an_output_without_results_has_no_pause() -> None:
    assert "| stop | 1 | 1.0 | - | - |" in lines(pauses(STEPS, {"replica 0": [], "merged": []}))
