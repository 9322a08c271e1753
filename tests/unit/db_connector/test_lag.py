"""Lag counts every record that the database has not acknowledged, even if it has never acknowledged any."""

from __future__ import annotations

from typing import Any

from confluent_kafka import OFFSET_BEGINNING, OFFSET_INVALID, KafkaError, KafkaException, TopicPartition

from db_connector.kafka.lag import ASK_EVERY_S, Lag


class Log:
    """The log of each partition, from ``low`` to ``high``. ``fetched``: the end offset that the client has cached."""

    def __init__(self, low: int, high: int) -> None:
        self.low, self.high = low, high
        self.fetched = OFFSET_INVALID
        self.asked = 0
        self.is_unavailable = False

    def get_watermark_offsets(self, _place: TopicPartition, timeout: float = 0, *, cached: bool = False) -> Any:
        if cached:
            return OFFSET_INVALID, self.fetched
        assert timeout > 0
        self.asked += 1
        if self.is_unavailable:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))  # noqa: SLF001 - its public name
        return self.low, self.high


def lag_of(*offsets: int) -> tuple[Lag, list[float]]:
    now = [0.0]
    lag = Lag("machine.out", lambda: now[0])
    lag.begin(TopicPartition("machine.out", number, offset) for number, offset in enumerate(offsets))
    return lag, now


def test_lag_is_counted_from_the_committed_offset_or_the_beginning_of_the_log() -> None:
    lag, _ = lag_of(40, OFFSET_BEGINNING)
    log: Any = Log(10, 100)
    assert lag.of(log, {}, paused=False) == {0: 60, 1: 90}
    log.fetched = 100
    assert lag.of(log, {1: 70}, paused=False) == {0: 60, 1: 30}


def test_the_end_is_asked_for_where_nothing_is_fetched_and_only_now_and_then() -> None:
    lag, now = lag_of(40)
    log: Any = Log(10, 100)
    log.fetched = 100
    assert lag.of(log, {}, paused=False) == {0: 60}
    assert log.asked == 0, "the client knows the end"
    log.high = 1_000
    assert lag.of(log, {}, paused=True) == {0: 960}
    log.high = 2_000
    assert lag.of(log, {}, paused=True) == {0: 960}
    now[0] = ASK_EVERY_S
    assert lag.of(log, {}, paused=True) == {0: 1_960}
    assert log.asked == 2


def test_a_kafka_that_does_not_answer_is_asked_for_one_partition_and_no_lag_is_invented() -> None:
    lag, now = lag_of(40, OFFSET_BEGINNING)
    log: Any = Log(10, 100)
    log.is_unavailable = True
    assert lag.of(log, {}, paused=False) == {}
    assert log.asked == 1
    now[0], log.is_unavailable = ASK_EVERY_S, False
    assert lag.of(log, {}, paused=False) == {0: 60, 1: 90}


def test_partitions_of_another_member_do_not_count_as_lag() -> None:
    lag, _ = lag_of(40, 50)
    lag.drop([0])
    log: Any = Log(10, 100)
    assert lag.of(log, {}, paused=False) == {1: 50}
