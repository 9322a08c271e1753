"""Which errors end the wait of a process that may merge?"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from joiner.cli.merging import leadership
from joiner.cli.merging.leadership import Leadership
from tests.manual_clock import ManualClock
from tests.unit.joiner.runtime.joiner_inputs import make_settings

ALL_DOWN = KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down")  # noqa: SLF001 - the public name


def polling(monkeypatch: pytest.MonkeyPatch, error: KafkaError | None) -> Leadership:
    """Return the membership of a process whose client tells an error."""
    message: Any = None if error is None else SimpleNamespace(error=lambda: error)
    consumer = SimpleNamespace(subscribe=lambda *_given, **_more: None, poll=lambda _wait_s: message)
    monkeypatch.setattr(leadership, "make_consumer", lambda *_given, **_more: consumer)
    return Leadership(make_settings(application={"name": "app", "replicas": 2}), ManualClock())


@pytest.mark.parametrize(
    "code",
    [
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.INVALID_SESSION_TIMEOUT,
    ],
)
def test_a_process_that_can_never_merge_says_so_instead_of_waiting(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """If the topic was deleted, starting over creates it."""
    with pytest.raises(KafkaException, match=r"group app/merge, topic app\.control: .*refused"):
        polling(monkeypatch, KafkaError(code, "JoinGroup failed: refused")).check()


@pytest.mark.parametrize("error", [None, ALL_DOWN])
def test_a_process_waits_for_its_turn_while_kafka_is_away(
    monkeypatch: pytest.MonkeyPatch, error: KafkaError | None
) -> None:
    assert not polling(monkeypatch, error).check()


def test_a_client_that_has_failed_for_good_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KafkaException, match="fenced"):
        polling(monkeypatch, KafkaError(KafkaError._FATAL, "fenced")).check()  # noqa: SLF001 - the public name
