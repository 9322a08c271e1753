"""``joiner merge`` on the Kafka in memory: replicas write, and the process that merges dies at any call."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, TypeVar

import pytest
from confluent_kafka import KafkaError, KafkaException

from broker.kafka.topics import TopicFacts
from broker.wire.start_records import encode_start
from joiner.cli.merging import output, session
from joiner.cli.merging.merger import merge_topics
from joiner.cli.merging.session import Session
from joiner.library.merging.topics import merged_topic, replica_name
from joiner.runtime.settings import JoinerSettings
from tests.manual_clock import ManualClock
from tests.property.replica_histories import END, Replicas
from tests.simulation.memory_clients import MemoryMessage, MemoryProducer
from tests.simulation.memory_consumer import MemoryConsumer
from tests.simulation.memory_kafka import MemoryKafka, kafka_error
from tests.simulation.memory_log import COMMITTED

Result = TypeVar("Result")

_HEADER = b"\x01"
"""Begins a value that contains a header as well, because the logs in memory have none."""


class Killed(BaseException):
    """The process has died."""


class MortalLink:
    """A `Link` to the broker of a process that dies at a call, or loses the answer to a commit."""

    name = "merger"

    def __init__(self, kafka: MemoryKafka, clock: ManualClock, draw: random.Random) -> None:
        self.kafka, self._draw, self._clock = kafka, draw, clock
        self.draw: random.Random | None = draw
        self.calls_left: int | None = None
        """After how many calls the process dies, or None if it does not."""
        self.loses_answers = 0.0

    def act(self, call: str, effect: Callable[[], Result]) -> Result:
        """See `Link`."""
        if self.calls_left is not None:
            self.calls_left -= 1
            if self.calls_left <= 0:
                if self.calls_left == 0 and self._draw.random() < 0.5:
                    effect()
                raise Killed
        result = effect()
        if call == "commit" and self._draw.random() < self.loses_answers:
            raise kafka_error(KafkaError._TIMED_OUT, "no answer", retriable=self._draw.random() < 0.5)  # noqa: SLF001 - public name
        return result

    def pass_time(self, seconds: float) -> None:
        """See `Link`."""
        self._clock.now_s += seconds
        self.kafka.expire_transactions()

    def beats(self) -> bool:
        """See `Link`."""
        return True

    def attach(self, producer: MemoryProducer) -> None:
        """See `Link`."""


class Producer(MemoryProducer):
    """A producer whose messages may have a header."""

    def produce(self, *given: Any, headers: list[tuple[str, bytes]] | None = None, **named: Any) -> None:
        """See `MemoryProducer`."""
        topic, value, *rest = given
        if headers:
            value = _HEADER + headers[0][1] + b" " + value
        super().produce(topic, value, *rest, **named)


class Message(NamedTuple):
    """A message that may have a header."""

    inner: MemoryMessage

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def value(self) -> bytes | None:
        """Return the value without the header."""
        value = self.inner.value()
        return value.partition(b" ")[2] if value and value.startswith(_HEADER) else value

    def headers(self) -> list[tuple[str, bytes]] | None:
        """Return the header."""
        value = self.inner.value() or b""
        return [("lsb-replica", value[1:].partition(b" ")[0])] if value.startswith(_HEADER) else None


class Consumer(MemoryConsumer):
    """A consumer of messages that may have a header."""

    def consume(self, num_messages: int = 1, timeout: float = 0) -> list[Any]:
        """See `MemoryConsumer`."""
        return [Message(one) for one in super().consume(num_messages, timeout)]


class MergingWorld:
    """One unit of replicas, and the processes that merge it, one after the other."""

    def __init__(self, seed: int, patch: pytest.MonkeyPatch) -> None:
        self.draw = random.Random(seed)
        self.clock = ManualClock()
        self.kafka = MemoryKafka(lambda: self.clock.now_s)
        count = self.draw.randint(2, 3)
        self.limit = self.draw.choice((2, 8, 64))
        self.replicas = Replicas(self.draw, count)
        self.settings = JoinerSettings.model_validate(
            {
                "application": {"name": "app", "replicas": count},
                "topics": {"partitions": 1},
                "join": [{"name": "j", "left": "a", "right": "b", "output": "c"}],
            }
        )
        for spec in merge_topics(self.settings):
            self.kafka.create_topic(spec.name, spec.partitions)
        self.facts = {name: TopicFacts(topic.topic_id, 1) for name, topic in self.kafka.topics.items()}
        self._sent = [0] * count
        self.link = self._new_link()
        self.session: Session | None = None
        self.begins_anew = False
        patch.setattr(output, "make_producer", self._make_producer)
        patch.setattr(session, "make_consumer", self._make_consumer)
        patch.setattr(
            session,
            "make_reader",
            lambda *given, **more: self._make_consumer(*given, enable_partition_eof=True, **more),
        )

    def _new_link(self) -> MortalLink:
        return MortalLink(self.kafka, self.clock, self.draw)

    def _make_producer(self, _kafka: Any, **more: Any) -> Producer:
        return Producer(self.link, {name.replace("_", "."): value for name, value in more.items()})

    def _make_consumer(self, _kafka: Any, group: str, **more: Any) -> Consumer:
        config = {name.replace("_", "."): value for name, value in more.items()}
        return Consumer(self.link, {"group.id": group, "auto.offset.reset": "error", **config})

    def send(self) -> None:
        """Write what the replicas have written to their topics, in transactions."""
        for number, writer in enumerate(self.replicas.writers):
            new, self._sent[number] = writer.log[self._sent[number] :], len(writer.log)
            transaction = self.kafka.begin_source()
            for kind, what in new:
                value = encode_start(what) if kind == "start" else json.dumps({"id": f"j:0:{what}"}).encode()
                self.kafka.append(replica_name(self.settings.topics.out, number), 0, None, value, transaction)
            self.kafka.end_source(transaction, COMMITTED)

    def turn(self) -> bool:
        """Let the process that merges do something, or start it. Return whether it has committed anything."""
        try:
            with self._replaces_the_dead():
                if self.session is None:
                    self.session = Session(self.settings, self.clock, self.facts, self.limit)
                return self.session.turn()
        except KafkaException:
            with self._replaces_the_dead(), suppress(KafkaException):
                if self.session is not None:
                    self.session.close()
            self.session = None
        return False

    @contextmanager
    def _replaces_the_dead(self) -> Iterator[None]:
        try:
            yield
        except Killed:
            self.session, self.link = None, self._new_link()

    def merged(self) -> Counter[int]:
        """Return how often each id is in the merged topic."""
        entries, _ = self.kafka.log(merged_topic(self.settings.topics.out), 0).read(0, 1_000_000, committed=True)
        values = [(entry.value or b"").partition(b" ")[2] for entry in entries]
        return Counter(int(json.loads(value)["id"].rpartition(":")[2]) for value in values)

    def difference(self) -> str | None:
        """Return what is wrong with the merged topic, or None."""
        found = self.merged()
        missing = self.replicas.emission.upto((END,) * self.replicas.topics) - found.keys()
        twice = sorted(identity for identity, count in found.items() if count > 1)
        return f"lost: {sorted(missing)}, merged twice: {twice}" if missing or twice else None
