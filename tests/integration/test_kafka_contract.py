"""Real Kafka behaves as the joiner requires, and like the simulation's in-memory broker."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from broker.kafka.topics import topic_facts
from broker.settings import KafkaSettings
from tests.integration.services import DEADLINE_S, wait_until
from tests.simulation.copy_contract import CopyContract
from tests.simulation.kafka_contract import GroupContract, KafkaContract


class RealCluster:
    """A `Cluster` on a real server."""

    def __init__(self, bootstrap: str) -> None:
        self.kafka = KafkaSettings(bootstrap_servers=bootstrap)
        self._admin = AdminClient({"bootstrap.servers": bootstrap})
        self._made: set[str] = set()

    def make_topic(self, partitions: int = 1, name: str = "") -> str:
        """See `Cluster`."""
        name = name or f"contract-{uuid.uuid4().hex[:12]}"
        for future in self._admin.create_topics([NewTopic(name, partitions, 1)]).values():
            future.result(DEADLINE_S)
        wait_until(lambda: bool(topic_facts(self._admin, [name])), f"{name} is known")
        self._made.add(name)
        return name

    def delete_topic(self, name: str) -> None:
        """See `Cluster`."""
        for future in self._admin.delete_topics([name]).values():
            future.result(DEADLINE_S)
        wait_until(lambda: not topic_facts(self._admin, [name]), f"{name} is gone")
        self._made.remove(name)

    def delete_records(self, topic: str, before: int) -> None:
        """See `Cluster`."""
        for future in self._admin.delete_records([TopicPartition(topic, 0, before)]).values():
            future.result(DEADLINE_S)

    def commit_without_answer(self, producer: Any) -> None:
        """See `Cluster`."""
        producer.commit_transaction(0.0001)

    def close(self) -> None:
        """Delete the remaining topics."""
        for name in sorted(self._made):
            self.delete_topic(name)


@pytest.fixture
def cluster(kafka: str) -> Iterator[RealCluster]:
    made = RealCluster(kafka)
    yield made
    made.close()


class TestKafka(GroupContract, KafkaContract):
    """Runs the contract on a real broker."""


class TestCopies(CopyContract):
    """Runs the contract of repartitioning on a real broker."""
