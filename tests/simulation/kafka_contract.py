"""Contract tests for the Kafka behaviour that the joiner relies on. A real broker and the in-memory one both pass.

They use the joiner's own clients. `test_memory_contract` runs them on the in-memory broker and
tests/integration/test_kafka_contract on a real server, each through a `Cluster`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any, Protocol

import pytest
from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, TopicPartition

from broker.kafka.group_member import give_partitions_back
from broker.kafka.groups import read_group
from broker.kafka.topics import topic_facts
from broker.settings import KafkaSettings
from joiner.runtime.kafka.clients import (
    EOF_CODE,
    is_fenced,
    log_ends,
    log_range,
    make_admin,
    make_consumer,
    make_producer,
    make_reader,
)
from joiner.runtime.kafka.member_log import OFFSET_TAIL_BASE

_OUT_OF_RANGE = KafkaError._AUTO_OFFSET_RESET  # noqa: SLF001 - the public name of the constant
_FATAL = KafkaError._FATAL  # noqa: SLF001 - as above
_ATTEMPTS_MAX = 50
LOOKS_MAX = 400
LOOK_S = 0.1
_ANSWER_S = 5.0
_WAITS_S = 60.0
_SESSION_MS = 6000


class Cluster(Protocol):
    """The cluster under test."""

    kafka: KafkaSettings

    def make_topic(self, partitions: int = 1, name: str = "") -> str:
        """Create a new topic. Return its name."""
        ...

    def delete_topic(self, name: str) -> None:
        """Delete a topic."""
        ...

    def delete_records(self, topic: str, before: int) -> None:
        """Delete the records of partition 0 below the offset ``before``."""
        ...

    def commit_without_answer(self, producer: Any) -> None:
        """Commit, but lose or delay the response. Raises KafkaException."""
        ...


def producer_of(cluster: Cluster, name: str) -> Any:
    producer: Any = make_producer(cluster.kafka, transactional_id=name)
    producer.init_transactions(30)
    return producer


def open_transaction(producer: Any, topic: str, *values: bytes) -> None:
    """Begin a transaction and write the records to the log."""
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, b"key", 0)
    assert producer.flush(30) == 0


def read_until(cluster: Cluster, topic: str, end: int) -> list[bytes | None]:
    """Return the committed values of partition 0, read until the end of the partition is reported at ``end``.

    A commit or an abort is decided once its call returns, but its marker may be written to the log a moment later.
    """
    reader: Any = make_reader(cluster.kafka, "contract")
    reader.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes | None] = []
    try:
        for _ in range(LOOKS_MAX):
            message = reader.poll(LOOK_S)
            if message is None:
                continue
            if message.error() is None:
                values.append(message.value())
            elif message.error().code() != EOF_CODE:
                raise KafkaException(message.error())
            elif message.offset() == end:
                return values
    finally:
        reader.close()
    raise AssertionError(f"the end of {topic} is never reported at {end}")


def ends(cluster: Cluster, topic: str) -> tuple[int, int]:
    consumer = make_consumer(cluster.kafka, "contract")
    try:
        return log_range(consumer, topic, 0)
    finally:
        consumer.close()


class Member:
    """A member of a group, its assigned units, and the errors that it has received."""

    def __init__(self, cluster: Cluster, group: str, topic: str, instance: str | None) -> None:
        """``instance``: the name of a static member, or None for a dynamic one."""
        self.units: set[int] = set()
        self.errors: list[KafkaError] = []
        self.consumer: Any = make_consumer(
            cluster.kafka,
            group,
            session_timeout_ms=_SESSION_MS,
            partition_assignment_strategy="cooperative-sticky",
            **({} if instance is None else {"group_instance_id": instance}),
        )
        self.consumer.subscribe([topic], on_assign=self._take, on_revoke=self._give, on_lost=self._give)

    def poll(self) -> None:
        """Poll once."""
        message = self.consumer.poll(LOOK_S)
        if message is not None and message.error() is not None:
            self.errors.append(message.error())

    def close(self) -> None:
        """Leave the group, after giving up all units."""
        give_partitions_back(self.consumer)
        assert not self.units
        self.consumer.close()

    def _take(self, consumer: Any, places: list[TopicPartition]) -> None:
        consumer.incremental_assign(places)
        consumer.pause(places)
        self.units |= {place.partition for place in places}

    def _give(self, consumer: Any, places: list[TopicPartition]) -> None:
        self.units -= {place.partition for place in places}
        consumer.incremental_unassign(places)


def poll_until(condition: Callable[[], bool], *members: Member) -> None:
    for _ in range(LOOKS_MAX):
        if condition():
            return
        for member in members:
            member.poll()
    raise AssertionError(f"the condition never held: {[(member.units, member.errors) for member in members]}")


class KafkaContract:
    """The contract tests. Subclasses provide a fixture ``cluster``."""

    @pytest.mark.parametrize("step", ["commit", "send_offsets", "produce"])
    def test_whoever_initialises_an_id_fences_everyone_before(self, cluster: Cluster, step: str) -> None:
        topic = cluster.make_topic()
        old = producer_of(cluster, topic)
        open_transaction(old, topic, b"old")
        new = producer_of(cluster, topic)
        group_metadata_consumer: Any = make_consumer(cluster.kafka, topic)
        group_metadata_consumer.assign([])

        def go_on() -> None:
            if step == "produce":
                old.produce(topic, b"more", b"key", 0)
                old.flush(30)
            if step == "send_offsets":
                old.send_offsets_to_transaction(
                    [TopicPartition(topic, 0, 1)], group_metadata_consumer.consumer_group_metadata(), 30
                )
            old.commit_transaction(30)

        with pytest.raises(KafkaException) as refused:
            go_on()
        assert is_fenced(refused.value)
        with pytest.raises(KafkaException) as again:
            old.begin_transaction()
        assert is_fenced(again.value)
        open_transaction(new, topic, b"new")
        new.commit_transaction(30)
        assert read_until(cluster, topic, 4) == [b"new"]
        group_metadata_consumer.close()

    def test_initialising_an_id_succeeds_if_it_is_repeated_while_a_transaction_is_being_ended(
        self, cluster: Cluster
    ) -> None:
        topic = cluster.make_topic()
        open_transaction(producer_of(cluster, topic), topic, b"open")
        new: Any = make_producer(cluster.kafka, transactional_id=topic)
        for _ in range(1_000):
            with suppress(KafkaException):  # refused, or not finished yet
                new.init_transactions(0.02)
                break
        open_transaction(new, topic, b"new")
        new.commit_transaction(30)
        assert read_until(cluster, topic, 4) == [b"new"]

    def test_initialising_an_id_aborts_what_is_open(self, cluster: Cluster) -> None:
        topic = cluster.make_topic()
        open_transaction(producer_of(cluster, topic), topic, b"open")
        assert ends(cluster, topic) == (0, 0)
        producer_of(cluster, topic)
        assert ends(cluster, topic) == (0, 2)
        assert read_until(cluster, topic, 2) == []

    def test_readers_see_neither_what_is_open_nor_what_was_aborted(self, cluster: Cluster) -> None:
        topic = cluster.make_topic()
        first, second = producer_of(cluster, f"{topic}-1"), producer_of(cluster, f"{topic}-2")
        open_transaction(first, topic, b"a")
        first.commit_transaction(30)
        open_transaction(first, topic, b"aborted")
        first.abort_transaction(30)
        assert read_until(cluster, topic, 4) == [b"a"]
        open_transaction(second, topic, b"open")
        open_transaction(first, topic, b"behind it")
        first.commit_transaction(30)
        assert ends(cluster, topic) == (0, 4), "the stable end is the first record of the oldest open transaction"
        assert read_until(cluster, topic, 4) == [b"a"]
        second.commit_transaction(30)
        assert read_until(cluster, topic, 8) == [b"a", b"open", b"behind it"]

    def test_one_request_returns_the_ends_of_several_topics_for_each_kind_of_reader(self, cluster: Cluster) -> None:
        ended, opened = cluster.make_topic(), cluster.make_topic()
        producer = producer_of(cluster, ended)
        open_transaction(producer, ended, b"one")
        producer.commit_transaction(30)
        assert read_until(cluster, ended, 2) == [b"one"]
        producer.begin_transaction()
        for topic in (opened, ended):
            producer.produce(topic, b"open", partition=0)
        producer.flush(30)
        stable = make_consumer(cluster.kafka, "contract")
        everything = make_consumer(cluster.kafka, "contract", isolation_level="read_uncommitted")
        with closing(stable), closing(everything):
            assert log_ends(stable, [ended, opened], 0) == {ended: 2, opened: 0}
            assert log_ends(everything, [ended, opened], 0) == {ended: 3, opened: 1}
        producer.abort_transaction(30)

    def test_the_end_of_a_log_is_told_behind_its_control_records(self, cluster: Cluster) -> None:
        topic = cluster.make_topic()
        producer = producer_of(cluster, topic)
        open_transaction(producer, topic, b"one")
        producer.commit_transaction(30)
        assert read_until(cluster, topic, 2) == [b"one"]
        assert ends(cluster, topic) == (0, 2)

    def test_offsets_of_a_stranger_to_the_group_become_visible_with_the_commit(self, cluster: Cluster) -> None:
        topic = cluster.make_topic()
        group_metadata_consumer: Any = make_consumer(cluster.kafka, topic)
        group_metadata_consumer.assign([])

        def committed() -> int | None:
            try:
                (place,) = group_metadata_consumer.committed([TopicPartition(topic, 0)], 2)
            except KafkaException:
                return None  # a real broker may wait for the end of the transaction
            return place.offset if place.error is None and place.offset >= 0 else None

        producer = producer_of(cluster, topic)
        open_transaction(producer, topic, b"one")
        producer.send_offsets_to_transaction(
            [TopicPartition(topic, 0, 17, "a note")], group_metadata_consumer.consumer_group_metadata(), 30
        )
        assert committed() is None
        producer.commit_transaction(30)
        assert 17 in (committed() for _ in range(LOOKS_MAX))
        (place,) = group_metadata_consumer.committed([TopicPartition(topic, 0)], 30)
        assert place.metadata == "a note"
        group_metadata_consumer.close()

    def test_a_commit_whose_answer_was_lost_may_be_asked_for_again(self, cluster: Cluster) -> None:
        topic = cluster.make_topic()
        producer = producer_of(cluster, topic)
        written: list[bytes | None] = []
        lost: KafkaException | None = None
        while lost is None and len(written) < _ATTEMPTS_MAX:
            # On a busy machine the response may arrive before the timeout.
            open_transaction(producer, topic, b"once")
            written.append(b"once")
            try:
                cluster.commit_without_answer(producer)
            except KafkaException as error:
                lost = error
        assert lost is not None
        assert lost.args[0].retriable()
        producer.commit_transaction(30)
        assert read_until(cluster, topic, 2 * len(written)) == written
        open_transaction(producer, topic, b"next")
        producer.commit_transaction(30)
        assert read_until(cluster, topic, 2 * len(written) + 2) == [*written, b"next"]

    def test_a_reader_is_told_that_its_offset_was_removed(self, cluster: Cluster) -> None:
        topic = cluster.make_topic()
        producer = producer_of(cluster, topic)
        open_transaction(producer, topic, b"one", b"two", b"three")
        producer.commit_transaction(30)
        assert read_until(cluster, topic, 4) == [b"one", b"two", b"three"]
        cluster.delete_records(topic, 2)
        assert ends(cluster, topic) == (2, 4)
        reader: Any = make_reader(cluster.kafka, "contract")
        reader.assign([TopicPartition(topic, 0, 0)])
        found = next(message for _ in range(LOOKS_MAX) if (message := reader.poll(LOOK_S)) is not None)
        assert (found.error().code(), found.topic(), found.partition()) == (_OUT_OF_RANGE, topic, 0)
        reader.close()

    def test_a_reader_does_not_wait_for_more_than_has_arrived(self, cluster: Cluster) -> None:
        topic = cluster.make_topic()
        producer = producer_of(cluster, topic)
        open_transaction(producer, topic, b"one", b"two")
        producer.commit_transaction(30)
        assert read_until(cluster, topic, 3) == [b"one", b"two"]
        with closing(make_reader(cluster.kafka, "contract")) as reader:
            reader.assign([TopicPartition(topic, 0, 0)])
            began_s = time.monotonic()
            found = reader.consume(1000, _WAITS_S)
            assert [message.value() for message in found if message.error() is None] == [b"one", b"two"]
            assert time.monotonic() - began_s < _WAITS_S / 2

    @pytest.mark.parametrize("removed", [2, 4])
    def test_the_last_records_are_those_that_are_left(self, cluster: Cluster, removed: int) -> None:
        topic = cluster.make_topic()
        producer = producer_of(cluster, topic)
        open_transaction(producer, topic, b"one", b"two", b"three")
        producer.commit_transaction(30)
        assert read_until(cluster, topic, 4) == [b"one", b"two", b"three"]
        cluster.delete_records(topic, removed)
        reader: Any = make_reader(cluster.kafka, "contract")
        reader.assign([TopicPartition(topic, 0, OFFSET_TAIL_BASE - 2000)])
        open_transaction(producer, topic, b"next")
        producer.commit_transaction(30)
        found: list[bytes] = []
        for _ in range(LOOKS_MAX):
            message = reader.poll(LOOK_S)
            if message is not None and message.error() is None:
                found.append(message.value())
            elif message is not None and message.error().code() == _OUT_OF_RANGE:
                reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
            if found[-1:] == [b"next"]:
                break
        assert found == [b"three", b"next"][removed // 4 :]
        reader.close()

    def test_a_partition_stays_paused_while_it_is_not_assigned(self, cluster: Cluster) -> None:
        topics = [cluster.make_topic(), cluster.make_topic()]
        for topic in topics:
            producer = producer_of(cluster, topic)
            open_transaction(producer, topic, topic.encode())
            producer.commit_transaction(30)
        paused, other = places = [TopicPartition(topic, 0, 0) for topic in topics]
        found: list[bytes] = []

        def arrives(place: TopicPartition, times: int = 1) -> bool:
            message = consumer.poll(LOOK_S)
            if message is not None and message.error() is None:
                found.append(message.value())
            return found.count(place.topic.encode()) == times

        consumer: Any
        with closing(make_consumer(cluster.kafka, "contract")) as consumer:
            consumer.incremental_assign([paused])
            poll_until(lambda: arrives(paused))
            consumer.pause([paused])
            consumer.incremental_unassign([paused])
            consumer.incremental_assign(places)
            poll_until(lambda: arrives(other))
            assert len(found) == 2
            consumer.resume([paused])
            poll_until(lambda: arrives(paused, times=2))

    def test_a_topic_that_is_made_anew_has_another_id(self, cluster: Cluster) -> None:
        topic = cluster.make_topic()
        admin = make_admin(cluster.kafka)
        before = topic_facts(admin, [topic])
        cluster.delete_topic(topic)
        assert topic_facts(admin, [topic]) == {}
        cluster.make_topic(name=topic)
        assert topic_facts(admin, [topic])[topic].topic_id != before[topic].topic_id


class GroupContract:
    """Contract tests of consumer groups."""

    def test_a_group_that_does_not_exist_has_no_members(self, cluster: Cluster) -> None:
        assert read_group(make_admin(cluster.kafka), cluster.kafka, "no-such-group", _ANSWER_S) == []

    def test_a_member_that_comes_back_under_its_name_gets_its_units_again(self, cluster: Cluster) -> None:
        topic = cluster.make_topic(2)
        one = Member(cluster, topic, topic, "one")
        poll_until(lambda: one.units == {0, 1}, one)
        one.close()
        again = Member(cluster, topic, topic, "one")
        poll_until(lambda: again.units == {0, 1}, again)
        again.close()

    def test_two_members_share_the_units_and_each_has_its_own(self, cluster: Cluster) -> None:
        topic = cluster.make_topic(2)
        one = Member(cluster, topic, topic, "one")
        poll_until(lambda: one.units == {0, 1}, one)
        two = Member(cluster, topic, topic, "two")
        poll_until(lambda: len(one.units) == len(two.units) == 1, one, two)
        assert one.units | two.units == {0, 1}
        found = read_group(make_admin(cluster.kafka), cluster.kafka, topic, _ANSWER_S)
        assert {member.name: {(place.topic, place.partition) for place in member.assigned} for member in found} == {
            "one": {(topic, unit) for unit in one.units},
            "two": {(topic, unit) for unit in two.units},
        }
        one.close()
        poll_until(lambda: two.units == {0, 1}, two)
        two.close()

    def test_a_second_member_of_a_name_fences_the_first(self, cluster: Cluster) -> None:
        topic = cluster.make_topic(2)
        one = Member(cluster, topic, topic, "one")
        poll_until(lambda: one.units == {0, 1}, one)
        other = Member(cluster, topic, topic, "one")

        def is_fenced_off() -> bool:
            return any(error.code() == _FATAL and "instance" in error.str() for error in one.errors)

        poll_until(lambda: is_fenced_off() and other.units == {0, 1}, other, one)
        one.consumer.close()
        other.close()
