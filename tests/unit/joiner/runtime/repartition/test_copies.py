"""Is each message copied to the partition of its key, and committed with the offsets of the originals?"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from broker.kafka.topics import TopicFacts
from broker.partitioner import partition_of
from joiner.runtime.repartition import copies
from joiner.runtime.repartition.copies import CopyRefused, CopyWriter
from joiner.runtime.repartition.merging import Part
from joiner.runtime.repartition.prior import RepartitionError
from joiner.runtime.task.decoding.messages import Messages
from tests.manual_clock import ManualClock
from tests.unit.joiner.runtime.joiner_inputs import make_settings
from tests.unit.joiner.runtime.repartition.recording import Produced, RecordingProducer

SPEED: dict[str, Any] = {
    "name": "speed",
    "topic": "plant",
    "key": "$.id",
    "time": "$.ts",
    "value": "$.rpm",
    "repartition": True,
}
MEMBER: Any = SimpleNamespace(consumer_group_metadata=lambda: "group")
OFFSETS = [TopicPartition("plant", 6, 13, "note")]
FACTS = {"plant": TopicFacts("source-id", 7)}


@pytest.fixture
def producer(monkeypatch: pytest.MonkeyPatch) -> RecordingProducer:
    made = RecordingProducer()
    monkeypatch.setattr(copies, "make_producer", lambda _kafka, **_more: made)
    return made


def writer_of(**stream: Any) -> CopyWriter:
    return CopyWriter(make_settings(stream=[SPEED | stream], partitions=4), FACTS, ManualClock())


def part(*messages: tuple[bytes | None, bytes | None], at_ms: int = 77, partition: int = 6) -> Part:
    values, keys = [value for value, _ in messages], [key for _, key in messages]
    offsets = range(10, 10 + len(messages))
    return Part("plant", partition, Messages.of(offsets, [at_ms] * len(messages), values, keys))


def copied(producer: RecordingProducer, writer: CopyWriter, given: Part) -> list[Produced]:
    writer.commit([given], OFFSETS, MEMBER)
    return producer.committed


def test_a_copy_is_in_the_partition_of_its_key_and_otherwise_as_it_was(producer: RecordingProducer) -> None:
    value = b'{"id": "m7", "more": [1]}'
    (copy,) = copied(producer, writer_of(), part((value, b"another key")))
    right = partition_of(b"m7", 4)
    assert copy == Produced("lsb.plant.repartition", value, b"m7", right, 77, [("lsb-origin", b"plant/6/10/source-id")])
    assert producer.offsets == {("plant", 6): (13, "note")}


@pytest.mark.parametrize("value", [None, b"", b"{", b'{"id": null}', b'{"id": ""}'])
def test_a_message_whose_key_cannot_be_read_is_copied_as_well(producer: RecordingProducer, value: bytes | None) -> None:
    (copy,) = copied(producer, writer_of(), part((value, b"k")))
    assert (copy.value, copy.key, copy.partition) == (value, b"k", 6 % 4)


def test_the_key_can_be_that_of_the_message_or_a_constant(producer: RecordingProducer) -> None:
    copied(producer, writer_of(key="kafka.key"), part((b"no JSON", b"m1"), (None, None), (b"", b"\xff")))
    copied(producer, writer_of(key="'press'"), part((b"{}", b"m1")))
    found = [(copy.key, copy.partition) for copy in producer.committed]
    assert found == [
        (b"m1", partition_of(b"m1", 4)),
        (None, 2),
        (b"\xff", 2),
        (b"press", partition_of(b"press", 4)),
    ]


@pytest.mark.parametrize("at_ms", [-1, 0])
def test_a_copy_never_gets_the_current_time(producer: RecordingProducer, at_ms: int) -> None:
    """The client replaces a timestamp of 0 by the current time."""
    (copy,) = copied(producer, writer_of(), part((b"{}", None), at_ms=at_ms))
    assert copy.timestamp == 1


def test_a_full_queue_is_waited_for(producer: RecordingProducer) -> None:
    producer.faults["produce"] = [BufferError(), BufferError()]
    assert len(copied(producer, writer_of(), part((b"{}", None), (b"{}", None)))) == 2


def error(code: int, **flags: bool) -> KafkaException:
    return KafkaException(KafkaError(code, "refused", **flags))


def test_a_commit_without_an_answer_is_asked_for_again(producer: RecordingProducer) -> None:
    producer.faults["commit"] = [error(KafkaError.REQUEST_TIMED_OUT, retriable=True)] * 3
    writer = writer_of()
    assert len(copied(producer, writer, part((b"{}", None)))) == 1
    writer.close()
    assert producer.aborts == 0


@pytest.mark.parametrize("what", ["offsets", "commit"])
def test_what_the_group_has_fenced_is_aborted_and_not_committed(producer: RecordingProducer, what: str) -> None:
    producer.faults[what] = [error(KafkaError.ILLEGAL_GENERATION, txn_requires_abort=True)]
    writer = writer_of()
    with pytest.raises(KafkaException):
        writer.commit([part((b"{}", None))], OFFSETS, MEMBER)
    writer.close()
    assert (producer.committed, producer.offsets, producer.aborts) == ([], {}, 1)


@pytest.mark.parametrize(
    ("code", "setting"),
    [(KafkaError.MSG_SIZE_TOO_LARGE, "max.message.bytes="), (KafkaError.INVALID_TIMESTAMP, "timestamp.before.max.ms=")],
)
def test_a_message_that_kafka_refuses_is_named_with_the_remedy(
    producer: RecordingProducer, code: int, setting: str
) -> None:
    """Kafka also refuses the messages that are sent together with one that is too large."""
    refused = KafkaError(code, "refused")
    producer.refusals = {b"{}": [refused], b"{    }": [refused], b"{ }": [refused]}
    producer.faults["offsets"] = [error(KafkaError._STATE)]  # noqa: SLF001 - the public name
    with pytest.raises(RepartitionError, match=f"plant partition 6 offset 11 .6 bytes. .*lsb.plant.repart.*{setting}"):
        copied(producer, writer_of(), part((b"{}", None), (b"{    }", None), (b"{ }", None)))


def test_a_refused_message_is_named_even_if_the_client_refuses_the_ones_after_it(producer: RecordingProducer) -> None:
    """Once Kafka has refused a copy, the transaction has failed, and the client accepts no more of them."""
    producer.refusals = {b"{}": [KafkaError(KafkaError.MSG_SIZE_TOO_LARGE, "refused")]}
    producer.faults["produce"] = [None, error(KafkaError._STATE)]  # noqa: SLF001 - the public name
    with pytest.raises(CopyRefused, match=r"offset 10 .*max\.message\.bytes="):
        copied(producer, writer_of(), part((b"{}", None), (b"innocent", None)))


@pytest.mark.parametrize("what", ["produce", "offsets", "commit"])
def test_a_transaction_that_has_failed_says_why_and_blames_no_message(producer: RecordingProducer, what: str) -> None:
    producer.faults[what] = [error(KafkaError._STATE)]  # noqa: SLF001 - the public name
    producer.faults["begin"] = [None, KafkaException(KafkaError(KafkaError.PRODUCER_FENCED, "another one"))]
    with pytest.raises(KafkaException, match="another one"):
        copied(producer, writer_of(), part((b"{}", None)))


def test_a_message_that_is_too_large_for_the_client_is_named_with_how_to_leave_it_out(
    producer: RecordingProducer,
) -> None:
    """The configuration of the topic does not matter then."""
    producer.faults["produce"] = [error(KafkaError.MSG_SIZE_TOO_LARGE)]
    leave_out = "--group lsb/repartition --topic plant:6 --reset-offsets --to-offset 11 "
    with pytest.raises(CopyRefused, match=f"plant partition 6 offset 10 .*to leave it out, stop all .*{leave_out}"):
        copied(producer, writer_of(), part((b"{}", None)))


@pytest.mark.parametrize("place", range(4))
def test_what_is_before_a_message_that_is_too_large_for_the_client_is_copied_and_nothing_else(
    producer: RecordingProducer, place: int
) -> None:
    """The advice is to set the offset behind it: what has not been copied before it would be lost."""
    producer.faults["produce"] = [*[None] * place, error(KafkaError.MSG_SIZE_TOO_LARGE)]
    parts = [
        part((b"1", None), (b"3", None), at_ms=1, partition=5),
        part((b"5", None), (b"7", None), at_ms=2),
        part((b"9", None), at_ms=3, partition=7),
    ]
    ends = [TopicPartition("plant", number, 13, f"note {number}") for number in (4, 5, 6, 7)]
    writer = writer_of()
    partition, refused = (5, 6)[place // 2], 10 + place % 2
    with pytest.raises(CopyRefused, match=f"partition {partition} offset {refused} .* --to-offset {refused + 1} "):
        writer.commit(parts, ends, MEMBER)
    assert [copy.value for copy in producer.committed] == [b"1", b"3", b"5", b"7"][:place]
    assert producer.offsets == {
        ("plant", 4): (13, "note 4"),
        ("plant", 5): (13 if partition == 6 else refused, "note 5"),
        ("plant", 6): (refused if partition == 6 else 10, "note 6"),
        ("plant", 7): (10, "note 7"),
    }
    writer.close()
    assert producer.aborts == 0


def test_the_member_is_asked_for_its_generation_after_the_copies(producer: RecordingProducer) -> None:
    """Otherwise, a rebalance in the meantime that leaves the partitions here would make the transaction fail."""
    seen: list[int] = []

    def generation() -> str:
        seen.append(len(producer.produced))
        return "group"

    member: Any = SimpleNamespace(consumer_group_metadata=generation)
    writer_of().commit([part((b"{}", None), (b"{ }", None))], OFFSETS, member)
    assert seen == [2]
