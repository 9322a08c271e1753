"""Kafka's transactions in memory, as far as putting records back needs them, and processes that die at any step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final

import pytest
from confluent_kafka import IsolationLevel, KafkaError, KafkaException

from broker.kafka.topics import TopicFacts
from control.actions import reinjection
from control.actions.audit import audit_topic
from control.facts.dead_letter_reading import LetterGone
from joiner.runtime.kafka.clients import EARLIEST
from joiner.runtime.settings import JoinerSettings
from tests.unit.control.letters_made import message

POINTS: Final = tuple(
    f"{when} {step}" for step in ("init", "begin", "produce", "commit") for when in ("before", "after")
)
"""The points at which a process may die, in order. Each record is produced by a call of its own."""


class Died(BaseException):
    """The process is gone."""


@dataclass
class Stored:
    """A record in a log. ``state``: ``open``, ``committed`` or ``aborted``."""

    value: bytes
    key: bytes | None
    state: str = "open"


@dataclass
class Broker:
    """The logs, and the one transactional id. ``at``: called at each of `POINTS`."""

    settings: JoinerSettings
    letters: dict[tuple[int, int], bytes] = field(default_factory=dict)
    logs: dict[tuple[str, int], list[Stored]] = field(default_factory=dict)
    epoch: int = 0
    opened: list[Stored] = field(default_factory=list)
    at: Callable[[str], None] = lambda _point: None
    producers: int = 0

    def __post_init__(self) -> None:
        for topic in self.settings.input_topics:
            for partition in range(self.settings.topics.partitions):
                self.logs[topic, partition] = []

    @property
    def audit(self) -> tuple[str, int]:
        """The partition of the audit topic."""
        return audit_topic(self.settings), 0

    def committed(self, topic: str) -> list[tuple[int, bytes | None, bytes]]:
        """Return the committed records of a topic: the partition, the key and the value."""
        return [
            (partition, one.key, one.value)
            for (name, partition), log in self.logs.items()
            for one in log
            if name == topic and one.state == "committed"
        ]

    def end_open(self, state: str) -> None:
        """End the open transaction."""
        for one in self.opened:
            one.state = state
        self.opened = []

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Take the place of Kafka in `reinjection`."""
        patch.setattr(reinjection, "make_admin", lambda _kafka: self)
        patch.setattr(reinjection, "make_reader", lambda *_given: SimpleNamespace(close=lambda: None))
        patch.setattr(reinjection, "make_producer", lambda _kafka, **_more: Client(self))
        patch.setattr(reinjection, "read_message", self._read_message)
        patch.setattr(reinjection, "read_to_end", self._read_to_end)
        patch.setattr(reinjection, "ensure_topics", self._ensure)
        patch.setattr(reinjection, "topic_facts", self._facts)

    def list_offsets(self, wanted: Mapping[Any, Any], isolation_level: Any, request_timeout: float) -> Any:
        """Answer as the administration client does."""
        assert request_timeout > 0
        (place,) = wanted
        log = self.logs[place.topic, place.partition]
        opened = [at for at, one in enumerate(log) if one.state == "open"]
        is_first = wanted[place] is EARLIEST
        end = opened[0] if opened and isolation_level == IsolationLevel.READ_COMMITTED else len(log)
        answer: Future[Any] = Future()
        answer.set_result(SimpleNamespace(offset=0 if is_first else end))
        return {place: answer}

    def _read_message(self, _consumer: Any, _clock: Any, place: tuple[str, int, int], _until_s: float) -> Any:
        topic, partition, offset = place
        assert topic == self.settings.topics.rejected
        if (partition, offset) not in self.letters:
            raise LetterGone("retention")
        return message(self.letters[partition, offset], partition, offset)

    def _read_to_end(
        self, _consumer: Any, _clock: Any, topic: str, partition: int, start: int, end: int
    ) -> Iterator[Any]:
        for one in self.logs[topic, partition][start:end]:
            assert one.state != "open"
            if one.state == "committed":
                yield message(one.value)

    def _ensure(self, _admin: Any, specs: Sequence[Any]) -> None:
        for spec in specs:
            self.logs.setdefault((spec.name, 0), [])

    def _facts(self, _admin: Any, names: Sequence[str], _timeout_s: float) -> dict[str, TopicFacts]:
        found = [topic for topic, _ in self.logs]
        return {name: TopicFacts("id", found.count(name)) for name in names if name in found}


class Client:
    """A producer with the transactional id."""

    def __init__(self, broker: Broker) -> None:
        self._broker, self._epoch = broker, 0
        broker.producers += 1

    def init_transactions(self, _timeout_s: float) -> None:
        """Fence all others, and abort their transaction."""
        self._broker.at("before init")
        self._broker.end_open("aborted")
        self._broker.epoch += 1
        self._epoch = self._broker.epoch
        self._broker.at("after init")

    def begin_transaction(self) -> None:
        """Begin a transaction."""
        self._broker.at("before begin")
        self._broker.at("after begin")

    def produce(self, topic: str, value: bytes, key: bytes | None = None, partition: int = -1) -> None:
        """Append a record."""
        self._broker.at("before produce")
        self._check()
        stored = Stored(value, key)
        self._broker.logs[topic, partition].append(stored)
        self._broker.opened.append(stored)
        self._broker.at("after produce")

    def commit_transaction(self, timeout_s: float) -> None:
        """Commit."""
        assert timeout_s > 0
        self._broker.at("before commit")
        self._check()
        self._broker.end_open("committed")
        self._broker.at("after commit")

    def abort_transaction(self, _timeout_s: float) -> None:
        """Abort."""
        self._check()
        self._broker.end_open("aborted")

    def _check(self) -> None:
        if self._epoch != self._broker.epoch:
            raise KafkaException(KafkaError(KafkaError._FENCED, "fenced", fatal=True))  # noqa: SLF001 - its only name


def failing(point: str, error: BaseException, number: int = 0) -> Callable[[str], None]:
    """Return a function for ``Broker.at`` that raises an error at the ``number``-th arrival at a point, from 0."""
    left = number

    def at(found: str) -> None:
        nonlocal left
        if found == point:
            left -= 1
            if left == -1:
                raise error

    return at
