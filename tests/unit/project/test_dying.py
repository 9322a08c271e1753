"""Can every point at which chaos lets a process die be reached?"""

from __future__ import annotations

import pytest

from tests.chaos.dying import MERGER_POINTS, POINTS, SOURCE_POINTS, TARGET_POINTS, Point

ALL = [MERGER_POINTS, SOURCE_POINTS, TARGET_POINTS, *POINTS.values()]


@pytest.mark.parametrize("point", [point for points in ALL for point in points.values()])
def test_a_point_to_die_at_is_a_method(point: Point) -> None:
    assert callable(getattr(point.owner, point.method, None)), f"{point.owner.__name__} has no {point.method}"
