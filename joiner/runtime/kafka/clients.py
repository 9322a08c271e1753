"""librdkafka clients as the joiner needs them: no auto-commit, committed data only, errors to the log."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from broker.kafka.client_log import client_logger
from broker.settings import KafkaSettings

TIMEOUT_S: Final = 30.0
"""For one request to Kafka: a broker that restarts is back by then."""

READ_WAIT_S: Final = 0.01
"""`Consumer.consume` stays so long for a full batch, also where it has met the end of the log."""

EOF_CODE: Final = KafkaError._PARTITION_EOF  # noqa: SLF001 - the public name of the constant

KAFKA_LOG: Final = client_logger("joiner.kafka")


def make_consumer(
    kafka: KafkaSettings,
    group: str,
    **more: str | float | bool,
) -> Consumer:
    """A consumer of committed data that never commits by itself and never jumps to another offset."""
    settings: dict[str, str | float | bool] = {
        "group_id": group,
        "enable_auto_commit": False,
        "enable_auto_offset_store": False,
        "auto_offset_reset": "error",
        "isolation_level": "read_committed",
        "check_crcs": True,
    }
    return Consumer(kafka.client_config(**(settings | more)), logger=KAFKA_LOG)


def make_reader(kafka: KafkaSettings, group: str, **more: str | float | bool) -> Consumer:
    """A consumer that reads a log to its end and says when it is there, without the broker's usual wait for more."""
    quick: dict[str, str | float | bool] = {"fetch_wait_max_ms": 10, "fetch_queue_backoff_ms": 2}
    return make_consumer(kafka, group, enable_partition_eof=True, **(quick | more))


def make_producer(kafka: KafkaSettings, **more: str | float | bool) -> Producer:
    """A producer that loses and doubles nothing on its way; ``more`` makes it transactional."""
    return Producer(kafka.producer_config(**more), logger=KAFKA_LOG)


def make_admin(kafka: KafkaSettings) -> AdminClient:
    """A client for looking at topics and groups."""
    return AdminClient(kafka.client_config(), logger=KAFKA_LOG)


def log_range(consumer: Consumer, topic: str, partition: int) -> tuple[int, int]:
    """The first offset of a partition and the one after its last stable record. Raises KafkaException."""
    low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=TIMEOUT_S)
    return int(low), int(high)


def read_to_end(consumer: Consumer, topic: str, partition: int, start: int, end: int) -> Iterator[Message]:
    """The messages of a partition from ``start`` up to ``end``, by a consumer of `make_reader`.

    It ends there, however much others write behind it meanwhile.

    Raises KafkaException where nothing comes for `TIMEOUT_S`.
    """
    consumer.assign([TopicPartition(topic, partition, start)])
    deadline_s = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline_s:
        for message in consumer.consume(1000, READ_WAIT_S):
            error = message.error()
            if error is not None and error.code() == EOF_CODE:
                if (message.offset() or 0) >= end:
                    return
                continue
            raise_for(message)
            if (message.offset() or 0) >= end:
                return
            deadline_s = time.monotonic() + TIMEOUT_S
            yield message
    raise timed_out(f"{topic} [{partition}] could not be read to its end within {TIMEOUT_S:.0f} s")


def raise_for(message: Message) -> None:
    """Raise the error of a message, if it is one."""
    error = message.error()
    if error is not None:
        raise KafkaException(error)


def is_passing(error: KafkaError, partition: int | None) -> bool:
    """Whether an event of a consumer tells no more than that brokers cannot be reached for now.

    The client goes on by itself then, and leaves nothing out. An error of a partition, whatever it says, may stand for
    records that are left out.
    """
    is_fatal = error.fatal() or error.code() == KafkaError._FATAL  # noqa: SLF001 - the public name of the constant
    return (partition is None or partition < 0) and not is_fatal


def timed_out(what: str) -> KafkaException:
    """The error of Kafka not answering, where the library itself sets no limit."""
    return KafkaException(KafkaError(KafkaError._TIMED_OUT, what))  # noqa: SLF001 - the public name of the constant


def is_fenced(error: KafkaException) -> bool:
    """Whether somebody else has taken the transactional id, or may have.

    Once a client knows that it is fenced, its further calls tell only that something fatal has happened. Whoever
    is answered so looks who owns the unit, which is right after any fatal error.
    """
    fault: Any = error.args[0]
    return fault.fatal() or fault.code() == KafkaError._FATAL or names_fencing(error)  # noqa: SLF001 - as above


def names_fencing(error: KafkaException) -> bool:
    """Whether the error says itself that somebody else has taken the transactional id."""
    return error.args[0].code() in {
        KafkaError._FENCED,  # noqa: SLF001 - the public name of the constant
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.PRODUCER_FENCED,
    }


def describe(error: BaseException) -> str:
    """What an error says, of whatever kind it is."""
    if isinstance(error, KafkaException):
        return str(error.args[0].str())
    return str(error) or type(error).__name__


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
        try:
            raise error
        finally:
            # The error knows this frame. If the frame knew it too, whatever is called here would stay, a producer with
            # its threads and connections, until the collector comes, which is seldom (see `gc_tuning`).
            del error
