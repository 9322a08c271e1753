"""A Kafka broker in memory: topics, the transaction coordinator, group offsets.

It follows the rules that the joiner relies on. tests/integration/test_kafka_contract.py runs the same tests on a real
broker. It is not a server: the clients in `memory_clients` call it directly. It uses the world's clock. There is no
replication, and requests are not reordered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition

from tests.simulation.memory_groups import Group, GroupMetadata, Place
from tests.simulation.memory_log import ABORTED, COMMITTED, OPEN, Headers, Log, Transaction

DEFAULTS: Final = {
    "cleanup.policy": "delete",
    "message.timestamp.type": "LogAppendTime",
    "retention.ms": "604800000",
    "max.message.bytes": "1048588",
}
"""The configuration of a topic, if nothing else is given."""


@dataclass
class Topic:
    """A topic. ``topic_id`` changes when the topic is deleted and created again. ``config``: other than the default."""

    topic_id: str
    logs: list[Log]
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Identity:
    """A transactional id: its producer, newest epoch and open transaction."""

    producer: int
    epoch: int = -1
    timeout_s: float = 60.0
    transaction: Transaction | None = None


class MemoryKafka:
    """The broker. ``now_s`` is its clock; ``skew_ms`` is added to the append times of records."""

    def __init__(
        self, now_s: Callable[[], float], *, markers_lag: bool = False, hides_unstable_offsets: bool = False
    ) -> None:
        """``markers_lag``: the markers of a decided transaction are written only by `write_marker`.
        ``hides_unstable_offsets``: a committed offset is not told while a transaction may change it. Otherwise, such
        transactions are ended first, as if they took no time.
        """
        self.now_s = now_s
        self.skew_ms = 0
        self.topics: dict[str, Topic] = {}
        self.groups: dict[str, Group] = {}
        self.committed: dict[str, dict[Place, int]] = {}
        self.notes: dict[str, dict[Place, str]] = {}
        """The metadata of the committed offsets."""
        self.identities: dict[str, Identity] = {}
        self.aborted = 0
        self.is_slow_to_end = False
        """Whether a producer must ask twice to initialise an id while the last owner's transaction is open."""
        self.forgets: Callable[[Log], bool] | None = None
        """Returns, for each partition of the next transaction that ends, whether its marker is never written (see
        `joiner.runtime.ownership.dangling`).
        """
        self.times_forgotten = 0
        self.unknown_until_s = 0.0
        """Until this time, topics are reported as unknown, as if the broker had just started."""
        self.restart_s = 0.0
        """How long the broker is down when it forgets markers. It responds to the commit or abort after that."""
        self.on_init: Callable[[str, int], None] = lambda _transactional_id, _epoch: None
        """Called at each initialisation of a transactional id, with the new epoch."""
        self.damaged = 0
        """The number of batches still to be damaged on the way to a consumer."""
        self.decided: list[Transaction] = []
        """Transactions that are committed or aborted, but not yet marked in every partition."""
        self._markers_lag = markers_lag
        self.hides_unstable_offsets = hides_unstable_offsets
        self._topics_made = 0

    # Topics

    def create_topic(self, name: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        """Create a topic with a new id."""
        self._topics_made += 1
        self.topics[name] = Topic(f"id-{self._topics_made}", [Log() for _ in range(partitions)], dict(config or {}))

    def delete_topic(self, name: str) -> None:
        """Delete a topic with all its records and committed offsets."""
        del self.topics[name]
        for by_group in (self.committed, self.notes):
            for offsets in by_group.values():
                for place in [place for place in offsets if place[0] == name]:
                    del offsets[place]

    def add_partition(self, name: str) -> None:
        """Add a partition to a topic. The groups that read it notice that at once."""
        self.topics[name].logs.append(Log())
        for group in self.groups.values():
            group.notice_partitions()

    def log(self, topic: str, partition: int) -> Log:
        """Return the log of a partition. Raises KafkaException if there is none."""
        found = self.topics.get(topic)
        if found is None or partition >= len(found.logs):
            raise kafka_error(KafkaError.UNKNOWN_TOPIC_OR_PART, f"{topic} [{partition}] is not known")
        return found.logs[partition]

    def logs(self) -> Iterator[tuple[str, int, Log]]:
        """Yield the topic, the number and the log of every partition."""
        for name, topic in self.topics.items():
            for partition, log in enumerate(topic.logs):
                yield name, partition, log

    def time_ms(self) -> int:
        """Return the append time for a record written now."""
        return int(self.now_s() * 1000) + self.skew_ms

    def append(
        self,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        within: Transaction | None = None,
        headers: Headers | None = None,
        time_ms: int | None = None,
    ) -> int:
        """Write a record, outside any transaction or within one whose epoch the caller has checked.

        ``time_ms``: the time that the producer has set, which counts unless the topic uses the time of appending.
        """
        log = self.log(topic, partition)
        if time_ms is None or self.config(topic)["message.timestamp.type"] == "LogAppendTime":
            time_ms = self.time_ms()
        return log.append(key, value, time_ms, within, headers)

    def config(self, topic: str) -> dict[str, str]:
        """Return the configuration of a topic."""
        return {**DEFAULTS, **self.topics[topic].config}

    # Transactions

    def init(self, transactional_id: str, timeout_s: float) -> tuple[int, int]:
        """Initialise the id for a new producer: abort its open transaction and fence every older producer."""
        identity = self.identities.setdefault(transactional_id, Identity(len(self.identities)))
        identity.epoch += 1
        if identity.transaction is not None:
            self._decide(identity, ABORTED)
        self._settle(identity)
        identity.timeout_s = timeout_s
        self.on_init(transactional_id, identity.epoch)
        return identity.producer, identity.epoch

    def check_epoch(self, transactional_id: str, epoch: int) -> Identity:
        """Return the state of the transactional id. Raises KafkaException unless ``epoch`` is the newest."""
        identity = self.identities[transactional_id]
        if identity.epoch != epoch:
            raise fenced_error()
        return identity

    def transaction(self, transactional_id: str, epoch: int) -> Transaction:
        """Return the open transaction, beginning one if there is none."""
        identity = self.check_epoch(transactional_id, epoch)
        self._settle(identity)
        if identity.transaction is None:
            identity.transaction = Transaction(identity.producer, epoch, self.now_s())
        return identity.transaction

    def end(self, transactional_id: str, epoch: int, state: str) -> None:
        """Commit or abort the open transaction. Idempotent."""
        identity = self.check_epoch(transactional_id, epoch)
        if identity.transaction is not None:
            self._decide(identity, state)

    def expire_transactions(self) -> None:
        """Abort the transactions that have timed out. This fences their producers."""
        now_s = self.now_s()
        for identity in self.identities.values():
            if identity.transaction is not None and now_s - identity.transaction.begun_s > identity.timeout_s:
                identity.epoch += 1
                self._decide(identity, ABORTED)

    def arrive_belated(
        self, transactional_id: str, epoch: int, topic: str, partition: int, key: bytes | None, value: bytes | None
    ) -> bool:
        """Deliver a delayed record of an older owner. Return whether the partition accepts it.

        The partition accepts the record if it has not yet seen a newer epoch. The transaction that this opens is never
        ended: see tests/integration/test_hanging_transactions.
        """
        producer, log = self.identities[transactional_id].producer, self.log(topic, partition)
        is_taken = log.epochs.get(producer, -1) <= epoch
        if is_taken:
            log.append(key, value, self.time_ms(), Transaction(producer, epoch, self.now_s()))
        return is_taken

    def begin_source(self) -> Transaction:
        """Begin a transaction of another program, which no joiner can fence."""
        return Transaction(-1, 0, self.now_s())

    def end_source(self, transaction: Transaction, state: str) -> None:
        """Commit or abort a transaction of another program, and write its markers."""
        transaction.state = state
        for log in list(transaction.logs):
            log.write_marker(transaction, self.time_ms())

    def write_marker(self, transaction: Transaction) -> None:
        """Write one marker of a decided transaction. The last one makes its group offsets visible."""
        if transaction.logs:
            transaction.logs[0].write_marker(transaction, self.time_ms())
        if not transaction.logs:
            self.decided.remove(transaction)
            self._publish_offsets(transaction)

    def _settle(self, identity: Identity) -> None:
        """Write all outstanding markers of the transactional id. Its next transaction has to wait for them."""
        for transaction in [known for known in self.decided if known.producer == identity.producer]:
            while transaction in self.decided:
                self.write_marker(transaction)

    def _decide(self, identity: Identity, state: str) -> None:
        transaction = identity.transaction
        assert transaction is not None
        assert transaction.state == OPEN
        identity.transaction = None
        if self.forgets is not None:
            for log in [log for log in transaction.logs if self.forgets(log)]:
                log.leave_open(transaction)
            self.forgets = None
            self.times_forgotten += 1
        transaction.state, transaction.epoch = state, identity.epoch
        self.aborted += state == ABORTED
        self.decided.append(transaction)
        if not self._markers_lag:
            self._settle(identity)

    def _publish_offsets(self, transaction: Transaction) -> None:
        if transaction.state == COMMITTED:
            for group, offsets in transaction.offsets.items():
                self.committed.setdefault(group, {}).update(offsets)
                self.notes.setdefault(group, {}).update(transaction.notes[group])

    # Groups

    def group(self, name: str) -> Group:
        """Return a consumer group, creating it if necessary."""
        return self.groups.setdefault(name, Group(self))

    def add_offsets(
        self, transactional_id: str, epoch: int, metadata: GroupMetadata, sent: Mapping[Place, tuple[int, str]]
    ) -> None:
        """Add consumer offsets and their notes to the open transaction.

        Raises KafkaException if the producer is fenced, or if the member no longer belongs to the group.
        """
        within = self.transaction(transactional_id, epoch)
        if not self.group(metadata.group).permits(metadata):
            raise kafka_error(KafkaError.UNKNOWN_MEMBER_ID, "Broker: Unknown member", txn_requires_abort=True)
        within.offsets.setdefault(metadata.group, {}).update({place: at for place, (at, _) in sent.items()})
        within.notes.setdefault(metadata.group, {}).update({place: note for place, (_, note) in sent.items()})

    def are_unstable(self, group: str, places: Iterable[Place]) -> bool:
        """Return whether any of these committed offsets is not told (see ``hides_unstable_offsets``).

        A transaction may still change it, or has done so without being marked.
        """
        if not self.hides_unstable_offsets:
            return False
        opened = [identity.transaction for identity in self.identities.values() if identity.transaction is not None]
        found = {place for one in [*opened, *self.decided] for place in one.offsets.get(group, {})}
        return not found.isdisjoint(places)

    def offsets_with_notes(self, group: str, places: Iterable[Place]) -> list[TopicPartition]:
        """Return committed offsets with their notes. The offset is -1001 if there is none."""
        offsets, notes = self.group_offsets(group), self.notes.get(group, {})
        return [TopicPartition(*at, offsets.get(at, OFFSET_INVALID), notes.get(at, "")) for at in places]

    def group_offsets(self, group: str) -> dict[Place, int]:
        """Return the committed offsets of a group, after writing the markers of all decided transactions."""
        if self.hides_unstable_offsets:
            return self.committed.get(group, {})
        for identity in self.identities.values():
            self._settle(identity)
        return self.committed.get(group, {})


def kafka_error(code: int, reason: str, **flags: bool) -> KafkaException:
    """Return an error such as the library raises."""
    return KafkaException(KafkaError(code, reason, **flags))


def fenced_error() -> KafkaException:
    """Return the error that a producer gets after another producer has initialised its transactional id."""
    return kafka_error(
        KafkaError._FENCED,  # noqa: SLF001 - the public name of the constant
        "there is a newer producer with the same transactionalId which fences the current one",
        fatal=True,
    )
