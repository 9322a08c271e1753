"""Does reading a log stop at the requested end, even if others keep writing?"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from joiner.runtime.kafka import clients
from joiner.runtime.kafka.clients import (
    EOF_CODE,
    TIMEOUT_S,
    TransactionOpen,
    abort_if_possible,
    commit,
    describe,
    flush,
    in_background,
    poll,
    read_to_end,
    wait_until_ended,
)
from joiner.runtime.kafka.readers import ClaimCancelled
from joiner.runtime.ownership.retry_policy import cause_of
from tests.manual_clock import ManualClock
from tests.simulation.memory_clients import MemoryMessage
from tests.unit.joiner.runtime.joiner_inputs import make_settings


class BusyLog:
    """A consumer of a log that others write to faster than it is read, so that its end is never reached."""

    def __init__(self) -> None:
        self.read = 0
        self.fetches = False

    def assign(self, places: Any) -> None:
        self.fetches = True
        self._offsets = count(places[0].offset)

    def unassign(self) -> None:
        self.fetches = False

    def consume(self, _count: int, _wait_s: float) -> list[MemoryMessage]:
        self.read += 10
        return [MemoryMessage(("out", 0), next(self._offsets), content=(b"k", b"v")) for _ in range(10)]


class QuietLog(BusyLog):
    """A log in which the offsets from 20 on hold no records."""

    def consume(self, _count: int, _wait_s: float) -> list[MemoryMessage]:
        found = super().consume(_count, _wait_s)
        end = MemoryMessage(("out", 0), 23, fault=KafkaError(EOF_CODE))
        return [message for message in found if message.at < 20] or [end]


def test_a_log_that_grows_faster_than_it_is_read_is_read_to_the_end_that_was_asked_for() -> None:
    log: Any = BusyLog()
    assert [message.offset() for message in read_to_end(log, ManualClock(), "out", 0, 3, 25)] == list(range(3, 25))
    assert log.read == 30
    assert not log.fetches, "or else an idle consumer would keep Kafka busy"


def test_a_log_is_read_to_its_end_where_no_record_lies_there() -> None:
    log: Any = QuietLog()
    assert [message.offset() for message in read_to_end(log, ManualClock(), "out", 0, 18, 23)] == [18, 19]
    assert not log.fetches


def test_a_log_is_no_longer_fetched_if_reading_is_given_up() -> None:
    log: Any = BusyLog()
    for _ in read_to_end(log, ManualClock(), "out", 0, 3, 25):
        assert log.fetches
        break
    assert not log.fetches


def test_reading_may_be_given_up_after_the_consumer_was_closed() -> None:
    """So it is if an error ends both, because its traceback refers to the generator."""

    class ClosedLog(BusyLog):
        def unassign(self) -> None:
            super().unassign()
            raise RuntimeError("Consumer closed")

    log: Any = ClosedLog()
    messages: Any = read_to_end(log, ManualClock(), "out", 0, 3, 25)
    next(messages)
    messages.close()
    assert not log.fetches


def test_reading_ends_with_an_error_if_no_message_arrives_for_too_long() -> None:
    clock = ManualClock()

    class StuckLog(BusyLog):
        def consume(self, _count: int, _wait_s: float) -> list[MemoryMessage]:
            clock.now_s += 20.0
            self.read += 1
            return [MemoryMessage(("out", 0), next(self._offsets), content=(b"k", b"v"))] if self.read <= 3 else []

    log: Any = StuckLog()
    messages = read_to_end(log, clock, "out", 0, 3, 25)
    assert [next(messages).offset() for _ in range(3)] == [3, 4, 5]
    assert log.fetches
    with pytest.raises(KafkaException) as raised:
        next(messages)
    assert not log.fetches
    assert describe(raised.value) == "no message arrived from out [0] for 30 s while reading up to offset 25"


def stable_end_rises(monkeypatch: pytest.MonkeyPatch, first: int) -> Iterator[int]:
    """Let the stable end of each partition rise by one each time that it is asked for."""
    ends = count(first)
    monkeypatch.setattr(clients, "log_ends", lambda _consumer, topics, _unit: dict.fromkeys(topics, next(ends)))
    return ends


def wait(clock: ManualClock, limit_s: float = TIMEOUT_S, check: Callable[[], object] = lambda: None) -> None:
    consumer: Any = None
    wait_until_ended(consumer, make_settings().kafka, clock, {"out": 8}, 3, "this test", limit_s, check)


def test_a_transaction_has_ended_once_the_stable_end_has_passed_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ends, looks = stable_end_rises(monkeypatch, 6), list[int]()
    wait(ManualClock(), check=lambda: looks.append(1))
    assert next(ends) == 10
    assert len(looks) == 3, "at 6, 7 and 8"


def test_a_transaction_that_does_not_end_is_told_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    stable_end_rises(monkeypatch, -(10**9))
    clock = ManualClock()
    began_s = clock.now_s
    with pytest.raises(TransactionOpen, match=r"not belong to this test has been open for 5 s in out \[3\]") as told:
        wait(clock, 5.0)
    assert 5.0 < clock.now_s - began_s < 6.0
    assert told.value.places.startswith("out [3] from offset ")
    assert describe(told.value).endswith(" ends it")
    assert cause_of(told.value).is_transient


def test_a_wait_for_a_transaction_can_be_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    stable_end_rises(monkeypatch, -(10**9))
    with pytest.raises(ClaimCancelled):
        wait(ManualClock(), check=_stop)


def _stop() -> None:
    raise ClaimCancelled


def test_a_call_in_the_background_has_the_outcome_of_the_call() -> None:
    assert in_background("a call", lambda: 7).result(30.0) == 7
    with pytest.raises(ZeroDivisionError):
        in_background("a call", lambda: 1 // 0).result(30.0)


class FencedDuringDelivery:
    """A producer that is fenced while it delivers messages, as confluent-kafka reports that."""

    def flush(self, _limit_s: float) -> int:
        raise SystemError("a callback returned a result with an exception set") from KafkaException(
            KafkaError(KafkaError._FENCED, "fenced by a newer instance", fatal=True)  # noqa: SLF001 - the public name
        )

    commit_transaction = abort_transaction = poll = flush


def test_a_fatal_error_during_a_delivery_callback_is_raised_as_such() -> None:
    producer: Any = FencedDuringDelivery()
    with pytest.raises(KafkaException, match="fenced by a newer instance"):
        flush(producer, 1.0)
    with pytest.raises(KafkaException, match="fenced by a newer instance"):
        poll(producer, 1.0)
    with pytest.raises(KafkaException, match="fenced by a newer instance"):
        commit(producer, ManualClock(), 1.0)
    abort_if_possible(producer)


@pytest.mark.parametrize("cause", [None, OSError("of something else")])
def test_other_system_errors_are_not_hidden(cause: Exception | None) -> None:
    class Broken:
        def flush(self, _limit_s: float) -> int:
            raise SystemError("a bug") from cause

    producer: Any = Broken()
    with pytest.raises(SystemError, match="a bug"):
        flush(producer, 1.0)


def test_a_fatal_error_during_a_delivery_callback_does_not_keep_the_producer_alive() -> None:
    """Collections are rare, and the next producer has begun."""
    producer: Any = FencedDuringDelivery()
    kept = weakref.ref(producer)
    gc.disable()
    try:
        with suppress(KafkaException):
            flush(producer, 1.0)
        del producer
        assert kept() is None
    finally:
        gc.enable()
