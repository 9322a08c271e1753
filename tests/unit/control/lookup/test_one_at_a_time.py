"""Is only one reading in progress, are results shared and kept, and does nobody wait in vain?"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from control.facts.lookup import one_at_a_time
from control.facts.lookup.one_at_a_time import READING_S, Deadline, DeadlinePassed, OneAtATime, Unavailable
from tests.manual_clock import ManualClock

WAIT_S = 30.0


class Work:
    """Readings that end when they are released. ``begun``: what has begun, in order."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.may_end = threading.Event()
        self.has_begun = threading.Event()

    def reading(self, name: str, result: Any = None) -> Callable[[Deadline], Any]:
        def read(_deadline: Deadline) -> Any:
            self.begun.append(name)
            self.has_begun.set()
            assert self.may_end.wait(WAIT_S)
            return name if result is None else result

        return read


@pytest.fixture
def work() -> Iterator[Work]:
    made = Work()
    yield made
    made.may_end.set()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def readings(clock: ManualClock) -> Iterator[OneAtATime]:
    made = OneAtATime("lsb", clock)
    yield made
    made.stop()


def test_readings_are_made_one_after_the_other(readings: OneAtATime, work: Work) -> None:
    futures = [readings.submit(name, work.reading(name)) for name in "abc"]
    assert work.has_begun.wait(WAIT_S)
    assert work.begun == ["a"]
    work.may_end.set()
    assert [future.result(WAIT_S) for future in futures] == ["a", "b", "c"]
    assert work.begun == ["a", "b", "c"]


def test_whoever_asks_for_what_is_being_read_gets_the_same_result(readings: OneAtATime, work: Work) -> None:
    first = readings.submit("a", work.reading("first"))
    second = readings.submit("a", work.reading("second"))
    work.may_end.set()
    assert (first.result(WAIT_S), second.result(WAIT_S)) == ("first", "first")
    assert work.begun == ["first"]


def test_a_result_is_kept_for_a_short_time(readings: OneAtATime, clock: ManualClock, work: Work) -> None:
    work.may_end.set()
    assert readings.kept("a") is None
    assert readings.submit("a", work.reading("first")).result(WAIT_S) == "first"
    assert readings.kept("a") == "first"
    assert readings.submit("a", work.reading("second")).result(WAIT_S) == "first"
    clock.now_s += one_at_a_time._KEPT_S  # noqa: SLF001 - its own limit
    assert readings.kept("a") is None
    assert readings.submit("a", work.reading("third")).result(WAIT_S) == "third"


def test_a_result_that_took_long_is_kept_for_longer_but_not_for_long(readings: OneAtATime, clock: ManualClock) -> None:
    for takes_s, kept_s in ((5.0, 20.0), (15.0, 30.0)):

        def slow(_deadline: Deadline, takes_s: float = takes_s) -> str:
            clock.now_s += takes_s
            return "found"

        assert readings.submit("a", slow).result(WAIT_S) == "found"
        clock.now_s += kept_s - 0.1
        assert readings.kept("a") == "found"
        clock.now_s += 0.2
        assert readings.kept("a") is None


def test_only_so_many_results_are_kept(
    readings: OneAtATime, work: Work, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one_at_a_time, "_KEPT_MAX", 2)
    work.may_end.set()
    for name in "abc":
        readings.submit(name, work.reading(name)).result(WAIT_S)
    assert [readings.kept(name) for name in "abc"] == [None, "b", "c"]
    clock.now_s += 100.0
    readings.submit("d", work.reading("d")).result(WAIT_S)
    assert len(readings._kept) == 1, "what is outdated takes no memory"  # noqa: SLF001 - not to be seen otherwise


def test_too_many_readings_are_refused(readings: OneAtATime, work: Work) -> None:
    futures = [readings.submit(number, work.reading(str(number))) for number in range(8)]
    with pytest.raises(Unavailable, match="too many other readings are waiting") as refused:
        readings.submit("one more", work.reading("one more"))
    assert refused.value.retry_s > 0
    assert readings.submit(3, work.reading("again")) is futures[3], "this one waits already"
    work.may_end.set()
    assert [future.result(WAIT_S) for future in futures] == [str(number) for number in range(8)]
    assert readings.submit("one more", work.reading("one more")).result(WAIT_S) == "one more"


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (Unavailable("unit 1 is too large"), "unit 1 is too large"),
        (DeadlinePassed(), "it takes longer than 20 s"),
        (KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE, "no leader")), "no leader"),
        (ValueError("a secret"), "an error in this program; its log contains the cause"),
    ],
)
def test_a_reading_that_fails_says_why_and_is_tried_again(
    readings: OneAtATime, error: Exception, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_deadline: Deadline) -> str:
        raise error

    for _ in range(2):
        with pytest.raises(Unavailable) as found:
            readings.submit("a", fail).result(WAIT_S)
        assert str(found.value) == why
    assert ("a secret" in caplog.text) == isinstance(error, ValueError)
    assert readings.submit("a", lambda _deadline: "found").result(WAIT_S) == "found"


def test_a_reading_knows_when_it_must_end(readings: OneAtATime, clock: ManualClock) -> None:
    seen = list[bool]()

    def read(deadline: Deadline) -> None:
        half = deadline.part(0.5)
        for _ in range(2):
            seen.extend((half.is_over(), deadline.is_over()))
            clock.now_s += READING_S / 2
        seen.extend((half.is_over(), deadline.is_over()))
        deadline.check()

    with pytest.raises(Unavailable, match="it takes longer than"):
        readings.submit("a", read).result(WAIT_S)
    assert seen == [False, False, True, False, True, True]


def test_an_end_of_the_service_ends_what_is_read_and_what_waits(readings: OneAtATime, work: Work) -> None:
    over = threading.Event()

    def read(deadline: Deadline) -> None:
        work.has_begun.set()
        assert work.may_end.wait(WAIT_S)
        if deadline.is_over():
            over.set()
        deadline.check()

    first, second = readings.submit("a", read), readings.submit("b", work.reading("b"))
    assert work.has_begun.wait(WAIT_S)
    readings.stop()
    work.may_end.set()
    for future in (first, second):
        with pytest.raises(Unavailable):
            future.result(WAIT_S)
    readings.join(WAIT_S)
    assert over.is_set()
    assert work.begun == []
    with pytest.raises(Unavailable):
        readings.submit("c", work.reading("c"))


def test_a_result_is_awaited_without_holding_up_the_loop(readings: OneAtATime, work: Work) -> None:
    async def ask() -> list[str]:
        async def release() -> str:
            work.may_end.set()
            return "the loop runs"

        return list(await asyncio.gather(readings.result("a", work.reading("a")), release()))

    assert asyncio.run(ask()) == ["a", "the loop runs"]


def test_whoever_waits_too_long_is_told_and_the_reading_goes_on(
    readings: OneAtATime, work: Work, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(one_at_a_time, "_WAIT_S", 0.0)
    with pytest.raises(Unavailable, match="still being read"):
        asyncio.run(readings.result("a", work.reading("a")))
    # The loop that has waited is closed now.
    with caplog.at_level(logging.WARNING):
        future = readings.submit("a", work.reading("again"))
        work.may_end.set()
        assert future.result(WAIT_S) == "a"
        assert readings.submit("b", work.reading("b")).result(WAIT_S) == "b"
    assert caplog.text == ""
