"""Does the simulation find defects? Each planted defect must be found within 3,000 histories."""

from __future__ import annotations

import pytest

from tests.simulation.finders import Recorder, require_found
from tests.simulation.searches import LONG, RUNNER


@pytest.mark.slow
@pytest.mark.timeout(3600)  # some defects take thousands of histories if their finders are stale
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if name in LONG else []) for name in RUNNER.defects]
)
def test_a_planted_defect_is_found(name: str, record_property: Recorder) -> None:
    require_found(RUNNER, name, record_property)
