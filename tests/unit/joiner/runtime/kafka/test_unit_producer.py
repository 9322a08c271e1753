"""How does a producer initialise its transactional id while Kafka still ends the last owner's transaction?"""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from joiner.runtime.kafka import unit_producer
from joiner.runtime.kafka.clients import TIMEOUT_S
from joiner.runtime.kafka.unit_producer import UnitProducer
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
