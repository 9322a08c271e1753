"""A Kafka broker in memory: topics, the coordinator of transactions, the offsets of groups.

It follows the rules the joiner relies on, and tests/integration/test_kafka_contract.py checks that a real Kafka passes
the same tests. It is no server: the clients of `memory_clients` call it. The world gives it the time. There is no
replication, and requests do not overtake each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException

from tests.simulation.memory_groups import Group
from tests.simulation.memory_log import ABORTED, COMMITTED, OPEN, Log, Transaction


@dataclass
class Topic:
    """``topic_id`` changes when the topic is deleted and made anew."""

    topic_id: str
    logs: list[Log]


@dataclass
class Identity:
    """A transactional id: its newest producer and epoch, and the transaction that is open."""

    producer: int
    epoch: int = -1
    timeout_s: float = 60.0
    transaction: Transaction | None = None


class MemoryKafka:
    """The broker. ``now_s`` is its clock; ``skew_ms`` is added to the times that it stamps on records."""

    def __init__(self, now_s: Callable[[], float], *, markers_lag: bool = False) -> None:
        """``markers_lag``: a decided transaction is marked in its partitions by `write_marker` alone."""
        self.now_s = now_s
        self.skew_ms = 0
        self.topics: dict[str, Topic] = {}
        self.groups: dict[str, Group] = {}
        self.committed: dict[str, dict[tuple[str, int], int]] = {}
        self.identities: dict[str, Identity] = {}
        self.aborted = 0
        self.forgets: Callable[[Log], bool] | None = None
        """Of the next transaction that ends: asked for each of its partitions whether that is never told (see
        `joiner.runtime.ownership.dangling`)."""
        self.times_forgotten = 0
        self.unknown_until_s = 0.0
        """Until then whoever asks for topics is told that there are none, as by a broker that has just started."""
        self.restart_s = 0.0
        """How long it is away where it forgets: the answer to what it forgot comes behind that."""
        self.on_init: Callable[[str, int], None] = lambda _transactional_id, _epoch: None
        """Told of each new owner of a transactional id, with its epoch."""
        self.damaged = 0
        """So many batches will be damaged on their way to a consumer."""
        self.decided: list[Transaction] = []
        """Committed or aborted, and not yet marked in every partition."""
        self._markers_lag = markers_lag
        self._topics_made = 0

    # Topics

    def create_topic(self, name: str, partitions: int) -> None:
        """Make a topic; it gets an id of its own."""
        self._topics_made += 1
        self.topics[name] = Topic(f"id-{self._topics_made}", [Log() for _ in range(partitions)])

    def delete_topic(self, name: str) -> None:
        """Remove a topic with all its records."""
        del self.topics[name]

    def log(self, topic: str, partition: int) -> Log:
        """The log of a partition. Raises KafkaException where there is none."""
        found = self.topics.get(topic)
        if found is None or partition >= len(found.logs):
            raise kafka_error(KafkaError.UNKNOWN_TOPIC_OR_PART, f"{topic} [{partition}] is not known")
        return found.logs[partition]

    def logs(self) -> Iterator[tuple[str, int, Log]]:
        """All partitions."""
        for name, topic in self.topics.items():
            for partition, log in enumerate(topic.logs):
                yield name, partition, log

    def time_ms(self) -> int:
        """The time that is stamped on a record now."""
        return int(self.now_s() * 1000) + self.skew_ms

    def append(
        self, topic: str, partition: int, key: bytes | None, value: bytes | None, within: Transaction | None = None
    ) -> int:
        """Write a record outside any transaction, or within one that the caller may use."""
        return self.log(topic, partition).append(key, value, self.time_ms(), within)

    # Transactions

    def init(self, transactional_id: str, timeout_s: float) -> tuple[int, int]:
        """Hand the id to a new producer: what was open is aborted, every older one is fenced."""
        identity = self.identities.setdefault(transactional_id, Identity(len(self.identities)))
        identity.epoch += 1
        if identity.transaction is not None:
            self._decide(identity, ABORTED)
        self._settle(identity)
        identity.timeout_s = timeout_s
        self.on_init(transactional_id, identity.epoch)
        return identity.producer, identity.epoch

    def check_epoch(self, transactional_id: str, epoch: int) -> Identity:
        """The id's state for its newest producer. Raises KafkaException for every other one."""
        identity = self.identities[transactional_id]
        if identity.epoch != epoch:
            raise fenced_error()
        return identity

    def transaction(self, transactional_id: str, epoch: int) -> Transaction:
        """The open transaction, begun now if there is none."""
        identity = self.check_epoch(transactional_id, epoch)
        self._settle(identity)
        if identity.transaction is None:
            identity.transaction = Transaction(identity.producer, epoch, self.now_s())
        return identity.transaction

    def end(self, transactional_id: str, epoch: int, state: str) -> None:
        """Commit or abort what is open; asked for again, the answer is the same."""
        identity = self.check_epoch(transactional_id, epoch)
        if identity.transaction is not None:
            self._decide(identity, state)

    def expire_transactions(self) -> None:
        """Abort what has been open for too long; its producer is fenced by that."""
        now_s = self.now_s()
        for identity in self.identities.values():
            if identity.transaction is not None and now_s - identity.transaction.begun_s > identity.timeout_s:
                identity.epoch += 1
                self._decide(identity, ABORTED)

    def arrive_belated(
        self, transactional_id: str, epoch: int, topic: str, partition: int, key: bytes | None, value: bytes | None
    ) -> bool:
        """A record of an older owner arrives after all; whether the partition takes it.

        It does where it was not told of a newer owner yet, and nobody will ever end the transaction that this opens:
        see tests/integration/test_hanging_transactions.
        """
        producer, log = self.identities[transactional_id].producer, self.log(topic, partition)
        is_taken = log.epochs.get(producer, -1) <= epoch
        if is_taken:
            log.append(key, value, self.time_ms(), Transaction(producer, epoch, self.now_s()))
        return is_taken

    def begin_source(self) -> Transaction:
        """A transaction of a producer that nobody fences: a source's."""
        return Transaction(-1, 0, self.now_s())

    def end_source(self, transaction: Transaction, state: str) -> None:
        """Decide and watermark a source's transaction."""
        transaction.state = state
        for log in list(transaction.logs):
            log.write_marker(transaction, self.time_ms())

    def write_marker(self, transaction: Transaction) -> None:
        """Write one control record of a decided transaction; with the last one its group offsets are visible."""
        if transaction.logs:
            transaction.logs[0].write_marker(transaction, self.time_ms())
        if not transaction.logs:
            self.decided.remove(transaction)
            self._publish_offsets(transaction)

    def _settle(self, identity: Identity) -> None:
        """Write all control records that are due: the id's next transaction has to wait for them."""
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

    # Groups

    def group(self, name: str) -> Group:
        """A consumer group, made at first sight."""
        return self.groups.setdefault(name, Group(self))

    def group_offsets(self, group: str) -> dict[tuple[str, int], int]:
        """What a group has committed; a reader waits for transactions that are decided."""
        for identity in self.identities.values():
            self._settle(identity)
        return self.committed.get(group, {})


def kafka_error(code: int, reason: str, **flags: bool) -> KafkaException:
    """An error as the library raises it."""
    return KafkaException(KafkaError(code, reason, **flags))


def fenced_error() -> KafkaException:
    """What a producer is told whose id another has taken."""
    return kafka_error(
        KafkaError._FENCED,  # noqa: SLF001 - the public name of the constant
        "there is a newer producer with the same transactionalId which fences the current one",
        fatal=True,
    )
