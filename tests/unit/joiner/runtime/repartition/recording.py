"""Stands in for the Kafka clients of repartitioning: a producer that records, and evidence made from its records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, TopicPartition

from broker.wire.origin import decode_origin
from joiner.check.found.copy_log import Committed, Copy
from joiner.check.found.evidence import Message


class Produced(NamedTuple):
    """A call of `produce`."""

    topic: str
    value: bytes | None
    key: bytes | None
    partition: int
    timestamp: int
    headers: list[tuple[str, bytes]]


class RecordingProducer:
    """A transactional producer that keeps what is committed, and can fail."""

    def __init__(self) -> None:
        self.committed: list[Produced] = []
        self.offsets: dict[tuple[str, int], tuple[int, str]] = {}
        self.aborts = 0
        self.faults: dict[str, list[Exception | None]] = defaultdict(list)
        """The errors that the next calls of a method raise. None: the call succeeds."""
        self.refusals: dict[bytes, list[KafkaError]] = {}
        """The errors that the copies with these values get."""
        self._reports: list[tuple[Any, KafkaError, Any]] = []
        self._is_connected = False
        self._open: list[Produced] = []
        self._sent: list[TopicPartition] = []

    def _act(self, what: str) -> None:
        if self.faults[what] and (fault := self.faults[what].pop(0)) is not None:
            raise fault

    def list_topics(self, _topic: str, _timeout: float) -> None:
        """See the client."""
        self._is_connected = True

    def init_transactions(self, _timeout: float) -> None:
        """See the client."""
        assert self._is_connected, "the client would take half a second"
        self._act("init")

    @property
    def produced(self) -> list[Produced]:
        """What the open transaction contains."""
        return self._open

    def begin_transaction(self) -> None:
        """See the client."""
        self._act("begin")
        self._open, self._sent = [], []

    def produce(
        self, topic: str, value: Any, key: Any, partition: int, *, timestamp: int, headers: Any, on_delivery: Any
    ) -> None:
        """See the client."""
        self._act("produce")
        self._reports += [
            (on_delivery, fault, SimpleNamespace(value=lambda: value, headers=lambda: headers))
            for fault in self.refusals.pop(value, [])
        ]
        self._open.append(Produced(topic, value, key, partition, timestamp, headers))

    def poll(self, _timeout: float) -> None:
        """See the client."""
        while self._reports:
            report, fault, message = self._reports.pop(0)
            report(fault, message)

    def send_offsets_to_transaction(self, offsets: list[TopicPartition], _group: object, _timeout: float) -> None:
        """See the client."""
        self._act("offsets")
        self._sent = offsets

    def commit_transaction(self, _timeout: float) -> None:
        """See the client."""
        self._act("commit")
        self.committed += self._open
        self.offsets |= {(at.topic, at.partition): (at.offset, at.metadata or "") for at in self._sent}

    def abort_transaction(self, _timeout: float) -> None:
        """See the client."""
        self.aborts += 1


class RecordedCopies:
    """Evidence in memory. See `CopyEvidence`."""

    def __init__(self, produced: list[Produced], originals: list[Message], ends: Mapping[int, Committed]) -> None:
        self.produced, self.sources, self.ends = produced, originals, ends
        self.first: dict[tuple[str, int], int] = {}

    def committed(self, _topic: str) -> Mapping[int, Committed]:
        """See `CopyEvidence.committed`."""
        return self.ends

    def copies(self, target: str) -> Iterator[Copy]:
        """See `CopyEvidence.copies`."""
        offsets: defaultdict[int, int] = defaultdict(int)
        for one in sorted(self.produced, key=lambda one: one.partition):
            offset = offsets[one.partition]
            offsets[one.partition] += 1
            if offset >= self.first_offset(target, one.partition):
                message = Message(target, one.partition, offset, one.timestamp, one.key, one.value)
                yield Copy(decode_origin(dict(one.headers)["lsb-origin"]), message)

    def first_offset(self, topic: str, partition: int) -> int:
        """See `CopyEvidence.first_offset`."""
        return self.first.get((topic, partition), 0)

    def originals(self, _topic: str, partition: int, begin: int, end: int) -> Iterator[Message]:
        """See `CopyEvidence.originals`."""
        return (one for one in self.sources if one.partition == partition and begin <= one.offset < end)
