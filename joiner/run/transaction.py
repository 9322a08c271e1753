"""The transactions of one unit: everything a batch brought forth becomes visible at once, or not at all.

Steps of a commit, in this order:

 1. begin
 2. the input offsets, for the consumer group (for tools to see; the progress record is what counts)
 3. the joined, late, unmatched and rejected records
 4. now and then a snapshot: chunks, tombstones of surplus ones, manifest
 5. the progress record, last in the unit's partition of the state topic
 6. commit

The offsets come first, because Kafka takes nothing until it has ended the transaction before everywhere. Offsets are
then tried again by librdkafka after `retry.backoff.ms`, 2 ms here, and records after 20 ms, whatever it is told.

The ``transactional.id`` is ``<application>-<unit>`` in every runner: whoever initialised it last owns the unit, and
the commit of everyone else fails.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from joiner.run.clients import TIMEOUT_S, is_fenced, make_consumer, make_producer, names_fencing, timed_out
from joiner.run.progress import (
    CHUNK_BYTES_MAX,
    FORMAT_VERSION,
    SLOTS,
    Manifest,
    Progress,
    chunk_key,
    encode,
    manifest_key,
    progress_key,
)
from joiner.run.settings import JoinerSettings
from joiner.run.state_log import StateLog
from joiner.run.unit import Outgoing

_COMMIT_S: Final = 30.0
"""For a commit, large snapshots included. A client that is stuck (see `broker.producer`) is given up after it, and the
unit goes on with a new one."""

_OFFSETS_S: Final = 10.0
"""For sending the offsets, which are a few bytes."""

_LAST_STEP_S: Final = 1.0
"""The last step of a commit is given so much, even where the steps before it took all the time."""

_LONG_S: Final = 1.0
"""A commit that met a restart of Kafka takes longer than this, and hardly any other."""

_AT_ONCE: Final = 1_000
"""Messages that are handed to the producer in one call: others wait for Python's interpreter so long, and so many
stay in the processor's cache."""

_OnDelivery = Callable[[KafkaError | None, Message], None]

_log = logging.getLogger(__name__)


class Fenced(Exception):
    """Somebody else has taken the unit."""


class Aborted(Exception):
    """The transaction failed, or whether it was committed is unknown: the unit must be claimed anew.

    The claim settles it: `init_transactions` rolls back what is open, and the progress record that is read
    afterwards says what was committed.
    """


@dataclass
class SnapshotPlace:
    """Where the next snapshot goes: its serial number, and how many chunks lie in each slot."""

    serial: int
    chunks: list[int]

    @classmethod
    def after(cls, state: StateLog) -> SnapshotPlace:
        """The place that follows what the state topic holds."""
        newest = state.manifests()[:1]
        return cls(newest[0].serial if newest else -1, [state.chunks_in(slot) for slot in range(SLOTS)])


class UnitTransactions:
    """The transactional producer of one unit."""

    def __init__(self, settings: JoinerSettings, unit: int, offsets_of: Consumer) -> None:
        """``offsets_of``: a consumer of the group without membership, whose metadata offsets are sent with."""
        self._settings = settings
        self._unit = unit
        self._offsets_of = offsets_of
        # What is handed to the producer, again and again: making as many anew costs as much as encoding them.
        self._slots: list[dict[str, bytes | None]] = [{"key": None, "value": None} for _ in range(_AT_ONCE)]
        self.was_disturbed = False
        """Whether Kafka may have been started anew during the last commit: it took long, or was asked for again."""
        self._producer = make_producer(
            settings.kafka,
            transactional_id=f"{settings.application.name}-{unit}",
            transaction_timeout_ms=settings.application.transaction_timeout // 1_000_000,
            # With idempotence the send queue must not hold back; a commit that follows a commit at once is told
            # to wait and try again, by default for 100 ms, then 200, and so on.
            queue_buffering_backpressure_threshold=1,
            retry_backoff_ms=2,
            retry_backoff_max_ms=4,
            linger_ms=5,
            compression_type="lz4",
        )

    def connect(self) -> None:
        """Reach Kafka, without taking anything from anybody. Raises KafkaException.

        The library looks for its coordinator when it is told to initialise, and where it has no connection yet, again
        only half a second later.
        """
        self._producer.list_topics(self._settings.state_topic, TIMEOUT_S)

    def init(self) -> None:
        """Take the transactional id: from now on everyone else's transactions of this unit fail."""
        try:
            self.connect()
            self._producer.init_transactions(TIMEOUT_S)
        except KafkaException as error:
            # Other fatal errors (no right to the id, say) are told as what they are.
            if names_fencing(error):
                raise Fenced from error
            raise

    def commit(
        self,
        messages: Outgoing,
        progress: Progress,
        snapshot: tuple[bytes, SnapshotPlace] | None = None,
    ) -> SnapshotPlace | None:
        """Write one transaction (steps 1-6); returns the place of the snapshot that was written.

        Raises `Fenced` or `Aborted`; this object is then not to be used again.
        """
        written = None
        try:
            self._begin(progress)
            self._produce_all(messages)
            if snapshot is not None:
                written = self._produce_snapshot(*snapshot, progress)
            self._finish(progress)
        except KafkaException as error:
            raise _failure(error) from error
        return written

    def begin_anew(self, state: StateLog, progress: Progress) -> None:
        """Tombstone all snapshots of this unit and write ``progress`` as its only record, in one transaction."""
        try:
            self._begin(progress)
            for key in state.values:
                self._produce(self._settings.state_topic, key, None)
            self._finish(progress)
        except KafkaException as error:
            raise _failure(error) from error

    def check_owner(self) -> None:
        """Ask Kafka whether the unit is still ours; leaves nothing behind. Raises `Fenced` or `Aborted`."""
        try:
            self._producer.begin_transaction()
            self._send_offsets({self._settings.input_topics[0]: 0})
            self._producer.abort_transaction(_COMMIT_S)
        except KafkaException as error:
            raise _failure(error) from error

    def roll_back(self, topics: Sequence[str], progress: Progress) -> dict[str, int]:
        """Write a record to the unit's partition of each topic, and to the group's offsets, and abort that.

        The marker of the rollback also ends what an earlier transaction of this producer has left open there.
        Returns the offsets of the records. Raises `Fenced` or `Aborted`.
        """
        written: dict[str, int] = {}

        def note(_error: KafkaError | None, message: Message) -> None:
            written[str(message.topic())] = int(message.offset() or 0)

        try:
            self._producer.begin_transaction()
            for topic in topics:
                self._produce(topic, f"{self._unit}/rolled-back", None, note)
            self._send_offsets(progress.offsets)
            if self._producer.flush(_COMMIT_S):
                raise timed_out(f"the records of a rollback were not written within {_COMMIT_S:.0f} s")
            self._producer.abort_transaction(_COMMIT_S)
        except KafkaException as error:
            raise _failure(error) from error
        return written

    def _produce_all(self, messages: Outgoing) -> None:
        for topic, (keys, values) in messages.items():
            for begin in range(0, len(keys), _AT_ONCE):
                end = begin + _AT_ONCE
                self._produce_some(topic, keys[begin:end], values[begin:end])

    def _produce_some(self, topic: str, keys: Sequence[bytes | None], values: Sequence[bytes | None]) -> None:
        waiting = self._slots[: len(keys)]
        for slot, key, value in zip(waiting, keys, values, strict=True):
            slot["key"], slot["value"] = key, value
        # It copies what it takes.
        while self._producer.produce_batch(topic, waiting, partition=self._unit) < len(waiting):
            # It does not raise: what the full queue refused carries an error and is offered again.
            waiting = [slot for slot in waiting if "_error" in slot]
            for slot in waiting:
                fault: Any = slot.pop("_error")
                if fault.code() != KafkaError._QUEUE_FULL:  # noqa: SLF001 - librdkafka's own codes are named so
                    raise KafkaException(fault)
            self._producer.poll(0.05)
        self._producer.poll(0)

    def _produce(self, topic: str, key: str, value: bytes | None, on_delivery: _OnDelivery | None = None) -> None:
        while True:
            try:
                self._producer.produce(topic, value, key.encode(), self._unit, on_delivery=on_delivery)
            except BufferError:
                self._producer.poll(0.05)
            else:
                return

    def _produce_snapshot(self, data: bytes, place: SnapshotPlace, progress: Progress) -> SnapshotPlace:
        serial = place.serial + 1
        slot = serial % SLOTS
        parts = [data[at : at + CHUNK_BYTES_MAX] for at in range(0, len(data), CHUNK_BYTES_MAX)]
        topic = self._settings.state_topic
        for index, part in enumerate(parts):
            self._produce(topic, chunk_key(self._unit, slot, index), part)
        for surplus in range(len(parts), place.chunks[slot]):
            self._produce(topic, chunk_key(self._unit, slot, surplus), None)
        digest = hashlib.sha256(data).hexdigest()
        manifest = Manifest(
            FORMAT_VERSION,
            serial,
            slot,
            len(parts),
            len(data),
            digest,
            progress.offsets,
            progress.fingerprint,
        )
        self._produce(topic, manifest_key(self._unit, slot), encode(manifest))
        chunks = list(place.chunks)
        chunks[slot] = len(parts)
        return SnapshotPlace(serial, chunks)

    def _begin(self, progress: Progress) -> None:
        """Steps 1 and 2."""
        self._producer.begin_transaction()
        self._send_offsets(progress.offsets)

    def _finish(self, progress: Progress) -> None:
        """Steps 5 and 6."""
        self._produce(self._settings.state_topic, progress_key(self._unit), encode(progress))
        self._commit(time.monotonic() + _COMMIT_S)

    def _send_offsets(self, offsets: Mapping[str, int]) -> None:
        places = [TopicPartition(topic, self._unit, at) for topic, at in offsets.items()]
        metadata = self._offsets_of.consumer_group_metadata()
        within(_OFFSETS_S + _LAST_STEP_S, self._producer.send_offsets_to_transaction, places, metadata, _OFFSETS_S)

    def _commit(self, deadline_s: float) -> None:
        """A commit whose answer was lost is asked for again; it is safe to ask twice."""
        self.was_disturbed, began_s = False, time.monotonic()
        while True:
            try:
                self._producer.commit_transaction(max(_LAST_STEP_S, deadline_s - time.monotonic()))
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline_s:
                    raise
                _log.info("unit %s: commit is tried again: %s", self._unit, error.args[0].str())
                self.was_disturbed = True
            else:
                self.was_disturbed |= time.monotonic() - began_s > _LONG_S
                return


def within(seconds: float, call: Callable[..., object], *arguments: object) -> None:
    """Make a call that should return by itself, and give it up where it does not. Raises what it raises.

    Sending offsets stays in librdkafka 2.16 for ever where Kafka is killed at the wrong moment, whatever timeout it is
    given. The thread that waits for it is left behind with its producer, which the unit's next claim fences.
    """
    outcome: SimpleQueue[BaseException | None] = SimpleQueue()

    def run() -> None:
        try:
            call(*arguments)
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
            outcome.put(error)
        else:
            outcome.put(None)

    threading.Thread(target=run, name="within", daemon=True).start()
    try:
        error = outcome.get(timeout=seconds)
    except Empty:
        raise timed_out(f"Kafka's client did not return within {seconds:g} s") from None
    if error is not None:
        raise error


def _failure(error: KafkaException) -> Fenced | Aborted:
    """What a failed step means. Nothing is rolled back here: the next claim does, and need not wait for this client."""
    return Fenced() if is_fenced(error) else Aborted(error.args[0].str())


def unsubscribed_consumer(settings: JoinerSettings) -> Consumer:
    """A consumer that only lends its group's metadata: offsets are committed in it without being a member."""
    consumer = make_consumer(settings.kafka, settings.application.name)
    consumer.assign([])
    return consumer


def offsets_as_text(offsets: Mapping[str, int]) -> str:
    """``topic@offset`` of each topic, for messages."""
    return ", ".join(f"{topic}@{at}" for topic, at in sorted(offsets.items()))
