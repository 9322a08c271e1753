"""Contract tests for `BatchReader`: what the joiner requires of every kind of reader.

tests/integration/test_batch_reader runs them on a real server, with columns and with objects. `test_memory_contract`
runs them on the in-memory broker, with objects.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

import pytest
from confluent_kafka import KafkaError, TopicPartition

from broker.stack.child import wait_until
from joiner.runtime.clock import SystemClock
from joiner.runtime.kafka.batches.messages import Read
from joiner.runtime.kafka.batches.ranges import read_range
from joiner.runtime.kafka.batches.reader import BatchReader, ReaderOptions, make_batch_reader
from joiner.runtime.kafka.clients import log_range, make_producer, make_reader
from tests.simulation.kafka_contract import Cluster, producer_of

_READS_MAX = 400
_WAIT_S = 0.05
_ENDS_S = 60.0
_OUT_OF_RANGE = KafkaError._AUTO_OFFSET_RESET  # noqa: SLF001 - the public name of the constant

VALUES = [None, b"", b"\0", bytes(range(256)), b"x" * 100_000, b"the last one"]


class Line(NamedTuple):
    """A message that was read."""

    topic: str
    unit: int
    offset: int
    value: bytes | None


class Lines:
    """What a reader has returned so far."""

    def __init__(self) -> None:
        self.found: list[Line] = []
        self.ends: dict[tuple[str, int], int] = {}
        self.errors: list[tuple[int, int | None, str | None]] = []

    def add(self, read: Read) -> None:
        """Add what one call returned."""
        for unit, batches in read.batches.items():
            for topic, batch in batches.items():
                offsets, values = batch.offset.tolist(), batch.values()
                assert batch.append_ms.dtype == batch.offset.dtype == "int64"
                self.found += [Line(topic, unit, at, value) for at, value in zip(offsets, values, strict=True)]
        self.ends.update({(topic, unit): end for unit, ends in read.ends.items() for topic, end in ends.items()})
        self.errors += [(error.code(), unit, topic) for error, unit, topic in read.errors]

    def of(self, topic: str, unit: int) -> list[tuple[int, bytes | None]]:
        """The offsets and values of one partition, in the order of reading."""
        return [(line.offset, line.value) for line in self.found if line[:2] == (topic, unit)]


def read_until_ends(reader: BatchReader, places: list[tuple[str, int]], count_max: int = 1000) -> Lines:
    """Read until the reader has reported the end of each of these partitions."""
    lines = Lines()
    for _ in range(_READS_MAX):
        lines.add(reader.read(count_max, _WAIT_S))
        if lines.ends.keys() >= set(places):
            return lines
    raise AssertionError(f"no ends of {places}: {lines.ends}, {lines.errors}")


@contextmanager
def opened(cluster: Cluster, topics: list[str], *, native: bool) -> Iterator[tuple[Any, BatchReader]]:
    """Yield a consumer without partitions, and its reader; close both."""
    consumer = make_reader(cluster.kafka, "contract")
    reader = make_batch_reader(consumer, topics, 1000, native=native)
    try:
        yield consumer, reader
    finally:
        reader.close()
        consumer.close()


def assign(consumer: Any, reader: BatchReader, places: list[tuple[str, int]]) -> None:
    """Read these partitions from their beginning."""
    for topic, unit in places:
        reader.add(topic, unit)
    consumer.incremental_assign([TopicPartition(topic, unit, 0) for topic, unit in places])


def fill(cluster: Cluster, topic: str, unit: int, *values: bytes | None) -> int:
    """Write values in a committed transaction, and one more in an aborted one. Return the end of the log."""
    producer = producer_of(cluster, f"fill-{topic}-{unit}")
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, b"key", unit)
    producer.commit_transaction(30)
    producer.begin_transaction()
    producer.produce(topic, b"aborted", b"key", unit)
    assert producer.flush(30) == 0
    producer.abort_transaction(30)
    # The values, a control record, the aborted record and its control record, which is written a moment later.
    end = len(values) + 3
    with closing(make_reader(cluster.kafka, "contract")) as consumer:
        assert wait_until(lambda: log_range(consumer, topic, unit)[1] == end, _ENDS_S)
    return end


class BatchReaderContract:
    """The contract tests for one kind of reader. ``native``: whether it reads columns."""

    native: bool

    @contextmanager
    def reading(self, cluster: Cluster, topics: list[str], units: int) -> Iterator[tuple[Any, BatchReader]]:
        """Yield a consumer and its reader, which read these topics from the beginning."""
        with opened(cluster, topics, native=self.native) as (consumer, reader):
            assign(consumer, reader, [(topic, unit) for topic in topics for unit in range(units)])
            yield consumer, reader

    def test_it_is_of_the_kind_that_is_tested(self, cluster: Cluster) -> None:
        with opened(cluster, ["t"], native=self.native) as (_, reader):
            assert type(reader).__name__ == ("ColumnReader" if self.native else "ObjectReader")

    @pytest.mark.parametrize("count_max", [1, 3, 1000])
    def test_every_committed_message_is_read_once_and_in_order(self, cluster: Cluster, count_max: int) -> None:
        topics = [cluster.make_topic(2), cluster.make_topic(2)]
        places = [(topic, unit) for topic in topics for unit in range(2)]
        ends = {place: fill(cluster, *place, *VALUES, str(place).encode()) for place in places}
        with self.reading(cluster, topics, 2) as (_, reader):
            lines = read_until_ends(reader, places, count_max)
        for place in places:
            assert lines.of(*place) == list(enumerate([*VALUES, str(place).encode()]))
        assert lines.ends == ends
        assert not lines.errors

    @pytest.mark.parametrize("count_max", [1, 1000])
    def test_keys_are_read_of_the_topics_that_need_them_alone(self, cluster: Cluster, count_max: int) -> None:
        keyed, other = cluster.make_topic(), cluster.make_topic()
        keys = [b"k", None, b"", b"\0", bytes(range(256)), b"x" * 10_000]
        producer = make_producer(cluster.kafka)
        for topic in (keyed, other):
            for key in keys:
                producer.produce(topic, b"value", key, 0)
        assert producer.flush(30) == 0
        consumer = make_reader(cluster.kafka, "contract")
        topics = [keyed, other]
        with (
            closing(consumer),
            closing(make_batch_reader(consumer, topics, 1000, native=self.native, keyed={keyed})) as reader,
        ):
            assign(consumer, reader, [(topic, 0) for topic in topics])
            found: list[bytes] = []
            count = 0
            for _ in range(_READS_MAX):
                for topic, batch in reader.read(count_max, _WAIT_S).batches.get(0, {}).items():
                    if topic == keyed:
                        assert batch.key is not None
                        found += batch.key.each()
                    else:
                        assert batch.key is None
                        count += len(batch)
                if len(found) == count == len(keys):
                    break
        assert found == [key or b"" for key in keys]
        assert count == len(keys)

    def test_one_read_returns_no_more_than_asked_for(self, cluster: Cluster) -> None:
        topic = cluster.make_topic()
        fill(cluster, topic, 0, *VALUES)
        with self.reading(cluster, [topic], 1) as (_, reader):
            lines = Lines()
            while not lines.ends:
                before = len(lines.found)
                lines.add(reader.read(2, _WAIT_S))
                assert len(lines.found) <= before + 2
            assert len(lines.found) == len(VALUES)

    def test_a_partition_that_is_given_up_and_added_again_is_read_from_its_new_offset(self, cluster: Cluster) -> None:
        topic = cluster.make_topic()
        fill(cluster, topic, 0, *VALUES)
        with self.reading(cluster, [topic], 1) as (consumer, reader):
            for start in (4, 0, 5):
                reader.read(1, _WAIT_S)
                consumer.incremental_unassign([TopicPartition(topic, 0)])
                reader.add(topic, 0)
                consumer.incremental_assign([TopicPartition(topic, 0, start)])
                lines = read_until_ends(reader, [(topic, 0)])
                assert lines.of(topic, 0) == list(enumerate(VALUES))[start:]

    def test_a_paused_partition_returns_nothing_and_misses_nothing(self, cluster: Cluster) -> None:
        topic = cluster.make_topic()
        fill(cluster, topic, 0, *VALUES)
        with self.reading(cluster, [topic], 1) as (consumer, reader):
            first = Lines()
            while not first.found:
                first.add(reader.read(1, _WAIT_S))
            consumer.pause([TopicPartition(topic, 0)])
            meanwhile = Lines()
            for _ in range(5):
                meanwhile.add(reader.read(1000, _WAIT_S))
            assert not meanwhile.found
            consumer.resume([TopicPartition(topic, 0)])
            rest = read_until_ends(reader, [(topic, 0)])
            assert first.of(topic, 0) + rest.of(topic, 0) == list(enumerate(VALUES))

    def test_an_offset_that_is_gone_is_an_error_of_its_partition(self, cluster: Cluster) -> None:
        topic = cluster.make_topic()
        fill(cluster, topic, 0, *VALUES)
        cluster.delete_records(topic, 3)
        with self.reading(cluster, [topic], 1) as (_, reader):
            lines = Lines()
            for _ in range(_READS_MAX):
                lines.add(reader.read(1000, _WAIT_S))
                if lines.errors:
                    break
        assert lines.errors[0] == (_OUT_OF_RANGE, 0, topic)
        assert not lines.found

    def test_ranges_are_read_one_after_the_other_with_one_consumer(self, cluster: Cluster) -> None:
        topic = cluster.make_topic()
        end = fill(cluster, topic, 0, *VALUES)
        consumer, options = make_reader(cluster.kafka, "contract"), ReaderOptions(self.native)
        for begin, stop in ((1, 5), (0, end), (2, 3), (2, 3), (5, end)):
            found = Lines()
            for part, _ in read_range(consumer, SystemClock(), 0, {topic: begin}, {topic: stop}, 2, options=options):
                found.add(Read({0: part}, {}, []))
            assert found.of(topic, 0) == list(enumerate(VALUES))[begin:stop]
        consumer.close()
