"""The transactions of one unit: the effects of a batch become visible together, or not at all.

The section "A commit" of docs/recovery.md lists the steps of a commit, 1 to 6.

A large snapshot is written afterwards, in separate transactions. If the unit is being released, one more transaction
then writes the checkpoint that releases it.

The offsets are sent first. Until Kafka has ended the previous transaction in every partition, it rejects whatever is
sent, and librdkafka retries offsets sooner than records: after `retry.backoff.ms`, which is set to 2 ms, instead of a
fixed 20 ms.

Kafka may fail to end a committed transaction in some partition (see `ownership.dangling`). The unit's later records in
that partition then share the outcome of that transaction, and only another commit repairs this. Therefore:

 - For each result topic, the checkpoint names the last transaction's first record until the transaction is known to
   have ended. The next claim compares that record with the visible log.
 - An owner checks for open transactions after each snapshot, after a claim, and when Kafka may have restarted. If one
   of its own is open, it claims the unit again.
 - A snapshot replaces the older one only once all earlier transactions are known to have ended, because a replay from
   the new snapshot could not repeat their output. If this cannot be known because another program has an open
   transaction, the snapshot is postponed.

If the application has replicas, the first message of a transaction in an output topic is a start record (see
`broker.wire.start_records`): in the results topic in every transaction, in the others if the transaction, or the one
before it, also writes output there, and once a minute, because a reader waits for the start records of a topic even if
nothing is written to it. The first transaction after a claim has those that the claim gives in all of them.
What a transaction is identified by is its first message other than these, because start records may be equal. Only if
it has none, a start record with an empty vector identifies it, because losing that would mislead readers.

The ``transactional.id`` is ``<application>-<unit>`` in every runner: the last runner to initialise it owns the unit,
and the commits of all others fail.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
from confluent_kafka import Consumer, KafkaException

from broker.wire.start_records import encode_start
from joiner.runtime.clock import Clock
from joiner.runtime.kafka.clients import (
    FIRST_LOOK_S,
    LOOK_S,
    is_fenced,
    log_ends,
    make_consumer,
    names_fencing,
)
from joiner.runtime.kafka.pending_markers import BEGINNING, PendingMarkers, identity_of
from joiner.runtime.kafka.snapshot_log import SnapshotPlace, beginning, cut, snapshot_records
from joiner.runtime.kafka.unit_producer import UnitProducer
from joiner.runtime.model import (
    Checkpoint,
    FirstRecord,
    StateLog,
    checkpoint_key,
    encode,
)
from joiner.runtime.settings import JoinerSettings
from joiner.runtime.task.batch import Batch
from joiner.runtime.task.effects import Outgoing

SNAPSHOT_BYTES_MAX: Final = 8 * 1024 * 1024
"""Size in bytes of the largest snapshot that is committed together with a batch. A larger one is written in separate
transactions of at most this size, so that none of them times out. In that case the batch becomes visible before the
snapshot, and the unit's next batch waits for the snapshot."""

_LONG_S: Final = 1.0
"""A transaction takes longer than this if Kafka restarts in the meantime, and rarely otherwise."""

START_RECORDS_S: Final = 60.0
"""After this time, a transaction has start records in all output topics. In a topic without output, a reader learns
only from them that a new replica, or one that was away, lacks nothing."""

_MARKERS_S: Final = 5.0
"""How long Kafka may take to write the markers of a transaction after acknowledging its commit."""

_log = logging.getLogger(__name__)


class OwnershipInDoubt(Exception):
    """The process may no longer own the unit: it must check the owner, and claim the unit again if no other runner has.

    This is also raised if retention has removed input that this process has not consumed: a newer owner may have
    consumed it already.
    """


class Fenced(OwnershipInDoubt):
    """Another runner has initialised the unit's transactional id."""


class Aborted(Exception):
    """The transaction failed, or its outcome is unknown: the unit must be claimed again.

    The claim determines the outcome: `init_transactions` aborts a transaction that is still open, and the checkpoint
    read next shows what was committed. This exception is also raised if Kafka has left a committed transaction open,
    because a claim repairs that too.
    """


class _StartRecords:
    """Adds start records to the output of one unit's transactions, if the application has replicas."""

    def __init__(self, settings: JoinerSettings, clock: Clock) -> None:
        self._clock = clock
        self.offsets: Mapping[str, int] = {}
        """The vector at which the next transaction begins; empty until it is known."""
        self._has_replicas, self._out = settings.application.replicas > 1, settings.topics.out
        self._all = list(settings.output_topics.values())
        # The topics in which the next transaction needs one, besides the results topic and those that it writes to.
        self._needed = self._all
        # The time at which there last was one in every topic.
        self._everywhere_s = -math.inf

    def begin_at(self, offsets: Mapping[str, int]) -> None:
        """Set the vector at which the next transaction begins."""
        self.offsets = offsets

    def begins(self, vectors: Iterable[Mapping[str, int]]) -> bool:
        """Return whether start records with these vectors say that the output does not continue."""
        return self._has_replicas and not all(vectors)

    def before(self, messages: Outgoing, vectors: Sequence[Mapping[str, int]] = ()) -> Outgoing:
        """Return the output of a transaction, with start records first in each topic that needs them.

        ``vectors``: those of the start records, by default that at which the transaction begins.
        """
        if not self._has_replicas:
            return messages
        values = [encode_start(vector) for vector in vectors or [self.offsets]]
        now_s = self._clock.monotonic_s()
        is_due = now_s >= self._everywhere_s + START_RECORDS_S
        topics = dict.fromkeys([self._out, *(self._all if is_due else self._needed), *messages])
        if topics.keys() >= set(self._all):
            self._everywhere_s = now_s
        # If the last vector is empty, the next start record is the first that says anything.
        self._needed = self._all if vectors and not vectors[-1] else list(messages)
        return {
            topic: messages[topic].after(values) if topic in messages else Batch.of(None, values) for topic in topics
        }


class UnitTransactions:
    """Runs the transactions of one unit, under the unit's transactional id."""

    def __init__(self, settings: JoinerSettings, unit: int, group_metadata_consumer: Consumer, clock: Clock) -> None:
        """``group_metadata_consumer``: supplies the group metadata for the offsets; it must not be a group member."""
        self._settings = settings
        self._unit = unit
        self._group_metadata_consumer = group_metadata_consumer
        self._clock = clock
        self._pending = PendingMarkers()
        self._is_claimed = False
        # The owner in the last checkpoint.
        self._run = self._site = ""
        self._starts = _StartRecords(settings, clock)
        self._producer = UnitProducer(settings, unit, group_metadata_consumer, clock)

    def connect(self) -> None:
        """Connect to Kafka without fencing the current owner. Raises KafkaException if a request fails."""
        self._producer.connect(self._settings.state_topic)

    def init(self) -> None:
        """Initialise the transactional id, which fences all other owners of the unit."""
        try:
            self.connect()
            self._producer.init()
        except KafkaException as error:
            # Other fatal errors, such as a missing authorisation to use the id, are raised unchanged.
            if names_fencing(error):
                raise Fenced from error
            raise

    def commit(
        self,
        messages: Outgoing,
        checkpoint: Checkpoint,
        snapshot: tuple[bytes, SnapshotPlace] | None = None,
        *,
        removed: Sequence[str] = (),
        starts: Sequence[Mapping[str, int]] = (),
    ) -> SnapshotPlace | None:
        """Commit the effects and the checkpoint (steps 1-6). If a snapshot is written, return its place, else None.

        ``snapshot``: the bytes of a snapshot, which may be postponed, and the place of the previous one. ``removed``:
        keys to delete from the state topic, by tombstones. ``starts``: the vectors of the start records, for the first
        commit; by default, that of the last commit or, before the first one, that of the checkpoint.

        A large snapshot takes additional transactions, and releasing the unit after that takes one more.

        Raises `Fenced` if another runner has claimed the unit, and `Aborted` if the transaction failed or its outcome
        is unknown. After either, this object must not be used again.
        """
        began_s, place = self._clock.monotonic_s(), None
        begun = self._settings.output_topics.values() if self._starts.begins(starts) else ()
        identities = _identities(messages, begun)
        try:
            self._begin(checkpoint)
            if snapshot is not None and not self._may_replace_snapshot():
                snapshot = None
            is_apart = goes_apart(snapshot)
            # The target may claim a released unit as soon as the release is visible, so the snapshot comes first.
            ours = self._still_ours(checkpoint) if is_apart else checkpoint
            starts = starts or [self._starts.offsets or checkpoint.offsets]
            self._producer.write_all(self._starts.before(messages, starts))
            for key in removed:
                self._producer.write(self._settings.state_topic, key, None)
            if snapshot is not None and not is_apart:
                place = self._produce_snapshot(*snapshot, checkpoint)
            self._finish(ours, self._pending.records(identities))
            self._note_written(identities, is_base=place is not None or not self._is_claimed)
            if snapshot is not None and is_apart:
                place = self._write_apart(*snapshot, ours)
            if ours != checkpoint:
                self._begin(checkpoint)
                self._producer.write_all(self._starts.before({}))
                self._finish(checkpoint, self._pending.records({}))
                self._note_written({}, is_base=False)
            if place is not None or not self._is_claimed or self._was_disturbed(began_s):
                self.check_ended()
        except KafkaException as error:
            raise _failure(error) from error
        self._is_claimed, self._run, self._site = True, checkpoint.run, checkpoint.site
        return place

    def begin_anew(
        self, state: StateLog, checkpoint: Checkpoint, snapshot: bytes | None = None, *, with_offsets: bool = True
    ) -> None:
        """Delete the unit's records from the state topic, and write ``checkpoint`` and a snapshot instead.

        This takes one transaction or, if the snapshot is large, several: the first deletes the old checkpoint, so that
        no interrupted reset is continued; the last writes the new one and, unless ``with_offsets`` is false, the
        group's offsets, which without a checkpoint say that the topic was deleted. Raises what `commit` does.
        """
        parts = cut(beginning(state, checkpoint, snapshot), SNAPSHOT_BYTES_MAX) or [[]]
        try:
            for part in parts:
                self._producer.begin()
                if with_offsets and part is parts[-1]:
                    self._producer.send_offsets(checkpoint.offsets)
                for key, value in part:
                    self._producer.write(self._settings.state_topic, key, value)
                if part is not parts[-1]:
                    self._producer.commit()
                    self._note_written({}, is_base=False)
            self._finish(checkpoint, {})
            self._note_written({}, is_base=True)
            self.check_ended()
        except KafkaException as error:
            raise _failure(error) from error

    @property
    def has_pending_markers(self) -> bool:
        """Whether markers of committed transactions were still missing at the last check."""
        return bool(self._pending)

    def check_ended(self) -> None:
        """Wait until none of our transactions is the oldest open one in any partition.

        Raises `Aborted` if one remains open: Kafka has failed to end it, and the unit must be claimed again. Raises
        KafkaException if a request fails. Another program's open transaction hides everything after it as well, but
        this method does not wait for that transaction to end.
        """
        deadline_s, wait_s = None, FIRST_LOOK_S
        while True:
            stable = self._note_stable_ends(self._pending.topics())
            ours = self._pending.ours(stable)
            if not ours:
                return
            # The timeout starts at the first answer: a broker that was silent has not written the markers either.
            now_s = self._clock.monotonic_s()
            deadline_s = deadline_s or now_s + _MARKERS_S
            if now_s > deadline_s:
                raise Aborted(f"Kafka has left a committed transaction open in {', '.join(ours)} [{self._unit}]")
            self._clock.sleep(wait_s)
            wait_s = min(2 * wait_s, LOOK_S)

    def check_owner(self) -> None:
        """Ask Kafka whether this runner still owns the unit, without writing.

        Raises `Fenced` if it does not, and `Aborted` if that cannot be determined.
        """
        try:
            self._producer.begin()
            self._producer.send_offsets({self._settings.input_topics[0]: 0})
            self._producer.abort()
        except KafkaException as error:
            raise _failure(error) from error

    def roll_back(self, topics: Sequence[str], checkpoint: Checkpoint) -> dict[str, int]:
        """Write a record to the unit's partition of each topic, and the group's offsets, in one transaction. Abort it.

        The abort markers also end any earlier transaction of this producer that is still open in these partitions.
        Return the offsets of the records, by topic. Raises `Fenced` if another runner has claimed the unit, and
        `Aborted` if the transaction failed or its outcome is unknown.
        """
        try:
            self._producer.begin()
            for topic in topics:
                self._producer.write(topic, f"{self._unit}/rolled-back", None)
            self._producer.send_offsets(checkpoint.offsets)
            self._producer.flush()
            self._producer.abort()
        except KafkaException as error:
            raise _failure(error) from error
        firsts = self._delivered()
        self._pending.begin_at(firsts)
        return firsts

    def _still_ours(self, checkpoint: Checkpoint) -> Checkpoint:
        """Return the checkpoint. If it would release the unit, put the current owner back into it."""
        if checkpoint.on_the_way is None:
            return checkpoint
        return msgspec.structs.replace(checkpoint, run=self._run, site=self._site)

    def _was_disturbed(self, began_s: float) -> bool:
        """Return whether Kafka may have restarted during the commit, because the commit was slow or was retried."""
        return self._producer.was_asked_again or self._clock.monotonic_s() - began_s > _LONG_S

    def _note_stable_ends(self, topics: Iterable[str]) -> dict[str, int]:
        stable = log_ends(self._group_metadata_consumer, topics, self._unit)
        self._pending.note(stable)
        return stable

    def _may_replace_snapshot(self) -> bool:
        """Return whether the older snapshot may be replaced.

        It may be replaced once all transactions that precede the newer snapshot have ended.
        """
        self.check_ended()
        # Note the current stable ends: a claim that replays from this snapshot will search for results from there.
        self._note_stable_ends(self._settings.output_topics.values())
        in_doubt = self._pending.in_doubt()
        if in_doubt:
            _log.warning(
                "unit %s: the snapshot is postponed: because another program has an open transaction in %s, it is not "
                "known which of the unit's transactions Kafka has ended",
                self._unit,
                ", ".join(f"{topic} [{self._unit}] at {self._pending.ends()[topic]}" for topic in in_doubt),
            )
        return not in_doubt

    def _note_written(self, identities: Mapping[str, str], *, is_base: bool) -> None:
        self._pending.add(self._delivered(), identities, is_base=is_base)

    def _delivered(self) -> dict[str, int]:
        """Return the offset of the last transaction's first record in each topic.

        Raises `Aborted` if Kafka has not reported one, as happens if the record was sent twice. The next claim will
        find the record in the log.
        """
        firsts = dict(self._producer.firsts)
        if unknown := sorted(topic for topic, at in firsts.items() if at < 0):
            raise Aborted(f"Kafka has not reported the offset of a record in {', '.join(unknown)} [{self._unit}]")
        return firsts

    def _produce_snapshot(self, data: bytes, place: SnapshotPlace, checkpoint: Checkpoint) -> SnapshotPlace:
        records, after = snapshot_records(data, place, checkpoint, self._pending.ends())
        for key, value in records:
            self._producer.write(self._settings.state_topic, key, value)
        return after

    def _write_apart(self, data: bytes, place: SnapshotPlace, checkpoint: Checkpoint) -> SnapshotPlace:
        """Write a snapshot in separate transactions, each of which repeats the checkpoint.

        The manifest of the chunks to be replaced is removed first, and the new manifest is written last. After a crash
        in between, a replay starts from the other snapshot; all transactions before that one are known to have ended.
        """
        records, after = snapshot_records(data, place, checkpoint, self._pending.ends())
        manifest_key, _ = records[-1]
        parts = cut([(manifest_key, None), *records], SNAPSHOT_BYTES_MAX)
        for part in parts:
            self._begin(checkpoint)
            self._producer.write_all(self._starts.before({}))
            for key, value in part:
                self._producer.write(self._settings.state_topic, key, value)
            self._finish(checkpoint, self._pending.records({}))
            self._note_written({}, is_base=part is parts[-1])
        return after

    def _begin(self, checkpoint: Checkpoint) -> None:
        """Take steps 1 and 2."""
        self._producer.begin()
        self._producer.send_offsets(checkpoint.offsets)

    def _finish(self, checkpoint: Checkpoint, written: dict[str, FirstRecord]) -> None:
        """Take steps 5 and 6."""
        record = msgspec.structs.replace(checkpoint, written=written)
        self._producer.write(self._settings.state_topic, checkpoint_key(self._unit), encode(record))
        self._producer.commit()
        self._starts.begin_at(checkpoint.offsets)


def goes_apart(snapshot: tuple[bytes, SnapshotPlace] | None) -> bool:
    """Return whether a snapshot is so large that it needs separate transactions, which may take a long time."""
    return snapshot is not None and len(snapshot[0]) > SNAPSHOT_BYTES_MAX


def _identities(messages: Outgoing, beginning: Iterable[str]) -> dict[str, str]:
    """Return, for each result topic, the identity of the first message to be written to it.

    ``beginning``: the topics in which a start record with an empty vector precedes the messages.
    """
    found = dict.fromkeys(beginning, BEGINNING)
    for topic, batch in messages.items():
        if len(batch):
            found[topic] = identity_of(batch.values[0]) or found.get(topic, "")
    return found


def _failure(error: KafkaException) -> Fenced | Aborted:
    """Convert the error from a failed step of a transaction to `Fenced` or `Aborted`.

    The transaction remains open. The next claim aborts it when it initialises the transactional id.
    """
    return Fenced() if is_fenced(error) else Aborted(error.args[0].str())


def unsubscribed_consumer(settings: JoinerSettings) -> Consumer:
    """Create a consumer that does not join the group and only supplies its metadata, for committing offsets.

    The metadata of a member would contain the generation of the group, and Kafka would refuse the offsets of every
    transaction during which the group rebalances.
    """
    consumer = make_consumer(settings.kafka, settings.application.name)
    consumer.assign([])
    return consumer


def offsets_as_text(offsets: Mapping[str, int]) -> str:
    """Format offsets for use in messages, as a list of ``topic@offset``."""
    return ", ".join(f"{topic}@{at}" for topic, at in sorted(offsets.items()))
