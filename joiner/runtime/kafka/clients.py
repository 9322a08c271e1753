"""Creates the joiner's Kafka clients, which log their errors.

By default, consumers read only committed data. They never commit offsets on their own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Final

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from broker.kafka.client_log import client_logger
from broker.kafka.errors import is_fatal, unwrap_fatal_errors
from broker.kafka.group_member import METADATA_REFRESH_MS
from broker.settings import KafkaSettings
from joiner.runtime.clock import Clock

TIMEOUT_S: Final = 30.0
"""Timeout for a request to Kafka, long enough for a broker to restart."""

_RETRY_S: Final = 0.1

LOOK_S: Final = 0.05
FIRST_LOOK_S: Final = 0.005
"""The longest and the first interval between checks for markers, which usually arrive within milliseconds."""

READ_WAIT_S: Final = 0.01
"""How long reading part of a log waits for messages before it looks whether to go on."""

EOF_CODE: Final = KafkaError._PARTITION_EOF  # noqa: SLF001 - the public name of the constant

EARLIEST: Final[OffsetSpec] = OffsetSpec.earliest()  # type: ignore[no-untyped-call] # it has no types
LATEST: Final[OffsetSpec] = OffsetSpec.latest()  # type: ignore[no-untyped-call] # it has no types

KAFKA_LOG: Final = client_logger("joiner.kafka")

_COMMITTED: Final[dict[str, str | float | bool]] = {
    "enable_auto_commit": False,
    "enable_auto_offset_store": False,
    "auto_offset_reset": "error",
    "isolation_level": "read_committed",
    "check_crcs": True,
}

_TO_THE_END: Final[dict[str, str | float | bool]] = {
    "enable_partition_eof": True,
    "fetch_wait_max_ms": 10,
    "fetch_queue_backoff_ms": 2,
}
"""The end of a log is reported quickly: brokers wait at most 10 ms for more data."""


class PromptConsumer(Consumer):
    """A consumer whose `consume` returns as soon as something has arrived.

    That of the library waits until it has as many messages as may be returned, or for the whole timeout. At the end of
    a log, that is always the whole timeout.
    """

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """Return what has arrived, but no more than ``num_messages``. Wait up to ``timeout`` seconds for the first."""
        found = super().consume(1, timeout)
        if found and num_messages > 1:
            found += super().consume(num_messages - 1, 0)
        return found


def make_consumer(
    kafka: KafkaSettings,
    group: str,
    **more: str | float | bool,
) -> Consumer:
    """Create a read-committed consumer that never commits or resets offsets on its own."""
    return Consumer(kafka.client_config(**(_COMMITTED | {"group_id": group} | more)), logger=KAFKA_LOG)


def make_reader(kafka: KafkaSettings, group: str, **more: str | float | bool) -> Consumer:
    """Create a consumer that quickly returns what a log contains, and quickly reports its end."""
    config = kafka.client_config(**(_COMMITTED | _TO_THE_END | {"group_id": group} | more))
    return PromptConsumer(config, logger=KAFKA_LOG)


def make_batch_consumer(kafka: KafkaSettings, group: str) -> Consumer:
    """Create a consumer like that of `make_reader`, except that it waits for full batches, so that they are larger."""
    return make_consumer(kafka, group, **_TO_THE_END)


TRANSACTIONAL: Final[dict[str, str | float | bool]] = {
    # Messages must be sent without delay. If one commit closely follows another, Kafka asks the client to retry. By
    # default, the client backs off for 100 ms, then 200 ms, and longer each time.
    "retry_backoff_ms": 2,
    "retry_backoff_max_ms": 4,
    "linger_ms": 5,
    "compression_type": "lz4",
    # By default, librdkafka forgets all brokers once it is connected to none. Sending offsets may then wait for a
    # forgotten group coordinator, longer than its time limit (confluentinc/librdkafka#5511 and #5456). If the brokers
    # have moved, calls fail, and whoever writes continues with a new producer.
    "metadata_recovery_strategy": "none",
}
"""The settings of producers that commit many transactions."""

_LAST_STEP_S: Final = 1.0
"""The time for the last attempt to commit, even if earlier attempts have used up the limit."""

_ABORT_S: Final = 1.0

_INIT_S: Final = 0.02
_INIT_MAX_S: Final = 1.0
"""The first and the longest time limit of a call that initialises the transactional id. Calling again continues the
same initialisation."""


def make_producer(kafka: KafkaSettings, **more: str | float | bool) -> Producer:
    """Create an idempotent producer. ``more``: further client settings, such as a transactional id."""
    return Producer(kafka.producer_config(**more), logger=KAFKA_LOG)


def connect(producer: Producer, topic: str) -> None:
    """Connect to Kafka. ``topic``: an existing one. Raises KafkaException.

    Call this before `init_transactions`, which looks up the transaction coordinator: without a connection, the client
    library would retry that lookup only after half a second.
    """
    producer.list_topics(topic, TIMEOUT_S)


def init_transactions(producer: Producer, clock: Clock) -> None:
    """Initialise the transactional id, which fences all other producers that have it. Raises KafkaException."""
    deadline_s, wait_s = clock.monotonic_s() + TIMEOUT_S, _INIT_S
    while True:
        try:
            producer.init_transactions(wait_s)
        except KafkaException as error:
            # Kafka refuses the request for a few milliseconds while it is ending the last transaction. librdkafka
            # retries a refused request only after half a second, but immediately if called again.
            if not error.args[0].retriable() or clock.monotonic_s() > deadline_s:
                raise
            wait_s = min(2 * wait_s, _INIT_MAX_S)
        else:
            return


def commit(
    producer: Producer, clock: Clock, deadline_s: float, note_retry: Callable[[KafkaError], object] = lambda _: None
) -> None:
    """Commit a transaction. After a retriable error, such as a lost response, retry it, which is safe.

    ``deadline_s``: by the monotonic clock. ``note_retry`` is called with each such error. Raises KafkaException.
    """
    while True:
        try:
            with unwrap_fatal_errors():
                producer.commit_transaction(max(_LAST_STEP_S, deadline_s - clock.monotonic_s()))
        except KafkaException as error:
            fault: KafkaError = error.args[0]
            if not fault.retriable() or clock.monotonic_s() > deadline_s:
                raise
            note_retry(fault)
        else:
            return


def flush(producer: Producer, limit_s: float) -> int:
    """Wait until all messages are delivered, or until ``limit_s``. Return how many are not. Raises KafkaException."""
    with unwrap_fatal_errors():
        return producer.flush(limit_s)


def poll(producer: Producer, limit_s: float) -> None:
    """Call the delivery callbacks that are due, waiting up to ``limit_s`` for one. Raises KafkaException."""
    with unwrap_fatal_errors():
        producer.poll(limit_s)


def abort_if_possible(producer: Producer) -> None:
    """Abort a transaction if that is possible at once, so that nobody waits for its timeout."""
    with suppress(KafkaException), unwrap_fatal_errors():
        within(_ABORT_S + 1.0, producer.abort_transaction, _ABORT_S)


def make_admin(kafka: KafkaSettings) -> AdminClient:
    """Create a client for Kafka's administrative requests."""
    # A request to all brokers (see `broker.kafka.groups`) fails as long as the client does not know that one of them is
    # down. By default, that can last for five minutes.
    config = kafka.client_config(topic_metadata_refresh_interval_ms=METADATA_REFRESH_MS)
    return AdminClient(config, logger=KAFKA_LOG)


def log_range(consumer: Consumer, topic: str, partition: int) -> tuple[int, int]:
    """Return the first offset and the end of a partition. Raises KafkaException if the request fails.

    For a read-committed consumer, the end is the last stable offset: if transactions are open, the offset at which the
    earliest one begins. For a read-uncommitted consumer, it is the high watermark.
    """
    low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=TIMEOUT_S)
    return int(low), int(high)


def known_range(consumer: Consumer, clock: Clock, topic: str, partition: int) -> tuple[int, int]:
    """Like `log_range`, but wait until the partition has a leader, which may take a moment if the topic is new.

    Raises KafkaException if no request succeeds within `TIMEOUT_S`.
    """
    deadline_s = clock.monotonic_s() + TIMEOUT_S
    while True:
        try:
            return log_range(consumer, topic, partition)
        except KafkaException:
            if clock.monotonic_s() > deadline_s:
                raise
            clock.sleep(_RETRY_S)


def log_ends(consumer: Consumer, topics: Iterable[str], partition: int) -> dict[str, int]:
    """Return the end of the same partition in several topics, by topic.

    Like `log_range`, but with a single request. Raises KafkaException if it fails.
    """
    wanted = [TopicPartition(topic, partition, OFFSET_END) for topic in topics]
    places = consumer.offsets_for_times(wanted, TIMEOUT_S) if wanted else []
    for place in places:
        if place.error is not None:
            raise KafkaException(place.error)
    return {place.topic: place.offset for place in places}


class TransactionOpen(KafkaException):
    """A transaction of another producer has been open for too long. ``places``: where, as text.

    The message also says how an operator can end it.
    """

    def __init__(
        self, kafka: KafkaSettings, open_from: Mapping[str, int], partition: int, owner: str, limit_s: float
    ) -> None:
        self.places = ", ".join(f"{topic} [{partition}] from offset {at}" for topic, at in open_from.items())
        topic, at = next(iter(open_from.items()))
        super().__init__(
            *timed_out(
                f"a transaction that does not belong to {owner} has been open for {limit_s:.0f} s in {self.places}. "
                + how_to_end(kafka, topic, partition, at)
            ).args
        )


def wait_until_ended(
    consumer: Consumer,
    kafka: KafkaSettings,
    clock: Clock,
    offsets: Mapping[str, int],
    partition: int,
    owner: str,
    limit_s: float = TIMEOUT_S,
    check: Callable[[], object] = lambda: None,
) -> None:
    """Wait until all transactions at or before an offset have ended in the same partition of several topics.

    ``consumer``: a read-committed one. ``owner``: who waits, for the message. ``check``: called between two looks, and
    may raise what it likes to end the wait. Raises `TransactionOpen` if a transaction is still open after ``limit_s``,
    and KafkaException if a request fails.
    """
    deadline_s, wait_s = clock.monotonic_s() + limit_s, FIRST_LOOK_S
    while behind := {topic: at for topic, at in log_ends(consumer, offsets, partition).items() if at <= offsets[topic]}:
        check()
        if clock.monotonic_s() > deadline_s:
            raise TransactionOpen(kafka, behind, partition, owner, limit_s)
        clock.sleep(wait_s)
        wait_s = min(2 * wait_s, LOOK_S)


def read_to_end(
    consumer: Consumer, clock: Clock, topic: str, partition: int, start: int, end: int
) -> Iterator[Message]:
    """Yield the messages of a partition from ``start`` up to ``end``. ``consumer`` must come from `make_reader`.

    Stops at ``end`` even if the log has grown. The consumer is left without assigned partitions. Raises KafkaException
    on an error, or if no message arrives for `TIMEOUT_S`.
    """
    consumer.assign([TopicPartition(topic, partition, start)])
    deadline_s = clock.monotonic_s() + TIMEOUT_S
    try:
        while clock.monotonic_s() < deadline_s:
            for message in consumer.consume(1000, READ_WAIT_S):
                error = message.error()
                if error is not None and error.code() == EOF_CODE:
                    if (message.offset() or 0) >= end:
                        return
                    continue
                raise_for(message)
                if (message.offset() or 0) >= end:
                    return
                deadline_s = clock.monotonic_s() + TIMEOUT_S
                yield message
    finally:
        # The consumer of a warm state reads a few records five times a second. Otherwise it would fetch a hundred times
        # a second in between. If another error has ended the reading, the consumer may have been closed before.
        with suppress(RuntimeError):
            consumer.unassign()
    raise timed_out(
        f"no message arrived from {topic} [{partition}] for {TIMEOUT_S:.0f} s while reading up to offset {end}"
    )


def raise_for(message: Message) -> None:
    """Raise KafkaException if the message is an error event."""
    error = message.error()
    if error is not None:
        raise KafkaException(error)


def is_passing(error: KafkaError, partition: int | None) -> bool:
    """Return whether a consumer's error event only means that brokers are currently unreachable.

    The client recovers from this on its own without skipping records. By contrast, any error that names a partition may
    mean that records were skipped.
    """
    return (partition is None or partition < 0) and not is_fatal(error)


def timed_out(what: str) -> KafkaException:
    """Create a timeout error with the message ``what``, for calls that have no timeout of their own."""
    return KafkaException(KafkaError(KafkaError._TIMED_OUT, what))  # noqa: SLF001 - the public name of the constant


def how_to_end(kafka: KafkaSettings, topic: str, partition: int, at: int) -> str:
    """Return what an operator can do about a transaction of another producer that is open from an offset on."""
    command = f"kafka-transactions.sh --bootstrap-server {kafka.bootstrap_servers}"
    return (
        "If it belongs to another program, that program must end it, or the broker will after the program's "
        "transaction.timeout.ms. If Kafka has lost track of it, "
        f"`{command} find-hanging --topic {topic} --partition {partition}` lists it, and `{command} abort "
        f"--topic {topic} --partition {partition} --start-offset {at}` ends it"
    )


def is_fenced(error: KafkaException) -> bool:
    """Return whether an error means that another producer has, or may have, initialised the transactional id.

    Once a producer is fenced, only its next call says so; later calls report a fatal error. The caller should then
    verify the unit's owner, which is the right reaction to any fatal error.
    """
    return is_fatal(error.args[0]) or names_fencing(error)


def names_fencing(error: KafkaException) -> bool:
    """Return whether the error says explicitly that another producer has initialised the transactional id."""
    return error.args[0].code() in {
        KafkaError._FENCED,  # noqa: SLF001 - the public name of the constant
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.PRODUCER_FENCED,
    }


def describe(error: BaseException) -> str:
    """Return the message of any error, or the name of its type if it has no message."""
    fault = error.args[0] if error.args else None
    return str(fault.str()) if isinstance(fault, KafkaError) else str(error) or type(error).__name__


def within(seconds: float, call: Callable[..., object], *arguments: object) -> None:
    """Make a call in a new thread and wait for it, but no longer than ``seconds``.

    Raises the call's exception, or KafkaException on a timeout. In librdkafka 2.16, sending offsets blocks forever,
    regardless of its timeout, if Kafka is killed at the wrong moment. The thread is then abandoned together with its
    producer, which the unit's next claim fences.
    """
    outcome: SimpleQueue[BaseException | None] = SimpleQueue()

    def run() -> None:
        try:
            call(*arguments)
        except BaseException as error:  # noqa: BLE001 - re-raised in the waiting thread
            outcome.put(error)
        else:
            outcome.put(None)

    threading.Thread(target=run, name="within", daemon=True).start()
    try:
        error = outcome.get(timeout=seconds)
    except Empty:
        raise timed_out(f"a call to the Kafka client did not return within {seconds:g} s") from None
    if error is not None:
        try:
            raise error
        finally:
            # The error's traceback refers to this frame. If the frame also referred to the error, this cycle would keep
            # the producer, its threads and its connections alive until the next garbage collection, and collections
            # are rare (see `gc_tuning`).
            del error


def in_background(name: str, call: Callable[[], Any]) -> Future[Any]:
    """Make a call in a new thread called ``name``, which does not delay the end of the process. Return its result."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except Exception as error:  # noqa: BLE001 - raised again by whoever reads the result
            future.set_exception(error)

    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except RuntimeError as error:  # the process may not start any more threads
        future.set_exception(timed_out(f"no thread could be started: {error}"))
    return future
