"""The Kafka client's log: the start and the end of an outage are logged once each; other lines are limited in rate."""

from __future__ import annotations

import logging
import uuid
from typing import Any

import pytest

from broker.kafka.client_log import answered, client_logger

REFUSED = "[thrd:a:9092/bootstrap]: a:9092/bootstrap: Connect to ipv4#10.0.0.1:9092 failed: Connection refused"


class Clock:
    """A clock that a test sets."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("broker.kafka.client_log.time.monotonic", made)
    return made


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture, clock: Clock) -> logging.Logger:
    _ = clock
    made = client_logger(f"test.{uuid.uuid4().hex}")
    caplog.set_level(logging.INFO, made.name)
    return made


def say(log: logging.Logger, kind: str, text: str = REFUSED, level: int = logging.ERROR) -> None:
    """Log a line as the client does."""
    log.log(level, "%s [%s] %s", kind, "rdkafka#producer-1", text)


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in caplog.records]


BEGIN = (
    "WARNING",
    "Kafka is unavailable, retrying: a:9092/bootstrap: Connect to ipv4#10.0.0.1:9092 failed: Connection refused",
)


def test_an_outage_and_its_end_are_logged_once_each_however_long_it_is(
    log: logging.Logger, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(600):
        for kind in ("FAIL", "ERROR", "REQTMOUT", "METADATAUPDATE", "GETPID"):
            say(log, kind)
        clock.now_s += 0.5
    for _ in range(10):
        answered(log)
    assert lines(caplog) == [BEGIN, ("INFO", "Kafka is available again, after 300 s")]


def test_a_session_timeout_is_logged_while_kafka_is_available(
    log: logging.Logger, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    say(log, "FAIL")
    say(log, "SESSTMOUT", "session timed out", logging.WARNING)
    answered(log)
    clock.now_s += 60.0
    say(log, "SESSTMOUT", "session timed out", logging.WARNING)
    assert ["session timed out" in text for _, text in lines(caplog)] == [False, False, True]


@pytest.mark.parametrize("kind", ["GETPID", "COORDQUERY"])
def test_a_kafka_that_answers_that_it_is_still_loading_is_not_unavailable(
    kind: str, log: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    say(log, kind, "Failed to acquire idempotence PID from broker a:9092/1: Coordinator load in progress: retrying")
    answered(log)
    assert lines(caplog) == []


def test_a_kafka_that_was_never_unavailable_is_not_reported_as_back(
    log: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    answered(log)
    assert lines(caplog) == []


def test_a_flapping_broker_is_logged_once_a_minute(
    log: logging.Logger, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(24):
        say(log, "FAIL")
        clock.now_s += 3.0
        answered(log)
        clock.now_s += 2.0
    back = ("INFO", "Kafka is available again, after 3 s")
    assert lines(caplog) == [BEGIN, back, BEGIN, back]


def test_a_connection_that_was_closed_for_being_idle_is_no_outage(
    log: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    say(log, "FAIL", "[thrd:a]: a: Disconnected (after 600000ms in state UP)", logging.INFO)
    answered(log)
    assert lines(caplog) == []


def test_who_looks_closely_sees_every_line(log: logging.Logger, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, log.name)
    for _ in range(3):
        say(log, "FAIL")
    shown: list[Any] = [level for level, _ in lines(caplog)]
    assert shown == ["WARNING", "DEBUG", "DEBUG"]


def test_a_flood_of_another_kind_is_one_line_and_other_kinds_pass(
    log: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(100):
        say(log, "CONFWARN", f"odd {number}", logging.WARNING)
    say(log, "FATAL", "fenced")
    assert [text.rpartition("] ")[2] for _, text in lines(caplog)] == ["odd 0", "fenced"]


def test_another_kind_of_line_is_logged_again_after_an_interval(
    log: logging.Logger, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    say(log, "MAXPOLL")
    clock.now_s += 9.9
    say(log, "MAXPOLL")
    assert len(caplog.records) == 1
    clock.now_s += 0.2
    say(log, "MAXPOLL")
    assert len(caplog.records) == 2


def test_one_logger_has_one_filter() -> None:
    assert client_logger("test.one") is client_logger("test.one")
    assert len(client_logger("test.one").filters) == 1
