"""Who copies a topic, and how far is it behind?"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from broker.kafka.groups import ListedMember
from broker.kafka.topics import TopicFacts
from joiner.runtime.repartition import status
from joiner.runtime.repartition.status import RepartitionStatus, read_repartition
from tests.unit.joiner.runtime.joiner_inputs import make_settings
from tests.unit.joiner.runtime.repartition.test_copies import SPEED

TARGET = "lsb.plant.repartition"
PLANT = [TopicPartition("plant", 0)]
OTHER = [TopicPartition("other", 0)]


def found(
    monkeypatch: pytest.MonkeyPatch, members: list[ListedMember] | KafkaException, *committed: int, exists: bool = True
) -> list[RepartitionStatus]:
    def read_group(*_: object) -> list[ListedMember]:
        if isinstance(members, KafkaException):
            raise members
        return members

    def offsets(places: list[TopicPartition], _timeout: float) -> list[TopicPartition]:
        return [TopicPartition(at.topic, at.partition, committed[at.partition]) for at in places]

    consumer = SimpleNamespace(committed=offsets, get_watermark_offsets=lambda _place, **_: (3, 9), close=lambda: None)
    facts = {"plant": TopicFacts("id", len(committed))} if exists else {}
    monkeypatch.setattr(status, "read_group", read_group)
    monkeypatch.setattr(status, "topic_facts", lambda *_: facts)
    monkeypatch.setattr(status, "make_consumer", lambda *_, **__: consumer)
    admin: Any = None
    return read_repartition(admin, make_settings(stream=[SPEED]))


def member(name: str, assigned: list[TopicPartition]) -> ListedMember:
    return ListedMember(name, name, assigned)


@pytest.mark.parametrize(("committed", "lag"), [(-1001, 6), (1, 6), (5, 4), (9, 0), (12, 0)])
def test_the_lag_is_what_is_left_to_copy(monkeypatch: pytest.MonkeyPatch, committed: int, lag: int) -> None:
    (one,) = found(monkeypatch, [], committed, 9)
    assert one == RepartitionStatus("plant", TARGET, [], lag)


def test_those_are_named_that_have_partitions_of_the_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    (one,) = found(monkeypatch, [member("two", PLANT), member("one", PLANT), member("three", OTHER)], 9)
    assert one.members == ["one", "two"]


@pytest.mark.parametrize(
    "members",
    [[member("one", []), member("two", [])], KafkaException(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))],
)
def test_members_without_an_assignment_are_not_taken_for_none(monkeypatch: pytest.MonkeyPatch, members: Any) -> None:
    """While a group rebalances, its members have no partitions."""
    (one,) = found(monkeypatch, members, 9)
    assert one.members is None


def test_a_topic_that_does_not_exist_has_no_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    (one,) = found(monkeypatch, [], 9, exists=False)
    assert one.lag is None
