"""Which results does a batch hold, if messages hold many?"""

# ruff: noqa: SLF001 - the client's callbacks are called as the client would

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, TopicPartition

from db_connector.kafka.reader import KafkaFailureError, ResultReader
from db_connector.kafka.results import Results
from db_connector.settings import DbConnectorSettings
from tests.unit.db_connector.test_arrow import arrow
from tests.unit.db_connector.test_contract import FakeInflux

BATCH_RECORDS = 8
PARTITION = 3


def message(offset: int, results: int) -> Any:
    value = arrow(["a"], [float(at) for at in range(results)])
    return SimpleNamespace(
        error=lambda: None, partition=lambda: PARTITION, offset=lambda: offset, value=lambda: value, key=lambda: None
    )


class FakeConsumer:
    """Returns the messages it was given, as many as are asked for, except while their partition is paused.

    As in librdkafka, a partition that is revoked stays paused.
    """

    def __init__(self, *given: Any) -> None:
        self.given = [*given]
        self.before: Callable[[], None] = lambda: None
        self.waits_s: list[float] = []
        self.assigned: set[int] = set()
        self.paused: set[int] = set()

    def consume(self, count: int, wait_s: float) -> list[Any]:
        self.before()
        self.waits_s.append(wait_s)
        found = [one for one in self.given if one.partition() not in self.paused][:count]
        self.given = [one for one in self.given if one not in found]
        return found

    def assignment(self) -> list[TopicPartition]:
        return [TopicPartition("machine.out", number) for number in self.assigned]

    def pause(self, places: list[TopicPartition]) -> None:
        self.paused |= {place.partition for place in places}

    def resume(self, places: list[TopicPartition]) -> None:
        self.paused -= {place.partition for place in places}

    def committed(self, partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        return partitions if timeout else []

    def incremental_assign(self, places: list[TopicPartition]) -> None:
        self.assigned |= {place.partition for place in places}


@pytest.fixture
def consumer() -> FakeConsumer:
    return FakeConsumer()


@pytest.fixture
def reader(consumer: FakeConsumer, monkeypatch: pytest.MonkeyPatch) -> ResultReader:
    monkeypatch.setattr(ResultReader, "_make_consumer", lambda _: consumer)
    settings = DbConnectorSettings.model_validate({"db_connector": {"batch_records": BATCH_RECORDS}})
    made = ResultReader(settings, FakeInflux(), threading.Event(), heartbeat=lambda: None, on_assigned=lambda: None)
    assign(made, consumer)
    return made


def assign(reader: ResultReader, consumer: Any, partition: int = PARTITION) -> None:
    reader._assigned(consumer, [TopicPartition("machine.out", partition)])


def revoke(reader: ResultReader, consumer: Any) -> None:
    place = TopicPartition("machine.out", PARTITION)
    reader._revoked(consumer, [place])
    consumer.assigned.discard(PARTITION)  # librdkafka does that after the callback


def offsets(results: Results) -> tuple[int, int] | None:
    span = results.spans.get(PARTITION)
    return None if span is None else (span.first, span.next_offset)


def test_a_batch_holds_few_results_although_messages_hold_many_more_than_before(
    reader: ResultReader, consumer: FakeConsumer
) -> None:
    consumer.given = [message(0, 1)] + [message(offset, 4) for offset in range(1, 9)]
    found = [reader.read(lambda: None) for _ in range(5)]
    assert [results.records for results in found] == [9, 8, 8, 8, 0]
    assert [offsets(results) for results in found] == [(0, 3), (3, 5), (5, 7), (7, 9), None]
    assert [wait_s > 0 for wait_s in consumer.waits_s] == [True, False, False, False, True], "while enough is there"


def test_which_replica_was_first_is_counted_in_merged_topics(
    consumer: FakeConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ResultReader, "_make_consumer", lambda _: consumer)
    own = {"batch_records": BATCH_RECORDS, "merged": True}
    settings = DbConnectorSettings.model_validate({"db_connector": own})
    reader = ResultReader(settings, FakeInflux(), threading.Event(), heartbeat=lambda: None, on_assigned=lambda: None)
    assign(reader, consumer)
    headers: list[Any] = [[("lsb-replica", b"1")], None, [("lsb-replica", b"many")], [("lsb-replica", b"0")]] * 2
    for offset, found in enumerate(headers):
        one = message(offset, 4)
        one.headers = lambda found=found: found
        consumer.given.append(one)
    for _ in range(9):
        reader.read(lambda: None)
    assert reader.firsts == {0: 2, 1: 2}, "although some were read ahead"


def test_what_was_read_ahead_of_a_partition_is_dropped_if_it_was_revoked_before_the_batch(
    reader: ResultReader, consumer: FakeConsumer
) -> None:
    consumer.given = [message(offset, 4) for offset in range(4)]
    assert offsets(reader.read(lambda: None)) == (0, 2)

    consumer.before = reassigning(reader, consumer)
    consumer.given = [message(0, 4)]
    assert offsets(reader.read(lambda: None)) == (0, 1)


def test_what_was_read_ahead_of_a_partition_is_dropped_if_it_was_revoked_while_paused(
    reader: ResultReader, consumer: FakeConsumer
) -> None:
    consumer.given = [message(offset, 4) for offset in range(4)]
    assert offsets(reader.read(lambda: None)) == (0, 2)
    consumer.before = reassigning(reader, consumer)
    reader.drain(0.0)
    consumer.before = lambda: None
    assert offsets(reader.read(lambda: None)) is None


def test_a_partition_that_was_revoked_while_paused_is_read_when_it_comes_back(
    reader: ResultReader, consumer: FakeConsumer
) -> None:
    reader.keep_alive()
    revoke(reader, consumer)
    reader.read(lambda: None)
    assign(reader, consumer)
    consumer.given = [message(7, 1)]
    assert offsets(reader.read(lambda: None)) == (7, 8)


def test_a_partition_that_comes_back_while_reading_is_paused_waits(
    reader: ResultReader, consumer: FakeConsumer
) -> None:
    reader.keep_alive()
    revoke(reader, consumer)
    assign(reader, consumer)
    consumer.given = [message(7, 1)]
    reader.keep_alive()
    assert consumer.given, "it is paused, too"
    assert offsets(reader.read(lambda: None)) == (7, 8)


def test_a_long_wait_for_a_batch_leaves_time_for_other_things_and_drops_what_is_revoked_meanwhile(
    consumer: FakeConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = lingering(consumer, monkeypatch)
    calls: list[str] = []
    consumer.given = [message(0, 1)]

    def meanwhile() -> None:
        calls.append("meanwhile")
        consumer.given = [message(7, 1)]
        if len(calls) == 2:
            reassigning(reader, consumer)()

    assert offsets(reader.read(meanwhile)) == (7, 8)
    assert calls == ["meanwhile"] * 3, "between the four parts of two seconds"
    assert consumer.waits_s == [0.5] * 4


def test_an_error_ends_the_wait_for_a_batch(consumer: FakeConsumer, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = lingering(consumer, monkeypatch)
    broken = KafkaError(KafkaError._BAD_MSG, "failed CRC32C check")
    ended = KafkaError(KafkaError._PARTITION_EOF, "no more")
    for error, waits in ((ended, 4), (broken, 1)):
        consumer.waits_s.clear()
        place = {"partition": lambda: PARTITION, "offset": lambda: 3}
        consumer.given = [SimpleNamespace(error=lambda error=error: error, **place)]
        reader.read(lambda: None)
        assert len(consumer.waits_s) == waits


def lingering(consumer: FakeConsumer, monkeypatch: pytest.MonkeyPatch) -> ResultReader:
    """Return a reader that waits two seconds for more records."""
    monkeypatch.setattr(ResultReader, "_make_consumer", lambda _: consumer)
    settings = DbConnectorSettings.model_validate({"db_connector": {"linger": "2s"}})
    made = ResultReader(settings, FakeInflux(), threading.Event(), heartbeat=lambda: None, on_assigned=lambda: None)
    assign(made, consumer)
    return made


def reassigning(reader: ResultReader, consumer: Any) -> Callable[[], None]:
    """Return a function that revokes the partition and assigns it again, as a callback of a poll may."""

    def reassign() -> None:
        revoke(reader, consumer)
        assign(reader, consumer)

    return reassign


NOWHERE = KafkaError(KafkaError._AUTO_OFFSET_RESET, "no previously committed offset available")


def failed(partition: int) -> Any:
    return SimpleNamespace(error=lambda: NOWHERE, partition=lambda: partition, offset=lambda: -1001)


def test_a_partition_that_arrived_while_it_was_stopping_is_not_said_to_have_lost_results(
    reader: ResultReader, consumer: FakeConsumer
) -> None:
    """The library then assigns it without an offset, and reports that there is none."""
    reader._stop.set()
    assign(reader, consumer, 4)
    consumer.given = [failed(4)]
    assert not reader.read(lambda: None).spans
    consumer.given = [failed(PARTITION)]
    with pytest.raises(KafkaFailureError, match=f"partition {PARTITION}: the committed offset"):
        reader.read(lambda: None)
