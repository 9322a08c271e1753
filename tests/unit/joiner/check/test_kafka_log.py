"""Does the tester's consumer have the metadata of a topic before it is assigned to it?

Otherwise, the client library only looks for them at its next tick, up to a second later.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest
from confluent_kafka import KafkaError, KafkaException

from joiner.check.found.evidence import EvidenceError, Message
from joiner.check.found.kafka_log import KafkaEvidence
from joiner.runtime.model import checkpoint_key, encode
from joiner.runtime.settings import JoinerSettings, replica_settings
from tests.unit.joiner.runtime.joiner_inputs import DATA, POWER, make_settings
from tests.unit.joiner.runtime.test_model import make_checkpoint

SETTINGS = make_settings(POWER)


class Consumer:
    """Has nothing but ends of partitions. ``calls``: what it was asked for."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.error: KafkaError | None = None
        self._at: Any = None

    def list_topics(self, topic: str, _timeout_s: float) -> None:
        if self.error is not None:
            raise KafkaException(self.error)
        self.calls.append(f"metadata of {topic}")

    def assign(self, places: Sequence[Any]) -> None:
        (self._at,) = places
        self.calls.append(f"{self._at.topic} {self._at.partition}")

    def consume(self, _count: int, _wait_s: float) -> list[Any]:
        return [End()]

    def close(self) -> None:
        pass


class End:
    """The end of a partition that has ten offsets, without a message."""

    def error(self) -> KafkaError:
        return KafkaError(KafkaError._PARTITION_EOF)  # noqa: SLF001 - the public name of the constant

    def offset(self) -> int:
        return 10


@pytest.fixture
def consumer() -> Consumer:
    return Consumer()


@pytest.fixture
def evidence(consumer: Consumer, monkeypatch: pytest.MonkeyPatch) -> KafkaEvidence:
    made = KafkaEvidence(SETTINGS)
    made.close()
    monkeypatch.setattr(made, "_consumer", consumer)
    monkeypatch.setattr(made, "_range", lambda _topic, _partition: (0, 10))
    return made


def test_the_metadata_of_each_topic_are_requested_once_before_it_is_read(
    evidence: KafkaEvidence, consumer: Consumer
) -> None:
    for unit in range(2):
        assert list(evidence.inputs(unit, DATA, 0, 10)) == []
    assert evidence.checkpoint_after(1) is None
    state = SETTINGS.state_topic
    assert consumer.calls == [f"metadata of {DATA}", f"{DATA} 0", f"{DATA} 1", f"metadata of {state}", f"{state} 1"]


def test_nothing_is_requested_for_an_empty_partition(evidence: KafkaEvidence, consumer: Consumer) -> None:
    assert list(evidence.inputs(0, DATA, 10, 10)) == []
    assert consumer.calls == []


def test_metadata_that_cannot_be_read_are_named(evidence: KafkaEvidence, consumer: Consumer) -> None:
    consumer.error = KafkaError(KafkaError._TIMED_OUT)  # noqa: SLF001 - the public name of the constant
    with pytest.raises(EvidenceError, match=f"the metadata of {DATA} cannot be read: "):
        list(evidence.inputs(0, DATA, 0, 10))


REPLICAS = [replica_settings(make_settings(POWER, application={"replicas": 3}), number) for number in range(3)]


def checkpoint_of(settings: JoinerSettings, offset: int, **changes: Any) -> Message:
    made = make_checkpoint(application=settings.application.name, offsets={DATA: offset}, **changes)
    made = msgspec.structs.replace(made, fingerprint=changes.get("fingerprint", settings.fingerprint()))
    return Message(settings.state_topic, 0, 5, 0, checkpoint_key(0).encode(), encode(made))


def merged(monkeypatch: pytest.MonkeyPatch, *checkpoints: Message) -> KafkaEvidence:
    """Return the evidence of merged topics. Each contains a message whose value is the name of the topic."""
    made = KafkaEvidence(REPLICAS[0], is_merged=True)
    made.close()
    by_topic = {one.topic: one for one in checkpoints}

    def read(topic: str, partition: int, _start: int, _stop: int) -> Iterator[Message]:
        yield by_topic.get(topic) or Message(topic, partition, 0, 0, None, topic.encode())

    monkeypatch.setattr(made, "_read", read)
    monkeypatch.setattr(made, "_range", lambda _topic, _partition: (0, 10))
    monkeypatch.setattr(made, "_ends", collections.defaultdict(lambda: 10))
    return made


def test_the_merged_topics_are_read_for_all_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    found = merged(monkeypatch)
    values = [next(iter(some)).value for some in (found.out(0), found.late(), found.rejected())]
    assert values == [b"machine.out.merged", b"machine.late.merged", b"machine.rejected.merged"]


def test_merged_outputs_are_as_far_as_the_replica_furthest_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = checkpoint_of(REPLICAS[1], 20, founded={DATA: 8})
    found = merged(monkeypatch, checkpoint_of(REPLICAS[0], 15), ahead).checkpoint_after(0)
    assert found is not None
    assert found.offsets == {DATA: 20}
    assert found.founded == {}, "the others have written what precedes it"
    assert found.fingerprint == REPLICAS[0].fingerprint()


def test_a_replica_with_other_settings_is_not_taken_for_one_of_the_application(monkeypatch: pytest.MonkeyPatch) -> None:
    found = merged(monkeypatch, checkpoint_of(REPLICAS[1], 20, fingerprint="another")).checkpoint_after(0)
    assert found is not None
    assert found.fingerprint == "another"
