"""When is an instance taken for gone?"""

from __future__ import annotations

import pytest

from joiner.runtime.membership.detector import LIMIT_S, FailureDetector


def test_silence_counts_from_the_timeout_on() -> None:
    detector = FailureDetector(0.5)
    detector.hear("a", 10.0)
    assert detector.silent(10.5) == set()
    assert detector.silent(10.51) == {"a"}
    detector.hear("a", 10.6)
    assert detector.silent(10.7) == set()
    detector.forget("a")
    assert detector.silent(100.0) == set()


def test_the_timeout_follows_the_longest_gap_and_forgets_it() -> None:
    detector = FailureDetector(0.5)
    for now_s in (0.0, 0.1, 0.2, 1.0, 1.1):
        detector.hear("a", now_s)
    assert detector.timeout_s("a") == pytest.approx(2.5 * 0.8 * 0.98)
    for beat in range(200):
        detector.hear("a", 1.2 + beat / 10)
    assert detector.timeout_s("a") == 0.5


@pytest.mark.parametrize(("timeout_s", "limit_s"), [(0.5, LIMIT_S), (20.0, 20.0)])
def test_the_timeout_has_a_limit(timeout_s: float, limit_s: float) -> None:
    detector = FailureDetector(timeout_s)
    detector.hear("a", 0.0)
    detector.hear("a", 60.0)
    assert detector.timeout_s("a") == limit_s


def test_silence_that_is_forgiven_does_not_count_and_no_instance_is_heard_in_the_future() -> None:
    detector = FailureDetector(0.5)
    detector.hear("early", 0.0)
    detector.hear("late", 9.9)
    detector.forgive(9.0, 10.0)
    assert detector.silent(10.0) == {"early"}
    assert detector.silent(10.6) == {"early", "late"}
