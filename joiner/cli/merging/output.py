"""Writes the merged topics, in transactions that also contain how far the replicas were read."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message

from joiner.cli.merging.progress import REPLICA_HEADER, Progress, encode_progress
from joiner.library.merging.inputs import Place
from joiner.library.merging.topics import merged_topic
from joiner.runtime.clock import Clock
from joiner.runtime.kafka.clients import TIMEOUT_S, make_producer, timed_out, within
from joiner.runtime.settings import JoinerSettings

TRANSACTION_S: Final = 30.0
"""How long a transaction may take."""

_ABORT_S: Final = 1.0
_FULL_WAIT_S: Final = 0.05
_BUFFER_KIB: Final = 64 * 1024


class MergedOutput:
    """The transactional producer of the merged topics. Its id fences other processes that merge the same application.

    ``ends``: the offset after the last message that was written to each output, as far as Kafka has confirmed it.
    """

    def __init__(self, settings: JoinerSettings, clock: Clock) -> None:
        self._clock = clock
        self._name, self._state_topic = settings.application.name, state_topic(settings)
        self.ends: dict[Place, int] = {}
        self._outputs = {merged_topic(topic): topic for topic in settings.output_topics.values()}
        self._producer = make_producer(
            settings.kafka,
            transactional_id=f"{self._name}.merged",
            transaction_timeout_ms=int(TRANSACTION_S * 1000),
            queue_buffering_max_kbytes=_BUFFER_KIB,
            retry_backoff_ms=2,
            retry_backoff_max_ms=4,
            linger_ms=5,
            compression_type="lz4",
            # As in `joiner.runtime.kafka.unit_producer`.
            metadata_recovery_strategy="none",
        )
        self._producer.init_transactions(TIMEOUT_S)
        self._is_open = False

    def write(self, output: Place, replica: int, message: Message) -> None:
        """Add a message of a replica to the transaction. Raises KafkaException."""
        topic, partition = output
        headers: list[tuple[str, str | bytes | None]] = [(REPLICA_HEADER, b"%d" % replica)]
        self._produce(merged_topic(topic), partition, message.key(), message.value(), headers)

    def commit(self, progress: Mapping[Place, Progress]) -> None:
        """Commit the messages, and how far each output was merged. Raises KafkaException."""
        deadline_s = self._clock.monotonic_s() + TRANSACTION_S
        for (topic, partition), one in progress.items():
            key = merged_topic(topic).encode()
            self._produce(self._state_topic, partition, key, encode_progress(one), [])
        while True:
            try:
                self._producer.commit_transaction(max(1.0, deadline_s - self._clock.monotonic_s()))
            except KafkaException as error:
                # Asking again is safe. If the answer stays away, the next session learns the outcome from the state.
                if not error.args[0].retriable() or self._clock.monotonic_s() > deadline_s:
                    raise
            else:
                break
        self._is_open = False

    def flush(self) -> None:
        """Wait until Kafka has confirmed all messages, so that ``ends`` is exact. Raises KafkaException."""
        if self._producer.flush(TRANSACTION_S):
            raise timed_out(f"Kafka has not confirmed all messages of a transaction for {TRANSACTION_S:.0f} s")

    def close(self) -> None:
        """Abort an open transaction if that is possible at once, so that nobody waits for its timeout."""
        if self._is_open:
            with suppress(KafkaException):
                within(_ABORT_S + 1.0, self._producer.abort_transaction, _ABORT_S)

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
                self._producer.poll(_FULL_WAIT_S)
            else:
                return

    def _note(self, error: KafkaError | None, message: Message) -> None:
        # If a message could not be sent, the transaction cannot be committed.
        output = self._outputs.get(message.topic() or "")
        if error is None and output is not None:
            place, after = (output, message.partition() or 0), (message.offset() or 0) + 1
            self.ends[place] = max(after, self.ends.get(place, 0))


def state_topic(settings: JoinerSettings) -> str:
    """Return the topic in which `Progress` is stored."""
    return f"{settings.application.name}.merged.state"
