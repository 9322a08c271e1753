"""Does the in-memory broker behave like a real one?

tests/integration/test_kafka_contract runs the same tests on a real broker.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest
from confluent_kafka import KafkaError

from broker.settings import KafkaSettings
from tests.simulation.batch_reader_contract import BatchReaderContract
from tests.simulation.copy_contract import CopyContract
from tests.simulation.kafka_contract import GroupContract, KafkaContract
from tests.simulation.memory_clients import MemoryProducer
from tests.simulation.memory_kafka import MemoryKafka, kafka_error
from tests.simulation.stage import on_stage

Result = TypeVar("Result")


class QuietLink:
    """A `Link` without faults."""

    name = "quiet"

    def __init__(self, world: QuietWorld) -> None:
        self.kafka = world.memory
        self.draw: random.Random | None = None
        self.loses_answers = False
        self._world = world

    def act(self, call: str, effect: Callable[[], Result]) -> Result:
        """See `Link`."""
        result = effect()
        if self.loses_answers and call == "commit":
            self.loses_answers = False
            raise kafka_error(KafkaError._TIMED_OUT, "no answer", retriable=True)  # noqa: SLF001 - public name
        return result

    def pass_time(self, seconds: float) -> None:
        """See `Link`."""
        self._world.clock_s += seconds
        self.kafka.expire_transactions()
        for group in self.kafka.groups.values():
            group.expire()

    def beats(self) -> bool:
        """See `Link`."""
        return True

    def attach(self, producer: MemoryProducer) -> None:
        """See `Link`."""


class QuietWorld:
    """A `Cluster` in memory, and the `stage.World` of one process."""

    kafka = KafkaSettings()

    def __init__(self) -> None:
        self.clock_s = 0.0
        self.memory = MemoryKafka(lambda: self.clock_s, hides_unstable_offsets=True)
        self.memory.is_slow_to_end = True
        self.draw = random.Random(1)
        self.snapshot_bytes_max = 10**9
        self.older: set[str] = set()
        self.link = QuietLink(self)

    def beside(self, work: Callable[[], None]) -> Callable[[Callable[[], bool]], None]:
        """See `stage.World`."""
        raise NotImplementedError

    def note(self, text: str, *arguments: Any) -> None:
        """See `stage.World`."""

    def complain(self, text: str) -> None:
        """See `stage.World`."""

    def make_topic(self, partitions: int = 1, name: str = "") -> str:
        """See `Cluster`."""
        name = name or f"topic-{len(self.memory.topics)}"
        self.memory.create_topic(name, partitions)
        return name

    def delete_topic(self, name: str) -> None:
        """See `Cluster`."""
        self.memory.delete_topic(name)

    def delete_records(self, topic: str, before: int) -> None:
        """See `Cluster`."""
        self.memory.log(topic, 0).remove_before(before)

    def commit_without_answer(self, producer: Any) -> None:
        """See `Cluster`."""
        self.link.loses_answers = True
        producer.commit_transaction(30)


@pytest.fixture
def cluster() -> Iterator[QuietWorld]:
    world = QuietWorld()
    with on_stage(world):
        yield world


class TestMemory(GroupContract, KafkaContract):
    """Runs the contract on the in-memory broker."""


class TestCopiesInMemory(CopyContract):
    """Runs the contract of repartitioning on the in-memory broker."""


class TestObjectsFromMemory(BatchReaderContract):
    """Reads objects from the in-memory broker."""

    native = False
