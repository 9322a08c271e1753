"""The connectors' producer outlasts a Kafka outage longer than ``patience_s``, and reports a record that is refused."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from broker.kafka.client_log import client_logger
from broker.kafka.producer import DeliveryError, LastingProducer, Outgoing
from broker.partitioner import partition_of
from broker.settings import KafkaSettings
from broker.stack import LocalStack
from tests.integration.services import read_topic, wait_until

PARTITIONS = 3


@pytest.fixture
def topic(kafka: str) -> Iterator[str]:
    admin = AdminClient({"bootstrap.servers": kafka})
    name = f"p{uuid.uuid4().hex[:12]}"
    admin.create_topics([NewTopic(name, PARTITIONS, 1)], operation_timeout=30)[name].result()
    yield name
    admin.delete_topics([name])[name].result()


def outgoing(first: int, count: int) -> list[Outgoing[int]]:
    return [Outgoing(f"key {number % 7}".encode(), b"%d" % number, number) for number in range(first, first + count)]


@pytest.mark.slow
@pytest.mark.chaos
def test_what_waited_too_long_is_sent_again_in_its_order_and_all_of_it_arrives(
    stack: LocalStack, kafka: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    confirmed: list[int] = []
    settings = KafkaSettings(bootstrap_servers=kafka)
    producer = LastingProducer[int](settings, client_logger("test.lasting"), confirmed.append, patience_s=1.0)

    def renewals() -> int:
        producer.poll(0.05)
        return caplog.text.count("; reconnecting and ")

    producer.send(topic, outgoing(0, 500))
    wait_until(lambda: producer.flush(0.1), "the first records arrive")
    stack.down([stack.kafka])
    producer.send(topic, outgoing(500, 500))
    before = renewals()
    wait_until(lambda: renewals() >= before + 2, "the producer is replaced twice")
    producer.send(topic, outgoing(1000, 500))
    assert len(producer) == 1000
    stack.up([stack.kafka])
    wait_until(lambda: producer.flush(0.1), "everything arrives")
    assert sorted(confirmed) == list(range(1500)), "each record is confirmed once"
    for partition in range(PARTITIONS):
        values = [int(stored.value) for stored in read_topic(kafka, topic, PARTITIONS) if stored.partition == partition]
        first_seen = list(dict.fromkeys(values))
        assert first_seen == sorted(first_seen), "the order within a partition is preserved"
        assert set(first_seen) == {n for n in range(1500) if partition_of(b"key %d" % (n % 7), PARTITIONS) == partition}


def test_a_record_that_kafka_will_never_accept_is_an_error_and_not_retried_for_ever(kafka: str, topic: str) -> None:
    confirmed: list[int] = []
    settings = KafkaSettings(bootstrap_servers=kafka)
    producer = LastingProducer[int](settings, client_logger("test.lasting"), confirmed.append)
    with pytest.raises(DeliveryError, match=f"for {topic}"):
        producer.send(topic, [Outgoing(b"key", bytes(30_000_000), 0)])
    assert confirmed == []
