"""Claims that run while other units are served: they block no one, and a cancelled claim does not serve its unit."""

# ruff: noqa: SLF001 - the tests inspect the loop between two turns

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from joiner.runtime.clock import SystemClock
from joiner.runtime.kafka.readers import ClaimCancelled, Readers
from joiner.runtime.ownership import restore
from joiner.runtime.ownership.concurrent_claims import ConcurrentClaims
from joiner.runtime.runners.lifecycle import UnitState
from joiner.runtime.task.unit import Unit
from tests.unit.joiner.runtime.joiner_inputs import DATA, make_settings
from tests.unit.joiner.runtime.runner_parts import idle_supervisor

DEADLINE_S = 30.0


class Work:
    """Claims units. A claim ends when its event is set, or when it detects that it was cancelled."""

    def __init__(self) -> None:
        self.ends: dict[int, threading.Event] = {number: threading.Event() for number in range(4)}
        self.begun: list[int] = []
        self.adopted: dict[int, str] = {}
        self.is_deaf = False

    def take(self, number: int, _claimant: Any, _warm: Any, is_over: Callable[[], bool]) -> str | None:
        self.begun.append(number)
        while not self.ends[number].wait(0.01):
            if is_over() and not self.is_deaf:
                return None
        return f"unit {number}"

    def adopt(self, finished: list[tuple[int, str | None]]) -> None:
        self.adopted |= {number: taken for number, taken in finished if taken is not None}


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as made:
        yield made


@pytest.fixture
def work(pool: ThreadPoolExecutor) -> Iterator[Work]:
    made = Work()
    yield made
    for event in made.ends.values():
        event.set()


@pytest.fixture
def claims(work: Work, pool: ThreadPoolExecutor) -> ConcurrentClaims[str]:
    return ConcurrentClaims(work.take, pool, SystemClock())


def wait_until(is_so: Callable[[], bool]) -> None:
    until_s = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < until_s
        time.sleep(0.005)


def test_the_end_of_a_claim_is_noted_once_its_outcome_is_there(pool: ThreadPoolExecutor, work: Work) -> None:
    found: list[list[tuple[int, str | None]]] = []
    ended = threading.Event()

    def note() -> None:
        found.append(noted.finished({0}))
        ended.set()

    noted: ConcurrentClaims[str] = ConcurrentClaims(work.take, pool, SystemClock(), note)
    noted.begin(0)
    assert not ended.wait(0.05)
    work.ends[0].set()
    assert ended.wait(DEADLINE_S)
    assert found == [[(0, "unit 0")]]


def test_a_unit_is_served_when_it_is_taken_and_the_others_do_not_wait_for_it(
    claims: ConcurrentClaims[str], work: Work
) -> None:
    assert [claims.begin(0), claims.begin(1), claims.begin(0)] == [True, True, False]
    work.ends[1].set()

    def is_adopted() -> bool:
        work.adopt(claims.finished({0, 1}))
        return 1 in work.adopted

    wait_until(is_adopted)
    assert (work.adopted, claims.busy) == ({1: "unit 1"}, {0})


def test_a_unit_that_is_given_away_while_it_is_taken_is_not_served(claims: ConcurrentClaims[str], work: Work) -> None:
    work.is_deaf = True
    claims.begin(0)
    claims.begin(1)
    claims.cancel([0], time.monotonic())
    # Even if unit 0 is assigned again, it is not claimed before the first attempt has ended.
    assert claims.busy == {0, 1}
    assert not claims.begin(0)
    for number in (0, 1):
        work.ends[number].set()

    def are_ended() -> bool:
        work.adopt(claims.finished({0}))
        return not claims.busy

    wait_until(are_ended)
    # Unit 1 is no longer assigned, although its claim was not cancelled.
    assert work.adopted == {}
    assert claims.begin(0)


def test_calling_off_waits_until_the_unit_is_let_go(claims: ConcurrentClaims[str], work: Work) -> None:
    claims.begin(0)
    claims.cancel([0, 3], time.monotonic() + DEADLINE_S)
    work.adopt(claims.finished({0}))
    assert (work.adopted, claims.busy) == ({}, set())


@pytest.mark.timeout(60)
def test_a_long_recovery_holds_up_the_loop_of_no_runner(pool: ThreadPoolExecutor) -> None:
    over = threading.Event()
    begun: set[int] = set()

    def claim(number: int, *_given: Any) -> None:
        begun.add(number)
        over.wait(DEADLINE_S)

    supervisor: Any = idle_supervisor(pool)
    supervisor._claims = ConcurrentClaims(claim, pool, SystemClock())
    supervisor.poll({0, 1})
    wait_until(lambda: begun == {0, 1})
    supervisor.poll({0, 1})
    assert set(supervisor.states.values()) == {UnitState.CLAIMING}
    over.set()


def test_a_unit_that_must_not_be_claimed_yet_is_claimed_later(pool: ThreadPoolExecutor) -> None:
    begun: set[int] = set()
    supervisor: Any = idle_supervisor(pool)
    supervisor._claims = ConcurrentClaims(lambda number, *_: begun.add(number), pool, SystemClock())
    supervisor.poll({0, 1}, hold={1})
    wait_until(lambda: begun == {0})
    supervisor.poll({0, 1}, hold={1})
    assert begun == {0}
    supervisor.poll({0, 1})
    wait_until(lambda: begun == {0, 1})


def test_a_replay_ends_when_it_is_called_off(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = make_settings()
    readers = Readers(settings, SystemClock())
    monkeypatch.setattr(Readers, "log", None)

    def read_range(*_given: Any, **_options: Any) -> Iterator[Any]:
        yield from (({}, {DATA: at}) for at in range(1, 100))

    monkeypatch.setattr(restore, "read_range", read_range)
    unit = Unit(settings, 0, {DATA: 0})
    readers.is_over = lambda: unit.offsets == {DATA: 3}
    with pytest.raises(ClaimCancelled):
        restore._replay(readers, unit, {DATA: 99})
    assert unit.offsets == {DATA: 3}
