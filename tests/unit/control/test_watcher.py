"""Does a watcher keep what it knew while Kafka is away, tell why, and go on?"""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from confluent_kafka import KafkaError, KafkaException

from control.facts import watcher
from control.facts.watcher import Facts, Watcher
from joiner.runtime.clock import SystemClock
from tests.unit.joiner.runtime.joiner_inputs import make_settings


class Reading:
    """Stands in for `_Reading`: each run of it makes the next of ``runs``, and the last one forever."""

    runs: ClassVar[list[Any]] = []
    closed: ClassVar[int] = 0

    def __init__(self, *_arguments: object) -> None:
        self._run = Reading.runs.pop(0) if len(Reading.runs) > 1 else Reading.runs[0]

    def read_until(self, _until_s: float, stop: Any) -> None:
        if isinstance(self._run, Exception):
            raise self._run
        stop.wait(0.01)

    def facts(self) -> Facts:
        return Facts(read_ms=self._run, trouble="")

    def close(self) -> None:
        Reading.closed += 1


@pytest.fixture(autouse=True)
def _fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "_Reading", Reading)
    monkeypatch.setattr(watcher, "_RETRY_S", 0.01)
    Reading.closed = 0


def until(one: Watcher, what: str) -> Facts:
    """Wait for facts whose trouble contains a text, or that have none if the text is empty."""
    number = -1
    for _ in range(1_000):
        facts = one.wait(number, 10.0)
        if what in facts.trouble and bool(facts.trouble) == bool(what):
            return facts
        number = facts.number
    raise AssertionError(what)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (KafkaException(KafkaError(KafkaError._ALL_BROKERS_DOWN, "no broker")), "no broker"),  # noqa: SLF001 - its only name
        (RuntimeError("a secret"), "an error in this program; see its log"),
    ],
)
def test_what_was_known_stays_and_the_trouble_is_told(error: Exception, told: str) -> None:
    Reading.runs = [error]
    one = Watcher(make_settings(), SystemClock())
    assert one.facts == Facts()
    one.start()
    assert told in until(one, told).trouble
    Reading.runs = [7]
    assert until(one, "").read_ms == 7
    one.close(10.0)
    # Every consumer was closed.
    assert Reading.closed >= 2


def test_after_trouble_the_last_facts_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    Reading.runs = [7]
    one = Watcher(make_settings(), SystemClock())
    one.start()
    until(one, "")

    def fail(*_arguments: object) -> None:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT, "gone"))  # noqa: SLF001 - its only name

    monkeypatch.setattr(Reading, "read_until", fail)
    assert until(one, "gone").read_ms == 7
    one.close(10.0)


def test_whoever_waits_is_woken_at_the_end() -> None:
    Reading.runs = [7]
    one = Watcher(make_settings(), SystemClock())
    one.start()
    one.close(10.0)
    assert one.wait(10**9, 60.0).number < 10**9
