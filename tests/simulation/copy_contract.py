"""Contract tests for the Kafka behaviour that repartitioning relies on, as those of `kafka_contract`."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition

from broker.stack.child import wait_until
from joiner.runtime.kafka.clients import make_consumer, make_reader
from tests.simulation.kafka_contract import LOOK_S, LOOKS_MAX, Cluster, Member, poll_until, producer_of

_DEADLINE_S = 60.0


class CopyContract:
    """The contract tests. Subclasses provide a fixture ``cluster``."""

    def test_offsets_of_a_former_member_are_refused(self, cluster: Cluster) -> None:
        topic = cluster.make_topic()
        one = Member(cluster, topic, topic, None)
        poll_until(lambda: one.units == {0}, one)
        producer = producer_of(cluster, topic)
        producer.begin_transaction()
        producer.send_offsets_to_transaction([TopicPartition(topic, 0, 3)], one.consumer.consumer_group_metadata(), 30)
        producer.commit_transaction(30)
        former = one.consumer.consumer_group_metadata()
        one.close()
        other = Member(cluster, topic, topic, None)
        poll_until(lambda: other.units == {0}, other)
        producer.begin_transaction()
        with pytest.raises(KafkaException) as refused:
            producer.send_offsets_to_transaction([TopicPartition(topic, 0, 4)], former, 30)
        assert refused.value.args[0].txn_requires_abort()
        producer.abort_transaction(30)
        other.close()

    def test_an_open_transaction_hides_all_offsets_that_are_asked_for_together(self, cluster: Cluster) -> None:
        topic = cluster.make_topic(2)
        stranger: Any = make_consumer(cluster.kafka, topic)
        stranger.assign([])
        metadata = stranger.consumer_group_metadata()
        producer = producer_of(cluster, topic)
        producer.begin_transaction()
        both = [TopicPartition(topic, number, 3) for number in range(2)]
        producer.send_offsets_to_transaction(both, metadata, 30)
        producer.commit_transaction(30)
        producer.begin_transaction()
        producer.send_offsets_to_transaction([TopicPartition(topic, 0, 4)], metadata, 30)

        def committed(timeout_s: float, *numbers: int) -> list[int]:
            places = stranger.committed([TopicPartition(topic, number) for number in numbers], timeout_s)
            return [place.offset for place in places]

        with pytest.raises(KafkaException) as hidden:
            committed(0.5, 0, 1)
        assert hidden.value.args[0].code() == KafkaError._TIMED_OUT  # noqa: SLF001 - the public name
        assert committed(30, 1) == [3]
        producer.commit_transaction(30)
        assert committed(30, 0, 1) == [4, 3]
        stranger.close()

    def test_a_topic_that_is_deleted_loses_its_offsets(self, cluster: Cluster) -> None:
        topic = cluster.make_topic()
        stranger: Any = make_consumer(cluster.kafka, topic)
        stranger.assign([])
        producer = producer_of(cluster, topic)
        producer.begin_transaction()
        metadata = stranger.consumer_group_metadata()
        producer.send_offsets_to_transaction([TopicPartition(topic, 0, 3)], metadata, 30)
        producer.commit_transaction(30)

        def committed() -> int:
            (place,) = stranger.committed([TopicPartition(topic, 0)], 30)
            return int(place.offset)

        assert committed() == 3
        cluster.delete_topic(topic)
        cluster.make_topic(name=topic)
        assert wait_until(lambda: committed() == OFFSET_INVALID, _DEADLINE_S)
        stranger.close()

    def test_headers_come_back(self, cluster: Cluster) -> None:
        topic = cluster.make_topic()
        producer = producer_of(cluster, topic)
        producer.begin_transaction()
        given = [("a", b"1"), ("empty", b""), ("none", None), ("a", b"\xff")]
        producer.produce(topic, b"with", partition=0, headers=given)
        producer.produce(topic, b"without", partition=0)
        producer.commit_transaction(30)
        reader: Any = make_reader(cluster.kafka, "contract")
        reader.assign([TopicPartition(topic, 0, 0)])
        found: list[Any] = []
        for _ in range(LOOKS_MAX):
            message = reader.poll(LOOK_S)
            found += [message.headers()] if message is not None and message.error() is None else []
            if len(found) == 2:
                break
        assert found == [given, None]
        reader.close()
