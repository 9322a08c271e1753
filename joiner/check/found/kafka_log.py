"""Reads the evidence from Kafka: committed records only, and each partition up to a fixed end.

The end of an output partition is its high watermark, read after C. When a transaction's checkpoint becomes visible, its
commit markers may not have reached all other partitions yet. The transaction's records in those partitions are below
the high watermark, and become readable once the marker has been written. If a joiner died with an open transaction, the
reader waits up to ``stall_s`` for the broker to abort it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Self

import msgspec
from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from broker.kafka.client_log import client_logger
from broker.kafka.replicas import merged_topic
from broker.kafka.topics import TopicFacts, topic_facts
from broker.settings import SettingsError
from joiner.check.found.evidence import EvidenceError, Message
from joiner.runtime.clock import SystemClock
from joiner.runtime.kafka.clients import EARLIEST, LATEST
from joiner.runtime.kafka.reachability import KafkaAway, reach_kafka
from joiner.runtime.model import FORMAT_VERSION, checkpoint_key, decode_checkpoint
from joiner.runtime.settings import replica_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from confluent_kafka import Message as KafkaMessage

    from joiner.runtime.model import Checkpoint
    from joiner.runtime.settings import JoinerSettings

_BATCH_RECORDS: Final = 20_000
_POLL_S: Final = 0.01
"""The maximum time that one call to `consume` blocks. Each partition incurs this wait once, at its end."""

_REQUEST_TIMEOUT_S: Final = 20.0
"""The timeout of a request to Kafka. The first request is also limited by ``stall_s``."""

_TAIL_OFFSETS: Final = 2_000
"""How many offsets at the end of the state topic to search first for the newest checkpoint."""


_log = client_logger(__name__)


class KafkaEvidence:
    """A context manager that reads evidence from Kafka. See `joiner.check.found.evidence.Evidence`.

    Raises `SettingsError` if the Kafka client rejects its settings.
    """

    def __init__(self, settings: JoinerSettings, *, stall_s: float = 90.0, is_merged: bool = False) -> None:
        """``is_merged``: read the merged outputs of all replicas. A unit's C is that of the replica furthest ahead."""
        self._settings = settings
        self._replicas = [settings]
        self._outputs = settings.output_topics
        if is_merged:
            self._replicas = [replica_settings(settings, number) for number in range(settings.application.replicas)]
            self._outputs = {kind: merged_topic(topic) for kind, topic in self._outputs.items()}
        self._stall_s = stall_s
        self._checkpoints: dict[int, Checkpoint | None] = {}
        self._ends: dict[tuple[str, int], int] = {}
        self._known: set[str] = set()
        """The topics whose metadata the consumer has."""
        try:
            self._make_clients()
        except KafkaException as error:
            message = f"the Kafka client rejects its settings: {error.args[0].str().strip()}; correct kafka.client"
            raise SettingsError(message) from error

    def _make_clients(self) -> None:
        settings = self._settings
        self._consumer = Consumer(
            settings.kafka.client_config(
                group_id=f"{settings.application.name}-tester",
                isolation_level="read_committed",
                enable_auto_commit=False,
                enable_partition_eof=True,
                check_crcs=True,
                auto_offset_reset="error",
                fetch_queue_backoff_ms=2,
                fetch_wait_max_ms=10,
                allow_auto_create_topics=False,
            ),
            logger=_log,
        )
        self._admin = AdminClient(settings.kafka.client_config(), logger=_log)

    def __enter__(self) -> Self:
        """Check the topics, read every unit's C, then determine the ends of all partitions.

        Raises `EvidenceError` if Kafka does not answer, or if the topics do not match the settings and checkpoints.
        """
        try:
            self._open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()

    def _open(self) -> None:
        partitions = self._settings.topics.partitions
        facts = self._topic_facts()
        for unit in range(partitions):
            checkpoint = self._newest_checkpoint(unit)
            if checkpoint is not None:
                _check_topics(checkpoint, facts, partitions)
            self._checkpoints[unit] = checkpoint
        for topic in (*self._outputs.values(), *self._settings.input_topics):
            for partition in range(partitions):
                self._ends[topic, partition] = self._range(topic, partition)[1]

    def _topic_facts(self) -> dict[str, TopicFacts]:
        partitions = self._settings.topics.partitions
        servers = self._settings.kafka.bootstrap_servers
        names = [*self._outputs.values(), self._settings.state_topic, *self._settings.input_topics]
        others = [replica.state_topic for replica in self._replicas]
        try:
            reach_kafka(self._admin, servers, min(self._stall_s, _REQUEST_TIMEOUT_S), SystemClock())
            facts = topic_facts(self._admin, [*dict.fromkeys([*names, *others])])
        except KafkaAway as error:
            raise EvidenceError(str(error)) from error
        except KafkaException as error:
            message = f"the topics at {servers} cannot be described: {error.args[0].str()}"
            raise EvidenceError(message) from error
        faults = [f"there is no topic {name}" for name in names if name not in facts]
        faults += [
            f"topic {name} has {fact.partitions} partitions, but topics.partitions is {partitions}"
            for name, fact in facts.items()
            if fact.partitions != partitions
        ]
        if faults:
            message = "; ".join(faults) + "; check that the pipeline ran with these settings"
            raise EvidenceError(message)
        # A replica may never have been started.
        self._replicas = [replica for replica in self._replicas if replica.state_topic in facts]
        return facts

    def checkpoint(self, unit: int) -> Checkpoint | None:
        """See `Evidence.checkpoint`."""
        return self._checkpoints[unit]

    def checkpoint_after(self, unit: int) -> Checkpoint | None:
        """See `Evidence.checkpoint_after`."""
        return self._newest_checkpoint(unit)

    def late(self) -> Iterator[Message]:
        """See `Evidence.late`."""
        return self._whole(self._outputs["late"])

    def rejected(self) -> Iterator[Message]:
        """See `Evidence.rejected`."""
        return self._whole(self._outputs["rejected"])

    def unmatched(self) -> Iterator[Message]:
        """See `Evidence.unmatched`."""
        topic = self._outputs.get("unmatched")
        return iter(()) if topic is None else self._whole(topic)

    def out(self, unit: int) -> Iterator[Message]:
        """See `Evidence.out`."""
        return self._partition(self._outputs["out"], unit)

    def inputs(self, unit: int, topic: str, start: int, stop: int) -> Iterator[Message]:
        """See `Evidence.inputs`."""
        low, high = self._range(topic, unit)
        if low > start and stop > start:
            message = (
                f"{topic} partition {unit} begins at offset {low}, but the application read it from {start}: "
                "retention has deleted that input, so the check is no longer possible"
            )
            raise EvidenceError(message)
        if high < stop:
            message = (
                f"{topic} partition {unit} ends at offset {high}, but the application has read up to {stop}: "
                "the log has lost records"
            )
            raise EvidenceError(message)
        return self._read(topic, unit, start, stop)

    def whole_input(self, unit: int, topic: str) -> Iterator[Message]:
        """See `Evidence.whole_input`."""
        return self._partition(topic, unit)

    def unread(self, unit: int, topic: str, stop: int) -> int:
        """See `Evidence.unread`."""
        return max(self._ends[topic, unit] - stop, 0)

    def _whole(self, topic: str) -> Iterator[Message]:
        for partition in range(self._settings.topics.partitions):
            yield from self._partition(topic, partition)

    def _partition(self, topic: str, partition: int) -> Iterator[Message]:
        return self._read(topic, partition, self._range(topic, partition)[0], self._ends[topic, partition])

    def _range(self, topic: str, partition: int) -> tuple[int, int]:
        """Return the first offset and the high watermark. A read-committed consumer may see a lower end."""
        place = TopicPartition(topic, partition)
        try:
            low, high = (
                self._admin.list_offsets(
                    {place: wanted},
                    isolation_level=IsolationLevel.READ_UNCOMMITTED,
                    request_timeout=_REQUEST_TIMEOUT_S,
                )[place]
                .result()
                .offset
                for wanted in (EARLIEST, LATEST)
            )
        except KafkaException as error:
            message = f"the offsets of {topic} partition {partition} cannot be read: {error.args[0].str()}"
            raise EvidenceError(message) from error
        return low, high

    def _read(self, topic: str, partition: int, start: int, stop: int) -> Iterator[Message]:
        if start >= stop:
            return
        self._request_metadata(topic)
        self._consumer.assign([TopicPartition(topic, partition, start)])
        position, deadline = start, time.monotonic() + self._stall_s
        while position < stop:
            fetched = self._consumer.consume(min(stop - position, _BATCH_RECORDS), _POLL_S)
            for message in fetched:
                error = message.error()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - its public name
                    text = f"{topic} partition {partition} cannot be read at offset {position}: {error.str()}"
                    raise EvidenceError(text)
                offset = message.offset()
                if error is not None or offset is None or offset >= stop:
                    position = max(position, offset or 0)
                    continue
                position = offset + 1
                yield _message(message, topic, partition, offset)
            now = time.monotonic()
            if fetched:
                deadline = now + self._stall_s
            elif now > deadline:
                raise EvidenceError(self._stalled(topic, partition, position, stop))

    def _request_metadata(self, topic: str) -> None:
        """Request a topic's metadata. On its own, the consumer requests an assigned topic's metadata once a second."""
        if topic in self._known:
            return
        try:
            self._consumer.list_topics(topic, _REQUEST_TIMEOUT_S)
        except KafkaException as error:
            message = f"the metadata of {topic} cannot be read: {error.args[0].str()}"
            raise EvidenceError(message) from error
        self._known.add(topic)

    def _stalled(self, topic: str, partition: int, position: int, stop: int) -> str:
        return (
            f"{topic} partition {partition} returned nothing for {self._stall_s:g} s at offset {position} of "
            f"{stop}: either an open transaction hides later records, perhaps one left by a joiner that died, or Kafka "
            "is not answering; try again after the transaction's timeout, or use a longer --timeout"
        )

    def _newest_checkpoint(self, unit: int) -> Checkpoint | None:
        """Return the newest checkpoint, of the replica that is furthest ahead if there are several, or None."""
        found = [self._read_checkpoint(replica, unit) for replica in self._replicas]
        known = [one for one in found if one is not None]
        return max(known, key=lambda one: sum(one.offsets.values()), default=None)

    def _read_checkpoint(self, replica: JoinerSettings, unit: int) -> Checkpoint | None:
        """Return a replica's newest checkpoint, or None if there is none.

        Searches the unit's partition of the state topic backwards, in growing steps.
        """
        topic, key = replica.state_topic, checkpoint_key(unit).encode()
        low, high = self._range(topic, unit)
        length = _TAIL_OFFSETS
        while True:
            start = max(low, high - length)
            newest = None
            for message in self._read(topic, unit, start, high):
                if message.key == key:
                    newest = message
            if newest is not None and newest.value is not None:
                return _of_application(_decode_checkpoint(newest), replica, self._settings)
            if start == low:
                return None
            length *= 16


def _message(message: KafkaMessage, topic: str, partition: int, offset: int) -> Message:
    key, value = message.key(), message.value()
    return Message(
        topic,
        partition,
        offset,
        message.timestamp()[1],
        key,
        value,
    )


def _decode_checkpoint(message: Message) -> Checkpoint:
    try:
        checkpoint = decode_checkpoint(message.value or b"")
    except ValueError as error:
        text = f"{message.place} is not a checkpoint: {error}"
        raise EvidenceError(text) from error
    if checkpoint.format > FORMAT_VERSION:
        text = (
            f"{message.place} is in format {checkpoint.format}, but this release reads only formats up to "
            f"{FORMAT_VERSION}: use the tester from the joiner's release"
        )
        raise EvidenceError(text)
    return checkpoint


def _of_application(found: Checkpoint, replica: JoinerSettings, settings: JoinerSettings) -> Checkpoint:
    """Return a replica's checkpoint, as if ``settings`` had written it, whose merged output is the same."""
    if replica is settings or found.fingerprint != replica.fingerprint():
        return found
    semantics, fingerprint = settings.semantics(), settings.fingerprint()
    return msgspec.structs.replace(found, fingerprint=fingerprint, semantics=semantics, founded={})


def _check_topics(checkpoint: Checkpoint, facts: dict[str, TopicFacts], partitions: int) -> None:
    for topic, topic_id in checkpoint.topics.items():
        if topic in facts and facts[topic].topic_id != topic_id:
            message = (
                f"topic {topic} has been deleted and recreated since unit {checkpoint.unit} of "
                f"{checkpoint.application!r} read it: its input is gone, so the check is no longer possible"
            )
            raise EvidenceError(message)
    if checkpoint.partitions != partitions:
        message = (
            f"the application ran with {checkpoint.partitions} partitions, but topics.partitions is {partitions} here"
        )
        raise EvidenceError(message)
