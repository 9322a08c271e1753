"""Writes the merged topics, in transactions that also contain how far the replicas were read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from confluent_kafka import Consumer, KafkaError, Message

from broker.kafka.replicas import REPLICA_HEADER, merged_topic, merging_state_topic
from joiner.cli.merging.progress import Progress, encode_progress
from joiner.library.merging.inputs import Place
from joiner.runtime.clock import Clock
from joiner.runtime.kafka.clients import (
    TIMEOUT_S,
    TRANSACTIONAL,
    TransactionOpen,
    abort_if_possible,
    commit,
    connect,
    flush,
    init_transactions,
    make_producer,
    poll,
    timed_out,
    wait_until_ended,
)
from joiner.runtime.settings import JoinerSettings

TRANSACTION_S: Final = 30.0
"""How long a transaction may take."""

FENCE_KEY: Final = b"rolled-back"
"""The key of records that are always aborted."""

_LONG_S: Final = 1.0
"""A commit takes longer than this if Kafka restarts in the meantime, and rarely otherwise."""

_MARKERS_S: Final = 5.0
"""How long Kafka may take to write the markers of a transaction after acknowledging its commit."""

_FULL_WAIT_S: Final = 0.05
_BUFFER_KIB: Final = 64 * 1024

MESSAGE_BYTES_MAX: Final = 1_020_000
"""A message that a replica's client has just permitted is a little longer here, because of its header."""


class MergedOutput:
    """The transactional producer of the merged topics. Its id fences other processes that merge the same application.

    ``ends``: for each output, an offset after everything that was written to it, as far as Kafka has confirmed that.
    ``last``: the offset after the last message, if there is one.
    """

    def __init__(self, settings: JoinerSettings, clock: Clock) -> None:
        self._clock = clock
        self._name, self._state_topic = settings.application.name, merging_state_topic(settings.application.name)
        self._partitions, self._kafka = settings.topics.partitions, settings.kafka
        self.ends: dict[Place, int] = {}
        self.last: dict[Place, int] = {}
        self._firsts: defaultdict[int, dict[str, int]] = defaultdict(dict)
        """The offset of the transaction's first record in each topic, by partition."""
        self._is_unsure = False
        """Whether Kafka has taken a message without reporting its offset, as happens if it was sent twice."""
        self._outputs = {merged_topic(topic): topic for topic in settings.output_topics.values()}
        self._producer = make_producer(
            settings.kafka,
            transactional_id=f"{self._name}.merged",
            transaction_timeout_ms=int(TRANSACTION_S * 1000),
            message_max_bytes=MESSAGE_BYTES_MAX,
            queue_buffering_max_kbytes=_BUFFER_KIB,
            **TRANSACTIONAL,
        )
        connect(self._producer, self._state_topic)
        init_transactions(self._producer, clock)
        self._is_open = False

    def fence(self) -> dict[int, dict[str, int]]:
        """Write and abort a record in each partition. Return their offsets, by partition and topic.

        Once all transactions up to there have ended (see `wait_until_ended`), no request of an earlier process can be
        appended any more, and transactions that Kafka has failed to end are aborted.
        ``joiner.runtime.ownership.dangling`` says why a joiner does the same. Raises KafkaException.
        """
        for partition in range(self._partitions):
            for topic in (self._state_topic, *self._outputs):
                self._produce(topic, partition, FENCE_KEY, None, [])
        self.flush()
        fences, self.ends, self.last = self._take_firsts(), {}, {}
        self._producer.abort_transaction(TRANSACTION_S)
        self._is_open = False
        return fences

    def check_ended(self, firsts: Mapping[int, Mapping[str, int]], consumer: Consumer) -> None:
        """Wait until the transaction that begins at these offsets, by partition and topic, has ended everywhere.

        Raises KafkaException if Kafka has failed to end it. A new producer then does, with `fence`.
        """
        try:
            for partition, offsets in firsts.items():
                self.wait_until_ended(offsets, partition, consumer, _MARKERS_S)
        except TransactionOpen as error:
            raise timed_out(f"Kafka has left a committed transaction open in {error.places}") from error

    def wait_until_ended(
        self, offsets: Mapping[str, int], partition: int, consumer: Consumer, limit_s: float = TIMEOUT_S
    ) -> None:
        """Wait until all transactions at or before these offsets of a partition have ended. Thread-safe.

        ``consumer``: a read-committed one. Raises `TransactionOpen` if one has not after ``limit_s``, and
        KafkaException.
        """
        wait_until_ended(consumer, self._kafka, self._clock, offsets, partition, "`joiner merge`", limit_s)

    def write(self, output: Place, replica: int, message: Message) -> None:
        """Add a message of a replica to the transaction. Raises KafkaException."""
        topic, partition = output
        headers: list[tuple[str, str | bytes | None]] = [(REPLICA_HEADER, b"%d" % replica)]
        self._produce(merged_topic(topic), partition, message.key(), message.value(), headers)

    def commit(self, progress: Mapping[Place, Progress]) -> dict[int, dict[str, int]]:
        """Commit the messages, and how far each output was merged. Raises KafkaException.

        If the commit was slow or was retried, Kafka may have restarted, and failed to end the transaction. Then return
        where it begins, by partition and topic, and otherwise nothing.
        """
        began_s = self._clock.monotonic_s()
        for (topic, partition), one in progress.items():
            key = merged_topic(topic).encode()
            self._produce(self._state_topic, partition, key, encode_progress(one), [])
        retries: list[KafkaError] = []
        # If the answer stays away, the next session learns the outcome from the state.
        commit(self._producer, self._clock, began_s + TRANSACTION_S, retries.append)
        self._is_open = False
        firsts = self._take_firsts()
        return firsts if retries or self._clock.monotonic_s() - began_s > _LONG_S else {}

    def flush(self) -> None:
        """Wait until Kafka has confirmed all messages, so that ``ends`` is exact. Raises KafkaException."""
        if flush(self._producer, TRANSACTION_S):
            raise timed_out(f"Kafka has not confirmed all messages of a transaction for {TRANSACTION_S:.0f} s")
        if self._is_unsure:
            raise timed_out("Kafka has not reported the offset of a message, which was sent more than once")

    def close(self) -> None:
        """Abort an open transaction if that is possible at once, so that nobody waits for its timeout."""
        if self._is_open:
            abort_if_possible(self._producer)

    def _take_firsts(self) -> dict[int, dict[str, int]]:
        firsts, self._firsts = self._firsts, defaultdict(dict)
        return firsts

    def _produce(
        self,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, str | bytes | None]],
    ) -> None:
        if not self._is_open:
            self._producer.begin_transaction()
            self._is_open = True
        deadline_s = self._clock.monotonic_s() + TRANSACTION_S
        while True:
            try:
                self._producer.produce(topic, value, key, partition, on_delivery=self._note, headers=headers)
            except BufferError:
                if self._clock.monotonic_s() > deadline_s:
                    raise timed_out(f"Kafka has not taken any messages for {TRANSACTION_S:.0f} s") from None
                poll(self._producer, _FULL_WAIT_S)
            else:
                return

    def _note(self, error: KafkaError | None, message: Message) -> None:
        topic, partition, offset = message.topic() or "", message.partition() or 0, message.offset()
        if error is not None:
            # The transaction cannot be committed.
            return
        if offset is None or offset < 0:
            self._is_unsure = True
            return
        self._firsts[partition].setdefault(topic, offset)
        if (output := self._outputs.get(topic)) is not None:
            self.ends[output, partition] = self.last[output, partition] = offset + 1
