"""Both kinds of batch reader return the same records from a real server. The native calls work with real clients."""

from __future__ import annotations

import gc
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, TopicPartition

from broker.kafka.native.library import Unavailable, handle_of
from broker.kafka.native.writer import NativeWriter
from broker.settings import KafkaSettings
from broker.wire.columns import StringColumn
from joiner.runtime.clock import SystemClock
from joiner.runtime.kafka.batches.reader import make_batch_reader
from joiner.runtime.kafka.clients import log_range, make_consumer, make_producer, make_reader, read_to_end
from tests.integration.test_kafka_contract import RealCluster
from tests.simulation.batch_reader_contract import BatchReaderContract, assign, fill, opened, read_until_ends
from tests.simulation.kafka_contract import read_until

ROOT = Path(__file__).resolve().parents[2]

MANY = 5_000


@pytest.fixture
def cluster(kafka: str) -> Iterator[RealCluster]:
    made = RealCluster(kafka)
    yield made
    made.close()


class TestColumns(BatchReaderContract):
    """With the native calls."""

    native = True


class TestObjects(BatchReaderContract):
    """With the client's objects."""

    native = False


@pytest.mark.parametrize("native", [True, False])
def test_a_partition_that_does_not_exist_does_no_harm_to_the_others(cluster: RealCluster, *, native: bool) -> None:
    topic = cluster.make_topic()
    fill(cluster, topic, 0, b"1", b"2")
    with opened(cluster, [topic], native=native) as (consumer, reader):
        assign(consumer, reader, [(topic, 7)])
        for _ in range(20):
            assert not reader.read(100, 0.1).batches
        assign(consumer, reader, [(topic, 0)])
        assert read_until_ends(reader, [(topic, 0)]).of(topic, 0) == [(0, b"1"), (1, b"2")]


@pytest.mark.parametrize("native", [True, False])
def test_a_topic_that_is_recreated_with_fewer_partitions_does_not_end_the_process(
    cluster: RealCluster, *, native: bool
) -> None:
    topic = cluster.make_topic(2)
    fill(cluster, topic, 1, b"1", b"2")
    with opened(cluster, [topic], native=native) as (consumer, reader):
        assign(consumer, reader, [(topic, 1)])
        assert len(read_until_ends(reader, [(topic, 1)]).found) == 2
        cluster.delete_topic(topic)
        cluster.make_topic(1, topic)
        until_s = time.monotonic() + 12
        while time.monotonic() < until_s:
            assert not reader.read(100, 0.1).batches


def written(cluster: RealCluster, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    """The keys and values of partition 0."""
    reader = make_reader(cluster.kafka, "test")
    end = log_range(reader, topic, 0)[1]
    found = [(one.key(), one.value()) for one in read_to_end(reader, SystemClock(), topic, 0, 0, end)]
    reader.close()
    return found


@pytest.mark.parametrize("with_keys", [True, False])
def test_columns_are_written_in_order_also_through_a_queue_that_is_full(
    cluster: RealCluster, *, with_keys: bool
) -> None:
    topic = cluster.make_topic()
    producer = make_producer(cluster.kafka, queue_buffering_max_messages=700, linger_ms=1)
    keys = [b"key %d" % at for at in range(MANY)]
    values = [b"" if at % 7 == 0 else b"%d" % at * (at % 50) for at in range(MANY)]
    column = StringColumn.of(keys) if with_keys else None
    NativeWriter(producer).write(topic, 0, column, StringColumn.of(values))
    assert producer.flush(30) == 0
    assert written(cluster, topic) == list(zip(keys if with_keys else [None] * MANY, values, strict=True))


def test_a_message_that_is_too_large_is_an_error(cluster: RealCluster) -> None:
    topic = cluster.make_topic()
    producer = make_producer(cluster.kafka)
    with pytest.raises(KafkaException, match="too large"):
        NativeWriter(producer).write(topic, 0, None, StringColumn.of([b"small", bytes(50_000_000)]))
    producer.flush(30)


def refusal(begin: Callable[[], None]) -> tuple[object, ...]:
    with pytest.raises(KafkaException) as refused:
        begin()
    error = refused.value.args[0]
    return error.code(), error.str(), error.fatal(), error.retriable(), error.txn_requires_abort()


def test_a_transaction_begins_and_is_refused_as_with_the_client_itself(cluster: RealCluster) -> None:
    name, topic = uuid.uuid4().hex, cluster.make_topic()
    producer, newer = (make_producer(cluster.kafka, transactional_id=name) for _ in range(2))
    native = NativeWriter(producer).begin_transaction

    def is_refused_alike() -> bool:
        return refusal(native) == refusal(producer.begin_transaction)

    assert is_refused_alike(), "before it is initialised"
    producer.init_transactions(30)
    native()
    assert is_refused_alike(), "during a transaction"
    producer.produce(topic, b"1", partition=0)
    producer.commit_transaction(30)
    assert read_until(cluster, topic, 2) == [b"1"]
    assert written(cluster, topic) == [(None, b"1")]
    native()
    newer.init_transactions(30)
    producer.produce(topic, b"2", partition=0)
    with pytest.raises(KafkaException):
        producer.commit_transaction(30)
    assert is_refused_alike(), "after it was fenced"


def test_a_reader_that_is_not_closed_lets_its_consumer_go(cluster: RealCluster) -> None:
    topic = cluster.make_topic()
    fill(cluster, topic, 0, b"1", b"2")
    consumer = make_reader(cluster.kafka, "test")
    reader = make_batch_reader(consumer, [topic], 100, native=True)
    reader.add(topic, 0)
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert len(read_until_ends(reader, [(topic, 0)]).found) == 2
    del reader, consumer
    # If a queue were still referenced, the client would wait for it until the test's time limit.
    gc.collect()


def test_a_process_that_closes_nothing_ends(cluster: RealCluster) -> None:
    topic = cluster.make_topic()
    fill(cluster, topic, 0, b"1", b"2")
    program = f"""
from confluent_kafka import TopicPartition
from broker.settings import KafkaSettings
from joiner.runtime.kafka.batches.reader import make_batch_reader
from joiner.runtime.kafka.clients import make_reader
consumer = make_reader(KafkaSettings(bootstrap_servers={cluster.kafka.bootstrap_servers!r}), "test")
reader = make_batch_reader(consumer, [{topic!r}], 100, native=True)
reader.add({topic!r}, 0)
consumer.assign([TopicPartition({topic!r}, 0, 0)])
while not reader.read(100, 0.1).batches:
    pass
print("read")
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, b"read\n"), done.stderr.decode()


def test_only_clients_have_a_handle(kafka: str) -> None:
    settings = KafkaSettings(bootstrap_servers=kafka)
    for client in (make_consumer(settings, uuid.uuid4().hex), make_producer(settings)):
        assert handle_of(client)
    with pytest.raises(Unavailable, match="object is not a client"):
        handle_of(object())  # type: ignore[arg-type] # as a fake is
