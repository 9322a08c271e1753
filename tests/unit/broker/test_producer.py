"""When a producer is replaced, and which records it sends again, tested with a stand-in for the client library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import pytest
from confluent_kafka import KafkaError, KafkaException

from broker.kafka import producer as module
from broker.kafka.client_log import client_logger
from broker.kafka.producer import DeliveryError, LastingProducer, Outgoing
from broker.settings import KafkaSettings

PATIENCE_S = 30.0


class Library:
    """Stands in for ``confluent_kafka.Producer``. Kafka accepts nothing until `accept` is called."""

    room = 1000

    def __init__(self, _config: dict[str, Any]) -> None:
        self.queued: list[dict[str, Any]] = []
        self.accepted: list[bytes] = []
        made.append(self)

    def produce_batch(self, _topic: str, batch: list[dict[str, Any]]) -> int:
        fits = max(0, self.room - len(self.queued))
        self.queued += batch[:fits]
        for message in batch[fits:]:
            message["_error"] = KafkaError(KafkaError._QUEUE_FULL)  # noqa: SLF001 - librdkafka's name for it
        return min(fits, len(batch))

    def produce(self, _topic: str, value: bytes, _key: bytes, *, on_delivery: object, headers: object) -> None:
        if len(self.queued) >= self.room:
            raise BufferError
        self.queued.append({"value": value, "callback": on_delivery, "headers": headers})

    def poll(self, timeout_s: float) -> None:
        clock.now_s += timeout_s

    def flush(self, timeout_s: float) -> None:
        clock.now_s += timeout_s

    def purge(self) -> None:
        pass

    def accept(self, count: int) -> None:
        """Make Kafka accept the first ``count`` queued records."""
        for message in self.queued[:count]:
            self.accepted.append(message["value"])
            message["callback"](None, None)
        del self.queued[:count]


class Clock:
    """A clock that advances only while code waits."""

    now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


made: list[Library] = []
clock = Clock()


@pytest.fixture
def confirmed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    made.clear()
    monkeypatch.setattr(module, "Producer", Library)
    monkeypatch.setattr(module, "time", clock)
    return []


def make(confirmed: list[int]) -> LastingProducer[int]:
    return LastingProducer[int](KafkaSettings(), client_logger("test.lasting"), confirmed.append, patience_s=PATIENCE_S)


def outgoing(*numbers: int) -> list[Outgoing[int]]:
    return [Outgoing(b"key", b"%d" % number, number) for number in numbers]


def test_what_is_unconfirmed_for_too_long_is_sent_again_by_a_new_producer_in_its_order(confirmed: list[int]) -> None:
    producer = make(confirmed)
    producer.send("topic", outgoing(0, 1, 2, 3))
    made[0].accept(1)
    producer.poll(1.0)
    producer.send("topic", outgoing(4))
    producer.poll(PATIENCE_S)
    assert len(made) == 1, "no record has been the oldest for longer than that"
    producer.poll(1.0)
    assert [message["value"] for message in made[1].queued] == [b"1", b"2", b"3", b"4"]
    made[0].accept(2)
    made[1].accept(4)
    assert (confirmed, len(producer)) == ([0, 1, 2, 3, 4], 0), "what both sent is confirmed once"


def test_a_slow_kafka_is_no_stuck_one(confirmed: list[int]) -> None:
    producer = make(confirmed)
    producer.send("topic", outgoing(*range(10)))
    for _ in range(10):
        producer.poll(PATIENCE_S)
        made[0].accept(1)
    assert (len(made), confirmed) == (1, list(range(10)))


def test_time_without_a_record_is_no_waiting(confirmed: list[int]) -> None:
    producer = make(confirmed)
    for number in range(3):
        producer.poll(0.0)
        clock.now_s += 100 * PATIENCE_S
        producer.send("topic", outgoing(number))
        producer.poll(0.0)
        made[0].accept(1)
    assert (len(made), confirmed) == (1, [0, 1, 2])


@pytest.mark.parametrize("headers", [(), (("mqtt.topic", b"a"),)])
def test_a_producer_that_is_stuck_with_a_full_queue_is_replaced_and_loses_nothing(
    confirmed: list[int], monkeypatch: pytest.MonkeyPatch, headers: Sequence[tuple[str, bytes]]
) -> None:
    monkeypatch.setattr(Library, "room", 3)
    producer = make(confirmed)
    original = Library.poll

    def poll(library: Library, timeout_s: float) -> None:
        original(library, timeout_s)
        if len(made) > 2:
            library.accept(1)

    monkeypatch.setattr(Library, "poll", poll)
    producer.send("topic", [one._replace(headers=headers) for one in outgoing(*range(10))])
    while len(producer):
        producer.poll(0.0)
    assert (confirmed, made[2].accepted) == (list(range(10)), [b"%d" % number for number in range(10)])
    assert not made[0].accepted


def test_headers_are_sent_with_their_records(confirmed: list[int]) -> None:
    producer = make(confirmed)
    producer.send("topic", [one._replace(headers=(("mqtt.topic", b"a"),)) for one in outgoing(0, 1)])
    assert [(one["value"], one["headers"]) for one in made[0].queued] == [
        (b"0", [("mqtt.topic", b"a")]),
        (b"1", [("mqtt.topic", b"a")]),
    ]
    made[0].accept(2)
    assert (confirmed, len(producer)) == ([0, 1], 0)


def test_a_record_that_the_client_refuses_ends_the_producer(
    confirmed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def produce(*_: object, **__: object) -> None:
        raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))

    monkeypatch.setattr(Library, "produce", produce)
    with pytest.raises(DeliveryError, match="Kafka does not accept a record for topic"):
        make(confirmed).send("topic", [outgoing(0)[0]._replace(headers=(("mqtt.topic", b"a"),))])


TRUNCATED = KafkaException(KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, "the log was truncated", fatal=True))


def fail(error: Exception) -> NoReturn:
    raise error


def during_delivery(error: KafkaException) -> SystemError:
    """Return an error as confluent-kafka raises it out of a delivery callback."""
    raised = SystemError("a callback returned a result with an exception set")
    raised.__cause__ = error
    return raised


@pytest.mark.parametrize("wrap", [lambda error: error, during_delivery])
@pytest.mark.parametrize("call", ["poll", "flush"])
def test_a_producer_that_has_failed_for_good_ends_with_the_reason(
    confirmed: list[int],
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    wrap: Callable[[KafkaException], Exception],
) -> None:
    producer = make(confirmed)
    producer.send("topic", outgoing(0))
    monkeypatch.setattr(Library, call, lambda *_: fail(wrap(TRUNCATED)))
    with pytest.raises(DeliveryError, match="the Kafka producer failed: the log was truncated"):
        getattr(producer, call)(1.0)


@pytest.mark.parametrize("headers", [(), (("mqtt.topic", b"a"),)])
def test_a_producer_that_fails_while_its_queue_is_full_ends_with_the_reason(
    confirmed: list[int], monkeypatch: pytest.MonkeyPatch, headers: Sequence[tuple[str, bytes]]
) -> None:
    monkeypatch.setattr(Library, "room", 1)
    monkeypatch.setattr(Library, "poll", lambda *_: fail(TRUNCATED))
    with pytest.raises(DeliveryError, match="the Kafka producer failed: the log was truncated"):
        make(confirmed).send("topic", [one._replace(headers=headers) for one in outgoing(0, 1)])


def test_a_stuck_producer_that_fails_at_the_end_is_replaced(
    confirmed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = make(confirmed)
    producer.send("topic", outgoing(0))
    monkeypatch.setattr(Library, "flush", lambda *_: fail(TRUNCATED))
    for _ in range(2):
        producer.poll(PATIENCE_S)
    producer.poll(1.0)
    assert [message["value"] for message in made[1].queued] == [b"0"]
