"""From where is the control topic read, and which records are written to it when Kafka becomes available?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from joiner.runtime.control import TAIL, Heartbeat, Left, encode
from joiner.runtime.kafka import control_log, member_log
from joiner.runtime.kafka.clients import TIMEOUT_S
from joiner.runtime.kafka.control_log import ControlLog
from joiner.runtime.kafka.member_log import OFFSET_TAIL_BASE, MemberLog
from tests.manual_clock import ManualClock
from tests.unit.broker.slow_producer import SlowProducer
from tests.unit.joiner.runtime.joiner_inputs import make_settings


class Consumer:
    """Reads a topic with 42 records, which has no leader before ``led_s``."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock, self.led_s = clock, clock.now_s
        self.begun: list[int] = []

    def assign(self, places: Sequence[TopicPartition]) -> None:
        self.begun += [place.offset for place in places]

    def consume(self, _most: int, _wait_s: float) -> list[Any]:
        return []

    def close(self) -> None:
        pass

    def get_watermark_offsets(self, _place: TopicPartition, timeout: float) -> tuple[int, int]:
        assert timeout > 0
        if self.clock.now_s < self.led_s:
            raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
        return 0, 42


@pytest.fixture
def producer() -> SlowProducer:
    return SlowProducer()


@pytest.fixture
def consumer(monkeypatch: pytest.MonkeyPatch, producer: SlowProducer) -> Consumer:
    made = Consumer(ManualClock())
    for module in (control_log, member_log):
        monkeypatch.setattr(module, "make_consumer", lambda *_given, **_more: made)
        monkeypatch.setattr(module, "make_producer", lambda *_given, **_more: producer)
    return made


def test_the_last_records_before_it_was_opened_are_read(consumer: Consumer) -> None:
    MemberLog(make_settings())
    assert consumer.begun == [OFFSET_TAIL_BASE - TAIL]


@pytest.mark.parametrize("kind", [MemberLog, ControlLog])
def test_what_is_written_once_its_end_is_known_is_not_missed(consumer: Consumer, kind: Any) -> None:
    opened = kind(make_settings())
    consumer.led_s += 1.0
    opened.begin_now(consumer.clock)
    assert consumer.begun[-1] == 42


@pytest.mark.parametrize("kind", [MemberLog, ControlLog])
def test_an_end_that_remains_unknown_is_an_error(consumer: Consumer, kind: Any) -> None:
    opened = kind(make_settings())
    consumer.led_s += TIMEOUT_S + 10.0
    with pytest.raises(KafkaException):
        opened.begin_now(consumer.clock)
    assert consumer.clock.now_s < consumer.led_s


@pytest.mark.usefixtures("consumer")
@pytest.mark.parametrize("kind", [MemberLog, ControlLog])
def test_records_that_waited_are_written_while_others_are_read(producer: SlowProducer, kind: Any) -> None:
    records = [Left(site="process", instance=f"i{number}", run="run") for number in range(16)]
    opened, producer.is_slow = kind(make_settings()), True
    for record in records:
        opened.write(record)
    producer.is_slow = False
    for _ in range(4):
        opened.read()
    assert producer.written == [encode(record) for record in records]
    assert producer.places == {(make_settings().control_topic, 0)}


@pytest.mark.usefixtures("consumer")
def test_of_waiting_heartbeats_only_the_newest_is_written_and_the_last_record_is_not_left_behind(
    producer: SlowProducer,
) -> None:
    log, producer.is_slow = MemberLog(make_settings()), True
    beats = [Heartbeat(site="process", instance="i", run="run", serves=[number]) for number in range(20)]
    last = Left(site="process", instance="i", run="run")
    for beat in beats:
        log.write(beat)
    log.write(last)
    producer.is_slow = False
    log.close(1.0)
    assert producer.written == [encode(record) for record in (*beats[:5], beats[-1], last)]
