"""How does a producer initialise its transactional id, and how many messages does it have to send at a time?"""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from joiner.runtime.kafka import unit_producer
from joiner.runtime.kafka.clients import TIMEOUT_S
from joiner.runtime.kafka.unit_producer import UnitProducer
from joiner.runtime.task.batch import Batch
from tests.manual_clock import ManualClock
from tests.unit.joiner.runtime.joiner_inputs import make_settings

BUSY, SLOW = KafkaError.CONCURRENT_TRANSACTIONS, KafkaError._TIMED_OUT  # noqa: SLF001 - the public name
REFUSED = KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


class Client:
    """Stands in for a producer. Answers the calls that initialise the id one after the other."""

    def __init__(self, clock: ManualClock, *answers: int) -> None:
        self._clock, self._answers = clock, list(answers)
        self.waits_s: list[float] = []

    def init_transactions(self, timeout_s: float) -> None:
        self._clock.now_s += timeout_s
        self.waits_s.append(timeout_s)
        if self._answers and (code := self._answers.pop(0)):
            raise KafkaException(KafkaError(code, retriable=code != REFUSED))


def init(monkeypatch: pytest.MonkeyPatch, *answers: int) -> Client:
    """Initialise the id with these answers. Return the client, of which there is only one."""
    clock = ManualClock()
    client = Client(clock, *answers)
    monkeypatch.setattr(unit_producer, "make_producer", lambda *_given, **_more: client)
    consumer: Any = SimpleNamespace(consumer_group_metadata=lambda: "group")
    owner = UnitProducer(make_settings(), 3, consumer, clock)
    with suppress(KafkaException):
        owner.init()
    return client


@pytest.mark.parametrize("answer", [BUSY, SLOW])
def test_the_call_is_repeated_until_kafka_agrees(monkeypatch: pytest.MonkeyPatch, answer: int) -> None:
    assert init(monkeypatch, answer, answer).waits_s == [0.02, 0.04, 0.08]


def test_the_call_is_repeated_less_and_less_often_and_not_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    waits_s = init(monkeypatch, *[BUSY] * 1_000).waits_s
    assert max(waits_s) == waits_s[-1] == 1.0
    assert TIMEOUT_S < sum(waits_s) < TIMEOUT_S + 2


def test_a_refusal_that_is_final_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    assert init(monkeypatch, REFUSED).waits_s == [0.02]


class Sender(Client):
    """Notes the sizes of the messages that it is given between two flushes."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.requests: list[dict[str, list[int]]] = [{}]
        self.values: dict[str, list[bytes]] = {}

    def _add(self, topic: str, key: bytes | None, value: bytes | None) -> None:
        self.requests[-1].setdefault(topic, []).append(len(key or b"") + len(value or b""))
        self.values.setdefault(topic, []).append(value or b"")

    def begin_transaction(self) -> None:
        pass

    def produce(self, topic: str, value: bytes | None, key: bytes | None, _unit: int, **_more: Any) -> None:
        self._add(topic, key, value)

    def produce_batch(self, topic: str, messages: list[dict[str, Any]], partition: int) -> int:
        assert partition == 3
        for message in messages:
            self._add(topic, message["key"], message["value"])
        return len(messages)

    def poll(self, _timeout_s: float) -> int:
        return 0

    def flush(self, _timeout_s: float) -> int:
        self.requests.append({})
        return 0


@pytest.fixture
def sender(monkeypatch: pytest.MonkeyPatch) -> Sender:
    client = Sender(ManualClock())
    monkeypatch.setattr(unit_producer, "make_producer", lambda *_given, **_more: client)
    return client


@pytest.fixture
def owner(sender: Sender) -> UnitProducer:
    consumer: Any = SimpleNamespace(consumer_group_metadata=lambda: "group")
    made = UnitProducer(make_settings(application={"name": "joiner", "native": False}), 3, consumer, ManualClock())
    assert sender.requests == [{}]
    made.begin()
    return made


def fits_into_a_request(sizes: list[int]) -> bool:
    """Return whether librdkafka could send messages of these sizes in one request."""
    return len(sizes) <= 10_000 and (len(sizes) == 1 or sum(size + 36 for size in sizes) + 1_000 <= 1_000_000)


@pytest.mark.parametrize("keys", [True, False])
@pytest.mark.parametrize(
    ("size", "count", "requests"), [(0, 25_000, 3), (290, 9_000, 4), (400_000, 5, 3), (10**6, 2, 2)]
)
def test_messages_wait_until_a_request_has_room_for_them(
    sender: Sender, owner: UnitProducer, size: int, count: int, requests: int, *, keys: bool
) -> None:
    values = [b"%d " % number + b"x" * size for number in range(count)]
    batch = Batch.of([b"key"] * count if keys else None, values)
    owner.write_all({"out": batch, "second": batch})
    for topic in ("out", "second"):
        sizes = [sent[topic] for sent in sender.requests if topic in sent]
        assert all(map(fits_into_a_request, sizes))
        assert len(sizes) == requests
    assert sender.values == {"out": values, "second": values}


def test_records_wait_until_a_request_has_room_for_them(sender: Sender, owner: UnitProducer) -> None:
    for _ in range(5):
        owner.write("state", "key", b"x" * 400_000)
    assert [sent["state"] for sent in sender.requests] == [[400_003] * 2, [400_003] * 2, [400_003]]


def test_a_transaction_begins_with_an_empty_request(sender: Sender, owner: UnitProducer) -> None:
    for _ in range(3):
        owner.begin()
        owner.write("state", "key", b"x" * 900_000)
    assert len(sender.requests) == 1


def test_topics_are_sent_side_by_side(sender: Sender, owner: UnitProducer) -> None:
    large, small = Batch.of(None, [b"x" * 900_000] * 3), Batch.of(None, [b"x"])
    owner.write_all({"out": large, "second": large, "third": small, "fourth": Batch.of(None, [])})
    assert [" ".join(sent) for sent in sender.requests] == ["out second third", "out second", "out second"]


def test_messages_and_records_of_a_topic_share_requests(sender: Sender, owner: UnitProducer) -> None:
    owner.write("state", "key", b"x" * 900_000)
    owner.write_all({"state": Batch.of(None, [b"x" * 900_000])})
    owner.write("state", "key", None)
    owner.write("state", "key", b"x" * 900_000)
    assert [sent["state"] for sent in sender.requests] == [[900_003], [900_000, 3], [900_003]]


def test_offsets_are_noted_across_parts(sender: Sender, owner: UnitProducer) -> None:
    owner.write_all({"out": Batch.of(None, [b"x" * 900_000] * 3)})
    assert owner.firsts == {"out": -1}
    assert len(sender.requests) == 3


def test_the_reason_why_a_transaction_has_failed_is_reported(
    sender: Sender, owner: UnitProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_given: Any, **_more: Any) -> int:
        raise KafkaException(KafkaError(KafkaError._STATE))  # noqa: SLF001 - the public name

    def begin() -> None:
        raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE, "Current transaction has failed"))

    for call in ("produce", "produce_batch"):
        monkeypatch.setattr(sender, call, refuse)
    with pytest.raises(KafkaException, match="Erroneous state"):
        owner.write_all({"out": Batch.of(None, [b"x"])})
    monkeypatch.setattr(sender, "begin_transaction", begin)
    with pytest.raises(KafkaException, match="Current transaction has failed"):
        owner.write_all({"out": Batch.of(None, [b"x"])})
    with pytest.raises(KafkaException, match="Current transaction has failed"):
        owner.write("state", "key", b"x")
