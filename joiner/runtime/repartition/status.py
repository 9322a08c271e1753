"""The status of repartitioning: which processes do it, and how far it is behind."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import msgspec
from confluent_kafka import KafkaException, TopicPartition

from broker.kafka.groups import read_group
from broker.kafka.topics import topic_facts
from joiner.runtime.kafka.clients import TIMEOUT_S, log_range, make_consumer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from confluent_kafka import Consumer
    from confluent_kafka.admin import AdminClient

    from joiner.runtime.settings import JoinerSettings


class RepartitionStatus(msgspec.Struct, frozen=True):
    """The status of a topic that is repartitioned.

    ``target``: its repartition topic. ``members``: the instances to which partitions of it are assigned, or None if
    that could not be read. ``lag``: the number of offsets that are not copied yet, or None if there is no such topic.
    """

    topic: str
    target: str
    members: list[str] | None
    lag: int | None


def read_repartition(admin: AdminClient, settings: JoinerSettings) -> list[RepartitionStatus]:
    """Return the status of each topic that is repartitioned. Raises KafkaException if a request fails."""
    if not settings.repartitioned:
        return []
    try:
        members = read_group(admin, settings.kafka, settings.repartition_group, TIMEOUT_S)
    except KafkaException:
        members = None
    if members and not any(one.assigned for one in members):
        # While a group rebalances, its members have no partitions. That does not mean that nothing is copied.
        members = None
    facts = topic_facts(admin, list(settings.repartitioned))
    # Uncommitted data counts as well: a read-committed consumer would wait for the offsets of open transactions.
    more = {"isolation_level": "read_uncommitted"}
    found = []
    with closing(make_consumer(settings.kafka, settings.repartition_group, **more)) as consumer:
        for topic, target in settings.repartitioned.items():
            names = None
            if members is not None:
                names = sorted({one.name for one in members if any(place.topic == topic for place in one.assigned)})
            lag = lag_of(consumer, topic, facts[topic].partitions) if topic in facts else None
            found.append(RepartitionStatus(topic, target, names, lag))
    return found


def lag_of(consumer: Consumer, topic: str, partitions: int) -> int:
    """Return how many offsets of a topic are not copied yet. ``consumer``: has the group, but is not a member."""
    places = committed_offsets(consumer, topic, partitions)
    lag = 0
    for place in places:
        low, high = log_range(consumer, topic, place.partition)
        lag += high - max(low, min(place.offset, high))
    return lag


def committed_offsets(consumer: Consumer, topic: str, partitions: int) -> Sequence[TopicPartition]:
    """Return the committed offset of each partition, with its note. It is negative if there is none."""
    found: Sequence[TopicPartition] = consumer.committed(
        [TopicPartition(topic, number) for number in range(partitions)], TIMEOUT_S
    )
    for place in found:
        if place.error is not None:
            raise KafkaException(place.error)
    return found
