"""When are the committed offsets of assigned partitions known, and what if Kafka does not tell some of them?"""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from joiner.runtime.repartition.awaited import ALONE_S, ASK_S, LONG_S, SELDOM_S, AwaitedOffsets
from tests.manual_clock import ManualClock


class Asked:
    """A member of the group. ``open``: the partitions whose offsets a transaction may still change."""

    def __init__(self, clock: ManualClock, *partitions: int) -> None:
        self.open = set(partitions)
        self.takes_s = 0.0
        self.requests: list[list[int]] = []
        self._clock = clock

    def committed(self, places: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        numbers = [place.partition for place in places]
        self.requests.append(numbers)
        self._clock.sleep(self.takes_s)
        if self.open & set(numbers):
            # As the client: it asks again until the timeout, and then tells nothing.
            self._clock.sleep(timeout)
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001 - the public name
        return [TopicPartition("t", number, 10 * number) for number in numbers]

    def get_watermark_offsets(self, _place: TopicPartition, **_more: Any) -> tuple[int, int]:
        return 3, 9


class Awaiting:
    """Awaits the offsets of partitions, some of which are in open transactions."""

    def __init__(self, count: int, *hidden: int) -> None:
        self.clock = ManualClock()
        self.consumer = Asked(self.clock, *hidden)
        member: Any = self.consumer
        self.awaited = AwaitedOffsets(member, self.clock)
        self.awaited.add([("t", number) for number in range(count)])

    def told(self) -> list[int]:
        return [place.partition for place in self.awaited.ask()]

    def told_within(self, asks: int) -> set[int]:
        found: list[int] = []
        for _ in range(asks):
            found += self.told()
            self.clock.sleep(ASK_S)
        assert len(found) == len(set(found))
        return set(found)


def test_offsets_are_asked_for_together() -> None:
    awaiting = Awaiting(4)
    assert awaiting.told() == [0, 1, 2, 3]
    assert awaiting.told() == []
    assert awaiting.consumer.requests == [[0, 1, 2, 3]]


def test_all_wait_for_a_transaction_that_ends_soon() -> None:
    """Otherwise, what has piled up in its partition would be copied behind later messages, and be late."""
    awaiting = Awaiting(3, 1)
    begin_s = awaiting.clock.monotonic_s()
    while awaiting.clock.monotonic_s() - begin_s < ALONE_S - 1:
        assert awaiting.told() == []
        awaiting.clock.sleep(ASK_S)
    awaiting.consumer.open.clear()
    assert awaiting.told() == [0, 1, 2]


@pytest.mark.parametrize("hidden", [[0], [5], [1, 3], [0, 1, 2, 3, 4]])
def test_an_offset_that_is_not_told_for_long_does_not_hide_the_others(hidden: list[int]) -> None:
    """Kafka may have forgotten to end a transaction. All other partitions are still to be copied."""
    awaiting = Awaiting(6, *hidden)
    assert awaiting.told() == []
    awaiting.clock.sleep(ALONE_S)
    assert awaiting.told_within(len(hidden) + 1) == set(range(6)) - set(hidden)
    awaiting.consumer.open.clear()
    assert awaiting.told_within(2) == set(hidden)


def test_an_answer_is_not_waited_for_often_if_none_comes_for_long() -> None:
    """Nothing is copied in the meantime."""
    awaiting = Awaiting(2, 0, 1)
    begin_s = awaiting.clock.monotonic_s()
    assert awaiting.told() == []
    assert awaiting.clock.monotonic_s() - begin_s == ASK_S
    awaiting.clock.sleep(LONG_S)
    awaiting.told()
    awaiting.consumer.requests.clear()
    for _ in range(10):
        awaiting.clock.sleep(SELDOM_S / 10)
        awaiting.told()
    assert len(awaiting.consumer.requests) == 1


def test_slow_answers_do_not_hold_up_copying_for_long() -> None:
    awaiting = Awaiting(50, 49)
    awaiting.consumer.takes_s = 0.1
    awaiting.clock.sleep(ALONE_S + 1)
    awaiting.awaited.add([("t", 50)])
    begin_s = awaiting.clock.monotonic_s()
    first = awaiting.told()
    assert awaiting.clock.monotonic_s() - begin_s <= 3 * ASK_S
    assert 50 in first
    assert awaiting.told_within(10) | set(first) == set(range(51)) - {49}


def test_a_new_partition_is_asked_for_at_once() -> None:
    awaiting = Awaiting(2, 0, 1)
    awaiting.clock.sleep(LONG_S + 1)
    awaiting.told()
    awaiting.awaited.add([("t", 2)])
    assert awaiting.told_within(3) == {2}


def test_a_partition_that_was_revoked_is_not_asked_for() -> None:
    awaiting = Awaiting(2, 1)
    awaiting.awaited.remove(("t", 0))
    awaiting.awaited.remove(("t", 7))
    assert awaiting.told_within(3) == set()
    assert {number for request in awaiting.consumer.requests for number in request} == {1}


def test_an_offset_that_is_not_told_for_long_is_reported_and_its_partition_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    awaiting = Awaiting(3, 1)
    awaiting.told()
    awaiting.clock.sleep(ALONE_S)
    assert awaiting.told_within(3) == {0, 2}
    assert (caplog.text, awaiting.awaited.counts) == ("", {})
    awaiting.clock.sleep(ALONE_S)
    awaiting.told()
    awaiting.clock.sleep(SELDOM_S)
    awaiting.told()
    assert caplog.text.count("the committed offsets of t [1] cannot be read") == 1
    assert awaiting.awaited.counts == {("t", 1): 6}
    awaiting.consumer.open.clear()
    awaiting.clock.sleep(SELDOM_S)
    assert awaiting.told() == [1]
    assert awaiting.awaited.counts == {}


def test_an_error_that_waiting_cannot_fix_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    awaiting = Awaiting(1)
    denied = KafkaException(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))

    def refuse(*_: object) -> list[TopicPartition]:
        raise denied

    monkeypatch.setattr(awaiting.consumer, "committed", refuse)
    with pytest.raises(KafkaException):
        awaiting.told()


@pytest.mark.parametrize(
    "code",
    [KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE],
)
def test_a_coordinator_that_is_not_ready_yet_is_asked_again(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    awaiting = Awaiting(1)
    moving = KafkaException(KafkaError(code))

    def refuse(*_: object) -> list[TopicPartition]:
        raise moving

    with monkeypatch.context() as patch:
        patch.setattr(awaiting.consumer, "committed", refuse)
        assert awaiting.told() == []
    awaiting.clock.sleep(ASK_S)
    assert awaiting.told() == [0]
