"""What the process that merges asks of Kafka: with which settings, and of which partitions."""

from __future__ import annotations

from typing import Any

import pytest

from broker.kafka.replicas import merged_topic
from joiner.cli.merging import output
from joiner.cli.merging.output import MergedOutput
from joiner.library.merging.inputs import SHORT_QUEUE
from tests.simulation.memory_log import ABORTED
from tests.simulation.merging_world import MergingWorld, result
from tests.simulation.test_merging import start, state_topic


def awaited_ends(patch: pytest.MonkeyPatch) -> dict[int, dict[str, int]]:
    """Return the offsets of which it is awaited that their transactions end, by partition and topic."""
    awaited: dict[int, dict[str, int]] = {}
    original = MergedOutput.wait_until_ended

    def noted(one: MergedOutput, offsets: dict[str, int], partition: int, *more: Any) -> None:
        awaited[partition] = dict(offsets)
        original(one, offsets, partition, *more)

    patch.setattr(MergedOutput, "wait_until_ended", noted)
    return awaited


def test_the_ends_of_earlier_transactions_are_awaited_in_each_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    world = MergingWorld(1, monkeypatch, partitions=2)
    topics = [state_topic(world), *map(merged_topic, world.settings.output_topics.values())]
    world.write(topics[1], b"begun earlier", state=ABORTED, partition=1)
    ends = {number: {topic: world.kafka.log(topic, number).end for topic in topics} for number in (0, 1)}
    awaited = awaited_ends(monkeypatch)
    world.begin_session().close()
    assert awaited == ends


def test_a_commit_that_took_long_is_checked_in_each_partition_from_its_first_record_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(output, "_LONG_S", -1.0)
    world = MergingWorld(1, monkeypatch, partitions=2)
    out = world.settings.topics.out
    world.settle()
    for number in (0, 1):
        world.write(out, start(number), *map(result, range(number + 1)), partition=number)
    topics = [state_topic(world), merged_topic(out)]
    ends = {number: {topic: world.kafka.log(topic, number).end for topic in topics} for number in (0, 1)}
    awaited = awaited_ends(monkeypatch)
    world.link.draw = None  # so that everything is read at once
    assert world.turn()
    assert awaited == ends


def test_little_is_fetched_in_advance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, the newest results of all replicas wait behind what one that catches up has written."""
    world = MergingWorld(1, monkeypatch)
    world.begin_session().close()
    assert SHORT_QUEUE.items() <= world.consumed_with.items()
