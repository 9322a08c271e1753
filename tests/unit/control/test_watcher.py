"""Does a watcher keep what it knew while Kafka is away, report why, and go on?"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from confluent_kafka import KafkaError, KafkaException

from broker.settings import SettingsError
from broker.stack.child import wait_until
from control.facts import retrying, watcher
from control.facts.reading import Facts
from control.facts.watcher import Watcher
from joiner.runtime.clock import SystemClock
from joiner.runtime.settings import JoinerSettings
from tests.unit.joiner.runtime.joiner_inputs import make_settings

_DEADLINE_S = 30.0


class Outages:
    """Stands in for `Reading`. ``outcome``: the time at which Kafka answered, None before all was read, or an error.

    ``of``: the application or replica that an error concerns, or an empty string for all. ``read``: what was read.
    """

    outcome: ClassVar[Any] = None
    open: ClassVar[int] = 0
    of: ClassVar[str] = ""
    read: ClassVar[list[str]] = []

    def __init__(self, settings: JoinerSettings, *_arguments: object) -> None:
        Outages.open += 1
        Outages.read.append(settings.application.name)
        self._name = settings.application.name

    def read_until(self, _until_s: float, stop: Any) -> None:
        if isinstance(Outages.outcome, Exception) and Outages.of in {"", self._name}:
            # Not the same object, whose traceback would grow with each attempt.
            raise type(Outages.outcome)(*Outages.outcome.args)
        stop.wait(0.01)

    def facts(self) -> Facts | None:
        outcome = Outages.outcome
        if isinstance(outcome, Exception) and Outages.of not in {"", self._name}:
            return Facts(read_ms=1, trouble="")
        return Facts(read_ms=outcome, trouble="") if isinstance(outcome, int) else None

    def close(self) -> None:
        Outages.open -= 1


class NoLetters:
    """Stands in for `LetterReading`. There are no dead letters, and Kafka is away in the beginning."""

    def __init__(self, *_arguments: object) -> None:
        self._is_first = True

    def read(self, stop: threading.Event, note_success: Callable[[], None]) -> None:
        if self._is_first:
            self._is_first = False
            raise KafkaException(KafkaError(KafkaError._TRANSPORT, "letters away"))  # noqa: SLF001 - its only name
        note_success()
        stop.wait()


@pytest.fixture
def watching(monkeypatch: pytest.MonkeyPatch) -> Watcher:
    monkeypatch.setattr(watcher, "Reading", Outages)
    monkeypatch.setattr(watcher, "LetterReading", NoLetters)
    monkeypatch.setattr(retrying, "_RETRY_S", 0.01)
    monkeypatch.setattr(retrying, "_RETRY_S_MAX", 0.02)
    Outages.outcome, Outages.open, Outages.of = None, 0, ""
    Outages.read.clear()
    return Watcher(make_settings(), SystemClock())


def becomes(watching: Watcher, trouble: str, read_ms: int | None) -> bool:
    def is_so() -> bool:
        facts = watching.facts
        return trouble in facts.trouble and bool(facts.trouble) == bool(trouble) and facts.read_ms == read_ms

    return wait_until(is_so, _DEADLINE_S)


@pytest.mark.parametrize(
    ("error", "trouble"),
    [
        (KafkaException(KafkaError(KafkaError._ALL_BROKERS_DOWN, "no broker")), "no broker"),  # noqa: SLF001 - its only name
        (SettingsError("the secret file cannot be read"), "the secret file cannot be read"),
        (RuntimeError("a secret"), "an error in this program"),
    ],
)
def test_what_was_known_stays_and_the_trouble_is_reported(watching: Watcher, error: Exception, trouble: str) -> None:
    assert watching.facts == Facts()
    watching.start()
    Outages.outcome = error
    assert becomes(watching, trouble, None)
    Outages.outcome = 7
    assert becomes(watching, "", 7)
    Outages.outcome = error
    assert becomes(watching, trouble, 7)
    assert "secret" not in watching.facts.trouble or isinstance(error, SettingsError)
    # What is not read to the end yet is not shown, and neither is it shown as in order.
    Outages.outcome = None
    number = watching.facts.number
    assert wait_until(lambda: Outages.open == 1, _DEADLINE_S)
    assert (watching.facts.number - number in {0, 1}, watching.facts.read_ms) == (True, 7)
    assert trouble in watching.facts.trouble
    Outages.outcome = 8
    assert becomes(watching, "", 8)
    watching.stop()
    watching.join(_DEADLINE_S)
    assert Outages.open == 0


def test_it_stops_although_kafka_is_away(watching: Watcher) -> None:
    Outages.outcome = KafkaException(KafkaError(KafkaError._TRANSPORT, "gone"))  # noqa: SLF001 - its only name
    watching.start()
    assert becomes(watching, "gone", None)
    watching.stop()
    watching.join(_DEADLINE_S)
    assert Outages.open == 0


def test_dead_letters_are_read_in_a_thread_of_their_own_which_tells_its_own_troubles(watching: Watcher) -> None:
    Outages.outcome = 7
    watching.start()
    assert becomes(watching, "", 7)
    assert wait_until(lambda: watching.letters.page(None, 1).trouble == "letters away", _DEADLINE_S)
    assert watching.facts.trouble == ""
    watching.stop()
    watching.join(_DEADLINE_S)
    assert Outages.open == 0


def test_each_replica_is_read_in_a_thread_of_its_own_whose_troubles_are_those_of_the_replica_alone(
    watching: Watcher,
) -> None:
    assert watching.facts.replicas == {}
    watching = Watcher(make_settings(application={"replicas": 3}), SystemClock())
    Outages.outcome = 7
    watching.start()

    def replicas() -> dict[int, tuple[int | None, str]]:
        return {number: (facts.read_ms, facts.trouble) for number, facts in watching.facts.replicas.items()}

    assert wait_until(lambda: replicas() == {1: (7, ""), 2: (7, "")}, _DEADLINE_S)
    assert becomes(watching, "", 7)
    Outages.of = "lsb.r2"
    Outages.outcome = KafkaException(KafkaError(KafkaError._TRANSPORT, "gone"))  # noqa: SLF001 - its only name
    assert wait_until(lambda: replicas() == {1: (1, ""), 2: (7, "gone")}, _DEADLINE_S)
    assert becomes(watching, "", 1)
    assert set(Outages.read) == {"lsb", "lsb.r1", "lsb.r2"}
    watching.stop()
    watching.join(_DEADLINE_S)
    assert Outages.open == 0


def test_without_replicas_no_other_state_is_read(watching: Watcher) -> None:
    Outages.outcome = 7
    watching.start()
    assert becomes(watching, "", 7)
    watching.stop()
    watching.join(_DEADLINE_S)
    assert (Outages.read, watching.facts.replicas) == (["lsb"], {})
