"""``joiner merge`` on the Kafka in memory: replicas write, and the process that merges dies at any call."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

import pytest
from confluent_kafka import KafkaError, KafkaException

from broker.kafka.replicas import merged_topic, replica_name
from broker.kafka.topics import TopicFacts
from broker.wire.start_records import encode_start
from joiner.cli.merging import output, restoring, session
from joiner.cli.merging.merger import merge_topics
from joiner.cli.merging.restoring import Restoring
from joiner.cli.merging.session import COMPLETE_S, Session
from joiner.library.merging.inputs import Place
from joiner.library.merging.protocol import ReplicaUnion, Verdict
from joiner.library.merging.vectors import Vector
from joiner.runtime.settings import JoinerSettings
from tests.manual_clock import ManualClock
from tests.property.replica_histories import END, TOPICS, Replicas
from tests.simulation.memory_clients import MemoryProducer
from tests.simulation.memory_consumer import MemoryConsumer
from tests.simulation.memory_kafka import MemoryKafka, kafka_error
from tests.simulation.memory_log import COMMITTED
from tests.unit.joiner.runtime.runner_parts import AtOnce

Result = TypeVar("Result")

IDLE_TURNS: Final = 25
"""After so many turns without anything new, all has been read."""


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


class MergingWorld:
    """One unit of replicas, and the processes that merge it, one after the other.

    ``partitions``: how many partitions there are. Only the first one is that of the unit.
    """

    def __init__(self, seed: int, patch: pytest.MonkeyPatch, partitions: int = 1) -> None:
        self.draw = random.Random(seed)
        self.clock = ManualClock()
        self.kafka = MemoryKafka(lambda: self.clock.now_s)
        self.kafka.restart_s = 2.0
        self.forgets = self.draw.choice((0.0, 0.0, 0.5, 1.0))
        """The share of the markers that Kafka forgets when it restarts."""
        count = self.draw.randint(2, 3)
        self.limit = self.draw.choice((2, 8, 64))
        self.settings = JoinerSettings.model_validate(
            {
                "application": {"name": "app", "replicas": count},
                "topics": {"partitions": partitions},
                "join": [{"name": "j", "left": "a", "right": "b", "output": "c"}],
            }
        )
        topics = self.settings.topics
        self.replicas = {topic: Replicas(self.draw, count) for topic in (topics.out, topics.late)}
        """By topic, because each has start records of its own."""
        for spec in merge_topics(self.settings):
            self.kafka.create_topic(spec.name, spec.partitions)
        for name in TOPICS:
            self.kafka.create_topic(name, partitions)
            for _ in range(END):
                self.kafka.append(name, 0, None, b"input")
        self.facts = {name: TopicFacts(topic.topic_id, partitions) for name, topic in self.kafka.topics.items()}
        self.sources = [
            (replica_name(topic, number), 0)
            for topic in self.settings.output_topics.values()
            for number in range(count)
        ]
        self._sent: Counter[Place] = Counter()
        self.resets: list[tuple[str, set[int]]] = []
        """The topic of each output whose only complete replica was reset, and what had been merged into it."""
        self.skips: set[str] = set()
        """Those of which something may be missing after that."""
        self._delivered: WeakKeyDictionary[ReplicaUnion, set[str]] = WeakKeyDictionary()
        """What each union has delivered since it was restored."""
        self._watch(patch)
        self.link = self._new_link()
        self.consumed_with: dict[str, Any] = {}
        """The settings of the last consumer."""
        self.session: Session | None = None
        patch.setattr(output, "make_producer", self._make_producer)
        patch.setattr(session, "make_consumer", self._make_consumer)
        for module in (session, restoring):
            patch.setattr(module, "make_reader", self._make_reader)

    def _watch(self, patch: pytest.MonkeyPatch) -> None:
        """Note what unions deliver, and when their only complete replica goes back."""
        on_start, on_result = ReplicaUnion.on_start, ReplicaUnion.on_result

        def noted(union: ReplicaUnion, replica: int, identity: str, *more: Any) -> Verdict:
            verdict = on_result(union, replica, identity, *more)
            if verdict is Verdict.DELIVER:
                self._delivered.setdefault(union, set()).add(identity)
            return verdict

        def watched(union: ReplicaUnion, replica: int, start: Vector, *more: Any) -> bool:
            is_only = on_start(union, replica, start, *more)
            if is_only:
                self._note_reset(union, is_skipped=replica > 0 and not start)
            return is_only

        patch.setattr(ReplicaUnion, "on_start", watched)
        patch.setattr(ReplicaUnion, "on_result", noted)

    def _new_link(self) -> MortalLink:
        return MortalLink(self.kafka, self.clock, self.draw)

    def _make_producer(self, _kafka: Any, **more: Any) -> MemoryProducer:
        return MemoryProducer(self.link, {name.replace("_", "."): value for name, value in more.items()})

    def _make_consumer(self, _kafka: Any, group: str, **more: Any) -> MemoryConsumer:
        config = {name.replace("_", "."): value for name, value in more.items()}
        self.consumed_with = config
        return MemoryConsumer(self.link, {"group.id": group, "auto.offset.reset": "error", **config})

    def _make_reader(self, *given: Any, **more: Any) -> MemoryConsumer:
        return self._make_consumer(*given, enable_partition_eof=True, **more)

    def send(self) -> None:
        """Write what the replicas have written to their topics, in transactions."""
        for topic, replicas in self.replicas.items():
            for number, writer in enumerate(replicas.writers):
                place = replica_name(topic, number), 0
                new, self._sent[place] = writer.log[self._sent[place] :], len(writer.log)
                self.write(place[0], *(encode_start(what) if kind == "start" else result(what) for kind, what in new))

    def write(self, topic: str, *values: bytes, state: str = COMMITTED, partition: int = 0) -> None:
        """Write messages to a topic, in one transaction."""
        transaction = self.kafka.begin_source()
        for value in values:
            self.kafka.append(topic, partition, None, value, transaction)
        self.kafka.end_source(transaction, state)

    def settle(self) -> None:
        """Merge until everything is merged and committed, also the positions of quiet topics."""
        self.link.calls_left, self.link.loses_answers, self.kafka.forgets = None, 0.0, None
        for _ in range(2):
            idle = 0
            while idle < IDLE_TURNS:
                idle = 0 if self.turn() else idle + 1
            self.clock.now_s += COMPLETE_S + 1.0

    def retain_nothing(self) -> None:
        """Delete everything from the topics of the replicas, as retention does after a quiet week."""
        for place in self.sources:
            log = self.kafka.log(*place)
            log.remove_before(log.stable_end)

    def restart(self) -> None:
        """Let another process continue."""
        if self.session is not None:
            self.session.close()
        self.session = None

    def recreate(self, topic: str) -> None:
        """Delete a topic and create it again."""
        self.kafka.delete_topic(topic)
        self.kafka.create_topic(topic, 1)
        self.facts[topic] = TopicFacts(self.kafka.topics[topic].topic_id, 1)

    def use(self, replicas: int) -> None:
        """Let another process continue with other settings."""
        application = self.settings.application.model_copy(update={"replicas": replicas})
        self.settings = self.settings.model_copy(update={"application": application})
        self.restart()

    def merged_values(self, topic: str) -> list[bytes | None]:
        """Return what was written to a merged topic, including what retention has deleted."""
        return [entry.value for entry in self.kafka.log(merged_topic(topic), 0).archive if entry.is_committed]

    def turn(self) -> bool:
        """Let the process that merges do something, or start it. Return whether it has committed anything."""
        try:
            with self._replaces_the_dead():
                if self.session is None:
                    self.session = self.begin_session()
                return self.session.turn()
        except KafkaException:
            with self._replaces_the_dead(), suppress(KafkaException):
                if self.session is not None:
                    self.session.close()
            self.session = None
        return False

    def begin_session(self) -> Session:
        """Let a process that merges restore what was committed. Raises what `Session` does."""
        restoring = Restoring(self.settings, self.clock, self.facts, self.limit, AtOnce())
        return Session(self.settings, self.clock, self.facts, restoring)

    @contextmanager
    def _replaces_the_dead(self) -> Iterator[None]:
        try:
            yield
        except Killed:
            self.session, self.link = None, self._new_link()

    def merged(self, topic: str) -> Counter[int]:
        """Return how often each id is in a merged topic."""
        return Counter(number_of(json.loads(value or b"")["id"]) for value in self.merged_values(topic))

    def difference(self) -> str | None:
        """Return what is wrong with the merged topics once everything was merged, or None."""
        for topic, replicas in self.replicas.items():
            counts = self.merged(topic)
            missing = replicas.emission.upto((END,) * replicas.topics) - counts.keys()
            if missing and topic not in self.skips:
                return f"{topic} lacks {sorted(missing)}"
            for about, before in self.resets:
                counts.subtract(before if about == topic else ())
            if twice := sorted(identity for identity, count in counts.items() if count > 1):
                return f"{topic} has too often: {twice}"
            assert self.session is not None
            union = self.session.partitions[topic, 0].union
            if union.remembered or union.complete != list(range(len(replicas.writers))):
                return f"{topic}: {union.remembered} ids are remembered, {union.complete} are complete"
        return None

    def _note_reset(self, union: ReplicaUnion, *, is_skipped: bool) -> None:
        assert self.session is not None
        topic = next(topic for (topic, _), merged in self.session.partitions.items() if merged.union is union)
        open_ = set(map(number_of, self._delivered.get(union, ())))
        self.resets.append((topic, set(self.merged(topic)) | open_))
        self.skips |= {topic} if is_skipped else set()


def result(number: int) -> bytes:
    """Return a result with an id."""
    return b'{"id": "j:0:%d"}' % number


def number_of(identity: str) -> int:
    """Return the number in the id of a result."""
    return int(identity.rpartition(":")[2])
