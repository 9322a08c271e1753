"""Which units does a watch of the group report, and when?"""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupState, TopicPartition

from joiner.run.group_watch import GroupWatch

AWAY = RuntimeError("Kafka is away")
SETTINGS: Any = SimpleNamespace(
    application=SimpleNamespace(name="app", instance="one"),
    input_topics=["data"],
    topics=SimpleNamespace(partitions=3),
)


class _Admin:
    """Answers each question with the next of ``answers``."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)

    def describe_consumer_groups(self, groups: list[str], **_options: Any) -> dict[str, Future[Any]]:
        future: Future[Any] = Future()
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)
        return {groups[0]: future}


def group(state: ConsumerGroupState = ConsumerGroupState.STABLE, **members: list[int]) -> Any:
    """A group whose members, by instance name, have these units."""
    described = [
        SimpleNamespace(
            group_instance_id=name,
            assignment=SimpleNamespace(topic_partitions=[TopicPartition("data", unit) for unit in units]),
        )
        for name, units in members.items()
    ]
    return SimpleNamespace(state=state, members=described)


def found(monkeypatch: pytest.MonkeyPatch, *answers: Any) -> list[list[int]]:
    """What a watch says to each answer."""
    monkeypatch.setattr("joiner.run.group_watch.INTERVAL_S", 0.0)
    watch = GroupWatch(_Admin(*answers), SETTINGS)  # type: ignore[arg-type] # played by hand
    return [watch.check() for _ in range(2 * len(answers))][1::2]


ORPHAN = group(one=[1, 2], two=[])


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ([group(one=[0, 1], two=[2]), group(one=[0, 1], two=[2])], [[], []]),
        ([ORPHAN, ORPHAN, group(one=[1, 2], two=[0])], [[], [0], []]),
        ([ORPHAN, group(one=[0, 1], two=[2]), ORPHAN], [[], [], []]),
        ([ORPHAN, AWAY, ORPHAN, ORPHAN], [[], [], [], [0]]),
        ([group(ConsumerGroupState.PREPARING_REBALANCING, one=[1, 2])] * 3, [[], [], []]),
        ([group(two=[1, 2], one=[0]), group(another=[1], one=[2])], [[], []]),
        ([group()] * 2, [[], []]),
    ],
    ids=["all given", "nobody's twice", "nobody's now and then", "Kafka away", "on the way", "not first", "no members"],
)
def test_a_unit_that_is_nobodys_for_two_looks_is_told_by_the_first_of_the_members(
    monkeypatch: pytest.MonkeyPatch, answers: list[Any], said: list[list[int]]
) -> None:
    assert found(monkeypatch, *answers) == said
