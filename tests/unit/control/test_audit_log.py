"""The audit topic's producer."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from confluent_kafka import KafkaError, KafkaException

import control.actions.audit_log
from control.actions.audit import Reported, encode
from control.actions.audit_log import AuditLog
from joiner.runtime.clock import SystemClock
from tests.unit.broker.slow_producer import SlowProducer
from tests.unit.control.audited import settings_of

RECORD = Reported(action="a", text="begun")


class _Producer(SlowProducer):
    """Acknowledges a record at once, or names the ``fate`` of a record that was not written."""

    fate: KafkaError | None = None

    def produce(
        self, topic: str, value: bytes, *, partition: int, on_delivery: Callable[..., None] | None = None
    ) -> None:
        super().produce(topic, value, partition=partition)
        if on_delivery is not None and self.late_fault is None:
            on_delivery(self.fate, None)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[_Producer]:
    """The producers made so far."""
    producers: list[_Producer] = []

    def make(*_settings: object, **_more: object) -> _Producer:
        producers.append(_Producer())
        return producers[-1]

    monkeypatch.setattr(control.actions.audit_log, "make_producer", make)
    monkeypatch.setattr(control.actions.audit_log, "ensure_topics", lambda *_: None)
    return producers


@pytest.fixture
def log() -> AuditLog:
    return AuditLog(settings_of(), SystemClock(), threading.Event())


@pytest.mark.parametrize("fault", ["fault", "late_fault", "fate"])
@pytest.mark.parametrize(("code", "is_final"), [(KafkaError._FATAL, True), (KafkaError._STATE, False)])  # noqa: SLF001 - public
def test_a_new_producer_follows_one_that_has_failed_for_good(
    log: AuditLog, made: list[_Producer], fault: str, code: int, *, is_final: bool
) -> None:
    log.append(RECORD)
    setattr(made[0], fault, KafkaError(code))
    with pytest.raises(KafkaException):
        log.append(RECORD)
    setattr(made[0], fault, None)
    log.append(RECORD)
    assert len(made) == 1 + is_final


def test_a_new_producer_follows_one_that_has_failed_for_good_while_it_called_back(
    log: AuditLog, made: list[_Producer], monkeypatch: pytest.MonkeyPatch
) -> None:
    log.append(RECORD)
    made[0].late_fault = KafkaError(KafkaError._FATAL)  # noqa: SLF001 - public

    def poll(_timeout_s: float) -> None:
        """Raise the error as confluent-kafka does during a delivery callback."""
        raise SystemError from KafkaException(made[0].late_fault)

    monkeypatch.setattr(made[0], "poll", poll)
    monkeypatch.setattr(made[0], "flush", poll)
    log.close(1.0)
    with pytest.raises(KafkaException):
        log.append(RECORD)
    log.append(RECORD)
    log.post(RECORD)
    assert len(made) == 2


@pytest.mark.parametrize("fault", ["fault", "late_fault"])
def test_a_report_is_lost_with_the_producer_and_the_next_one_is_written(
    log: AuditLog, made: list[_Producer], fault: str
) -> None:
    log.append(RECORD)
    setattr(made[0], fault, KafkaError(KafkaError._FATAL))  # noqa: SLF001 - public
    log.post(RECORD)
    log.append(RECORD)
    assert made[1].unacknowledged == [encode(RECORD)]


def test_the_log_is_closed_although_its_producer_has_failed_for_good(log: AuditLog, made: list[_Producer]) -> None:
    log.append(RECORD)
    made[0].late_fault = KafkaError(KafkaError._FATAL)  # noqa: SLF001 - public
    log.close(0)
