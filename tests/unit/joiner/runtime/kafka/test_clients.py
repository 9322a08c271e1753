"""Does reading a log stop at the requested end, even if others keep writing?"""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from joiner.runtime.kafka.clients import EOF_CODE, describe, in_background, read_to_end
from tests.manual_clock import ManualClock
from tests.simulation.memory_clients import MemoryMessage


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


def test_a_call_in_the_background_has_the_outcome_of_the_call() -> None:
    assert in_background("a call", lambda: 7).result(30.0) == 7
    with pytest.raises(ZeroDivisionError):
        in_background("a call", lambda: 1 // 0).result(30.0)
