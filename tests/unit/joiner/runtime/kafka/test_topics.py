"""How does the watch react to Kafka's answers about the input topics? (On real Kafka: tests/integration.)"""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicCollection

from broker.kafka.topics import TopicError, TopicFacts
from joiner.runtime.kafka.topics import INTERVAL_S, TopicReplaced, TopicWatch
from tests.manual_clock import ManualClock

SAME = SimpleNamespace(topic_id="id", partitions=[0, 1])
GONE = KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
AWAY = KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001 - the public name of the constant


class _Admin:
    """Returns scripted responses, one per request. A request whose response is None is never answered."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self.asked = 0
        self.listened = 0

    def poll(self, timeout: float) -> None:
        assert timeout == 0
        self.listened += 1

    def describe_topics(self, _topics: TopicCollection, *, request_timeout: float) -> dict[str, Future[Any]]:
        assert request_timeout > 0
        future: Future[Any] = Future()
        answer = self._answers[self.asked]
        self.asked += 1
        if isinstance(answer, Exception):
            future.set_exception(answer)
        elif answer is not None:
            future.set_result(answer)
        return {"data": future}


def check(*answers: Any) -> _Admin:
    """Run a watch until it has checked every answer."""
    admin, clock = _Admin(*answers), ManualClock()
    watch = TopicWatch(admin, {"data": TopicFacts("id", 2)}, clock)  # type: ignore[arg-type] # scripted
    for _ in range(2 * len(answers)):
        clock.now_s += INTERVAL_S
        watch.check()
    return admin


def test_topics_that_stay_as_they_are_are_asked_for_again_and_again() -> None:
    assert check(SAME, SAME, SAME).asked == 3


def test_what_the_library_says_of_its_connection_is_heard_while_the_process_runs_and_not_at_its_end() -> None:
    assert check(SAME, AWAY, SAME).listened == 3


def test_an_answer_that_does_not_come_is_not_waited_for() -> None:
    assert check(None, SAME).asked == 1


def test_kafka_away_and_a_topic_that_is_missing_once_stop_nothing() -> None:
    assert check(AWAY, GONE, SAME, GONE, AWAY, GONE, SAME).asked == 7


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ([SAME, GONE, GONE], "topic data was deleted while the joiner was running"),
        ([SAME, SimpleNamespace(topic_id="other", partitions=[0, 1])], "topic data was deleted and recreated"),
        ([AWAY, SimpleNamespace(topic_id="id", partitions=[0, 1, 2])], "topic data has 3 partitions, but had 2 when"),
    ],
)
def test_a_topic_that_is_another_now_is_told_with_the_way_out(answers: list[Any], reason: str) -> None:
    with pytest.raises(TopicError, match=reason) as told:
        check(*answers)
    assert "joiner reset" in str(told.value) or "give the application a new name" in str(told.value)


@pytest.mark.parametrize("answers", [[GONE, GONE], [SimpleNamespace(topic_id="other", partitions=[0, 1, 2])]])
def test_topics_that_were_replaced_are_told_by_name(answers: list[Any]) -> None:
    with pytest.raises(TopicReplaced) as told:
        check(*answers)
    assert told.value.topics == ["data"]


def test_a_topic_with_other_partitions_was_not_replaced() -> None:
    with pytest.raises(TopicError) as told:
        check(SimpleNamespace(topic_id="id", partitions=[0]))
    assert not isinstance(told.value, TopicReplaced)


def test_nothing_is_asked_where_nothing_is_known() -> None:
    admin, clock = _Admin(), ManualClock()
    watch = TopicWatch(admin, {}, clock)  # type: ignore[arg-type] # scripted
    clock.now_s += INTERVAL_S
    watch.check()
    assert admin.asked == 0
