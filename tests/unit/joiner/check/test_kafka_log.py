"""Does the tester's consumer have the metadata of a topic before it is assigned to it?

Otherwise, the client library only looks for them at its next tick, up to a second later.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from joiner.check.found.evidence import EvidenceError
from joiner.check.found.kafka_log import KafkaEvidence
from tests.unit.joiner.runtime.joiner_inputs import DATA, POWER, make_settings

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
