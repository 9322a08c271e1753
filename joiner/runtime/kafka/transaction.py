"""The transactions of one unit: everything a batch brought forth becomes visible at once, or not at all.

Steps of a commit, in this order (a snapshot that is too large for it has transactions of its own behind it, and where
the unit is released, the checkpoint that says so comes behind those):

 1. begin
 2. the input offsets, for the consumer group (for tools to see; the checkpoint is what counts)
 3. the joined, late, unmatched and rejected records
 4. now and then a snapshot: chunks, tombstones of surplus ones, manifest
 5. the checkpoint, last in the unit's partition of the state topic
 6. commit

The offsets come first, because Kafka takes nothing until it has ended the transaction before everywhere. Offsets are
then tried again by librdkafka after `retry.backoff.ms`, 2 ms here, and records after 20 ms, whatever it is told.

Kafka may forget to end a committed transaction in some partition (see `dangling`). The next records of the unit there
share the fate of what was forgotten, which only a commit puts right. So:

 - the checkpoint names the first record of the last transaction in each result topic, until it is known that the
   topic has been told of its end: the next claim compares it with what is visible
 - an owner looks behind each snapshot, behind a claim, and where Kafka may have been away. What is open and its own
   makes it claim the unit anew
 - a snapshot takes the place of the older one only when nothing is in doubt that only a replay from there would bring
   forth again. Another program's open transaction may hide that; then the snapshot waits

The ``transactional.id`` is ``<application>-<unit>`` in every runner: whoever initialised it last owns the unit, and
the commit of everyone else fails.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from joiner.runtime.kafka.clients import (
    TIMEOUT_S,
    is_fenced,
    log_range,
    make_consumer,
    make_producer,
    names_fencing,
    timed_out,
    within,
)
from joiner.runtime.kafka.pending_markers import PendingMarkers, identity_of
from joiner.runtime.kafka.snapshot_log import SnapshotPlace, cut, snapshot_records
from joiner.runtime.model import (
    Checkpoint,
    FirstRecord,
    StateLog,
    checkpoint_key,
    encode,
)
from joiner.runtime.settings import JoinerSettings
from joiner.runtime.task.effects import Outgoing

_COMMIT_S: Final = 30.0
"""For a commit. A client that is stuck (see `broker.kafka`) is given up after it, and the unit goes on with a new
one."""

SNAPSHOT_BYTES_MAX: Final = 8 * 1024 * 1024
"""Of a snapshot that is committed with a batch. A larger one has transactions of its own, each of which holds so much:
so it may take as long as it needs. The batch is visible before it; the unit's next one waits for it."""

_OFFSETS_S: Final = 10.0
"""For sending the offsets, which are a few bytes."""

_LAST_STEP_S: Final = 1.0
"""The last step of a commit is given so much, even where the steps before it took all the time."""

_LONG_S: Final = 1.0
"""A transaction that met a restart of Kafka takes longer than this, and hardly any other."""

_MARKERS_S: Final = 5.0
"""Kafka marks a committed transaction in its partitions a moment after it has answered."""

LOOK_S: Final = 0.05
FIRST_LOOK_S: Final = 0.005
"""The markers follow within milliseconds in most cases."""

_AT_ONCE: Final = 1_000
"""Messages that are handed to the producer in one call: others wait for Python's interpreter so long, and so many
stay in the processor's cache."""

_OnDelivery = Callable[[KafkaError | None, Message], None]

_log = logging.getLogger(__name__)


class Fenced(Exception):
    """Somebody else has taken the unit."""


class Aborted(Exception):
    """The transaction failed, or whether it was committed is unknown: the unit must be claimed anew.

    The claim settles it: `init_transactions` rolls back what is open, and the checkpoint that is read
    afterwards says what was committed.
    """


class UnitTransactions:
    """The transactional producer of one unit."""

    def __init__(self, settings: JoinerSettings, unit: int, offsets_of: Consumer) -> None:
        """``offsets_of``: a consumer of the group without membership, whose metadata offsets are sent with."""
        self._settings = settings
        self._unit = unit
        self._offsets_of = offsets_of
        # What is handed to the producer, again and again: making as many anew costs as much as encoding them.
        self._slots: list[dict[str, Any]] = [{"key": None, "value": None} for _ in range(_AT_ONCE)]
        self._undecided = PendingMarkers()
        # Of the transaction that is open: the offsets of its first records by topic, -1 until they are delivered.
        self._firsts: dict[str, int] = {}
        self._was_asked_again = False
        self._is_claimed = False
        # What the last checkpoint says of its owner.
        self._run = self._site = ""
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
        checkpoint: Checkpoint,
        snapshot: tuple[bytes, SnapshotPlace] | None = None,
    ) -> SnapshotPlace | None:
        """Write one transaction (steps 1-6); returns the place of the snapshot that was written.

        Raises `Fenced` or `Aborted`; this object is then not to be used again.
        """
        began_s, place = time.monotonic(), None
        identities = _identities(messages, self._settings.state_topic)
        try:
            self._begin(checkpoint)
            if snapshot is not None and not self._may_replace_snapshot():
                snapshot = None
            is_apart = goes_apart(snapshot)
            # Who a unit is released to may claim it as soon as that is visible. So the snapshot comes before.
            ours = self._still_ours(checkpoint) if is_apart else checkpoint
            self._produce_all(messages)
            if snapshot is not None and not is_apart:
                place = self._produce_snapshot(*snapshot, checkpoint)
            self._finish(ours, self._undecided.records(identities))
            self._note_written(identities, is_base=place is not None or not self._is_claimed)
            if snapshot is not None and is_apart:
                place = self._write_apart(*snapshot, ours)
            if ours != checkpoint:
                self._begin(checkpoint)
                self._finish(checkpoint, self._undecided.records({}))
                self._note_written({}, is_base=False)
            if place is not None or not self._is_claimed or self._was_disturbed(began_s):
                self.check_ended()
        except KafkaException as error:
            raise _failure(error) from error
        self._is_claimed, self._run, self._site = True, checkpoint.run, checkpoint.site
        return place

    def begin_anew(self, state: StateLog, checkpoint: Checkpoint) -> None:
        """Tombstone all snapshots of this unit and write ``checkpoint`` as its only record, in one transaction."""
        try:
            self._begin(checkpoint)
            for key in state.values:
                self._produce(self._settings.state_topic, key, None)
            self._finish(checkpoint, {})
            self._note_written({}, is_base=True)
            self.check_ended()
        except KafkaException as error:
            raise _failure(error) from error

    @property
    def has_pending_markers(self) -> bool:
        """Whether Kafka has not been seen to end everything that was committed, when it was looked last."""
        return bool(self._undecided)

    def check_ended(self) -> None:
        """Wait until no transaction of ours is the oldest open one anywhere.

        Raises `Aborted` where one stays it: Kafka has forgotten to end it, and the unit must be claimed anew. Behind
        the open transaction of another program nothing can be seen; that is not waited for.
        """
        deadline_s, wait_s = time.monotonic() + _MARKERS_S, FIRST_LOOK_S
        while True:
            stable = self._note_stable_ends(self._undecided.topics())
            ours = self._undecided.ours(stable)
            if not ours:
                return
            if time.monotonic() > deadline_s:
                raise Aborted(f"Kafka has left a committed transaction open in {', '.join(ours)} [{self._unit}]")
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, LOOK_S)

    def check_owner(self) -> None:
        """Ask Kafka whether the unit is still ours; leaves nothing behind. Raises `Fenced` or `Aborted`."""
        try:
            self._producer.begin_transaction()
            self._send_offsets({self._settings.input_topics[0]: 0})
            self._producer.abort_transaction(_COMMIT_S)
        except KafkaException as error:
            raise _failure(error) from error

    def roll_back(self, topics: Sequence[str], checkpoint: Checkpoint) -> dict[str, int]:
        """Write a record to the unit's partition of each topic, and to the group's offsets, and abort that.

        The marker of the rollback also ends what an earlier transaction of this producer has left open there.
        Returns the offsets of the records. Raises `Fenced` or `Aborted`.
        """
        try:
            self._start()
            for topic in topics:
                self._produce(topic, f"{self._unit}/rolled-back", None)
            self._send_offsets(checkpoint.offsets)
            if self._producer.flush(_COMMIT_S):
                raise timed_out(f"the records of a rollback were not written within {_COMMIT_S:.0f} s")
            self._producer.abort_transaction(_COMMIT_S)
        except KafkaException as error:
            raise _failure(error) from error
        self._check_delivered()
        self._undecided.begin_behind(self._firsts)
        return dict(self._firsts)

    def _still_ours(self, checkpoint: Checkpoint) -> Checkpoint:
        """As this one, but for what it says of a release."""
        if checkpoint.on_the_way is None:
            return checkpoint
        return msgspec.structs.replace(checkpoint, run=self._run, site=self._site)

    def _was_disturbed(self, began_s: float) -> bool:
        """Whether Kafka may have been started anew meanwhile: it took long, or was asked for again."""
        return self._was_asked_again or time.monotonic() - began_s > _LONG_S

    def _note_stable_ends(self, topics: Iterable[str]) -> dict[str, int]:
        stable = {topic: log_range(self._offsets_of, topic, self._unit)[1] for topic in topics}
        self._undecided.note(stable)
        return stable

    def _may_replace_snapshot(self) -> bool:
        """Whether the older of the two snapshots may go: nothing of what came before the newer one is in doubt."""
        self.check_ended()
        # From where results would be looked for that are brought forth behind this snapshot.
        self._note_stable_ends(self._settings.output_topics.values())
        in_doubt = self._undecided.in_doubt()
        if in_doubt:
            _log.warning(
                "unit %s: the snapshot waits: another program has a transaction open in %s, behind which it cannot be "
                "seen what Kafka has ended",
                self._unit,
                ", ".join(f"{topic} [{self._unit}] at {self._undecided.ends()[topic]}" for topic in in_doubt),
            )
        return not in_doubt

    def _note_written(self, identities: Mapping[str, str], *, is_base: bool) -> None:
        self._check_delivered()
        self._undecided.add(self._firsts, identities, is_base=is_base)

    def _check_delivered(self) -> None:
        """Where a record was sent twice, Kafka does not say where it lies. The next claim finds out what is there."""
        if untold := sorted(topic for topic, at in self._firsts.items() if at < 0):
            raise Aborted(f"Kafka has not said where a record lies in {', '.join(untold)} [{self._unit}]")

    def _first(self, topic: str) -> _OnDelivery | None:
        """Who is told where the next record of a topic lies: only of the first one of a transaction."""
        if topic in self._firsts:
            return None
        self._firsts[topic] = -1
        return _noting_in(self._firsts)

    def _produce_all(self, messages: Outgoing) -> None:
        for topic, (keys, values) in messages.items():
            for begin in range(0, len(keys), _AT_ONCE):
                end = begin + _AT_ONCE
                self._produce_some(topic, keys[begin:end], values[begin:end])

    def _produce_some(self, topic: str, keys: Sequence[bytes | None], values: Sequence[bytes | None]) -> None:
        waiting = self._slots[: len(keys)]
        for slot, key, value in zip(waiting, keys, values, strict=True):
            slot["key"], slot["value"] = key, value
        head, on_delivery = self._slots[0], self._first(topic)
        if on_delivery is not None:
            head["callback"] = on_delivery
        # It copies what it takes.
        while self._producer.produce_batch(topic, waiting, partition=self._unit) < len(waiting):
            # It does not raise: what the full queue refused carries an error and is offered again.
            waiting = [slot for slot in waiting if "_error" in slot]
            for slot in waiting:
                fault: Any = slot.pop("_error")
                if fault.code() != KafkaError._QUEUE_FULL:  # noqa: SLF001 - librdkafka's own codes are named so
                    raise KafkaException(fault)
            self._producer.poll(0.05)
        head.pop("callback", None)
        self._producer.poll(0)

    def _produce(self, topic: str, key: str, value: bytes | None) -> None:
        on_delivery = self._first(topic)
        while True:
            try:
                self._producer.produce(topic, value, key.encode(), self._unit, on_delivery=on_delivery)
            except BufferError:
                self._producer.poll(0.05)
            else:
                return

    def _produce_snapshot(self, data: bytes, place: SnapshotPlace, checkpoint: Checkpoint) -> SnapshotPlace:
        records, after = snapshot_records(data, place, checkpoint, self._undecided.ends())
        for key, value in records:
            self._produce(self._settings.state_topic, key, value)
        return after

    def _write_apart(self, data: bytes, place: SnapshotPlace, checkpoint: Checkpoint) -> SnapshotPlace:
        """A snapshot in transactions of its own, each of which repeats the checkpoint.

        The manifest whose chunks are replaced goes first, and the new one comes last: whoever dies in between leaves
        the other snapshot, and nothing that came before that one is in doubt.
        """
        records, after = snapshot_records(data, place, checkpoint, self._undecided.ends())
        manifest_key, _ = records[-1]
        parts = cut([(manifest_key, None), *records], SNAPSHOT_BYTES_MAX)
        for part in parts:
            self._begin(checkpoint)
            for key, value in part:
                self._produce(self._settings.state_topic, key, value)
            self._finish(checkpoint, self._undecided.records({}))
            self._note_written({}, is_base=part is parts[-1])
        return after

    def _start(self) -> None:
        self._firsts = {}
        self._producer.begin_transaction()

    def _begin(self, checkpoint: Checkpoint) -> None:
        """Steps 1 and 2."""
        self._start()
        self._send_offsets(checkpoint.offsets)

    def _finish(self, checkpoint: Checkpoint, written: dict[str, FirstRecord]) -> None:
        """Steps 5 and 6."""
        told = msgspec.structs.replace(checkpoint, written=written)
        self._produce(self._settings.state_topic, checkpoint_key(self._unit), encode(told))
        self._commit(time.monotonic() + _COMMIT_S)

    def _send_offsets(self, offsets: Mapping[str, int]) -> None:
        places = [TopicPartition(topic, self._unit, at) for topic, at in offsets.items()]
        metadata = self._offsets_of.consumer_group_metadata()
        within(_OFFSETS_S + _LAST_STEP_S, self._producer.send_offsets_to_transaction, places, metadata, _OFFSETS_S)

    def _commit(self, deadline_s: float) -> None:
        """A commit whose answer was lost is asked for again; it is safe to ask twice."""
        self._was_asked_again = False
        while True:
            try:
                self._producer.commit_transaction(max(_LAST_STEP_S, deadline_s - time.monotonic()))
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline_s:
                    raise
                _log.info("unit %s: commit is tried again: %s", self._unit, error.args[0].str())
                self._was_asked_again = True
            else:
                return


def _noting_in(firsts: dict[str, int]) -> _OnDelivery:
    """Notes where a record lies. It knows of nothing else: the client keeps it for as long as the record is on its way,
    and a client that it knew of would never go.
    """

    def note(_error: KafkaError | None, message: Message) -> None:
        offset = message.offset()
        firsts[str(message.topic())] = -1 if offset is None else int(offset)

    return note


def goes_apart(snapshot: tuple[bytes, SnapshotPlace] | None) -> bool:
    """Whether it has transactions of its own, which may take long."""
    return snapshot is not None and len(snapshot[0]) > SNAPSHOT_BYTES_MAX


def _identities(messages: Outgoing, state_topic: str) -> dict[str, str]:
    """What the first record in each result topic is."""
    return {topic: identity_of(values[0]) for topic, (_, values) in messages.items() if values and topic != state_topic}


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
