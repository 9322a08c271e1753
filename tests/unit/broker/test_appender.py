"""How many records does the producer have at a time, and which of them are lost?"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from broker.kafka.appender import IN_FLIGHT_MAX, Appender


class FakeProducer:
    """Has all records acknowledged at the next poll, unless ``is_slow``."""

    def __init__(self) -> None:
        self.is_slow = False
        self.fault: KafkaError | None = None
        self.unacknowledged: list[bytes] = []
        self.written: list[bytes] = []
        self.most = 0

    def __len__(self) -> int:
        return len(self.unacknowledged)

    def poll(self, _timeout_s: float) -> int:
        if not self.is_slow:
            self.written += self.unacknowledged
            self.unacknowledged = []
        return 0

    flush = poll

    def produce(self, topic: str, value: bytes, *, partition: int) -> None:
        assert (topic, partition) == ("log", 3)
        if self.fault is not None:
            raise KafkaException(self.fault)
        self.unacknowledged.append(value)
        self.most = max(self.most, len(self.unacknowledged))


class Log:
    """An appender, and the producers that it has created."""

    def __init__(self, waiting_max: int = 4) -> None:
        self.made: list[Any] = []
        self.appender = Appender(self._make, "log", 3, waiting_max=waiting_max)

    def _make(self) -> Any:
        self.made.append(FakeProducer())
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


def test_the_producer_has_few_records_while_kafka_is_slow_and_the_newest_ones_wait(values: Iterator[bytes]) -> None:
    log = Log(waiting_max=4)
    log.appender.connect()
    log.producer.is_slow = True
    append(log, values, 20)
    assert not log.appender.flush(0)
    assert log.producer.most == IN_FLIGHT_MAX == 5
    log.producer.is_slow = False
    log.appender.poll()
    assert log.appender.flush(1)
    assert log.producer.written == [b"%d" % number for number in [0, 1, 2, 3, 4, 16, 17, 18, 19]]
    assert log.producer.most == IN_FLIGHT_MAX


def test_waiting_records_are_written_though_no_other_record_follows(values: Iterator[bytes]) -> None:
    log = Log()
    log.appender.connect()
    log.producer.is_slow = True
    append(log, values, 7)
    log.producer.is_slow = False
    log.appender.poll()
    log.appender.poll()
    assert log.producer.written == [b"%d" % number for number in range(7)]


def test_nothing_is_connected_before_the_first_record() -> None:
    log = Log()
    log.appender.poll()
    assert log.appender.flush(0)
    assert log.made == []


@pytest.mark.parametrize("fatal", [False, True])
def test_a_new_producer_follows_one_that_has_failed_for_good(values: Iterator[bytes], *, fatal: bool) -> None:
    log = Log()
    log.appender.connect()
    log.producer.fault = KafkaError(KafkaError._FATAL if fatal else KafkaError._STATE, fatal=fatal)  # noqa: SLF001 - public
    with pytest.raises(KafkaException):
        append(log, values, 1)
    log.producer.fault = None
    append(log, values, 1)
    assert log.appender.flush(0)
    assert len(log.made) == 1 + fatal
    assert log.producer.written == [b"1"], "the refused record is lost"
