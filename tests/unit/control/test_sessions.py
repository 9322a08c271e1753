"""Do sessions end in time, and do limits hold for each caller and let others through?"""

from __future__ import annotations

import pytest

from control.access import sessions
from control.access.sessions import RateLimit, Sessions
from control.access.users import User
from control.roles import Role
from tests.manual_clock import ManualClock

ADA = User("ada", Role.VIEWER)


def test_a_session_ends_when_its_time_is_over_or_somebody_ends_it() -> None:
    clock = ManualClock()
    known = Sessions(60.0, clock)
    first, second = known.begin(ADA), known.begin(ADA)
    assert first != second
    known.end(second)
    assert (known.user(first), known.user(second)) == (ADA, None)
    clock.now_s += 59.9
    assert known.user(first) == ADA
    clock.now_s += 0.1
    assert known.user(first) is None
    for identity in ("", "x", "\ud800"):
        assert known.user(identity) is None
        known.end(identity)


def test_there_are_never_more_sessions_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_SESSIONS_MAX", 3)
    known = Sessions(60.0, ManualClock())
    begun = [known.begin(ADA) for _ in range(5)]
    assert [known.user(identity) is not None for identity in begun] == [False, False, True, True, True]


def test_a_caller_who_asks_too_often_waits_and_others_do_not() -> None:
    clock = ManualClock()
    limit = RateLimit(burst=3, per_s=0.5, clock=clock)
    assert [limit.wait_s("a") for _ in range(4)] == [0.0, 0.0, 0.0, 2.0]
    assert limit.wait_s("b") == 0.0
    clock.now_s += 1.0
    assert limit.wait_s("a") == 1.0
    clock.now_s += 1.0
    assert [limit.wait_s("a"), limit.wait_s("a")] == [0.0, 2.0]
    clock.now_s += 3_600
    assert [limit.wait_s("a") for _ in range(4)] == [0.0, 0.0, 0.0, 2.0]


def test_callers_are_forgotten_so_that_memory_stays_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_CALLERS_MAX", 2)
    limit = RateLimit(burst=1, per_s=0.1, clock=ManualClock())
    for caller in "abc":
        limit.wait_s(caller)
    assert len(limit._left) == 2  # noqa: SLF001 - what is measured
    assert limit.wait_s("c") > 0
