"""How many records does the producer have at a time, and which of them are lost?"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from broker.kafka.appender import IN_FLIGHT_MAX, WAITING_MAX, Appender
from tests.unit.broker.slow_producer import SlowProducer


class Log:
    """An appender, and the producers that it has created."""

    def __init__(self, lasts_s: float = 60.0) -> None:
        self.made: list[Any] = []
        self.appender = Appender(self._make, "log", 3, lasts_s)

    def _make(self) -> Any:
        self.made.append(SlowProducer())
        return self.made[-1]

    @property
    def producer(self) -> Any:
        return self.made[-1]


@pytest.fixture
def values() -> Iterator[bytes]:
    return (b"%d" % number for number in count())


def append(log: Log, values: Iterator[bytes], number: int) -> None:
    for _ in range(number):
        log.appender.append(next(values))


def test_records_are_written_in_order(values: Iterator[bytes]) -> None:
    log = Log()
    append(log, values, 20)
    assert log.appender.flush(0)
    assert log.producer.written == [b"%d" % number for number in range(20)]
    assert len(log.made) == 1
    assert log.producer.places == {("log", 3)}


@pytest.fixture
def slow() -> Log:
    log = Log()
    log.appender.connect()
    log.producer.is_slow = True
    return log


def test_the_producer_has_few_records_while_kafka_is_slow(slow: Log, values: Iterator[bytes]) -> None:
    append(slow, values, 20)
    assert not slow.appender.flush(0)
    assert slow.producer.most == IN_FLIGHT_MAX == 5
    slow.producer.is_slow = False
    assert slow.appender.flush(1)
    assert slow.producer.written == [b"%d" % number for number in range(20)]
    assert slow.producer.most == IN_FLIGHT_MAX


def test_the_oldest_of_too_many_waiting_records_are_lost(slow: Log, values: Iterator[bytes]) -> None:
    append(slow, values, IN_FLIGHT_MAX + WAITING_MAX + 2)
    slow.producer.is_slow = False
    assert slow.appender.flush(5)
    assert slow.producer.written[4:6] == [b"4", b"7"]
    assert len(slow.producer.written) == IN_FLIGHT_MAX + WAITING_MAX


def test_a_record_replaces_a_waiting_one_of_its_kind_and_no_other(slow: Log, values: Iterator[bytes]) -> None:
    append(slow, values, 5)
    for value, kind in ((b"a", "one"), (b"b", ""), (b"c", "two"), (b"d", "one"), (b"e", "")):
        slow.appender.append(value, kind)
    slow.producer.is_slow = False
    assert slow.appender.flush(1)
    assert slow.producer.written[5:] == [b"b", b"c", b"d", b"e"]


def test_a_record_that_has_waited_for_too_long_is_dropped(values: Iterator[bytes]) -> None:
    log = Log(lasts_s=-1.0)
    append(log, values, 3)
    assert log.appender.flush(0)
    assert log.producer.written == []


def test_a_record_is_written_when_the_call_returns_unless_kafka_is_slow(slow: Log) -> None:
    assert not slow.appender.write(b"late", 0)
    slow.producer.is_slow = False
    assert slow.appender.write(b"now", 1)
    assert slow.producer.written == [b"late", b"now"]


def test_threads_lose_nothing_and_keep_their_own_order() -> None:
    log = Log()
    own = [[b"%d %d" % (thread, number) for number in range(100)] for thread in range(4)]

    def append_all(values: list[bytes]) -> None:
        for value in values:
            log.appender.append(value)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(append_all, own))
    assert log.appender.flush(1)
    assert len(log.made) == 1
    assert [[value for value in log.producer.written if value.startswith(values[0][:2])] for values in own] == own


def test_waiting_records_are_written_though_no_other_record_follows(slow: Log, values: Iterator[bytes]) -> None:
    append(slow, values, 7)
    slow.producer.is_slow = False
    slow.appender.poll()
    slow.appender.poll()
    assert slow.producer.written == [b"%d" % number for number in range(7)]


def test_nothing_is_connected_before_the_first_record() -> None:
    log = Log()
    log.appender.poll()
    assert log.appender.flush(0)
    assert log.made == []


@pytest.mark.parametrize("fatal", [False, True])
def test_a_new_producer_follows_one_that_has_failed_for_good(values: Iterator[bytes], *, fatal: bool) -> None:
    log = Log()
    log.appender.connect()
    log.producer.fault = KafkaError(KafkaError._FATAL if fatal else KafkaError._STATE)  # noqa: SLF001 - public
    with pytest.raises(KafkaException):
        append(log, values, 1)
    log.producer.fault = None
    append(log, values, 1)
    assert log.appender.flush(0)
    assert len(log.made) == 1 + fatal
    assert log.producer.written == [b"1"], "the refused record is lost"
